"""The emulated link carries one call after the other, and keeps no data of finished calls."""

import time
import tracemalloc

import pytest
import torch

from collbench.packages.training.rank.transport import EmulatedLink
from collbench.packages.training.step_records import Link


def test_calls_go_over_the_link_one_after_the_other(tmp_path):
    """Two ranks in one process: a call begins when the second rank has launched it and the link is free."""
    link = Link(latency_s=1e-3, bytes_per_s=1e6)
    first, second = (EmulatedLink(link, rank, 2, tmp_path / "link") for rank in (0, 1))
    tensor = torch.zeros(1000)
    calls = [end.all_reduce(tensor) for _ in range(2) for end in (first, second)]
    assert not calls[-1].is_completed()
    for call in calls:
        call.wait()
    done = [call.done_ns for call in second.sent]
    assert done == [call.done_ns for call in first.sent] and done[-1] <= time.perf_counter_ns()
    began = max(first.sent[0].launched_ns, second.sent[0].launched_ns)
    assert (done[1] - done[0]) / 1e9 == pytest.approx((done[0] - began) / 1e9, rel=1e-6)


def test_a_call_waits_for_the_rank_that_has_not_launched_it(tmp_path):
    link = Link(latency_s=0.0, bytes_per_s=1e12)
    first, second = (EmulatedLink(link, rank, 2, tmp_path / "link") for rank in (0, 1))
    call = first.all_reduce(torch.zeros(1))
    time.sleep(0.01)
    assert not call.is_completed()
    second.all_reduce(torch.zeros(1)).wait()
    call.wait()
    assert call.is_completed()


def test_it_does_not_grow_with_the_calls_that_are_over(tmp_path):
    link = EmulatedLink(Link(latency_s=0.0, bytes_per_s=1e12), 0, 1, tmp_path / "link")
    tensor, sizes = torch.zeros(1), []
    for traced in (False, True, True):
        for _ in range(1000):
            link.all_reduce(tensor).wait()
        link.sent.clear()
        if not traced:
            tracemalloc.start()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[2] - sizes[1] < 4_000  # bytes; one reference per call would be 8000
