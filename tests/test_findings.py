"""Slow ranks are distinguished from slow links, and a run that contradicts itself is reported once per rule and series.

Nothing is named where there is only scatter.
"""

import numpy as np
import pytest

from collbench.analyze import consistency, links
from collbench.catalog.collectives import cycle
from collbench.catalog.subgroups import rounds
from collbench.model.conclusions import Interval, Summary
from collbench.model.records import Case, Timings
from collbench.report.notices import sentence
from collbench.stats import intervals
from conftest import invented_run, samples


def timed(op: str, size: int, seconds: float, spread: float = 0.02, world_size: int = 4, **case) -> Summary:
    interval = Interval(seconds, seconds * (1 - spread), seconds * (1 + spread), "over launches")
    return Summary(
        Case(op, "gloo", world_size, "float32", size, **case), interval, (seconds,) * 5, launches=5, iterations=100
    )


def texts(summaries, **options) -> list[str]:
    return [sentence(finding.notice) for finding in consistency.findings(summaries, **options)]


def test_an_operation_without_a_reduce_op_is_a_part_for_every_reduce_op():
    left, broadcast = timed("all_reduce", 32, 9e-3, reduce_op="max"), timed("broadcast", 32, 1e-3)
    assert len(texts([left, broadcast, timed("reduce", 32, 1e-3, reduce_op="max")])) == 1
    assert texts([left, broadcast, timed("reduce", 32, 1e-3)]) == []


def test_a_series_is_named_once_per_rule_with_its_worst_size():
    base = [timed("all_reduce", 32, 1e-3), timed("all_reduce", 64, 3e-3), timed("all_reduce", 128, 20e-3)]
    (finding,) = consistency.findings(base)
    assert finding.cases == (base[2].case, base[0].case)
    assert "4 times 32 B takes 4.00 ms" in sentence(finding.notice)
    assert sentence(finding.notice).endswith("(and for 1 more of its sizes)")


def test_series_that_only_scatter_are_rarely_blamed():
    rng = np.random.default_rng(5)
    blamed = 0
    for _ in range(40):
        summaries = []
        for size in [64 * 2**k for k in range(16)]:
            medians = (5e-5 + size / 1e9) * np.exp(rng.normal(0, 0.05, 5))
            case = Case("all_reduce", "gloo", 4, "float32", size)
            summaries.append(
                Summary(case, intervals.launch_interval(medians), tuple(medians.tolist()), launches=5, iterations=100)
            )
        blamed += bool(consistency.findings(summaries))
        slow = summaries[8]
        tripled = Interval(slow.time_s.value * 3, slow.time_s.low * 3, slow.time_s.high * 3, slow.time_s.kind)
        summaries[8] = Summary(slow.case, tripled, launches=5, iterations=100)
        assert consistency.findings(summaries)
    assert blamed <= 1


# ── ranks and links ──────────────────────────────────────────────────────────────────────────────
def run_of(n, slow_rank=None, slow_link=None, factor=2.0, seed=0, cycles=24, warmup=0, noise=0.1):
    rng = np.random.default_rng(seed)
    case = Case("pairwise", "gloo", n, "float32", 2**20)
    period = cycle(Case("pairwise", "gloo", n, "float32", 4096))
    duration = np.zeros((cycles * period, n))
    for row in range(len(duration)):
        for i, j in rounds(n)[(row + warmup) % period]:
            slow = slow_rank in (i, j) or slow_link == (i, j)
            duration[row, [i, j]] = 1e6 * (factor if slow else 1) * rng.lognormal(0, noise)
    made = samples(case, 1, duration)
    if warmup:
        first = Timings(np.zeros((warmup, n), dtype=int), np.ones((warmup, n), dtype=int))
        made = type(made)(**{f: getattr(made, f) for f in made.__dataclass_fields__} | {"warmup": first})
    return invented_run([made])


def named(run):
    return [finding.subject for finding in links.slow_ranks_and_links(run)[0]]


@pytest.mark.parametrize("n", [4, 5, 8])
def test_a_slow_rank_is_named_and_a_slow_link_without_its_ranks(n):
    for rank, warmup in [(0, 0), (1, 5), (n - 1, 0)]:
        assert named(run_of(n, slow_rank=rank, seed=rank, warmup=warmup)) == [f"rank {rank}"]
    for link in [(0, 1), (1, 3), (0, n - 1)]:
        assert named(run_of(n, slow_link=link, seed=sum(link))) == [f"link {link[0]}–{link[1]}"]


def test_an_even_matrix_names_no_rank_and_no_link():
    assert sum(bool(named(run_of(4, seed=seed, noise=0.2))) for seed in range(25)) <= 1


def placed(launches, seed, slow_link=None, scatter=0.1):
    """Return a run whose launches differ in their links by chance; `slow_link` is slow in each launch."""
    rng = np.random.default_rng(seed)
    n, made = 4, []
    case = Case("pairwise", "gloo", n, "float32", 2**20)
    period = cycle(case)
    for launch in range(1, launches + 1):
        level = {pair: rng.lognormal(0, scatter) for turn in rounds(n) for pair in turn}
        if slow_link:
            level[slow_link] *= 2
        duration = np.zeros((24 * period, n))
        for row in range(len(duration)):
            for i, j in rounds(n)[row % period]:
                duration[row, [i, j]] = 1e6 * level[i, j] * rng.lognormal(0, 0.05)
        made.append(samples(case, launch, duration))
    return invented_run(made, launches=launches)


@pytest.mark.parametrize("launches", [3, 5])
def test_links_that_differ_from_launch_to_launch_are_named_in_few_runs(launches):
    """The launch is the unit; with groups of iterations as units, a link was named in 20 to 55 % of runs."""
    wrong = sum(bool(named(placed(launches, seed))) for seed in range(24))
    assert wrong <= 4  # with a true rate of 5 %, 24 runs stay within this limit in 99.3 %
    assert sum(named(placed(8, seed, slow_link=(1, 2))) == ["link 1–2"] for seed in range(5)) >= 4
