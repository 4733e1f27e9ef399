"""Real ranks die, stop, raise, leave or hang: rank and reason are recorded, the rest is measured, nothing is left."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from collbench.model.records import Case, Fault
from collbench.rank import workload
from collbench.report.notices import sentences
from conftest import TINY, CommandLine, ranks_left
from test_measure import assert_nothing_left

# The fault of rank 1 → the size of its case, and the kind and words of the failure that must be recorded.
PLANTED = {
    "raise": (1024, "raised", "planted fault"),
    "exit": (2048, "exited", "status 0 before it was done"),
    "kill": (4096, "killed", "SIGKILL"),
    "stop": (8192, "hang", "is stopped"),
    "hang": (16384, "hang", "not in the collective, but in _hang"),
}
UNHARMED = {512, 65536}


@pytest.fixture(scope="module")
def harmed(tmp_path_factory, launcher):
    """Return a run of three ranks with every fault at a size of its own, and its report."""
    warm = CommandLine(tmp_path_factory.mktemp("harmed"), launcher)
    planted = [f"{{do: {do}, rank: 1, iteration: 4, size: {size}}}" for do, (size, *_) in PLANTED.items()]
    sizes = sorted(UNHARMED | {size for size, *_ in PLANTED.values()})
    settings = [f"faults=[{', '.join(planted)}]", f"sizes={sizes}", "world_sizes=[3]", "timeout=2s"]
    began = time.monotonic()
    done = warm("run", warm.config(), "--no-plots", *(word for setting in settings for word in ("--set", setting)))
    assert time.monotonic() - began < 300, "a hang ends at its deadline, however busy the machine"
    assert done.returncode == 1
    assert not ranks_left()
    return warm.only_run(), warm("report", "--format", "markdown").stdout


@pytest.mark.parametrize("do", PLANTED)
def test_a_fault_is_recorded_with_its_rank_and_reason(harmed, do):
    run, report = harmed
    size, kind, words = PLANTED[do]
    (failure,) = [s.failure for s in run.samples if s.case.size_bytes == size]
    assert (failure.kind, failure.rank) == (kind, 1), failure
    assert words in failure.text and words in report


def test_a_fault_costs_its_case_only(harmed):
    run, _ = harmed
    assert {s.case.size_bytes for s in run.samples if s.failure is None} == UNHARMED
    assert len(run.samples) == run.plan.total
    assert run.manifest["status"] == "complete"


def wait_for(condition: Callable[[], object], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def wait_for_samples(cli, count: int = 1, seconds: float = 180) -> None:
    wait_for(lambda: any((run / "samples.jsonl").read_bytes().count(b"\n") >= count for run in cli.runs()), seconds)


def ranks_of(pid: int) -> list[psutil.Process]:
    """Return the ranks that have joined: each has threads for its process groups."""
    joined = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.num_threads() > 2:
                joined.append(child)
    return joined


# The run takes seconds: there must be time to interrupt it.
MANY = TINY.replace("launches: 1", "launches: 10").replace("iterations: 8", "iterations: 30")


def test_ctrl_c_while_torch_is_still_loading(cli):
    process = cli.start("run", cli.config(), start_new_session=True)
    wait_for(cli.runs)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130 and "Traceback" not in err
    assert_nothing_left(cli)


# ── processes that survive others ────────────────────────────────────────────────────────────────
# A launch takes a second: there must be time to look at its ranks.
LONG = MANY.replace("iterations: 30", "iterations: 1000").replace("launches: 10", "launches: 20")


class Measuring:
    """A run that is ended again and again: each session measures some of its cases, none twice, and leaves nothing."""

    def __init__(self, cli, place: Path) -> None:
        self.cli, self.place = cli, place
        cli.environment["TMPDIR"] = str(place)

    def begin(self, *words: str, **options) -> subprocess.Popen:
        """Start a session, and return it once it has kept a sample and the ranks of the next launch measure."""
        kept = len(self.cli.only_run().samples) if self.cli.runs() else 0
        process = self.cli.start(*words, "--no-plots", start_new_session=True, **options)
        wait_for_samples(self.cli, kept + 2)
        ending = {*ranks_of(process.pid)}  # the ranks of the launch that gave these samples
        wait_for(lambda: process.poll() is not None or len({*ranks_of(process.pid)} - ending) == 2)
        assert process.poll() is None, "it has measured all launches"
        return process

    def assert_kept(self, status: str, lost: int = 0) -> None:
        """Assert that the run has no sample twice and at most so many lost ones, and that no process is left."""
        assert_nothing_left(self.cli)
        run = self.cli.only_run()
        good = [(s.case, s.launch) for s in run.samples if s.failure is None]
        assert run.manifest["status"] == status and 2 <= len(good) < run.plan.total
        assert len(set(good)) == len(good) >= len(run.samples) - lost


@pytest.fixture
def measuring(cli):
    with tempfile.TemporaryDirectory(prefix="cb-") as place:  # short: a socket's path has a limit
        yield Measuring(cli, Path(place))


def resumed_to_the_end(cli, warm) -> None:
    """Check that a resume keeps the measured samples and measures the missing cases and nothing else."""
    kept = (cli.only_run().path / "samples.jsonl").read_bytes()
    assert warm("resume", cli.only_run().name, "--no-plots").returncode == 0
    run = cli.only_run()
    assert (run.path / "samples.jsonl").read_bytes().startswith(kept)
    good = [(s.case, s.launch) for s in run.samples if s.failure is None]
    assert len(good) == len(set(good)) == run.plan.total
    assert run.manifest["status"] == "complete"


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured_and_resume_measures_exactly_the_rest(cli, warm, measuring):
    """The signal comes to every process of the group, even if the shell made the run ignore Ctrl-C."""

    def as_a_shell_would() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if these tests run under nohup

    sessions = (signal.SIGINT, ["run", cli.config(LONG)], None), (signal.SIGHUP, ["resume", "tiny"], as_a_shell_would)
    for number, words, shell in sessions:
        process = measuring.begin(*words, preexec_fn=shell)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=180)
        assert process.returncode == 130 and "collbench resume" in err and "Traceback" not in err, err
        measuring.assert_kept("interrupted")
        assert not [*measuring.place.iterdir()]
    resumed_to_the_end(cli, warm)
    assert len(cli.only_run().environment) == 3


@pytest.mark.slow
def test_killed_processes_leave_nothing_and_only_then_can_the_run_go_on(cli, warm, measuring):
    """Killed are the parent, then its whole group, then the fork server."""
    place = measuring.place
    process = measuring.begin("run", cli.config(LONG))
    done = warm("resume", "tiny")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another process is measuring" in done.stderr
    other = TINY.replace("iterations: 8", "iterations: 200").replace("sizes: [4KiB, 64KiB]", "sizes: [1MiB]")
    done = warm("run", warm.config(other, "other.yaml"), "--no-plots", "--output", "other")
    assert done.returncode == 0 and "other processes used" in done.stdout, done
    process.kill()
    process.communicate()
    measuring.assert_kept("interrupted")
    assert warm("list").stdout.count("interrupted") == 1

    process = measuring.begin("resume", "tiny")
    maps = [Path(f"/proc/{rank.pid}/maps").read_text() for rank in ranks_of(process.pid)]
    assert maps and not any("/dev/shm" in text for text in maps)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    measuring.assert_kept("interrupted")

    process = measuring.begin("resume", "tiny")
    assert len([*place.glob("collbench-*")]) == 1, "the next run removes the folders of killed ones"
    ranks, kept = ranks_of(process.pid), len(cli.only_run().samples)
    ranks[0].suspend()  # a process that is stopped notices nothing by itself
    servers = [child for child in psutil.Process(process.pid).children() if "forkserver" in str(child.cmdline())]
    servers[0].kill()
    gone, alive = psutil.wait_procs(ranks, 60)
    assert len(gone) == len(ranks) and not alive
    wait_for_samples(cli, kept + 3)  # a launch has two cases: then the next one has measured
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=180)
    assert "Traceback" not in err and not [*place.iterdir()], err
    failures = [s.failure for s in cli.only_run().samples if s.failure]
    assert {(failure.kind, failure.rank) for failure in failures} == {("lost", None)}
    assert all("fork server" in failure.text for failure in failures)
    measuring.assert_kept("interrupted", lost=2)
    resumed_to_the_end(cli, warm)


def test_a_disk_that_fills_while_measuring(small_disk, launcher):
    warm = CommandLine(small_disk, launcher)
    (small_disk / "filler").write_bytes(bytes(16 * 1024))
    # 7 kB per case: twice the space that the run's other files leave.
    text = TINY.replace("launches: 1", "launches: 3").replace("iterations: 8", "iterations: 200")
    done = warm("run", warm.config(text), "--no-plots")
    assert done.returncode == 2, done.stderr
    assert "the disk is full; measured cases are kept" in done.stderr and "Traceback" not in done.stderr
    run = warm.only_run()
    assert 0 < len(run.samples) < run.plan.total and not sentences(run.notices)
    assert not ranks_left()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert warm("resume", "tiny", "--no-plots").returncode == 0
    assert len(warm.only_run().samples) == run.plan.total


def test_a_slow_call_takes_longer_by_its_share_of_its_own_time(monkeypatch):
    now_ns = 0

    def clock():
        nonlocal now_ns
        now_ns += 1
        return now_ns

    class Work:
        def wait(self):
            nonlocal now_ns
            now_ns += 1000

    class Inner(workload.Workload):
        def prepare(self):
            return Work

    case = Case("all_reduce", "gloo", 2, "float32", 1024)
    slow, _ = workload.plant([Fault("slow", 0, iteration=1, share=0.2)], case, 1, 0, Inner(), lambda: None)
    monkeypatch.setattr(workload.time, "perf_counter_ns", clock)
    assert isinstance(slow.prepare()(), Work) and now_ns == 0  # before `iteration` a call is not changed
    slow.prepare()()
    assert 1200 <= now_ns < 1210
