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
from collbench.machine import host
from collbench.model import pages
from collbench.store import folders
from conftest import ROOT, TINY, quiet_copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the checkout, because building writes into the source."""
    place = tmp_path_factory.mktemp("wheel")
    quiet_copy(place / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), "."]
    done = subprocess.run(command, cwd=place / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = place.glob("collbench-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_has_configurations_and_the_page_on_reading(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "bench" / "collbench"
    shipped = {f"collbench/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.*")}
    patterns = ("*.py", "*.css", "launch_templates/*", "py.typed")
    modules = {str(path.relative_to(package.parent)) for pattern in patterns for path in package.rglob(pattern)}
    pages = {f"collbench/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    examples = {f"collbench/docs/example/{name}" for name in ("gloo/samples.jsonl", "training.calls.jsonl")}
    assert (
        shipped | modules | examples | {page for page in pages if not {"example", "develop"} & {*page.split("/")}}
        <= names
    )
    assert {name.partition("/")[0] for name in names} == {"collbench", f"collbench-{__version__}.dist-info"}


@pytest.mark.slow
def test_an_installed_collbench_measures_in_another_folder(wheel, tmp_path):
    place, folder = tmp_path / "installed", tmp_path / "anywhere"
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}

    def collbench(*words: str) -> subprocess.CompletedProcess:
        program = [sys.executable, str(place / "bin/collbench"), *words]
        return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)

    settings = [
        "launches=1",
        "sizes=[4KiB]",
        "world_sizes=[2]",
        "scheduling=[normal]",
        "sampling.seconds_per_case=0.05",
    ]
    done = collbench("run", "gloo", *[word for setting in settings for word in ("--set", setting)])
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "results").glob("*-gloo")
    page = (run / "report.html").read_text()
    assert "bus bandwidth" in page and "data:image/" in page
    assert str(place) in collbench("list", "configs").stdout.replace("\n", "")
    code = "import collbench.notebook; print(collbench.__file__, len(collbench.notebook.load_run().summary))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(place / "collbench/__init__.py"), "1"], done.stderr


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


def started(programs: Path, folder: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a command with these programs on PATH, before the programs of this environment; return its result."""
    own = [str(programs), str(Path(sys.executable).parent)]
    own += [str(program.parent)] if (program := host.mpirun()) else []
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | allowed
    environment["PATH"] = os.pathsep.join([*own, os.environ["PATH"]])
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_planned_files_start_the_installed_program(programs, tmp_path, launcher):
    if launcher == "mpirun" and host.mpirun() is None:
        pytest.skip("mpirun is not installed")
    (tmp_path / "my.yaml").write_text(TINY)
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    planned = started(programs, tmp_path, "collbench", "plan", "my.yaml", "--launcher", launcher, "--nodes", "1")
    assert planned.returncode == 0 and "run_bench" not in planned.stdout and ".venv" not in planned.stdout
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (tmp_path / "job.sh").write_text(planned.stdout.replace("29400", port))
    words = {"torchrun": ("0", "127.0.0.1"), "mpirun": ("hosts",)}[launcher]
    done = started(programs, tmp_path, "sh", "job.sh", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folders.runs(tmp_path / "results")
    run = folders.read(path)
    assert run.manifest["status"] == "complete" and run.environment[0]["job"]["ranks"] == 2


@pytest.mark.slow
def test_a_folder_bench_in_the_working_folder_shadows_nothing(programs, tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise SystemExit('this is another bench')")
    (tmp_path / "my.yaml").write_text(TINY)
    code = "import collbench.notebook; print(len(collbench.notebook.load_run().summary))"
    for command in (["collbench", "run", "my.yaml", "--no-plots"], ["python", "-m", "collbench", "list"]):
        done = started(programs, tmp_path, *command)
        assert done.returncode == 0 and "my" in done.stdout, done.stderr
    assert started(programs, tmp_path, "python", "-c", code).stdout == "2\n"


@pytest.mark.slow
def test_a_planned_file_names_the_program_that_path_does_not_find(programs, tmp_path):
    (tmp_path / "my.yaml").write_text(TINY)
    command = [str(programs / "collbench"), "plan", "my.yaml", "--launcher", "slurm"]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"{programs / 'collbench'} run my.yaml\n" in done.stdout, done.stderr


# ── checks of a release ──────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_tools_for_releases_find_no_fault(wheel):
    for program, words in (("twine", ["check", "--strict"]), ("check-wheel-contents", [])):
        if (path := shutil.which(program, path=str(Path(sys.executable).parent))) is None:
            pytest.skip(f"{program} is not installed")
        done = subprocess.run([path, *words, str(wheel)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.parametrize("address", ["", "https://localhost/collbench"])
def test_the_metadata_has_no_link_to_a_file_of_the_repository_alone(tmp_path, address):
    quiet_copy(tmp_path / "source")
    constants = tmp_path / "source" / Path(pages.__file__).relative_to(ROOT)
    constants.write_text(re.sub("(?m)^REPOSITORY = .*", f'REPOSITORY = "{address}"', constants.read_text()))
    text = (built(tmp_path / "source", "prepare_metadata_for_build_wheel") / "METADATA").read_text()
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert all(target.startswith(f"{address}/blob/v{__version__}/") for target in targets)
    assert bool(targets) == ("Project-URL: Source" in text) == ("![" in text) == bool(address)


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("CITATION.cff", r"version: (.*)", [__version__]),
        ("CITATION.cff", r"repository-code: (.*)", [pages.REPOSITORY] if pages.REPOSITORY else []),
        ("CHANGELOG.md", r"## (.*)", [__version__]),
    ],
)
def test_files_agree_on_version_and_address(name, line, expected):
    assert re.findall(f"^{line}$", (ROOT / name).read_text(), re.MULTILINE)[:1] == expected
