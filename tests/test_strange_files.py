"""Run folders of others: pipes, links and odd content end in a line, and nothing beside the folder is touched."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.model.visible import visible
from bench.store import encoding, folders
from conftest import ROOT


@pytest.fixture
def run(warm):
    assert warm("run", warm.config(), "--no-plots").returncode == 0
    (path,) = warm.runs()
    return path


@pytest.mark.parametrize("name", ["summary.csv", "report.md"])
def test_a_pipe_or_an_endless_file_does_not_stop_list(cli, run, name):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (run / name).unlink()
        make(run / name)
        done = cli("list", timeout=20)
        assert done.returncode == 0 and run.name in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["plan.json", "environment.json"])
def test_a_pipe_for_a_file_of_a_run_is_one_line(cli, run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    for verb in ("report", "resume"):
        done = cli(verb, run.name, timeout=20)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "no plain file" in done.stderr, done.stderr


def test_words_in_place_of_numbers_are_no_report(warm, run):
    text = (run / "summary.csv").read_text()
    (run / "summary.csv").write_text(text.replace("4096", "many"))
    done = warm("list")
    assert done.returncode == 0 and run.name in done.stdout, done.stderr


def test_pictures_are_not_written_through_a_link(warm, run, tmp_path):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "time.png").write_text("mine")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"output": str(run.resolve())}))
    (run / "plots").symlink_to(figures)
    assert warm("report", run.name).returncode == 0
    assert [(path.name, path.read_text()) for path in figures.iterdir()] == [("time.png", "mine")]


def test_a_model_without_a_colon_is_an_import_that_is_confirmed(warm):
    training = "training: {models: [tiny], strategies: [flat], rounds: 2}"
    plan = warm("run", warm.config(f"backends: [gloo]\nworld_sizes: [2]\nlaunches: 1\n{training}\n"), "--no-plots")
    assert plan.returncode == 0, plan.stderr
    (path,) = warm.runs()
    text = (path / "plan.json").read_text()
    (path / "plan.json").write_text(text.replace('"tiny"', '"this"'))
    assert encoding.imports_of(folders.read_plans(path)[0] if folders.has_sides(path) else folders.read(path).plan) == [
        "this"
    ]


def test_what_xml_cannot_hold_is_written_out():
    assert visible("a\ufffeb\uffff") == "a\\ufffeb\\uffff"
    ElementTree.fromstring(f"<a>{visible(chr(0xFFFE))}</a>")


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_closed_standard_streams_harm_no_rank(cli, closed):
    """As some daemons and cron jobs close them; every case failed for good, with an empty log."""
    quoted = " ".join(f"{number}>&-" for number in closed)
    command = f"exec {sys.executable} {ROOT / 'run_bench.py'} run {cli.config()} --no-plots {quoted}"
    done = subprocess.run(["sh", "-c", command], cwd=cli.folder, env=cli.environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    samples = cli.only_run().samples
    assert samples and not [s.failure for s in samples if s.failure]


def test_a_locale_without_utf8_prints_what_it_can(cli):
    cli.environment |= {"PYTHONIOENCODING": "latin-1"}
    done = cli("list", "operations")
    assert done.returncode == 0 and "all_reduce" in done.stdout


def test_a_full_stdout_is_one_line(cli):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, str(ROOT / "run_bench.py"), "list", "operations"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=cli.environment, text=True)
    assert done.returncode == 2 and os.strerror(errno.ENOSPC) in done.stderr, done


STANDS_STILL = """
import signal
from bench.launch import launcher
from bench.machine import environment
from bench.model.errors import LostRankError
environment.prepare_process()
launcher.START_WAIT_S = 0.5
with launcher.Launcher() as started:
    started._server.send(signal.SIGSTOP)
    try:
        started.start(1, "bench.rank.main:main", ())
    except LostRankError:
        print("lost")
"""


def test_a_fork_server_that_stands_still_is_a_lost_launch():
    done = subprocess.run([sys.executable, "-c", STANDS_STILL], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "lost", done.stderr
