"""The feedback loop on a fake clock stops for the reason that it reports, and for the same reason on every rank."""

import numpy as np
import pytest

from collbench.model.records import Sampling, Timings
from collbench.planning.footprint import FEWEST_ITERATIONS, PATIENCE
from collbench.rank.sampling import LONG_CALL_S, Sampler
from collbench.stats.intervals import within_launch
from conftest import timings


class FakeRanks:
    """Blocks of invented durations; each iteration takes `overhead` times its duration."""

    def __init__(self, draw, overhead=1.2):
        self.draw, self.overhead, self.blocks = draw, overhead, []

    def __call__(self, block) -> tuple[Timings, float]:
        self.blocks.append(block)
        duration = np.array([self.draw() for _ in range(block.total)])
        both = np.stack([duration * 0.9, duration], axis=1)
        return timings(both * 1e9), float(duration.sum() * self.overhead)


def sample(sampling, measure, cycle=1, first_s=0.0, **limits) -> Sampler:
    sampler = Sampler(sampling, cycle, first_s=first_s, **limits)
    while sampler.stopped_by is None:
        sampler.add(*measure(sampler.block))
    return sampler


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


def test_a_steady_case_stops_by_precision_at_the_second_look():
    got = sample(settings(), FakeRanks(noisy(0.01)))
    assert (got.stopped_by, len(got.timed.blocks)) == ("precision", 5)


def test_a_noisy_case_goes_on_until_it_is_precise():
    got = sample(settings(max_iterations=50000, seconds_per_case=60), FakeRanks(noisy(0.4)))
    assert got.stopped_by == "precision"
    assert len(got.timed.blocks) > 5
    assert within_launch(got.timed.slowest_s, got.timed.blocks).relative_half_width <= 0.05


def test_a_hopeless_case_stops_by_time_and_within_it():
    got = sample(settings(seconds_per_case=0.3), FakeRanks(noisy(1.5)))
    assert got.stopped_by == "time"
    assert got.timed.duration_ns.max(axis=1).sum() / 1e9 * 1.2 < 0.5


@pytest.mark.parametrize("scale", [0.01, 0.5])
def test_in_turns_the_number_of_blocks_follows_from_the_time_for_a_case(scale):
    """Both sides have the same number of blocks, whether their times scatter or not. Long calls have no warm-up."""
    ranks = FakeRanks(noisy(scale))
    got = sample(settings(max_iterations=10**6), ranks, in_turns_s=0.62)
    assert (got.stopped_by, len(got.timed.blocks)) == ("time", 6)
    assert [block.warmup for block in ranks.blocks] == [5, *[2] * 6]
    ranks = FakeRanks(noisy(scale, mean=1.0))
    slow = sample(settings(), ranks, in_turns_s=0.24)
    assert (slow.stopped_by, len(slow.timed.blocks)) == ("time", 4) and not any(b.warmup for b in ranks.blocks[1:])


@pytest.mark.parametrize(("call_s", "blocks"), [(0.02, (2,) * 4), (0.06, (1,) * 8), (0.11, (1,) * 6), (0.2, (1,) * 4)])
def test_long_calls_are_made_eight_times_if_that_does_not_take_far_too_long(call_s, blocks):
    """The last two take longer than PATIENCE allows: measuring ends with the call that goes beyond it."""
    got = sample(settings(seconds_per_case=0.1), FakeRanks(lambda: call_s, overhead=1.0))
    assert (got.stopped_by, got.timed.blocks) == ("time", blocks)
    assert sum(blocks) == FEWEST_ITERATIONS or sum(blocks) * call_s >= PATIENCE * 0.1


def test_the_greatest_count_is_kept():
    got = sample(settings(max_iterations=60, seconds_per_case=60), FakeRanks(noisy(1.5)))
    assert (got.stopped_by, len(got.timed.duration_ns)) == ("count", 60)


@pytest.mark.parametrize("cycle", [1, 3])
def test_the_first_cases_of_a_launch_are_warmed_up_for_as_long_as_a_launch_needs(cycle):
    """The first call is slow, so its time does not show how many calls fit."""
    ranks = FakeRanks(noisy(0.01, mean=0.001))
    got = sample(settings(), ranks, cycle, first_s=0.02, warm_s=0.08)
    before = [block for block in ranks.blocks if not block.timed]
    assert len(before) == 3 and 0.08 <= sum(block.total for block in before) * 0.001 * 1.2 < 0.1
    assert all(block.total % cycle == 0 for block in ranks.blocks)
    assert len(got.warmup.duration_ns) >= sum(block.total for block in before) and got.timed.blocks
    for without in ({"warmup": 0}, {"warmup_s": 0.0}):
        ranks = FakeRanks(noisy(0.01))
        sample(settings(**without), ranks, warm_s=0.08)
        assert sum(not block.timed for block in ranks.blocks) <= 1


def test_long_calls_get_one_warm_up_call_and_none_before_a_block():
    ranks = FakeRanks(lambda: LONG_CALL_S, overhead=1.0)
    got = sample(settings(), ranks, first_s=1.0)
    assert [block.warmup for block in ranks.blocks] == [1, *[0] * len(got.timed.blocks)]


def test_blocks_are_whole_cycles_and_whole_cycles_are_left_out():
    """A GPU runs each block twice, once per clock; a partial cycle would shift the rounds of the second run."""
    sampler, totals = Sampler(settings(iterations=55, warmup=1, warmup_s=9.0), cycle=3), []
    while sampler.stopped_by is None:
        block = sampler.block
        totals += [block.warmup, block.timed]
        bound = np.arange(block.total) == block.warmup + 1  # in the second round of the first cycle
        rounds = np.arange(block.total) % 3
        sampler.add(timings(rounds[:, None]), 0.001, bound)
    assert all(count % 3 == 0 for count in totals) and sum(totals[1::2]) == 54
    assert (sampler.timed.duration_ns[:, 0] == np.tile([0, 1, 2], 14)).all() and sampler.left_out == 12
