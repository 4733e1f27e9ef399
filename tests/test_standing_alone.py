"""A package can be left out: a copy of CollBench without it passes all tests but the package's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.catalog.registry import PACKAGES
from conftest import ROOT

# Tests of what the table of packages reaches. All of `make test` takes five minutes a package.
REACHED = (
    "architecture", "compare", "comparability", "config", "labels", "notebook", "notices", "operations", "page", "plan",
    "problems", "report", "schema_of_configurations", "series", "splits", "store", "summaries", "units",
)  # fmt: skip
# Entries of the checkout that the copy does not need.
LEFT_OUT = {".git", "build", "plots", "results"}


def copy(target: Path) -> None:
    """Copy the checkout, without environments, caches and results."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for entry in ROOT.iterdir():
        if entry.is_file():
            shutil.copy(entry, target)
        elif entry.name not in LEFT_OUT and not re.match(r"\.venv|\..*_cache|\.hypothesis", entry.name):
            shutil.copytree(entry, target / entry.name, symlinks=True, ignore=unwanted)


@pytest.mark.slow
@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_a_copy_without_a_package_works(package, tmp_path):
    copy(tmp_path)
    folder = tmp_path / "bench" / "collbench" / "packages"
    shutil.rmtree(folder / package)
    table = folder / "__init__.py"
    constant = package.upper()
    text = re.sub(rf"^from .* import {constant}\n", "", table.read_text(), flags=re.MULTILINE)
    table.write_text(re.sub(rf"\b{constant}(, |(?=\)))", "", text))
    path = os.pathsep.join([str(tmp_path / "bench"), str(tmp_path / "tests")])
    variables = os.environ | {"ABSENT": package, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "absent", "-p", "no:cacheprovider", "-m", "not slow"]
    tests += [f"tests/test_{name}.py" for name in REACHED]
    done = subprocess.run(tests, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for words in (["run", "smoke", "--no-plots"], ["report"], ["list", "operations"], ["plan", "gloo"], ["schema"]):
        command = [sys.executable, "run_bench.py", *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True)
        assert done.returncode == 0, (words, done.stderr.decode())
