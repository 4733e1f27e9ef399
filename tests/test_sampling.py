"""The feedback loop on a fake clock: it stops for the reason that it gives, and the same on every rank."""

import numpy as np
import pytest

from bench.rank.sampling import AgreedTimings, decide, sample
from bench.records import Sampling
from conftest import timings


class FakeRanks:
    """Blocks of invented durations; each iteration takes `overhead` longer than its duration."""

    def __init__(self, draw, overhead=1.2):
        self.draw, self.overhead, self.counts = draw, overhead, []

    def __call__(self, count: int) -> AgreedTimings:
        self.counts.append(count)
        duration = np.array([self.draw() for _ in range(count)])
        both = np.stack([duration * 0.9, duration], axis=1)
        return AgreedTimings(timings(both * 1e9), float(duration.sum() * self.overhead))


def settings(**changes) -> Sampling:
    base = {
        "warmup": 5,
        "warmup_s": 0.05,
        "iterations": None,
        "relative_error": 0.05,
        "seconds_per_case": 2.0,
        "max_iterations": 500,
    }
    return Sampling(**{**base, **changes})


def noisy(scale, seed=1, mean=0.001):
    rng = np.random.default_rng(seed)
    return lambda: float(mean * np.exp(scale * rng.normal()))


def test_a_steady_case_stops_by_precision_at_the_first_look():
    ranks = FakeRanks(noisy(0.01))
    got = sample(settings(), ranks)
    assert got.stopped_by == "precision"
    assert len(got.timed.duration_ns) == 20


def test_a_noisy_case_goes_on_until_it_is_precise():
    got = sample(settings(max_iterations=5000, seconds_per_case=60), FakeRanks(noisy(0.4)))
    assert got.stopped_by == "precision"
    assert 100 < len(got.timed.duration_ns) < 2000


def test_a_hopeless_case_stops_by_time_and_within_it():
    ranks = FakeRanks(noisy(1.5))
    got = sample(settings(seconds_per_case=0.3), ranks)
    assert got.stopped_by == "time"
    assert got.timed.duration_ns.max(axis=1).sum() / 1e9 * 1.2 < 0.4


def test_a_slow_case_gets_the_fewest_iterations_and_no_more():
    got = sample(settings(seconds_per_case=0.5), FakeRanks(noisy(0.5, mean=1.0)))
    assert (got.stopped_by, len(got.timed.duration_ns)) == ("time", 3)
    got = sample(settings(seconds_per_case=0.5), FakeRanks(noisy(0.5, mean=1.0)), cycle=3)
    assert len(got.timed.duration_ns) == 9  # each of the rounds so often


def test_the_first_block_fills_the_time_that_there_is():
    got = sample(settings(seconds_per_case=12.5), FakeRanks(noisy(0.5, mean=1.0)))
    assert 6 < len(got.timed.duration_ns) < 20


def test_the_greatest_count_is_kept():
    got = sample(settings(max_iterations=60, seconds_per_case=60), FakeRanks(noisy(1.5)))
    assert (got.stopped_by, len(got.timed.duration_ns)) == ("count", 60)


def test_a_fixed_count_is_exact_and_looks_at_no_clock():
    ranks = FakeRanks(noisy(0.5, mean=9.0))
    got = sample(settings(iterations=13, warmup=4, warmup_s=0.0, seconds_per_case=0.0), ranks)
    assert (got.stopped_by, ranks.counts) == ("count", [4, 13])


@pytest.mark.parametrize(
    ("warmup", "seconds", "least"), [(5, 0.05, 42), (5, 0.0, 5), (0, 0.0, 0), (0, 0.05, 1), (100, 0.05, 100)]
)
def test_warm_up_reaches_its_count_and_its_time(warmup, seconds, least):
    got = sample(settings(warmup=warmup, warmup_s=seconds), FakeRanks(lambda: 0.001))
    have = 0 if got.warmup is None else len(got.warmup.duration_ns)
    assert least <= have <= least + 1


def test_the_decision_depends_on_agreed_numbers_only():
    slowest = np.abs(np.random.default_rng(3).normal(1, 0.5, 40))
    assert len({decide(settings(), slowest.copy(), 1.0) for _ in range(5)}) == 1


def test_the_rule_looks_at_the_slowest_rank():
    draw = noisy(0.5, seed=4)

    def block(count):
        slow = np.array([draw() for _ in range(count)])
        return AgreedTimings(timings(np.stack([np.full(count, 1e-5), slow], axis=1) * 1e9), float(slow.sum()))

    got = sample(settings(seconds_per_case=0.2), block)
    assert len(got.timed.duration_ns) > 20  # the steady rank alone would have stopped it at once


def test_long_calls_get_few_warm_up_calls():
    """A call that was made before took a second: one more is warm-up enough where five short ones are asked for."""
    long = sample(settings(), FakeRanks(noisy(0.1, mean=1.0)), first_s=1.0)
    assert len(long.warmup.duration_ns) == 1
    short = sample(settings(warmup_s=0.0), FakeRanks(noisy(0.1)), first_s=0.0)
    assert len(short.warmup.duration_ns) == 5


def test_a_first_call_that_connects_is_no_long_call():
    """Where the calls of the warm-up turn out to be short, it goes on until it is as long as asked."""
    got = sample(settings(), FakeRanks(noisy(0.1), overhead=1.0), first_s=1.0)
    assert got.warmup.duration_ns[:, 1].sum() / 1e9 > 0.04


def test_three_equal_iterations_are_no_precision():
    got = sample(settings(seconds_per_case=0.5), FakeRanks(lambda: 1.0))
    assert (got.stopped_by, len(got.timed.duration_ns)) == ("time", 3)
