"""Runs and configurations of version 0.1.0 still read, compare and resume, whatever has been renamed since."""

import shutil

import pytest

from conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"
BENCHMARKS = ["collectives", "training"]


@pytest.fixture
def kept(warm):
    """A copy of each golden run, among the results of the command line."""
    for name in BENCHMARKS:
        shutil.copytree(GOLDEN / name, warm.folder / "results" / f"20260101T000000Z-{name}")
    return warm


def drop_last_lines(path, count):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-count]))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_old_configuration_is_planned(warm, name):
    shutil.copy(GOLDEN / name / "config.yaml", warm.folder / "old.yaml")
    done = warm("plan", "old.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the old name is still read") == 3


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_old_run_is_reported_and_compared_with_itself(kept, name):
    report = kept("report", name)
    assert report.returncode == 0, report.stderr
    text = (kept.folder / "results" / f"20260101T000000Z-{name}" / "report.md").read_text()
    assert "damaged" not in text and "2 launches" in text
    assert "recorded by an earlier version" in text
    compared = kept("compare", name, name, "--format", "json")
    assert compared.returncode == 0, compared.stderr
    assert '"broken": []' in compared.stdout and '"only_before": []' in compared.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_old_run_that_was_interrupted_is_resumed(kept, name):
    path = kept.folder / "results" / f"20260101T000000Z-{name}" / "samples.jsonl"
    whole = path.read_bytes()
    drop_last_lines(path, 5)
    done = kept("run", "--resume", name, "--no-plots")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().count(b"\n") >= whole.count(b"\n")
    assert "missing" not in done.stdout
