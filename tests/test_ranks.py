"""A late rank is named with its delay; its victims are not, and nobody is where chance explains it."""

from dataclasses import replace

import numpy as np
import pytest

from bench.analyze import ranks
from bench.analyze.summaries import summarize
from bench.model.records import Case
from conftest import invented_run, samples


def run_of(n, late=None, delay_s=0.0, seed=0, launches=3, count=60, share=1.0):
    """Ranks that arrive with 50 µs of jitter; the operation ends for all 1 ms after the last one came."""
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


def test_it_is_named_without_a_common_clock_too():
    run = run_of(4, late=2, delay_s=2e-3)
    run.environment.append({"launches": [{"ranks": [{"clock": "a"}, {"clock": "b"}]}]})
    (finding,) = ranks.late_ranks(run)
    assert finding.rank == 2
    assert finding.cost_s == pytest.approx(2e-3, rel=0.05)


@pytest.mark.parametrize("known", [True, False])
def test_on_gpus_the_devices_tell_who_is_late_and_not_the_hosts(known):
    """Rank 0's host is always 6 µs late; rank 2's device is. Without the waits of the devices nobody is named."""
    run = run_of(4, late=2, delay_s=2e-3)
    for at, one in enumerate(run.samples):
        arrive = one.timed.start_ns
        host = np.zeros_like(arrive)
        host[:, 0] = 6_000
        end = arrive.max(axis=1, keepdims=True) + 10_000
        took = np.full_like(arrive, 10**6)
        timed = replace(
            one.timed, start_ns=host, duration_ns=took, host_ns=took, wait_ns=end - arrive if known else None
        )
        run.samples[at] = replace(one, timed=timed)
    found = ranks.late_ranks(run)
    assert [f.rank for f in found] == ([2] if known else [])
    (summary,) = summarize(run)
    assert summary.pure_s is None and (summary.skew_s is not None) is known
    assert not known or [found[0].cost_s, summary.skew_s] == pytest.approx([2e-3, 2e-3], rel=0.1)


@pytest.mark.parametrize("n", [2, 4])
def test_without_a_fault_nobody_is_named(n):
    named = [bool(ranks.late_ranks(run_of(n, seed=seed))) for seed in range(60)]
    assert sum(named) <= 1


def test_significant_is_not_enough():
    """20 µs of 1 ms is always there and costs nothing worth naming."""
    assert not ranks.late_ranks(run_of(2, late=1, delay_s=20e-6, count=2000))


def test_holm_is_no_kinder_than_bonferroni_for_the_smallest():
    p = np.array([0.01, 0.04, 0.03])
    assert ranks.holm(p, 3).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert ranks.holm(p, 30)[0] == pytest.approx(0.3)
