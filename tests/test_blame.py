"""The rank that ended first is named, its victims are not, and nobody is named without evidence."""

from dataclasses import replace

import pytest

from bench.launch.blame import Evidence, explain_exit, explain_hang, innermost_frame

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
