"""Run folders of others: pipes, links and odd content end in one line, and nothing outside the folder is touched."""

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from collbench.model.visible import visible
from collbench.packages.replay.recorded_calls import CallList, RankRecording
from collbench.packages.replay.report import calls_config
from collbench.store import folders
from conftest import ROOT, CommandLine
from mutations import in_values


@pytest.fixture(scope="module")
def measured(tmp_path_factory, launcher):
    warm = CommandLine(tmp_path_factory.mktemp("measured"), launcher)
    assert warm("run", warm.config(), "--no-plots").returncode == 0
    return warm.folder


@pytest.fixture
def run(measured, tmp_path):
    """Return a copy of a run, in the results of this test."""
    shutil.copytree(measured / "results", tmp_path / "results")
    (path,) = (tmp_path / "results").glob("*/")
    return path


def words_for_numbers(path):
    path.write_text(path.read_text().replace("4096", "many"))


def endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["summary.csv", "report.md"])
def test_a_pipe_an_endless_file_or_words_for_numbers_do_not_stop_list(warm, run, name):
    for change in (words_for_numbers, endless, pipe):
        change(run / name)
        done = warm("list", timeout=20)
        assert done.returncode == 0 and run.name in done.stdout, done.stderr


def test_characters_that_xml_cannot_hold_are_escaped():
    assert visible("a\ufffeb\uffff") == "a\\ufffeb\\uffff"
    ElementTree.fromstring(f"<a>{visible(chr(0xFFFE))}</a>")


def test_ranks_of_a_run_without_standard_streams_measure(cli):
    """Its temporary folder has a path that is too long for sockets, as some batch systems make them."""
    deep = cli.folder / ("deep" * 25)
    deep.mkdir()
    cli.environment |= {"TMPDIR": str(deep)}
    command = f"exec {sys.executable} {ROOT / 'run_bench.py'} run {cli.config()} --no-plots <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=cli.folder, env=cli.environment).returncode == 0
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


STOPPED = """
import signal
from collbench.launch import launcher
from collbench.machine import environment
environment.prepare_process()
launcher.START_WAIT_S = 0.5
with launcher.Launcher() as started:
    started._server.send(signal.SIGSTOP)
    try:
        started.start(1, "collbench.rank.main:main", ())
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_fork_server_that_stops_is_named():
    done = subprocess.run([sys.executable, "-c", STOPPED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("LostRankError the fork server, the parent of all ranks, started no rank"), done


def fuzzed(run, rng, trials, *attempts):
    """Spoil values in one file of a run, again and again, and return the attempts that broke on it."""
    broke = []
    for trial in range(trials):
        path = run / (folders.MANIFEST, folders.PLAN, folders.ENVIRONMENT, folders.SAMPLES)[trial % 4]
        content = path.read_bytes()
        path.write_bytes(spoiled := in_values(content, rng))
        for attempt in attempts:
            done = attempt()
            if done.returncode not in {0, 1, 2, 3} or "Traceback" in done.stderr:
                broke.append((trial, path.name, spoiled[:200], done.stderr[-300:]))
        path.write_bytes(content)
    return broke


@pytest.mark.slow
def test_no_odd_value_in_a_run_of_two_sides_breaks_its_comparison(warm):
    sweep = "backends: [gloo]\nworld_sizes: [1]\nlaunches: 1\noperations: [all_reduce]\nsizes: [4KiB]\n"
    done = warm(
        "ab", warm.config(sweep + "sampling: {seconds_per_case: 0.05}\n"), "--aa", "--budget", "20s", "--no-plots"
    )
    assert done.returncode in {0, 1, 3}, done.stderr
    (path,) = warm.runs()
    assert fuzzed(path, random.Random(2), 60, lambda: warm("compare", f"{path.name}:a", f"{path.name}:b")) == []


def test_measurements_of_cases_that_the_plan_lacks_are_left_out_and_reported(warm, run):
    line = json.loads((run / "samples.jsonl").read_text().splitlines()[0])
    line["case"]["size_bytes"] *= 2
    with (run / "samples.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    done = warm("report", run.name, "--format", "markdown")
    assert done.returncode == 0 and "1 measurement of cases that the plan does not have: left out" in done.stdout


def test_a_ledger_that_is_a_link_is_not_written_through(warm, tmp_path):
    (warm.folder / "results").mkdir(exist_ok=True)
    elsewhere = tmp_path / "elsewhere"
    (warm.folder / "results" / "ledger.jsonl").symlink_to(elsewhere)
    warm("run", warm.config(), "--no-plots")
    assert not elsewhere.exists()


def test_a_plan_that_needs_more_memory_than_there_is_is_not_resumed(warm, run):
    """A foreign plan of 3000 ranks once forked until no process was left."""
    text = (run / "plan.json").read_text()
    (run / "plan.json").write_text(re.sub(r'"world_size": ?\d+', '"world_size": 3000', text))
    done = warm("resume", run.name)
    assert done.returncode == 3 and "3000 ranks on gloo need" in done.stderr and "may be used here" in done.stderr


def test_a_configuration_of_the_folder_that_hides_a_shipped_one_is_reported(warm):
    (warm.folder / "configs").mkdir()
    (warm.folder / "configs" / "smoke.yaml").write_text((warm.folder / warm.config()).read_text())
    done = warm("run", "smoke", "--no-plots")
    assert done.returncode == 0 and "configs/smoke.yaml, not the one that comes with CollBench" in done.stderr
    (warm.folder / "configs" / "smoke.yaml").write_text((ROOT / "configs" / "smoke.yaml").read_text())
    assert "not the one" not in warm("plan", "smoke").stderr  # it is equal


def test_a_file_name_with_line_breaks_adds_no_line_to_a_saved_configuration():
    text = calls_config(CallList("kineto", "gloo", 2, (RankRecording("r", 0, ()),)), "a\nenv: {X: y}\n.json")
    assert "\nenv" not in text and "a\\u000aenv" in text
