"""The verb `perf` prints the columns of nccl-tests while it measures, and keeps a run like any other."""

import json
import platform
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.analyze.summaries import headlines
from collbench.model.records import Case
from collbench.packages.interop.cli import perf
from collbench.packages.interop.report import nccl_tests
from collbench.planning.footprint import batches
from collbench.report.view import View
from collbench.store import encoding, folders
from collbench.store.folders import Journal
from conftest import ROOT, invented_run, samples
from test_nccl_tests import read_as_clients_do

SHORT = ("-b", "1K", "-e", "16K", "-f", "4", "-g", "2", "--backend", "gloo", "--no-plots")
SHORT += ("--set", "sampling.seconds_per_case=0.02")


def table(text: str) -> list[str]:
    """Return the rows of nccl-tests' tables in the output."""
    return [line for line in text.splitlines() if line[:1] == " " and line.split()[0].isdecimal()]


def measured(warm, *arguments, code=0):
    """Return what a measurement prints: nothing but rows and comments, as clients read it."""
    done = warm("perf", *arguments)
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stdout.splitlines() if line[:1] != "#"]
    assert lines == table(done.stdout) and len(lines) == 3
    rows, nodes = read_as_clients_do(done.stdout)
    assert [row[0] for row in rows] == ["1024", "4096", "16384"]
    assert nodes <= {platform.node()} and "Trust" in done.stderr and "report: " in done.stderr
    return done, rows


def average(done):
    (line,) = (line.split() for line in done.stdout.splitlines() if line.startswith("# Avg bus bandwidth"))
    return line


def test_a_wrong_result_has_no_number_and_a_mean_bandwidth_below_the_limit_fails(warm, monkeypatch):
    """As in nccl-tests: exit 1, FAILED, and "okay": "false"."""
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "1e6")
    flags = (*SHORT, "-J", "out.json", "-o", "max", "--set", "faults=[{do: corrupt, rank: 1, size: 4KiB}]")
    done, rows = measured(warm, "all_reduce", *flags, code=1)
    assert [float(row[5]) > 0 for row in rows] == [True, False, True]
    assert "the mean bus bandwidth is too low for NCCL_TESTS_MIN_BW" in done.stderr
    line, content = average(done), json.loads((warm.folder / "out.json").read_text())
    assert content["average_bus_bandwidth"] == {"bandwidth": float(line[5]), "okay": "false"} and line[6] == "FAILED"
    # One process has both ranks.
    assert content["config"]["ngpus"] == 2 and "# nThread 1 nGpus 2 minBytes" in done.stdout
    assert content["args"] == ["all_reduce_perf", *flags, "-a", "3"]


