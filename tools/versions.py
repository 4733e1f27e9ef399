"""Test CollBench with the oldest packages that pyproject.toml permits, and with the newest: `make versions`.

In: the dependencies of pyproject.toml, the extra `mpi` among them, and every Python of CANDIDATES that is on PATH or
below ~/.pyenv/versions. For each Python there are two environments: `lowest` has exactly the lower bounds, or the
lowest version with a wheel for this Python; `newest` has the versions that pip chooses. In each, `doctor`, `run smoke`
and the quick tests run. Out: docs/develop/versions.md, the output of the commands in build/versions.log, and exit code
1 if anything failed. The environments are made in build/, one at a time: with a CUDA build of torch, one needs 5 GB.
Options make it shorter: `python -m tools.versions --pythons 3.11 --bounds lowest --tests tests/test_cli.py`.
"""

import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tabulate import tabulate

from collbench.machine import host

ROOT = Path(__file__).resolve().parents[1]
PAGE, LOG = ROOT / "docs/develop/versions.md", ROOT / "build/versions.log"
CANDIDATES = ("3.11", "3.12", "3.13", "3.14")
LOWEST, NEWEST = "lowest", "newest"
NEEDED_BYTES = 12 * 10**9
LIMIT_S = 3600  # per command
# Packages of requirements-dev.txt that the tests import.
OF_TESTS = ("pytest", "pytest-xdist", "hypothesis", "prometheus_client")
SHOWN, RESULTS = ("torch", "numpy", "pydantic", "typer"), ("doctor", "run smoke", "tests")
INSTALL = ("-m", "pip", "install", "--no-compile", "--disable-pip-version-check", "--only-binary", ":all:")


@dataclass(slots=True)
class Row:
    """One environment, and its results."""

    python: str
    bounds: str
    # Package → requested version; package → version that pip reports.
    wanted: dict[str, str] = field(default_factory=dict)
    installed: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    # Texts on results that are not "ok", and on failed tests.
    failures: list[str] = field(default_factory=list)


def dependencies() -> list[Requirement]:
    """Return the requirements of pyproject.toml, with Open MPI and mpi4py; Ray is for jobs of Ray only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["mpi"])]


def lower_bound(requirement: Requirement) -> str:
    (bound,) = (specifier.version for specifier in requirement.specifier if specifier.operator == ">=")
    return bound


def pythons() -> dict[str, Path]:
    """Return minor version → interpreter that runs; a name on PATH may be a shim of pyenv without its version."""
    interpreters = {}
    for minor in CANDIDATES:
        below = sorted((Path.home() / ".pyenv/versions").glob(f"{minor}.*/bin/python{minor}"))
        for path in (*filter(None, [shutil.which(f"python{minor}")]), *below):
            if subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
                interpreters.setdefault(minor, Path(path))
    return interpreters


def logged(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command, add its output to the log, and return its result."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    try:
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"not done after {LIMIT_S} s")
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(map(str, command))}\n{done.stdout}{done.stderr}→ {done.returncode}\n\n")
    return done


def lowest_with_wheel(python: Path, requirement: Requirement) -> str:
    """Return the lower bound if pip finds a wheel of it, else the lowest version above it that has a wheel."""
    bound = lower_bound(requirement)
    trial = logged([python, *INSTALL, "--dry-run", "--no-deps", f"{requirement.name}=={bound}"], ROOT)
    if trial.returncode == 0:
        return bound
    return lowest_of(trial.stderr, bound)


def lowest_of(complaint: str, bound: str) -> str:
    """Return the lowest version from the bound on, without previews, among the versions in a complaint of pip."""
    named = re.search(r"\(from versions: ([^)]*)\)", complaint)
    versions = [Version(text) for text in named[1].split(", ")] if named and named[1] != "none" else []
    above = [version for version in versions if version >= Version(bound) and not version.is_prerelease]
    return str(min(above, default=bound))


def environment(python: Path, folder: Path, row: Row) -> Path | None:
    """Make an environment with all packages; return its interpreter, or None if pip failed."""
    logged([python, "-m", "venv", folder], ROOT)
    inside = folder / "bin/python"
    needed = dependencies()
    if row.bounds == LOWEST:
        row.wanted = {need.name: lowest_with_wheel(inside, need) for need in needed}
        specs = [f"{need.name}[{','.join(need.extras)}]=={row.wanted[need.name]}".replace("[]", "") for need in needed]
    else:
        specs = [str(need) for need in needed]
    pinned = (Requirement(line) for line in (ROOT / "requirements-dev.txt").read_text().split() if "==" in line)
    tests = [str(need) for need in pinned if need.name in OF_TESTS]
    done = logged([inside, *INSTALL, *specs, *tests], ROOT)
    if done.returncode == 0:
        done = logged([inside, *INSTALL, "--no-deps", "--editable", str(ROOT)], ROOT)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        row.failures.append(f"pip: {errors[0] if errors else f'exit code {done.returncode}'}")
        return None
    listed = json.loads(logged([inside, "-m", "pip", "list", "--format", "json"], ROOT).stdout)
    versions = {canonicalize_name(need["name"]): need["version"] for need in listed}
    row.installed = {need.name: versions[canonicalize_name(need.name)] for need in needed}
    return inside


def judge(row: Row, python: Path, folder: Path, tests: list[str]) -> None:
    """Run CollBench and its tests in the environment."""
    for name, words in {"doctor": ["doctor"], "run smoke": ["run", "smoke", "--no-plots"]}.items():
        done = logged([python, ROOT / "run_bench.py", *words], folder)  # results are deleted with the environment
        row.results[name] = "ok" if done.returncode == 0 else f"exit code {done.returncode}"
        if done.returncode != 0:
            row.failures.append(f"{name}: {(done.stderr or done.stdout).strip().rpartition(chr(10))[2]}")
    quick = ["-m", "pytest", *tests, "-m", "not slow", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    done = logged([python, *quick], ROOT)
    row.results["tests"] = counts(done.stdout)
    if done.returncode != 0:
        failed = [line for line in done.stdout.splitlines() if re.match(r"(FAILED|ERROR) ", line)]
        row.failures += failed or [f"pytest: exit code {done.returncode}"]


def counts(printed: str) -> str:
    """Return the numbers of passed, skipped, and failed tests (or errors) in pytest's last line."""
    last = printed.strip().splitlines()[-1:]
    number = {word.rstrip("s"): int(count) for count, word in re.findall(r"(\d+) (\w+)", " ".join(last))}
    failed = number.get("failed", 0) + number.get("error", 0)
    return f"{number.get('passed', 0)} / {number.get('skipped', 0)} / {failed}"


