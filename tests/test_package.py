"""The wheel is complete: without the checkout, it finds its configurations and measures in any folder.

The sdist has all files; the tools that check a release find no fault.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from collbench import __version__
from collbench.model import pages
from collbench.store import folders
from conftest import ROOT, TINY, quiet_copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the checkout, because building writes into the source."""
    place = tmp_path_factory.mktemp("wheel")
    quiet_copy(place)
    return built(place, "build_wheel")


@pytest.mark.slow
def test_the_wheel_has_all_files_and_tools_for_releases_find_no_fault(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "bench" / "collbench"
    shipped = {f"collbench/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.*")}
    patterns = ("*.py", "*.css", "launch_templates/*", "py.typed")
    modules = {str(path.relative_to(package.parent)) for pattern in patterns for path in package.rglob(pattern)}
    pages = {f"collbench/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not {"example", "develop"} & {*page.split("/")}}
    examples = {f"collbench/docs/example/{name}" for name in ("gloo/samples.jsonl", "training.calls.jsonl")}
    assert shipped | modules | examples | pages <= names
    assert {name.partition("/")[0] for name in names} == {"collbench", f"collbench-{__version__}.dist-info"}
    for program, words in (("twine", ["check", "--strict"]), ("check-wheel-contents", [])):
        if (path := shutil.which(program, path=str(Path(sys.executable).parent))) is None:
            pytest.skip(f"{program} is not installed")
        done = subprocess.run([path, *words, str(wheel)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# ── installed, in a folder that has nothing else ─────────────────────────────────────────────────
@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """Return the folder of programs of a fresh environment with the wheel and the packages of this environment."""
    place = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = place.glob("lib/python3*/site-packages")
    # A path in a .pth file: .pth files in the folder itself, which would add this checkout, are not read.
    (site / "packages.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet", "--no-deps"]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place / "bin"


def started(programs: Path, folder: Path, *command: str) -> str:
    """Run a command with these programs on PATH, before the programs of this environment; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_collbench_measures_next_to_a_folder_bench_which_shadows_nothing(programs, tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise SystemExit('this is another bench')")
    sets = ["launches=1", "sizes=[4KiB]", "world_sizes=[2]", "scheduling=[normal]", "sampling.seconds_per_case=0.05"]
    started(programs, tmp_path, "collbench", "run", "gloo", *[word for text in sets for word in ("--set", text)])
    (run,) = (tmp_path / "results").glob("*-gloo")
    page = (run / "report.html").read_text()
    assert "bus bandwidth" in page and "data:image/" in page
    configs = started(programs, tmp_path, "python", "-m", "collbench", "list", "configs").replace("\n", "")
    assert str(programs.parent) in configs
    code = "import collbench.notebook; print(collbench.__file__, len(collbench.notebook.load_run().summary))"
    file, count = started(programs, tmp_path, "python", "-c", code).split()
    assert file.startswith(str(programs.parent)) and count == "1"


@pytest.mark.slow
def test_a_planned_file_starts_the_installed_program(programs, tmp_path):
    """It is named with its folder where PATH does not find it."""
    (tmp_path / "my.yaml").write_text(TINY)
    script = started(programs, tmp_path, "collbench", "plan", "my.yaml", "--launcher", "torchrun", "--nodes", "1")
    assert "run_bench" not in script and ".venv" not in script
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (tmp_path / "job.sh").write_text(script.replace("29400", port))
    started(programs, tmp_path, "sh", "job.sh", "0", "127.0.0.1")
    (path,) = folders.runs(tmp_path / "results")
    run = folders.read(path)
    assert run.manifest["status"] == "complete" and run.environment[0]["job"]["ranks"] == 2
    command = ["env", "PATH=/usr/bin:/bin", str(programs / "collbench"), "plan", "my.yaml", "--launcher", "slurm"]
    assert f"{programs / 'collbench'} run my.yaml\n" in started(programs, tmp_path, *command)


# ── checks of a release ──────────────────────────────────────────────────────────────────────────
def built(source: Path, step: str) -> Path:
    """Run a step of the build in this folder; return what it has made."""
    pytest.importorskip("setuptools", "77")
    code = f"import setuptools.build_meta as build; print(build.{step}('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / done.stdout.splitlines()[-1]


def test_the_source_distribution_has_all_files_so_that_its_tests_pass(tmp_path):
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    if not names:
        pytest.skip("this is no checkout of git")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name, follow_symlinks=False)
    with tarfile.open(built(tmp_path, "build_sdist")) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in names if not name.endswith("/.gitkeep")} <= there


def test_files_agree_on_version_and_address():
    for name, line, expected in (
        ("CITATION.cff", r"version: (.*)", [__version__]),
        ("CITATION.cff", r"repository-code: (.*)", [pages.REPOSITORY] if pages.REPOSITORY else []),
        ("CHANGELOG.md", r"## (.*)", [__version__]),
    ):
        assert re.findall(f"^{line}$", (ROOT / name).read_text(), re.MULTILINE)[:1] == expected
