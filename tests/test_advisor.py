"""The advised plan stays good if the link or backward is off; forecasts and other ways follow from the same planner."""

import math

import numpy as np
import pytest
from hypothesis import given

from bench.training import advisor, forecast, other_ways, planner, stretch, uncertainty
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.presets import PRESETS
from bench.training.ready_times import ReadyTimes, by_sizes
from bench.training.uncertainty import Box, Grid
from test_planner import LINK, NANOSECOND, PATIENT, curves, profiles

LINKS = [(50e-6, 1e10), (1e-4, 1e8), (2e-3, 1e9), (1e-2, 1e10)]


def off(ready_times: ReadyTimes, cost: AllReduceCost, point: tuple[float, float, float]):
    """Ready times and cost at a point of a box."""
    latency, rate, backward = point
    ready_s = tuple(backward * ready for ready in ready_times.ready_s)
    return ReadyTimes(ready_times.nbytes, ready_s, ready_times.order), cost.off_by(latency, rate)


# ── over a grid ──────────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=12), curves())
def test_a_grid_has_what_each_of_its_points_has(ready_times, cost):
    grid = Grid.over(Box(0.1, 0.2, 0.3), 3)
    plan = planner.uniform(ready_times, max(ready_times.nbytes))
    caps = planner.useful_caps(ready_times)[:5] or [1]
    at = uncertainty.exposures(ready_times, plan, cost, grid)
    of_caps = uncertainty.exposures_of_caps(ready_times, cost, caps, grid)
    least = uncertainty.least_exposures(ready_times, cost, grid)
    for number, point in enumerate(zip(grid.latency, grid.rate, grid.backward, strict=True)):
        there, link = off(ready_times, cost, point)
        assert at[number] == pytest.approx(planner.exposed(there, plan, link), abs=NANOSECOND)
        best = planner.exposed(there, planner.optimal(there, link), link)
        assert least[number] == pytest.approx(best, abs=NANOSECOND)
        alone = [planner.exposed(there, planner.uniform(there, cap), link) for cap in caps]
        assert of_caps[number].tolist() == pytest.approx(alone, abs=NANOSECOND)


# ── the advice ───────────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=30), curves())
def test_no_regret_is_above_that_of_a_cap_or_the_default(ready_times, cost):
    found = advisor.advise(ready_times, cost)
    assert found.plan.worst_regret_s <= min(found.cap.worst_regret_s, found.default.worst_regret_s) + NANOSECOND
    assert found.plan.worst_regret_s >= -NANOSECOND and sum(found.plan.buckets) == ready_times.total
    assert found.bound_s <= found.least_s + NANOSECOND
    for one in (found.plan, found.cap, found.default):
        assert found.least_s <= one.exposed_s + NANOSECOND
        there, link = off(ready_times, cost, one.worst_at)
        left = planner.exposed(there, advisor.plan_of(ready_times, one), link)
        least = planner.exposed(there, planner.optimal(there, link), link)
        assert left - least == pytest.approx(one.worst_regret_s, abs=10 * NANOSECOND)


@pytest.mark.parametrize("preset", ["tiny", "large-2025", "xl-2026"])
def test_a_plan_that_is_best_at_one_point_is_worse_around_it(preset):
    """On some link, the plan that is best as assumed has a regret many times that of the advised one."""
    ratios = []
    for latency_s, rate in LINKS:
        ready_times = ReadyTimes.of_shape(by_sizes(PRESETS[preset], 0.06))
        cost = AllReduceCost.of_link(latency_s, rate)
        judged = advisor.explain(ready_times, cost, advisor.advise(ready_times, cost), 2, 4).predictions
        regrets = {name: one.worst_regret_s for name, one in judged}
        ratios.append(regrets["best if all is as assumed"] / max(regrets["plan with the least worst regret"], 1e-6))
    assert max(ratios) > 2


def test_what_saves_little_everywhere_is_not_advised():
    ready_times = ReadyTimes.of_shape(by_sizes(PRESETS["tiny"], 0.06))
    assert advisor.advise(ready_times, AllReduceCost.of_link(1e-6, 1e12)).advised == "default"
    assert advisor.advise(ready_times, LINK).advised != "default"


# ── other ways ───────────────────────────────────────────────────────────────────────────────────
def by_name(ready_times: ReadyTimes, cost: AllReduceCost) -> dict[str, float]:
    return {one.name.split(",")[0].split(":")[0]: one.exposed_s for one in other_ways.other_ways(ready_times, cost, 4)}


