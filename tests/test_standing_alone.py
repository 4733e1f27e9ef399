"""Packages can be left out: without one, and without all, every other module loads and the commands work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.catalog.registry import PACKAGES
from conftest import ROOT, TINY

NAMES = [package.name for package in PACKAGES]
# For each copy, a child loads every module and calls the commands. The parent loads what all children would load.
PROGRAM = """
import importlib, json, os, pathlib, sys, traceback
import matplotlib.pyplot, numpy, pandas, pydantic, rich.console, ruamel.yaml, scipy.stats, torch.distributed, typer

def works(copy, commands):
    os.chdir(copy)
    sys.path.insert(0, "bench")
    for path in sorted(pathlib.Path("bench/collbench").rglob("*.py")):
        name = ".".join(path.relative_to("bench").with_suffix("").parts)
        if not name.endswith("__main__"):
            importlib.import_module(name.removesuffix(".__init__"))
    from collbench.__main__ import main
    for command in commands:
        assert main(command.split()) == 0, command

for copy, commands in json.load(sys.stdin).items():
    if (child := os.fork()) == 0:
        status = 1
        try:
            works(copy, commands)
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    if os.waitpid(child, 0)[1]:
        print("FAILED", pathlib.Path(copy).name, file=sys.stderr, flush=True)
"""
COMMANDS = [
    "--help", "list", "list operations", "schema", "plan gloo", "plan tiny.yaml", "report before --no-plots",
    "compare before before --format markdown", "diagnose before",
]  # fmt: skip
MEASURED = ["run tiny.yaml", "report --format csv"]


def copy_without(left_out: list[str], place: Path) -> None:
    """Copy the checkout without some packages; the copy has a configuration and a run."""
    for name in ("bench", "configs", "docs"):
        shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("images", "gloo"))
    table = place / "bench/collbench/packages/__init__.py"
    for name in left_out:
        shutil.rmtree(table.parent / name)
    kept = [name for name in NAMES if name not in left_out]
    imports = "".join(f"from collbench.packages.{name}.package import {name.upper()}\n" for name in kept)
    table.write_text(f"{imports}PACKAGES = ({''.join(f'{name.upper()}, ' for name in kept)})\n")
    (place / "tiny.yaml").write_text(TINY)
    shutil.copytree(ROOT / "docs/example/before", place / "results/20260101T000000Z-before")


@pytest.mark.slow
def test_the_rest_loads_and_works_without_a_package_and_without_all(tmp_path):
    copies = {str(tmp_path / name): COMMANDS for name in NAMES} | {str(tmp_path / "all"): COMMANDS + MEASURED}
    for copy in copies:
        copy_without(NAMES if copy.endswith("/all") else [Path(copy).name], Path(copy))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(copies), env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0 and "FAILED" not in done.stderr, done.stderr[-4000:]
