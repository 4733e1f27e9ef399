"""The rank that ended first is named, its victims are not, and nobody is named without evidence."""

from dataclasses import replace

import pytest

from bench.launch.blame import Evidence, explain_exit, explain_hang, innermost_frame, watchdog

WAITS = "in all_reduce (/site-packages/torch/distributed/distributed_c10d.py:3010)"
IN_MPI = "in _on_cpu (/x/rank/timing.py:118)"
IN_BARRIER = "in wait (/x/protocol/barrier.py:30)"
ON_LINK = "in wait (/x/training/rank/transport.py:99)"
FILES = ("/x/rank/timing.py", "/x/protocol/barrier.py", "/x/training/rank/transport.py")
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("ranks", "kind", "rank"),
    [
        ([Evidence(0, said=CLOSED), Evidence(1, exit_code=-9), Evidence(2, said=CLOSED)], "killed", 1),
        ([Evidence(0, exit_code=70, said=CLOSED), Evidence(1, exit_code=70, said="ValueError: bad")], "raised", 1),
        ([Evidence(0, exit_code=70, said=CLOSED), Evidence(1, exit_code=0)], "exited", 1),
        ([Evidence(0), Evidence(1, exit_code=0)], "exited", 1),
        ([Evidence(0, exit_code=195), Evidence(1, exit_code=195)], "exited", None),
        ([Evidence(0, exit_code=0, finished=True), Evidence(1, exit_code=-11)], "killed", 1),
        (
            [Evidence(0, exit_code=70, said=CLOSED), Evidence(1, exit_code=70, said="RuntimeError: Timed out waiting")],
            "raised",
            None,
        ),
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
    failure = explain_hang([replace(one, waits_in=FILES) for one in ranks], 5.0)
    assert (failure.kind, failure.rank) == ("hang", rank)
    assert "5 s" in failure.text


def test_a_stack_is_read_from_its_innermost_frame():
    dump = 'Current thread 0x1 (most recent call first):\n  File "/a/b.py", line 3 in f\n  File "/c.py", line 9 in g\n'
    assert innermost_frame(dump) == "in f (/a/b.py:3)"
    assert innermost_frame("") is None


# ── NCCL's watchdog ──────────────────────────────────────────────────────────────────────────────
def timeout(rank, enqueued):
    """What torch 2.13 writes on a rank that waited too long, and what it wrote before process groups had names."""
    return (
        f"[rank{rank}]:[E1101 10:00:00.123456789 ProcessGroupNCCL.cpp:697] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=262144, NumelOut=262144, "
        f"Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
        f"[rank{rank}]:[E1101 10:00:00.123500000 ProcessGroupNCCL.cpp:2275] [PG ID 0 PG GUID 0(default_pg) Rank "
        f"{rank}]  failure detected by watchdog at work sequence id: 808 PG status: last enqueued work: {enqueued}, "
        f"last completed work: 807\n"
    )


DUMP = "[rank2]:[E1101 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0 Rank 2] Observed flight recorder dump signal\n"


def of_log(log, exit_codes):
    said = watchdog(log)
    return [
        Evidence(rank, exit_code=code, aborted=code == -6 and said.get(rank, (False,))[0],
                 enqueued=said.get(rank, (False, None))[1])
        for rank, code in enumerate(exit_codes)
    ]  # fmt: skip


def test_the_watchdog_tells_of_those_that_waited():
    assert watchdog(timeout(0, 810) + timeout(1, 809) + DUMP) == {0: (True, 810), 1: (True, 809)}
    assert watchdog("") == {}


@pytest.mark.parametrize(
    ("log", "exit_codes", "kind", "rank"),
    [
        (timeout(0, 810) + timeout(1, 810) + DUMP, [-6, -6, None], "hang", 2),
        (timeout(0, 810) + timeout(1, 808) + timeout(2, 810), [-6, -6, -6], "hang", 1),
        (timeout(0, 810) + timeout(1, 810), [-6, -6], "hang", None),
        (timeout(0, 810), [-6, -9, -6], "killed", 1),
        ("", [-6, None], "killed", 0),  # an abort of its own, such as a failed assertion
    ],
)
def test_who_waited_is_not_blamed(log, exit_codes, kind, rank):
    failure = explain_exit(of_log(log, exit_codes))
    assert (failure.kind, failure.rank) == (kind, rank)


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ("DistBackendError: NCCL error in: /p/x.cpp:3690, remote process exited or there was a network error", None),
        ("DistBackendError: ncclRemoteError: A call failed possibly due to a network error", None),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", None),
        ("DistBackendError: NCCL error in: /p/x.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details)", 0),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB", 0),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", 0),
    ],
)  # fmt: skip
def test_what_nccl_says_of_others_and_of_itself(said, rank):
    """The texts are those of ProcessGroupNCCL and of NCCL 2.27 to 2.29."""
    ranks = [Evidence(0, exit_code=70, said=said), Evidence(1, exit_code=70, said=CLOSED)]
    assert explain_exit(ranks).rank == rank
