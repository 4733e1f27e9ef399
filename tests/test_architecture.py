"""The code keeps the import law and the house rules of DESIGN; the tests read its syntax trees.

A folder says in which process its lines run; the table below lists the imports that each folder may have. Imports
inside functions count, and so do modules that are named by text.
"""

import ast
import functools
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.catalog import registry
from collbench.packages.replay.importers.recordings import PlainData
from collbench.rank.group import PlainUnpickler
from conftest import ROOT, syntax_trees
from tools import rooms

BENCH = ROOT / "bench" / "collbench"
TABLES = {"model", "catalog", "stats"}
PREPARED = TABLES | {"config", "planning", "store"}
MEASURING = PREPARED | {"machine", "protocol"}
# Room → the rooms that it may import, apart from itself.
MAY_IMPORT = {
    "model": set(),
    "catalog": {"model"},
    "stats": {"model"},
    "config": {"model", "catalog"},
    "planning": TABLES | {"config"},
    "store": TABLES | {"config", "planning"},
    "machine": {"model", "catalog"},
    "protocol": {"model", "machine"},
    "launch": MEASURING,
    "rank": MEASURING,
    "analyze": PREPARED,
    "importers": PREPARED | {"machine"},
    "report": PREPARED,
    "cli": MEASURING | {"launch", "analyze", "importers", "report"},
    "notebook": {"model", "store", "report", "cli"},
    "__main__": {"cli"},
    "": set(),
}  # fmt: skip
# Packages have the same rooms. They may use the core; the core does not know them.
PACKAGES = rooms.PACKAGES
# The rooms of modules of a package that are not in the folder of a room.
PART_OF = {
    "plots": "report",
    "operation": "catalog",
    "package": "catalog",
    **dict.fromkeys(("conclusions", "process_state", "recorded_calls", "replayed_calls"), "model"),
    **dict.fromkeys(("rules", "step_records", "synchronisation"), "model"),
}
# The table of packages. The core reads it by name, and no import runs upwards.
TABLE = "collbench.packages"
# Modules that a room may name by text only: they are loaded in another process, or late.
MAY_NAME = {
    ("launch", "collbench.rank.preload"),
    ("launch", "collbench.rank.server"),
    ("launch", "collbench.rank.main"),
    ("launch", "collbench.cli.side_worker"),
    ("cli", "collbench.packages.training.rank.equivalence"),
    ("cli", "collbench.packages.bits.rank"),
}
FILES = {
    ".".join(path.relative_to(BENCH.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(BENCH.rglob("*.py"))
}


def package_of(module: str) -> str:
    """Return the package of a module, or of a name in a module; empty: the core."""
    parts = module.split(".")[1:]
    return parts[1] if parts[:1] == ["packages"] and len(parts) > 1 else ""


def room_of(module: str) -> str:
    """Return the room of a module, or of a name in a module, also within a package; empty for `__init__.py`."""
    parts = module.split(".")[3 if package_of(module) else 1 :]
    room = PART_OF.get(parts[0], parts[0]) if parts else ""
    return room if room in MAY_IMPORT else ""


def is_record(module: str) -> bool:
    """Return whether a module names parts by text, to be loaded late: the record of a package, or of its operations."""
    return module.endswith(".package") or (bool(package_of(module)) and module.endswith(".operation"))


def imported(tree: ast.AST) -> set[str]:
    """Return the modules, and the names within modules, that a file imports anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def named_by_text(tree: ast.AST) -> set[str]:
    """Return the modules that strings name: "collbench.rank.main:main", and arguments of `Deferred`: "cli.run:run"."""
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Deferred":
            texts |= {f"collbench.{part.value}" for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return {text.partition(":")[0] for text in texts if re.fullmatch(r"collbench(\.[a-z_]+)+\.?(:[A-Za-z_.]+)?", text)}


@functools.cache
def imports() -> dict[str, set[str]]:
    return {module: imported(syntax_trees()[path]) for module, path in FILES.items()}


def test_imports_keep_the_law():
    assert {room_of(module) for module in FILES} == set(MAY_IMPORT)
    broken = []
    for module, names in imports().items():
        room, texts = room_of(module), named_by_text(syntax_trees()[FILES[module]])
        for name in {name for name in names | texts if name.startswith("collbench.")}:
            if name in texts - names and (room, name) in MAY_NAME:
                continue
            if module == TABLE and re.fullmatch(rf"{TABLE}\.\w+\.package(\.\w+)?", name):
                continue
            if package_of(name) not in {"", package_of(module)}:
                broken.append(f"{module} must not know the package of {name}")
            elif is_record(module) and name in texts - names:
                continue  # a record names the parts of its package, which are loaded late
            elif room_of(name) != room and room_of(name) not in {*MAY_IMPORT[room], ""}:
                broken.append(f"{module} must not import or name {name}")
    assert broken == []


def test_the_core_names_no_operation_and_no_option_of_a_package():
    names = set()  # short names of options are also ordinary words
    for package in registry.PACKAGES:
        for operation in [package.operation.value] if package.operation else []:
            names |= {operation.name, *(option.name for option in operation.own_options if len(option.name) > 7)}
    assert {"training_step", "strategy", "recording"} <= names
    of_core = {module: ast.walk(syntax_trees()[path]) for module, path in FILES.items() if not package_of(module)}
    texts = {(m, node.value) for m, nodes in of_core.items() for node in nodes if isinstance(node, ast.Constant)}
    assert [(module, text) for module, text in texts if text in names] == []


def test_no_import_cycle():
    done: set[str] = {"collbench"}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail, name])
        if name in FILES and name not in done:
            for target in imports()[name] - {"collbench"}:
                visit(target, (*trail, name))
            done.add(name)

    for name in FILES:
        visit(name, ())


# Imports each module while no other module of bench is loaded, as a fork server or a notebook does.
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [module for module in sys.modules if module.startswith("collbench")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_modules_of_packages_can_be_imported_first():
    """The core loads these rooms of packages while it is loaded itself."""
    rooms_loaded = {"config", "planning", "importers"}
    names = [module for module in FILES if package_of(module) and room_of(module) in rooms_loaded]
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH, *names], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-400:]


def test_packages_stay_in_their_rooms():
    users: dict[str, set[str]] = {}
    for module, names in imports().items():
        for name in names:
            users.setdefault(name.split(".")[0], set()).add(room_of(module))
    assert {package: users[package] for package in ("torch", "matplotlib", "typer", "pydantic", "ruamel")} == {
        "torch": {"rank"},
        "matplotlib": {"report"},
        "typer": {"cli"},
        "pydantic": {"config", "store", "report"},
        "ruamel": {"config"},
    }


def test_printed_text_goes_through_one_module():
    """This module escapes the characters that a terminal would obey, so that no verb can forget to."""
    doors = {module for module, path in FILES.items() if "typer.echo" in path.read_text()}
    assert doors == {"collbench.cli.terminal"}
    printing = {module for module, path in FILES.items() if re.search(r"console\.(print|log|out)\(", path.read_text())}
    assert printing == {"collbench.report.progress"}


def test_the_environment_is_read_in_one_place():
    # mpirun_placeholder runs in a process of its own, which loads nothing else
    reads = {module for module, path in FILES.items() if re.search(r"os\.environ|getenv", path.read_text())}
    assert reads <= {"collbench.machine.environment", "collbench.launch.mpirun_placeholder"}


def test_nothing_is_unpickled_but_plain_data():
    """torch's flight recorder writes pickles, and its collectives send them; both readers refuse every class."""
    users = {module for module, names in imports().items() if names & {"pickle", "marshal", "shelve", "dill"}}
    assert users == {"collbench.packages.replay.importers.recordings", "collbench.rank.group"}
    for reader in (PlainData, PlainUnpickler):
        with pytest.raises(pickle.UnpicklingError):
            reader(io.BytesIO(pickle.dumps(Path))).load()
