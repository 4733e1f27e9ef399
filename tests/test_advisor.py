"""The advised plan stays good if the link or backward is off."""

import numpy as np
import pytest
from hypothesis import given

from bench.training.analyze import runs
from bench.training.catalog.presets import PRESETS
from bench.training.planning import advisor, buckets, planner
from bench.training.planning.buckets import ReadyTimes, shape_by_flops
from bench.training.planning.link_model import AllReduceCost
from bench.training.planning.planner import Box, Grid
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
    plan = buckets.uniform(ready_times, max(ready_times.nbytes))
    caps = buckets.useful_caps(ready_times)[:5] or [1]
    at = planner.exposures(ready_times, plan, cost, grid)
    of_caps = planner.exposures_of_caps(ready_times, cost, caps, grid)
    least = planner.least_exposures(ready_times, cost, grid)
    for number, point in enumerate(zip(grid.latency, grid.rate, grid.backward, strict=True)):
        there, link = off(ready_times, cost, point)
        assert at[number] == pytest.approx(planner.exposed(there, plan, link), abs=NANOSECOND)
        best = planner.exposed(there, planner.optimal(there, link), link)
        assert least[number] == pytest.approx(best, abs=NANOSECOND)
        alone = [planner.exposed(there, buckets.uniform(there, cap), link) for cap in caps]
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
        ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS[preset], 0.06))
        cost = AllReduceCost.of_link(latency_s, rate)
        grid = Grid.over(Box())
        least = planner.least_exposures(ready_times, cost, grid)
        at_one_point = planner.exposures(ready_times, planner.optimal(ready_times, cost), cost, grid)
        advised = advisor.advise(ready_times, cost).plan.worst_regret_s
        ratios.append(np.max(at_one_point - least) / max(advised, 1e-6))
    assert max(ratios) > 2


def test_what_saves_little_everywhere_is_not_advised():
    ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS["tiny"], 0.06))
    assert advisor.advise(ready_times, AllReduceCost.of_link(1e-6, 1e12)).advised == "default"
    assert advisor.advise(ready_times, LINK).advised != "default"


# ── computing that takes longer meanwhile ────────────────────────────────────────────────────────
def test_what_calls_and_copies_cost_computing_is_recovered():
    ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS["tiny"], 0.06))
    true = runs.Stretch(20e-6, 5e-3 / ready_times.total)
    plans = [buckets.uniform(ready_times, cap) for cap in (1, 2**20, 4 * 2**20, 2**30)]
    found = runs.fitted_stretch(ready_times, plans, [true.of(ready_times, plan) for plan in plans])
    assert (found.call_s, found.byte_s) == pytest.approx((true.call_s, true.byte_s))
    later = found.stretched(ready_times, plans[0])
    assert later.ready_s[-1] == pytest.approx(0.06 + 57 * 20e-6)
    assert planner.exposed(later, plans[0], LINK) < planner.exposed(ready_times, plans[0], LINK)
    assert runs.fitted_stretch(ready_times, [], []) == runs.Stretch()