def test_perf_prints_the_rows_of_the_report_of_the_kept_run(warm):
    flags = ("-z", "3", "-I", "1", "-w", "1", "-N", "2", "-q", "3", "-c", "0")
    done, _ = measured(warm, "reduce_scatter", *SHORT, *flags)
    (folder,) = warm.runs()
    run = folders.read(folder)
    document = nccl_tests.document(View(run, analyze(run)))
    assert [row.split()[:5] for row in table(done.stdout)] == [
        [str(size), str(size // 8), "float", "sum", "-1"] for size in (1024, 4096, 16384)
    ]
    comments = [line for line in document.splitlines() if line.startswith("# ") and "iters:" not in line]
    assert table(done.stdout) == table(document) and set(comments) <= set(done.stdout.splitlines())
    assert (folder / "report.html").exists() and run.manifest["status"] == "complete"
    assert "note: " in done.stderr and "│" not in done.stdout + done.stderr


def test_a_row_is_printed_as_soon_as_it_is_measured(warm, monkeypatch):
    """Kept samples and printed rows are noted in order: a row comes directly after its second half."""
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "1e-9")
    events: list[str] = []
    append, say = Journal.append, perf.say

    def appended(journal, line):
        append(journal, line)
        events.append(f"kept {encoding.samples_from_line(line).case.size_bytes}")

    def printed(text):
        say(text)
        events.extend(f"printed {row.split()[0]}" for row in table(text))

    monkeypatch.setattr(Journal, "append", appended)
    monkeypatch.setattr(perf, "say", printed)
    done, rows = measured(warm, "alltoall_perf", *SHORT, "-d", "float")
    assert all(float(row[5]) > 0 for row in rows) and average(done)[6] == "OK"
    sizes = (1024, 4096, 16384)
    assert events == [event for n in sizes for event in (f"kept {n}", f"kept {n}", f"printed {n}")]
    plan = warm.only_run().plan
    placements = [{case.placement for case in batch} for batch in batches(plan.order[0].cases, plan.settings)]
    assert list(map(len, placements)) == [2, 2, 2]


def test_without_the_backend_nothing_is_measured(warm):
    done = warm("perf", "all_reduce", "-b", "8", "-g", "2")
    if "nccl" in done.stdout:
        pytest.skip("there are GPUs here")
    assert done.returncode == 3 and "--backend gloo" in done.stderr and done.stderr.count("\n") == 1
    assert not warm.runs() and not done.stdout


def test_flags_are_kept_as_yaml_and_nothing_is_measured(warm):
    """This also works without NCCL, as the file may be for another machine."""
    done = warm("perf", "all_gather", "-b", "8", "-e", "1K", "-f", "2", "-g", "2", "-p", "1", "--save", "kept.yaml")
    assert done.returncode == 0, done.stderr
    kept = (warm.folder / "kept.yaml").read_text()
    assert done.stdout.startswith(kept) and "-p 1: ignored: each rank is a process" in kept and not warm.runs()
    assert "16 cases" in warm("plan", "kept.yaml", "--set", "backends=[gloo]").stdout
    again = warm("perf", "all_gather", "--save", "kept.yaml")
    assert again.returncode == 2 and again.stderr.startswith("error: --save kept.yaml: file exists")
    both = warm("perf", "all_gather", "--save", "new.yaml", "--set", "launches=2")
    assert both.returncode == 2 and not (warm.folder / "new.yaml").exists()


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_the_table(cli):
    """Without -g there are as many ranks as processes, and the header names each rank."""
    command = ["-m", "torch.distributed.run", "--nproc_per_node=2", str(ROOT / "run_bench.py"), "perf", "broadcast"]
    flags = ["-b", "1K", "-e", "4K", "-f", "4", "--backend", "gloo", "--no-plots", "-J", "out.json"]
    process = subprocess.run(
        [sys.executable, *command, *flags], cwd=cli.folder, env=cli.environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert [row.split()[0] for row in table(process.stdout)] == ["1024", "4096"]
    (session,) = json.loads((cli.runs()[0] / "environment.json").read_text())
    pids = [str(rank["pid"]) for rank in session["launches"][0]["ranks"]]
    devices = [line.split() for line in process.stdout.splitlines() if line.startswith("#  Rank")]
    config = json.loads((cli.folder / "out.json").read_text())["config"]
    assert config["ngpus"] == 1 and "# nThread 1 nGpus 1 minBytes" in process.stdout
    assert [words[2] for words in devices] == ["0", "1"] and [words[6] for words in devices] == pids


def test_on_gpus_the_columns_have_the_hosts_time_and_a_comment_the_devices():
    """nccl-tests reads the host's clock: 20 calls that take 160 us to run and 400 us to enqueue are 20 us per call."""
    case = Case("all_reduce", "nccl", 2, "float32", 4096, metric="pipelined", depth=20)
    made = samples(case, 1, np.full((8, 2), 160_000))
    hosts = np.full((8, 2), 400_000)
    made = replace(made, timed=replace(made.timed, host_ns=hosts, wait_ns=np.zeros((8, 2), dtype=np.int64), calls=20))
    run = invented_run([made])
    document = nccl_tests.document(View(run, analyze(run)))
    (row,) = table(document)
    assert row.split()[9:] == ["20.00", "0.20", "0.20", "0"]
    assert headlines(run)[0].host_time_s == pytest.approx(20e-6), "rows are printed from these while it measures"
    assert "#       4096  8.00 us in place" in document and "# Avg bus bandwidth    : 0.2048" in document
