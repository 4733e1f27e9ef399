"""Silent ranks are a hang, a machine that stood still is not; the rank that ended first is named, never a victim.

The clock is fake.
"""

from dataclasses import replace
from multiprocessing import Pipe

import pytest

from collbench.launch import supervisor, turns
from collbench.launch.ranks import Ranks
from collbench.launch.supervisor import (
    Evidence,
    explain_exit,
    explain_hang,
    nccl_errors,
    watchdog,
)
from collbench.protocol import messages
from collbench.rank.process import one_line


class Clock:
    """Time that passes only during looks at the ranks and sleeps."""

    def __init__(self, events):
        self.now, self.looks, self.events = 100.0, 0, events

    CLOCK_BOOTTIME = None

    def monotonic(self):
        return self.now

    def clock_gettime(self, clock):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait(self, connections, seconds):
        self.looks += 1
        self.now += self.events.get(self.looks, lambda: None)() or seconds
        return [connection for connection in connections if connection.poll()]


class SilentRank:
    """A rank that has joined and reports nothing more, unless a test makes it."""

    rank, exit_code, lost, log, health = 0, None, None, "", {}

    def __init__(self):
        self.connection, self.other = Pipe()
        self.count = 0
        messages.send(self.other, {"kind": "ready", "waits_in": [], "facts": {}})

    progress = property(lambda self: self.count)
    position, state, stack = 0, "sleeping", ""

    def ask_stack(self): ...

    def kill(self): ...

    def join(self, seconds):
        self.exit_code = -9


def watch(monkeypatch, rank, events, timeout_s=2.0):
    clock = Clock(events)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(turns, "wait", clock.wait)
    ranks = Ranks([rank], lambda: None)
    (outcome,) = turns.drive(supervisor.run_launch(lambda: ranks, timeout_s))
    return outcome, clock


@pytest.mark.parametrize("frozen_s", [3.0, 1000.0])
def test_a_machine_that_stood_still_is_not_a_hang(monkeypatch, frozen_s):
    rank = SilentRank()
    events = {
        3: lambda: frozen_s,
        4: lambda: setattr(rank, "count", rank.count + 1),
        9: lambda: messages.send(rank.other, {"kind": "done"}),
    }
    outcome, _ = watch(monkeypatch, rank, events)
    assert outcome.failure is None


def test_a_rank_that_is_silent_while_it_is_looked_at_hangs(monkeypatch):
    outcome, clock = watch(monkeypatch, SilentRank(), {3: lambda: 1.0})
    assert outcome.failure.kind == "hang"
    assert clock.looks == pytest.approx(2.0 / supervisor.LOOK_EVERY_S, abs=3)


def test_a_failure_after_the_machine_stood_still_is_not_the_fault_of_the_case(monkeypatch):
    rank = SilentRank()
    error = {"kind": "error", "text": "RuntimeError: timed out"}
    outcome, _ = watch(monkeypatch, rank, {3: lambda: 1000.0, 5: lambda: messages.send(rank.other, error)})
    assert (outcome.failure.kind, outcome.failure.rank) == ("lost", None)
    assert "stood still" in outcome.failure.text and "timed out" in outcome.failure.text


# ── rank in the evidence ─────────────────────────────────────────────────────────────────────────
WAITS = "in all_reduce (/site-packages/torch/distributed/distributed_c10d.py:3010)"
IN_MPI = "in _on_cpu (/x/rank/timing.py:118)"
IN_BARRIER = "in wait (/x/protocol/rank_context.py:30)"
ON_LINK = "in wait (/x/training/rank/transport.py:99)"
FILES = ("/x/rank/timing.py", "/x/protocol/rank_context.py", "/x/training/rank/transport.py")
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1234"
TIMED_OUT = "RuntimeError: Timed out waiting 60000ms"
# torch raises this while another host hangs: the rank that raises it must not be blamed.
STORE_GONE = "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?"


def timeout(rank, enqueued):
    """Return the log of a rank that waited too long: from torch 2.13, and from before process groups had names."""
    return (
        f"[rank{rank}]:[E1101 10:00:00.123456789 ProcessGroupNCCL.cpp:697] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=262144, NumelOut=262144, "
        f"Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
        f"[rank{rank}]:[E1101 10:00:00.123500000 ProcessGroupNCCL.cpp:2275] [PG ID 0 PG GUID 0(default_pg) Rank "
        f"{rank}]  failure detected by watchdog at work sequence id: 808 PG status: last enqueued work: {enqueued}, "
        f"last completed work: 807\n"
    )


DUMP = "[rank2]:[E1101 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0 Rank 2] Observed flight recorder dump signal\n"


def logged(log, *exit_codes):
    """Return the evidence of ranks with these exit codes, from what the watchdog of NCCL has logged."""
    aborted, enqueued = watchdog(log)
    return [
        Evidence(rank, exit_code=code, aborted=code == -6 and rank in aborted, enqueued=enqueued.get(rank))
        for rank, code in enumerate(exit_codes)
    ]


def left(rank, error):
    return Evidence(rank, exit_code=70, error=error)


# The texts of NCCL are from ProcessGroupNCCL and from NCCL 2.27 to 2.29: the first three are about other ranks.
OF_NCCL = [
    ("DistBackendError: NCCL error in: /p/x.cpp:3690, remote process exited or there was a network error", None),
    ("DistBackendError: ncclRemoteError: A call failed possibly due to a network error", None),
    ("RuntimeError: NCCL communicator was aborted on rank 1.", None),
    ("DistBackendError: NCCL error in: /p/x.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details)", 0),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB", 0),
    ("AcceleratorError: CUDA error: an illegal memory access was encountered", 0),
]


