"""Every command of the README works as it stands there.

The first command of each verb runs in a process of its own, which finds what an import elsewhere would hide.
"""

import json
import re
import subprocess

import pytest

import architecture_page
from conftest import ROOT, called_here
from proof import code
from proof.__main__ import BOOKS, page

README = (ROOT / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
LINES = [line.split("  #")[0].strip() for line in BLOCKS.splitlines() if line.strip() and not line.startswith("#")]
COMMANDS = [line for line in LINES if line.startswith("python run_bench.py")]
TARGETS = [line for line in LINES if line.startswith("make")]
VERBS = [line.split()[2] for line in COMMANDS]
FIRST_OF_VERB = {COMMANDS[VERBS.index(verb)] for verb in VERBS}


def test_the_readme_shows_commands():
    assert len(COMMANDS) >= 6 and len(TARGETS) >= 2
    assert {line.split()[0] for line in LINES} <= {"python", "make", "git", "cd"}


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line, checkout, called_once, launcher):
    arguments = line.replace("python run_bench.py", "").split()
    if line in FIRST_OF_VERB:
        done = called_once(" ".join(arguments))
    else:
        done = called_here(checkout, launcher, (*arguments, *quick(arguments)))
    slower = "docs/example/after" in arguments  # the example is one of a change for the worse
    assert done.returncode == (1 if slower else 0), done.stdout + done.stderr


def quick(arguments: list[str]) -> list[str]:
    """What makes a run short."""
    if arguments[0] != "run":
        return []
    settings = ["launches=1", "sampling.seconds_per_case=0.05", "sizes=[1KiB]"]
    settings += ["budget=2s"] * any(argument.startswith("budget=") for argument in arguments)
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("line", TARGETS)
def test_target(line):
    done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_of_the_architecture_is_current():
    assert architecture_page.PAGE.read_text() == architecture_page.page(), "run: make docs"


@pytest.mark.parametrize("name", BOOKS)
def test_the_pages_of_the_proof_say_what_is_of_older_code(name):
    kept = BOOKS[name].file.with_suffix(".json")
    if not kept.exists():
        pytest.skip(f"{kept.name} does not exist: make {BOOKS[name].command.split()[1]} has not run yet")
    parts = json.loads(kept.read_bytes())
    assert BOOKS[name].file.with_suffix(".md").read_text() == page(BOOKS[name], parts), "run: make docs"


def test_a_fingerprint_changes_with_the_code_and_not_with_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "BENCH", tmp_path)
    found = []
    for text in ('"""Doc."""\nX = 1\n', '"""Other."""\nX = 1  # comment\n', "X = 2\n"):
        (tmp_path / "module.py").write_text(text)
        found.append(code.fingerprint(["module.py"]))
    assert found[0] == found[1] != found[2]
