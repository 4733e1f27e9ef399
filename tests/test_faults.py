"""Real ranks die, stop, raise, leave or hang: rank and reason are recorded, the rest is measured, nothing is left."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
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


@pytest.fixture(scope="module", params=[(3,), pytest.param((2, 3), marks=pytest.mark.slow)], ids=str)
def harmed(request, tmp_path_factory, launcher):
    """Return a run with every fault at a size of its own in each of these world sizes, and its report."""
    warm = CommandLine(tmp_path_factory.mktemp("harmed"), launcher)
    planted = [f"{{do: {do}, rank: 1, iteration: 4, size: {size}}}" for do, (size, *_) in PLANTED.items()]
    sizes = sorted(UNHARMED | {size for size, *_ in PLANTED.values()})
    settings = [f"faults=[{', '.join(planted)}]", f"sizes={sizes}", f"world_sizes={[*request.param]}", "timeout=2s"]
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
    failures = {s.case.world_size: s.failure for s in run.samples if s.case.size_bytes == size}
    assert {*failures} == {case.world_size for case in run.plan.cases}
    for failure in failures.values():
        assert (failure.kind, failure.rank) == (kind, 1), failure
        assert words in failure.text
    assert words in report


def test_a_fault_costs_its_case_only(harmed):
    run, _ = harmed
    good = {(s.case.world_size, s.case.size_bytes) for s in run.samples if s.failure is None}
    assert good == {(case.world_size, size) for case in run.plan.cases for size in UNHARMED}
    assert len(run.samples) == run.plan.total
    assert run.manifest["status"] == "complete"


@pytest.mark.slow
def test_ranks_that_cannot_join_fail_their_cases_with_the_reason(cli):
    cli.environment["GLOO_SOCKET_IFNAME"] = "no-such-interface"
    done = cli("run", cli.config(), "--no-plots")
    assert done.returncode == 1
    assert {s.failure.kind for s in cli.only_run().samples} == {"start"}
    assert_nothing_left(cli)
    del cli.environment["GLOO_SOCKET_IFNAME"]
    done = cli("resume", cli.only_run().name, "--no-plots")  # a case is not at fault if its ranks did not start
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [s.failure for s in cli.only_run().samples if s.failure]


def wait_for_samples(cli, count: int = 1, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if cli.runs() and (cli.runs()[0] / "samples.jsonl").read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError("nothing was measured in time")


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


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_resume_measures_exactly_the_rest(cli, warm):
    config = cli.config(MANY)
    process = cli.start("run", config, "--no-plots", start_new_session=True)
    wait_for_samples(cli, 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "collbench resume" in err and "Traceback" not in err
    assert_nothing_left(cli)
    first = cli.only_run()
    assert first.manifest["status"] == "interrupted"
    kept = (first.path / "samples.jsonl").read_bytes()
    assert 3 <= len(first.samples) < first.plan.total
    done = warm("resume", "tiny", "--no-plots")
    assert done.returncode == 0, done.stderr
    again = cli.only_run()
    assert (again.path / "samples.jsonl").read_bytes().startswith(kept)
    pairs = [(s.case.key, s.launch) for s in again.samples]
    assert len(pairs) == len(set(pairs)) == again.plan.total
    assert len(again.environment) == 2 and again.manifest["status"] == "complete"


def test_ctrl_c_while_torch_is_still_loading(cli):
    process = cli.start("run", cli.config(), start_new_session=True)
    while not cli.runs():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130 and "Traceback" not in err
    assert_nothing_left(cli)


@pytest.mark.slow
def test_the_ranks_end_when_the_parent_is_killed_and_only_then_can_the_run_go_on(cli, warm):
    with tempfile.TemporaryDirectory(prefix="cb-") as place:  # short: a socket's path has a limit
        cli.environment["TMPDIR"] = place
        killed_while_measuring(cli, warm, Path(place))
        assert warm("list").stdout.count("interrupted") == 1
        assert cli("resume", str(cli.runs()[0]), "--no-plots").returncode == 0
        # The ranks remove the folder, or the next run does if the parent died between two launches.
        assert not [*Path(place).glob("collbench-*")]
    assert len(cli.only_run().samples) == cli.only_run().plan.total


def killed_while_measuring(cli, warm, place: Path) -> None:
    process = cli.start("run", cli.config(MANY), "--no-plots")
    wait_for_samples(cli, 2)
    done = warm("resume", "tiny")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another process is measuring" in done.stderr
    while len(ranks_of(process.pid)) < 2:  # between two launches there are no ranks
        time.sleep(0.01)
    assert [*place.glob("collbench-*")]
    process.kill()
    process.communicate()
    assert_nothing_left(cli)


# ── processes that survive others ────────────────────────────────────────────────────────────────
# A launch takes a second: there must be time to look at its ranks.
LONG = MANY.replace("iterations: 30", "iterations: 1000").replace("launches: 10", "launches: 4")


@pytest.fixture
def measuring(cli):
    """Return a function that starts a run with its own temporary folder and returns once the ranks measure."""
    with tempfile.TemporaryDirectory(prefix="cb-") as place:  # short: a socket's path has a limit
        cli.environment["TMPDIR"] = place

        def start(*arguments, **options):
            process = cli.start("run", cli.config(LONG), "--no-plots", *arguments, start_new_session=True, **options)
            wait_for_samples(cli, 2)
            ending = {*ranks_of(process.pid)}  # the ranks of the launch that gave these samples
            while len({*ranks_of(process.pid)} - ending) < 2:
                assert process.poll() is None, "it has measured all launches"
                time.sleep(0.01)
            return process, Path(place)

        yield start


def server_of(pid: int) -> psutil.Process:
    return next(
        child for child in psutil.Process(pid).children() if "multiprocessing.forkserver" in str(child.cmdline())
    )


def resumed_to_the_end(cli, kept: bytes) -> None:
    """Check that a resume keeps the measured samples and measures the missing cases and nothing else."""
    done = cli("resume", str(cli.runs()[0]), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = cli.only_run()
    assert (run.path / "samples.jsonl").read_bytes().startswith(kept)
    assert len({(s.case, s.launch) for s in run.samples}) == len(run.samples) == run.plan.total
    assert not [s.failure for s in run.samples if s.failure]
    assert run.manifest["status"] == "complete"


@pytest.mark.slow
def test_the_cases_lost_to_a_killed_fork_server_are_measured_by_a_resume(cli, measuring):
    process, place = measuring()
    ranks = ranks_of(process.pid)
    ranks[0].suspend()  # a process that is stopped notices nothing by itself
    server_of(process.pid).kill()
    gone, alive = psutil.wait_procs(ranks, 60)
    assert len(gone) == len(ranks) and not alive
    time.sleep(0.1)
    assert process.poll() is not None or [*place.glob("collbench-*")]  # the folder of a run that lives
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1 and "Traceback" not in err, err
    failures = [s.failure for s in cli.only_run().samples if s.failure]
    assert {(failure.kind, failure.rank) for failure in failures} == {("lost", None)}
    assert all("fork server" in failure.text for failure in failures)
    assert len(failures) <= 2  # a launch has two cases: killed before its ranks had joined, both are lost
    assert_nothing_left(cli)
    assert not [*place.iterdir()]
    kept = (cli.only_run().path / "samples.jsonl").read_bytes()
    resumed_to_the_end(cli, kept)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_the_end_of_a_terminal_or_of_a_job_is_answered_as_ctrl_c(cli, measuring, number):
    """The signal comes to every process of the group, even if the shell made the run ignore Ctrl-C."""

    def as_a_shell_would() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if these tests run under nohup

    process, place = measuring(preexec_fn=as_a_shell_would)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130 and "collbench resume" in err and "Traceback" not in err, err
    assert_nothing_left(cli)
    assert not [*place.iterdir()]
    run = cli.only_run()
    assert run.manifest["status"] == "interrupted" and not [s for s in run.samples if s.failure]
    resumed_to_the_end(cli, (run.path / "samples.jsonl").read_bytes())


@pytest.mark.slow
def test_a_killed_group_of_processes_leaves_no_shared_memory_and_the_next_run_removes_its_folder(cli, measuring):
    process, place = measuring()
    maps = [Path(f"/proc/{rank.pid}/maps").read_text() for rank in ranks_of(process.pid)]
    assert maps and not any("/dev/shm" in text for text in maps)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert_nothing_left(cli)
    resumed_to_the_end(cli, (cli.only_run().path / "samples.jsonl").read_bytes())
    assert not [*place.iterdir()]


@pytest.mark.slow
def test_a_rank_ended_from_outside_is_named(cli):
    """In the first launch a rank is killed, in the second launch a rank is stopped."""
    text = TINY.replace("iterations: 8", "iterations: 9000").replace("sizes: [4KiB, 64KiB]", "sizes: [4KiB]")
    process = cli.start("run", cli.config(text), "--no-plots", "--set", "timeout=2s", "--set", "launches=2")
    for ended, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        wait_for_samples(cli, ended)
        deadline = time.monotonic() + 60
        while len(ranks_of(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        ranks_of(process.pid)[0].send_signal(number)
    process.communicate(timeout=180)
    assert process.returncode == 1
    assert [s.failure.kind for s in cli.only_run().samples] == ["killed", "hang"]
    assert all(s.failure.rank in {0, 1} for s in cli.only_run().samples)
    assert_nothing_left(cli)


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet_and_each_notices_the_other(cli):
    text = TINY.replace("iterations: 8", "iterations: 700").replace("sizes: [4KiB, 64KiB]", "sizes: [1MiB]")
    first, second = cli.start("run", cli.config(text), "--no-plots"), cli.start("run", cli.config(text), "--no-plots")
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(cli.runs()) == 2
    for output in outputs:
        assert "other processes used" in output


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
