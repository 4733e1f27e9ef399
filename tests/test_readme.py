"""Every command of the README works as it stands there."""

import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
LINES = [line.split("  #")[0].strip() for line in BLOCKS.splitlines() if line.strip() and not line.startswith("#")]
COMMANDS = [line for line in LINES if line.startswith("python run_bench.py")]
TARGETS = [line for line in LINES if line.startswith("make")]


def test_the_readme_shows_commands():
    assert len(COMMANDS) >= 6 and len(TARGETS) >= 2
    assert {line.split()[0] for line in LINES} <= {"python", "make", "git", "cd"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What a command of the README needs, where its results do no harm."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "configs", place / "configs")
    shutil.copytree(ROOT / "docs", place / "docs")
    return place


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line, checkout):
    arguments = line.replace("python run_bench.py", "").split()
    quick = []
    if arguments[0] == "run" and "configs/smoke.yaml" not in arguments and "--resume" not in arguments:
        quick = ["--set", "launches=1", "--set", "sampling.seconds_per_case=0.05", "--set", "sizes=[1KiB]"]
    if any(argument.startswith("budget=") for argument in arguments):
        quick += ["--set", "budget=4s"]
    command = [sys.executable, str(ROOT / "run_bench.py"), *arguments, *quick]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("line", TARGETS)
def test_target(line):
    done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_file_tree_of_the_readme_is_the_file_tree():
    named = set(re.findall(r"^[│├└─\s]*([\w./-]+\.(?:py|yaml|md))\s+#", README, re.MULTILINE))
    assert {path.name for path in (ROOT / "bench").rglob("*.py")} - {"__init__.py"} <= {n.split("/")[-1] for n in named}
    for name in named:
        assert (ROOT / name).is_file(), name
