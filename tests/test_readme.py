"""Every command of the README works as it stands there.

The first command of each verb runs in a process of its own, which finds what an import elsewhere would hide.
"""

import functools
import re
import subprocess

import pytest

import bench
from bench.cli.app import VERBS as VERBS_OF_HELP
from bench.cli.app import _app
from conftest import ROOT, called_here
from proof import code

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = "collbench "


def lines_of(page: str) -> list[str]:
    """The commands in the blocks of a page that a reader can type as they are, without their comments."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    lines = (re.split(r"\s+#", line)[0].strip() for line in blocks.splitlines())
    return [line for line in lines if line]


LINES = lines_of(README)
OPERATORS = [line for line in lines_of((ROOT / "docs/operators.md").read_text()) if line not in LINES]
COMMANDS = [line for line in [*LINES, *OPERATORS] if line.startswith(PROGRAM)]
TARGETS = [line for line in LINES if line.startswith("make")]
VERBS = [line.split()[1] for line in COMMANDS]
FIRST_OF_VERB = {COMMANDS[VERBS.index(verb)] for verb in VERBS}
# Of the examples in --help: one needs several hosts, and the table of another has mistakes in it.
NOT_HERE = {"gate": 3}


def test_the_readme_shows_commands_and_fits_on_a_page():
    assert len(COMMANDS) >= 10 and len(TARGETS) >= 3
    assert {line.split()[0] for line in LINES} <= {"collbench", "make", "git", "cd"}
    assert len(README.splitlines()) <= 130


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line, checkout, called_once, launcher):
    arguments = line.removeprefix(PROGRAM).split()
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


@pytest.mark.parametrize("verb", VERBS_OF_HELP)
def test_the_example_of_each_verb(verb, checkout, launcher):
    arguments = VERBS_OF_HELP[verb].example.split()
    done = called_here(checkout, launcher, (*arguments, *quick(arguments)))
    expected = NOT_HERE.get(verb, 1 if "docs/example/after" in arguments else 0)
    assert done.returncode == expected, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_that_a_page_names_exists(path):
    """Verbs, their options, and make's targets; README's own commands are run."""
    text = path.read_text()
    for words in re.findall(r"(?:^|`|\s)collbench ([a-z].*?)(?:`|\n|  #|$)", text):
        verb = words.split()[0]
        if verb not in VERBS_OF_HELP:
            continue  # a sentence about the command
        known = options(verb)
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", words):
            assert option in known, f"{path.name}: collbench {words}"
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z0-9-]+)", text):
        assert target in targets, f"{path.name}: make {target}"


@functools.cache
def options(verb: str) -> set[str]:
    """All options of a verb."""
    import typer

    group = typer.main.get_command(_app(verb))
    return {word for option in group.commands[verb].params for word in (*option.opts, *option.secondary_opts)}


def test_the_notebook_s_code_works(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    code_of = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL))
    names: dict = {}
    exec(compile(code_of, "docs/python.md", "exec"), names)
    assert len(names["run"].summary) == 18 and len(names["run"].samples) > 1000
    training = bench.load_run("docs/example/training")
    assert set(training.samples.columns) == {"scenario", "strategy", "launch", "round", "rank", "steps", "wall_s"}
    names["plt"].close("all")


def test_pages_link_to_what_exists():
    for path in PAGES:
        for address in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            assert address.startswith("http") or (path.parent / address).exists(), f"{path.name}: {address}"


@pytest.mark.parametrize("line", TARGETS)
def test_target(line):
    done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_fingerprint_changes_with_the_code_and_not_with_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "BENCH", tmp_path)
    found = []
    for text in ('"""Doc."""\nX = 1\n', '"""Other."""\nX = 1  # comment\n', "X = 2\n"):
        (tmp_path / "module.py").write_text(text)
        found.append(code.fingerprint(["module.py"]))
    assert found[0] == found[1] != found[2]
