"""Every command of the README, and every example of --help, works as written in another folder."""

import functools
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from collbench.cli.app import VERBS as VERBS_OF_HELP
from collbench.cli.app import _app
from collbench.notebook import load_run
from conftest import ROOT, called_here

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
JOBS = sorted((ROOT / "examples/ci").glob("*.yaml"))
PROGRAM = "collbench "


def lines_of(page: str) -> list[str]:
    """Return the commands in the blocks of a page that a reader can type without changes, without comments."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    lines = (re.split(r"\s+#", line)[0].strip() for line in blocks.splitlines())
    return [line for line in lines if line]


LINES = lines_of(README)
USERS = [line for page in ("operators", "ci") for line in lines_of((ROOT / f"docs/{page}.md").read_text())]
OPERATORS = [line for line in USERS if line not in LINES]
COMMANDS = [line for line in [*LINES, *OPERATORS] if line.startswith(PROGRAM)]
TARGETS = [line for line in LINES if line.startswith("make")]
# A command of a page or of --help → its verb; each is tried once.
COMMANDS_AND_EXAMPLES = {
    line: line.split()[1] for line in [*COMMANDS, *(f"{PROGRAM}{verb.example}" for verb in VERBS_OF_HELP.values())]
}
# Beginnings of commands that measure long with any options; they are only parsed here; the named test runs them.
RUN_ELSEWHERE = {
    "equivalence": "test_equivalence.py",
    "ab smoke": "test_ab.py",
    "tune": "test_tune.py",
    "import": "test_importers_nccl_tests.py",
    "check": "test_cli.py",
    "plan mine.yaml": "test_perf.py",  # a file that another command saves, perhaps in another process
}
# Options that shorten commands that measure or draw, per verb.
SHORT = {
    "run": ("--set", "launches=1", "--set", "sampling.seconds_per_case=0.05", "--set", "sizes=[1KiB]", "--no-plots"),
    "perf": ("-e", "16K", "--no-plots"),
    "resume": ("--no-plots",),
    "report": ("--no-plots",),
    "bits": ("--set", "backends=[gloo]", "--set", "world_sizes=[2]", "--set", "launches=1"),
    "replay": ("--set", "launches=2", "--no-plots"),
}
# Exit codes other than 0: gate needs several hosts.
EXIT_CODES = {"gate": 3}


def test_the_readme_shows_commands_and_the_numbers_of_a_report():
    assert len(COMMANDS) >= 8 and len(TARGETS) >= 2
    assert {line.split()[0] for line in LINES} <= {"collbench", "make", "git", "cd", "pip"}
    report = (ROOT / "docs/example/report.md").read_text()
    intervals = re.findall(r"([\d.]+ ms \[[\d.]+ – [\d.]+)\]", README)
    assert len(intervals) == 4 and all(f"{interval} ms]" in report for interval in intervals)


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS_AND_EXAMPLES)
def test_command(line, elsewhere, launcher):
    command = line.removeprefix(PROGRAM)
    verb, *arguments = shlex.split(command)
    if command.startswith(tuple(RUN_ELSEWHERE)):
        typer.main.get_command(_app(verb)).commands[verb].make_context(verb, arguments)
        return
    done = called_here(elsewhere, launcher, (verb, *arguments, *SHORT.get(verb, ())))
    assert done.returncode == EXIT_CODES.get(verb, 0), done.stdout + done.stderr


@pytest.mark.parametrize("path", [*PAGES, *JOBS], ids=lambda path: path.name)
def test_every_command_that_a_page_names_exists(path):
    """Verbs, their options and make's targets are looked up; the commands of the README also run."""
    text = path.read_text()
    for words in re.findall(r"(?:^|`|\s|bin/)collbench ([a-z].*?)(?:`|\n|  #|$)", text):
        verb = words.split()[0]
        if verb not in VERBS_OF_HELP:
            continue  # a sentence about the command
        allowed = options(verb)
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", words):
            assert option in allowed, f"{path.name}: collbench {words}"
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z0-9-]+)", text):
        assert target in targets, f"{path.name}: make {target}"


@functools.cache
def options(verb: str) -> set[str]:
    """Return all options of a verb."""
    group = typer.main.get_command(_app(verb))
    return {word for option in group.commands[verb].params for word in (*option.opts, *option.secondary_opts)}


def test_the_code_of_the_page_on_python_works(monkeypatch):
    monkeypatch.chdir(ROOT)
    code_of = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/reading.md").read_text(), re.DOTALL))
    names: dict = {}
    exec(compile(code_of, "docs/reading.md", "exec"), names)
    assert len(names["run"].summary) >= 12 and len(names["run"].samples) > 1000
    training = load_run("docs/example/training")
    assert len(training.summary) == 10 and list(training.samples.columns) == list(names["run"].samples.columns)


def test_pages_link_to_pages_and_headings_that_exist():
    for path in PAGES:
        for address, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
            page = path.parent / address if address else path
            assert page.exists(), f"{path.name}: {address}"
            assert not anchor or anchor in anchors(page), f"{path.name}: {address}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the addresses of a page's headings, as GitHub and GitLab make addresses."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_make_has_the_targets_that_the_readme_types():
    for line in TARGETS:
        done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
