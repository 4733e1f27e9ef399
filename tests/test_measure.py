"""With real gloo ranks, a wrong element is caught, wrong results have no number, and nothing listens outwards."""

import socket
import subprocess
import sys
import time

import psutil
import pytest

from collbench.store import folders
from conftest import ROOT, TINY, CommandLine


@pytest.mark.parametrize(("buffers", "iteration"), [("rotate", 0), ("rotate", 5), ("hot", 5)])
def test_one_wrong_element_is_caught_before_and_after_timing(warm, buffers, iteration):
    fault = f"faults=[{{do: corrupt, rank: 1, iteration: {iteration}, size: 4KiB}}]"
    by_size = {s.case.size_bytes: s for s in warm.measure(TINY, fault, f"buffers={buffers}", code=1).samples}
    failure = by_size[4096].failure
    assert failure.kind == "wrong"
    # in one hot buffer, the next call carries the wrong element to every rank: then no rank is named
    assert failure.rank == (1 if iteration == 0 or buffers == "rotate" else None)
    assert ("before" if iteration == 0 else "after") in failure.text
    assert by_size[65536].failure is None
    table = warm("report", "--format", "csv").stdout.splitlines()
    assert ",,,," in next(row for row in table if row.startswith("all_reduce/gloo/n2/float32/4096"))


def started(cli: CommandLine, from_stdin: bool) -> subprocess.Popen:
    """Start a program that measures, without a guard for `__main__`."""
    words = ["run", cli.config(), "--output", "mine", "--no-plots", "--quiet", "--set", "sampling.iterations=400"]
    program = f"import sys\nfrom collbench.cli import call\nprint('code', call({words!r}), 'torch' in sys.modules)\n"
    (cli.folder / "program.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, "-" if from_stdin else "program.py"],
        cwd=cli.folder,
        env={**cli.environment, "PYTHONPATH": str(ROOT / "bench")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(program)
    process.stdin.close()
    return process


@pytest.mark.parametrize("from_stdin", [False, True])
def test_ranks_run_no_program_that_measures_and_listen_on_loopback_only(cli, from_stdin):
    """A program without a guard for `__main__` once ran again in each rank, and one on stdin made every case fail."""
    with started(cli, from_stdin) as process:
        listening: set[str] = set()
        while process.poll() is None and not listening:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    connections = child.net_connections(kind="inet")
                except psutil.Error:
                    continue
                listening |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
            time.sleep(0.01)
        out = process.stdout.read()
    assert out.endswith("\ncode 0 False\n") and out.count("code") == 1, out
    assert listening <= {"127.0.0.1", "::1"} and listening
    samples = folders.read(cli.folder / "mine").samples
    assert samples and not any(entry.failure for entry in samples)
    assert_nothing_left(cli)


def assert_nothing_left(cli, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while cli.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cli.processes() == []
    with socket.socket() as probe:  # and loopback can still be used
        probe.bind(("127.0.0.1", 0))


def test_variables_reach_the_ranks_and_only_them(warm):
    sets = ["env={GLOO_LOG_LEVEL: [WARN, ERROR]}", "sizes=[4KiB]", "groups=[world, strided:1]", "calls=[sync, async]"]
    run = warm.measure(TINY, *sets)
    assert len(run.samples) == 2 * 2 * 2
    for launch in run.environment[0]["launches"]:
        assert launch["ranks"][0]["variables"]["GLOO_LOG_LEVEL"] in {"WARN", "ERROR"}
    assert "GLOO_LOG_LEVEL" not in run.environment[0]["host"]["variables"]