@pytest.mark.parametrize(
    ("ranks", "kind", "rank"),
    [
        ([Evidence(0, error=CLOSED), Evidence(1, exit_code=-9), Evidence(2, error=CLOSED)], "killed", 1),
        ([left(0, CLOSED), left(1, "ValueError: bad")], "raised", 1),
        ([left(0, CLOSED), Evidence(1, exit_code=0)], "exited", 1),
        ([Evidence(0), Evidence(1, exit_code=0)], "exited", 1),
        ([Evidence(0, exit_code=195), Evidence(1, exit_code=195)], "exited", None),
        ([Evidence(0, exit_code=0, finished=True), Evidence(1, exit_code=-11)], "killed", 1),
        ([left(0, TIMED_OUT), left(1, TIMED_OUT), Evidence(2, state="stopped")], "hang", 2),
        ([Evidence(0), Evidence(1, exit_code=1, error=STORE_GONE)], "raised", None),
        ([left(0, CLOSED), left(1, TIMED_OUT)], "raised", None),
        *(([left(0, error), left(1, CLOSED)], "raised", rank) for error, rank in OF_NCCL),
        # Ranks that waited, as the watchdog says, are not blamed; an abort by itself is, as of a failed assertion.
        (logged(timeout(0, 810) + timeout(1, 810) + DUMP, -6, -6, None), "hang", 2),
        (logged(timeout(0, 810) + timeout(1, 808) + timeout(2, 810), -6, -6, -6), "hang", 1),
        (logged(timeout(0, 810) + timeout(1, 810), -6, -6), "hang", None),
        (logged(timeout(0, 810), -6, -9, -6), "killed", 1),
        (logged("", -6, None), "killed", 0),
    ],
)
def test_an_end(ranks, kind, rank):
    failure = explain_exit(ranks)
    assert (failure.kind, failure.rank) == (kind, rank)
    assert "\n" not in failure.text


@pytest.mark.parametrize(
    ("ranks", "rank"),
    [
        ([Evidence(0, stack=WAITS), Evidence(1, state="stopped"), Evidence(2, stack=WAITS)], 1),
        ([Evidence(0, stack=WAITS, progress=8), Evidence(1, stack="in _hang (/x/faults.py:9)", progress=8)], 1),
        ([Evidence(0, stack=IN_BARRIER, progress=8), Evidence(1, stack=WAITS, progress=7)], 1),
        ([Evidence(0, stack=IN_MPI, progress=8), Evidence(1, stack="in _hang (/x/faults.py:9)", progress=8)], 1),
        ([Evidence(0, stack=IN_MPI, progress=8), Evidence(1, stack=IN_MPI, progress=8)], None),
        ([Evidence(0, stack=WAITS, progress=8), Evidence(1, stack=WAITS, progress=8)], None),
        ([Evidence(0, stack=IN_BARRIER, progress=8), Evidence(1, progress=8)], None),
        ([Evidence(0, stack=ON_LINK, progress=8), Evidence(1, stack="in f (/home/me/model.py:3)", progress=8)], 1),
    ],
)
def test_a_hang(ranks, rank):
    failure = explain_hang([replace(evidence, waits_in=FILES) for evidence in ranks], 5.0)
    assert (failure.kind, failure.rank) == ("hang", rank)
    assert "5 s" in failure.text


# Log of torch 2.14 when ncclCommGetAsyncError returned an error on rank 1.
ASYNC = (
    "[rank1]:[E1125 ProcessGroupNCCL.cpp:687] [Rank 1] Watchdog caught an error\n"
    "[rank1]:[E1125 ProcessGroupNCCL.cpp:2110] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread "
    "terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.30.7\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\nsocketProgressOpt: Call to recv from 10.0.0.2<49901> failed : Broken pipe\nException raised from x\n"
)


@pytest.mark.parametrize("ended", [True, False])
def test_an_error_that_nccl_reports_while_calls_run_is_named_with_its_cause(ended):
    codes = (None, -6) if ended else (None, None)
    errors_by_rank = nccl_errors(ASYNC)
    ranks = [Evidence(rank, exit_code=code, nccl=errors_by_rank.get(rank)) for rank, code in enumerate(codes)]
    failure = explain_exit(ranks) if ended else explain_hang(ranks, 5.0)
    assert (failure.kind, failure.rank) == ("raised", 1)
    assert "ncclRemoteError" in failure.text and "10.0.0.2<49901> failed : Broken pipe" in failure.text
    killed = explain_exit([replace(ranks[0], exit_code=-9), ranks[1]])
    assert (killed.kind, killed.rank) == ("killed", 0)  # the error on rank 1 follows from that
    raised = explain_exit([replace(ranks[0], exit_code=1, error="ValueError: x"), ranks[1]])
    assert (raised.kind, raised.rank) == ("raised", 0) and "ValueError" in raised.text
    left = explain_exit([replace(ranks[0], exit_code=0), ranks[1]])
    assert (left.kind, left.rank) == ("exited", 0)
    stopped = explain_hang([replace(ranks[0], state="stopped"), ranks[1]], 5.0)
    assert (stopped.kind, stopped.rank) == ("hang", 0)


def test_the_cause_of_an_exception_of_nccl_is_kept():
    text = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3888, unhandled system error (run "
        "with NCCL_DEBUG=INFO for details), NCCL version 2.30.7\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\nError: network not found."
    )
    line = one_line(RuntimeError(text))
    assert line.startswith("RuntimeError: NCCL 2.30.7: ncclSystemError: ") and line.endswith("network not found.")
    assert one_line(ValueError("a\nb")) == "ValueError: a" and one_line(ValueError()) == "ValueError: "
