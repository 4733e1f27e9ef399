"""Run the tests of a copy of CollBench that lacks a package: a plugin of pytest, `-p absent`, with ABSENT=PACKAGE.

A test that uses the package is skipped as the package's own when it first uses it. A test whose name, or whose file's
name, has the package is left out, and so are tests that start processes (`test_standing_alone` starts a run itself) and
the tests of other packages, which do not know this one (`test_architecture`).
"""

import importlib.abc
import importlib.machinery
import os
import re
import sys
from types import ModuleType

import pytest

ABSENT = os.environ["ABSENT"]
# Fixtures that start the program, or ranks.
STARTING = {"warm", "cli", "launcher", "elsewhere", "ended"}
# Tests of what is made from all packages together: configurations, schemas, claims, names of torch.
TOGETHER = ("schema", "shipped_configuration", "paths_of_a_claim", "private_name_that_is_requested", "has_the_columns")
OWN = {  # tests of other files that use a package without importing it
    "training": (
        "names_no_operation", "settings_of_a_strategy", "way_to_write_a_strategy", "page_on_python_works",
        "options_of_another_operation",
    ),
    "interop": ("stored_notice_is_read", "values_that_a_file_lacks"),
    "replay": ("names_no_operation", "nothing_is_unpickled", "settings_are_of_another_operation"),
}  # fmt: skip
# A file that imports as many modules of one package tests that package. Fewest tests that must stay.
MODULES, FEWEST = 3, 250


class Thing(ModuleType):
    """A module of the package, or anything in it: every use but naming a part skips the test."""

    __path__: list[str] = []  # noqa: RUF012 - makes it a package for the import system

    def __getattr__(self, name: str) -> "Thing":
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing(name)

    def __call__(self, *_: object, **__: object) -> None:
        pytest.skip(f"a test of {ABSENT}", allow_module_level=True)

    __iter__ = __or__ = __contains__ = __getitem__ = __len__ = __index__ = __add__ = __mul__ = __rmul__ = __call__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the absent package."""

    def find_spec(self, name, path, target=None):
        within = f"{name}.".startswith(f"collbench.packages.{ABSENT}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if within else None

    def create_module(self, spec):
        return Thing(spec.name)

    def exec_module(self, module): ...


def pytest_configure():
    sys.meta_path.insert(0, Finder())


def pytest_ignore_collect(collection_path):
    text = collection_path.read_text() if collection_path.suffix == ".py" else ""
    imports = re.findall(r"^from collbench\.packages\.(\w+)", text, re.MULTILINE)
    return ABSENT in collection_path.name or any(imports.count(package) >= MODULES for package in imports) or None


def pytest_collection_modifyitems(config, items):
    left_out = (ABSENT, *TOGETHER, *OWN.get(ABSENT, ()))
    kept = [
        item
        for item in items
        if not STARTING & set(getattr(item, "fixturenames", ())) and not any(part in item.name for part in left_out)
    ]
    assert len(kept) > FEWEST, "too much is left out to show anything"
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
