"""The advised cap is the best over all links, is worth typing, and stays good on a slower or faster link."""

import pytest
from hypothesis import given

from collbench.model.units import MIB
from collbench.packages.training.catalog.presets import PRESETS
from collbench.packages.training.planning import advisor, buckets
from collbench.packages.training.planning.advisor import WORTH, tail_s
from collbench.packages.training.planning.buckets import ReadyTimes, shape_by_flops
from collbench.packages.training.planning.link_model import AllReduceCost
from test_planner import LINK, NANOSECOND, PATIENT, curves, profiles


def tiny() -> ReadyTimes:
    return ReadyTimes.of_shape(shape_by_flops(PRESETS["tiny"], 0.06))


# ── buckets ──────────────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=12), curves())
def test_no_cap_leaves_less_over_all_links_and_none_beats_the_bound(ready_times, cost):
    advice = advisor.advise(ready_times, cost, 0.3)
    links = (cost, cost.off_by(1.3, 0.7), cost.off_by(0.7, 1.3))
    left = {
        cap: [tail_s(ready_times, buckets.uniform(ready_times, cap), link) for link in links]
        for cap in buckets.useful_caps(ready_times, 10**4)
    }
    assert list(advice.cap.tails_s) == left[advice.cap_bytes]
    assert sum(advice.cap.tails_s) <= min(map(sum, left.values())) + NANOSECOND
    assert dict(advice.caps) == {cap: tails[0] for cap, tails in left.items()}
    assert advice.bound_s <= min(advice.cap.tail_s, advice.default.tail_s) + NANOSECOND
    assert sum(advice.cap.buckets) == sum(advice.default.buckets) == ready_times.total


@PATIENT
@given(profiles(most=12), curves())
def test_advice_saves_a_share_of_the_step_and_loses_on_no_link(ready_times, cost):
    advice = advisor.advise(ready_times, cost)
    saved_s = advice.default.tail_s - advice.cap.tail_s
    worth = saved_s >= WORTH * (advisor.computing_s(ready_times) + advice.default.tail_s)
    pairs = zip(advice.cap.tails_s, advice.default.tails_s, strict=True)
    assert advice.advised == (worth and all(mine <= usual + advisor.RESOLUTION_S for mine, usual in pairs))


def test_a_cap_that_loses_on_a_slower_link_is_not_advised():
    """On 100 µs + 3 GB/s, a cap saves 2 % of a step of small-2025 as assumed, but costs 4 ms if the link is slower."""
    ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS["small-2025"], 0.2))
    advice = advisor.advise(ready_times, AllReduceCost.of_link(1e-4, 3e9))
    assert not advice.advised and advice.default.tail_s - advice.cap.tail_s > 6e-3
    assert advice.cap.slower_s - advice.default.slower_s > 3e-3
    assert advisor.advise(ready_times, AllReduceCost.of_link(1e-4, 3e9), 0.01).advised


def test_what_saves_little_everywhere_is_not_advised():
    assert not advisor.advise(tiny(), AllReduceCost.of_link(1e-6, 1e12)).advised
    assert advisor.advise(tiny(), LINK).advised


def test_half_a_percent_of_the_step_is_not_worth_typing():
    """On 50 µs + 20 GB/s, a cap saves 4.8 ms of a step of xl-2026, which takes 997 ms."""
    ready_times = ReadyTimes.of_shape(shape_by_flops(PRESETS["xl-2026"], 0.6))
    advice = advisor.advise(ready_times, AllReduceCost.of_link(50e-6, 2e10))
    assert not advice.advised and advice.cap.tail_s < advice.default.tail_s


# ── other ways that code exists for ──────────────────────────────────────────────────────────────
def test_a_hook_halves_the_bytes_of_the_buckets_that_there_are():
    ready_times = ReadyTimes.of([4 * MIB] * 8, [0.01 * (8 - number) for number in range(8)])
    plan, cost = (2, 8), AllReduceCost.of_link(1e-3, 4e8)
    hook = next(way for way in advisor.ways(ready_times, plan, cost, 4) if way.name == "hook")
    assert hook.tail_s == pytest.approx(tail_s(ready_times, plan, AllReduceCost.of_link(1e-3, 8e8)))


def test_half_gradients_have_no_hook():
    ready_times = ReadyTimes.of([MIB, MIB], [0.020, 0.010])
    ways = advisor.ways(ready_times, (2,), AllReduceCost.of_link(0, 1e9), 2)
    assert [way.name for way in ways] == ["no_sync"]


@PATIENT
@given(profiles(most=12), curves())
def test_no_way_leaves_less_than_nothing_or_more_than_there_was(ready_times, cost):
    plan = buckets.torch_default(ready_times)
    for way in advisor.ways(ready_times, plan, cost, 4):
        assert -NANOSECOND <= way.tail_s <= tail_s(ready_times, plan, cost) + NANOSECOND, way