def page(rows: list[Row], command: str, tests: list[str]) -> str:
    """Return the page: two tables, and the failures."""
    results = [
        [row.python, row.bounds]
        + [row.installed.get(name, "") for name in SHOWN]
        + [row.results.get(name, "not run") for name in RESULTS]
        for row in rows
    ]
    packages = [[need.name, lower_bound(need), *(cell(row, need) for row in rows)] for need in dependencies()]
    named = " ".join(f"`{name}`" for name in tests)
    failed = [f"- {row.python} {row.bounds}: {text}" for row in rows for text in row.failures]
    parts = [
        f"# With which packages it works\n\nMade by `{command}` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, "
        f"commit {host.commit()}. `lowest`: the lower bounds of pyproject.toml; `newest`: what pip chose. Tests: "
        f"those of {named} that are not slow; passed / skipped / failed.",
        table(results, ["Python", "bounds", *SHOWN, *RESULTS]),
        "## What was installed",
        table(packages, ["package", "bound", *(f"{row.python} {row.bounds}" for row in rows)]),
        *(["## What failed", "\n".join(failed)] if failed else []),
    ]
    return "\n\n".join(parts) + "\n"


def table(rows: list[list[str]], headers: list[str]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def cell(row: Row, requirement: Requirement) -> str:
    """Return the installed version, with a reason if it is not the lower bound that was requested."""
    version = row.installed.get(requirement.name, row.wanted.get(requirement.name, ""))
    wanted = row.wanted.get(requirement.name)
    bound = lower_bound(requirement)
    return f"{version} (no wheel of {bound})" if wanted and Version(wanted) != Version(bound) else version


def main(
    pythons_asked: Annotated[str, typer.Option("--pythons", help="Such as 3.11,3.12.")] = ",".join(CANDIDATES),
    bounds: Annotated[str, typer.Option(help="lowest, newest, or both with a comma.")] = f"{LOWEST},{NEWEST}",
    tests: Annotated[str, typer.Option(help="Files of tests, with commas between.")] = "tests",
) -> None:
    """Try CollBench with the oldest and the newest packages."""
    interpreters, files = pythons(), tests.split(",")
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    rows = []
    for minor in (name for name in pythons_asked.split(",") if name in interpreters):
        for which in bounds.split(","):
            if shutil.disk_usage(ROOT).free < NEEDED_BYTES:
                sys.exit(f"an environment needs {NEEDED_BYTES // 10**9} GB of disk for a while")
            row = Row(minor, which)
            with tempfile.TemporaryDirectory(prefix="versions-", dir=LOG.parent) as place:
                inside = environment(interpreters[minor], Path(place, "venv"), row)
                if inside is not None:
                    judge(row, inside, Path(place), files)
            rows.append(row)
            command = shlex.join(["python", "-m", "tools.versions", *sys.argv[1:]])
            PAGE.write_text(page(rows, command, files), encoding="utf-8")  # at once: the next environment takes minutes
            print(f"Python {minor}, {which}: {row.results}", *row.failures, sep="\n  ", flush=True)
    sys.exit(any(row.failures for row in rows))


if __name__ == "__main__":
    typer.run(main)