def test_a_case_that_can_be_done_by_hand():
    """2 × 1 MB ready at 10 and 20 ms, 1 GB/s without latency; forward takes 5 + 5 ms."""
    ready_times, cost = ReadyTimes.of([10**6] * 2, [0.020, 0.010]), AllReduceCost.of_link(0, 1e9)
    found = by_name(ready_times, cost)
    assert found["bf16 or fp16 hook"] == pytest.approx(0.5e-3)
    assert found["priority"] == pytest.approx(1e-3)  # the first layer's gradient is the last to be ready
    # Half a millisecond to scatter the last gradient, as much to gather the first layer; the other is hidden.
    assert found["reduce-scatter"] == pytest.approx(1e-3)


def test_forward_waits_for_what_it_needs():
    """A link of 0.1 GB/s: 10 ms a gradient. The first layer's overtakes, and forward hides a part of the other."""
    ready_times, cost = ReadyTimes.of([10**6] * 2, [0.002, 0.001]), AllReduceCost.of_link(0, 1e8)
    # In order: done at 11 and 21 ms. By priority: the first's is done at 12, the second's at 21; forward then takes
    # 0.5 + 0.5 ms and ends at 21.5, where it would have ended at 3.
    assert by_name(ready_times, cost)["priority"] == pytest.approx(18.5e-3)
    assert planner.exposed(ready_times, planner.optimal(ready_times, cost), cost) == pytest.approx(19e-3)


@PATIENT
@given(profiles(most=12), curves())
def test_other_ways_never_expose_less_than_nothing(ready_times, cost):
    assert all(one.exposed_s >= 0 for one in other_ways.other_ways(ready_times, cost, 4))


# ── more ranks ───────────────────────────────────────────────────────────────────────────────────
def test_a_ring_of_more_ranks():
    """Two ranks: 2 steps, each byte crosses the link once. Of 8: 14 steps, 1.75 times."""
    cost = forecast.at_ranks(AllReduceCost.of_link(2e-3, 1e9), 2, 8)
    large = 1e9
    assert cost(np.array([large]))[0] == pytest.approx(14e-3 + 1.75, rel=1e-3)
    # A small message goes by the tree: 2 · log₂ 1024 steps in place of 2 · 1023.
    many = forecast.at_ranks(AllReduceCost.of_link(2e-3, 1e9), 2, 1024)
    assert many(np.array([1024.0]))[0] == pytest.approx(2 * math.log2(1024) * 1e-3, rel=1e-2)


def test_a_forecast_for_each_number_of_ranks():
    ready_times = ReadyTimes.of_shape(by_sizes(PRESETS["tiny"], 0.06))
    found = list(forecast.forecasts(ready_times, LINK, 4, Box()))
    assert [one.ranks for one in found] == [4, 8, 64, 1024] and all(one.late_s is None for one in found)
    for one in found:
        assert one.exposed.low <= one.exposed.value <= one.exposed.high
        assert one.exposed.value <= one.of_default.value + NANOSECOND
    assert [one.exposed.value for one in found] == sorted(one.exposed.value for one in found)


def test_the_last_of_more_ranks_comes_later():
    """Lateness is predicted as the maximum of simulated ranks has it, whose times are distributed exponentially."""
    rng = np.random.default_rng(1)
    ranks = rng.exponential(size=(4000, 512))
    late = ranks[:, :64].max(axis=1) - 1
    found = forecast.lateness(late.tolist(), 64, 512)
    true = float(np.mean(ranks.max(axis=1) - 1))
    assert found.low < found.value < found.high and found.value == pytest.approx(true, rel=0.05)


# ── computing that takes longer meanwhile ────────────────────────────────────────────────────────
def test_what_calls_and_copies_cost_computing_is_recovered():
    ready_times = ReadyTimes.of_shape(by_sizes(PRESETS["tiny"], 0.06))
    true = stretch.Stretch(20e-6, 5e-3 / ready_times.total)
    plans = [planner.uniform(ready_times, cap) for cap in (1, 2**20, 4 * 2**20, 2**30)]
    found = stretch.fitted(ready_times, plans, [true.of(ready_times, plan) for plan in plans])
    assert (found.call_s, found.byte_s) == pytest.approx((true.call_s, true.byte_s))
    later = found.stretched(ready_times, plans[0])
    assert later.ready_s[-1] == pytest.approx(0.06 + 57 * 20e-6)
    assert planner.exposed(later, plans[0], LINK) < planner.exposed(ready_times, plans[0], LINK)
    assert stretch.fitted(ready_times, [], []) == stretch.Stretch()
