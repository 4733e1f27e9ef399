"""A late rank is named with its delay; its victims are not named, and no rank is named if chance explains the delay."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.analyze import ranks
from collbench.analyze.summaries import summarize
from collbench.model.records import Case
from conftest import invented_run, samples


def run_of(n, late=None, delay_s=0.0, seed=0, launches=3, count=60, share=1.0):
    """Return a run whose ranks arrive with 50 µs of jitter; an operation ends for all 1 ms after the last arrival."""
    rng = np.random.default_rng(seed)
    case = Case("all_reduce", "gloo", n, "float32", 4096)
    made = []
    for launch in range(1, launches + 1):
        arrive = rng.exponential(50e3, (count, n))
        if late is not None:
            arrive[rng.random(count) < share, late] += delay_s * 1e9
        end = arrive.max(axis=1, keepdims=True) + 1e6 * rng.lognormal(0, 0.1, (count, 1))
        made.append(samples(case, launch, end - arrive, arrive))
    return invented_run(made, launches=launches)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_late_rank_is_named_with_its_delay(n):
    (finding,) = ranks.late_ranks(run_of(n, late=1, delay_s=2e-3))
    assert finding.rank == 1
    assert finding.cost_s == pytest.approx(2e-3, rel=0.05)
    assert finding.share > 0.95 and finding.p < 1e-6


def test_the_late_rank_is_also_named_without_a_common_clock():
    run = run_of(4, late=2, delay_s=2e-3)
    run.environment.append({"launches": [{"ranks": [{"clock": "a"}, {"clock": "b"}]}]})
    (finding,) = ranks.late_ranks(run)
    assert finding.rank == 2
    assert finding.cost_s == pytest.approx(2e-3, rel=0.05)


@pytest.mark.parametrize("waits_known", [True, False])
def test_on_gpus_the_device_of_a_late_rank_counts_and_not_its_host(waits_known):
    """Rank 0's host is always 6 µs late; rank 2's device is late. Without the waits of devices, no rank is named."""
    run = run_of(4, late=2, delay_s=2e-3)
    for at, entry in enumerate(run.samples):
        arrive = entry.timed.start_ns
        host = np.zeros_like(arrive)
        host[:, 0] = 6_000
        end = arrive.max(axis=1, keepdims=True) + 10_000
        took = np.full_like(arrive, 10**6)
        timed = replace(
            entry.timed, start_ns=host, duration_ns=took, host_ns=took, wait_ns=end - arrive if waits_known else None
        )
        run.samples[at] = replace(entry, timed=timed)
    late = ranks.late_ranks(run)
    assert [f.rank for f in late] == ([2] if waits_known else [])
    (summary,) = summarize(run)
    assert summary.pure_s is None and (summary.skew_s is not None) is waits_known
    assert not waits_known or [late[0].cost_s, summary.skew_s] == pytest.approx([2e-3, 2e-3], rel=0.1)


@pytest.mark.parametrize("n", [2, 4])
def test_without_a_fault_no_rank_is_named(n):
    named = [bool(ranks.late_ranks(run_of(n, seed=seed))) for seed in range(60)]
    assert sum(named) <= 1


def test_a_significant_delay_that_costs_little_is_not_named():
    """A delay of 20 µs in 1 ms is always present, but costs too little to be named."""
    assert not ranks.late_ranks(run_of(2, late=1, delay_s=20e-6, count=2000))
