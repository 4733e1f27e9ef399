"""What saves more than buckets is predicted, and is worth typing only if it never loses."""

import numpy as np
import pytest
from hypothesis import given

from bench.model.units import MIB
from bench.training.catalog.presets import PRESETS
from bench.training.conclusions import WORTH
from bench.training.planning import advisor, buckets, planner, ways
from bench.training.planning.buckets import ReadyTimes, shape_by_flops
from bench.training.planning.link_model import AllReduceCost
from bench.training.planning.planner import Box, Grid
from test_planner import NANOSECOND, PATIENT, curves, profiles

POINT, BOX = Grid.point(), Grid.over(Box())


def test_a_hook_halves_the_bytes_of_the_buckets_that_there_are():
    ready_times = ReadyTimes.of([4 * MIB] * 8, [0.01 * (8 - number) for number in range(8)])
    plan, cost = (2, 8), AllReduceCost.of_link(1e-3, 4e8)
    hook = next(way for way in ways.ways(ready_times, plan, cost, POINT, 4) if way.name == "hook")
    (sent,) = planner.exposures(ready_times, plan, AllReduceCost.of_link(1e-3, 8e8), POINT)
    assert hook.tail_s == pytest.approx(sent)


def test_half_gradients_have_no_hook():
    ready_times = ReadyTimes.of([MIB, MIB], [0.020, 0.010])
    found = ways.ways(ready_times, (2,), AllReduceCost.of_link(0, 1e9), POINT, 2)
    assert [way.name for way in found] == ["no_sync"]


# ── worth typing ─────────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=12), curves())
def test_what_is_advised_saves_a_share_of_the_step_and_loses_nowhere(ready_times, cost):
    advice = advisor.advise(ready_times, cost)
    if advice.advised == "default":
        return
    chosen, default = (advisor.plan_of(ready_times, plan) for plan in (advice.chosen, advice.default))
    mine, usual = (planner.exposures(ready_times, plan, cost, BOX) for plan in (chosen, default))
    assert np.all(mine <= usual + NANOSECOND)
    step_s = ways.computing_s(ready_times) + advice.default.exposed_s
    assert advice.default.exposed_s - advice.chosen.exposed_s >= WORTH * step_s - NANOSECOND


def test_half_a_percent_of_the_step_is_not_worth_typing():
    """xl-2026 on 50 µs + 20 GB/s: a cap saves 4.8 ms of a step of 997."""
    ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS["xl-2026"], 0.6))
    advice = advisor.advise(ready_times, AllReduceCost.of_link(50e-6, 2e10))
    assert advice.advised == "default" and advice.cap.exposed_s < advice.default.exposed_s


@PATIENT
@given(profiles(most=12), curves())
def test_no_way_exposes_less_than_nothing(ready_times, cost):
    for way in ways.ways(ready_times, buckets.torch_default(ready_times), cost, POINT, 4):
        assert way.tail_s >= -NANOSECOND, way
