"""The wheel has everything: without the checkout, it finds its configurations and measures in any folder."""

import os
import subprocess
import sys
import zipfile

import pytest

from conftest import ROOT, quiet_copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the checkout: building writes into its source."""
    place = tmp_path_factory.mktemp("wheel")
    quiet_copy(place / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), "."]
    done = subprocess.run(command, cwd=place / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = place.glob("collbench-*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_configurations_and_the_page_on_reading(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {f"bench/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.*")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "bench").rglob("*.py")}
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "bench/report/launch_templates").iterdir()}
    assert shipped | modules | templates | {"bench/report/reading.md", "run_bench.py"} <= names
    assert not {name for name in names if name.startswith(("tests", "results", "plots", "docs"))}


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
    code = "import bench.notebook; print(bench.__file__, len(bench.notebook.load_run().summary))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(place / "bench/__init__.py"), "1"], done.stderr
