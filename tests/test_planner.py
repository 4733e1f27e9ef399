"""The bound holds for all plans, a cap makes the same buckets as torch, and curves and ready times are right."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.model.errors import BenchError
from collbench.packages.training.catalog.presets import PRESETS, find, gradients
from collbench.packages.training.planning import buckets
from collbench.packages.training.planning.advisor import lower_bound, tail_s
from collbench.packages.training.planning.buckets import ReadyTimes, recorded_shape, shape_by_flops
from collbench.packages.training.planning.link_model import AllReduceCost
from collbench.packages.training.step_records import Gradient, RankTimeline, Timeline

LINK = AllReduceCost.of_link(2e-3, 1e9)
NANOSECOND = 2e-9
# No deadline, because a busy machine is slow.
PATIENT = settings(deadline=None)

sizes = st.integers(1, 40_000_000)
moments = st.floats(0, 0.1, allow_subnormal=False)


@st.composite
def profiles(draw, most=10):
    pairs = draw(st.lists(st.tuples(sizes, moments), min_size=1, max_size=most))
    return ReadyTimes.of([size for size, _ in pairs], [ready for _, ready in pairs])


@st.composite
def curves(draw):
    """Draw an α–β link, or a measured curve with kinks, jumps and slips like a real curve."""
    if draw(st.booleans()):
        return AllReduceCost.of_link(draw(st.floats(0, 0.01)), draw(st.floats(1e8, 1e11)))
    points = draw(st.dictionaries(sizes, st.floats(1e-6, 0.1), min_size=2, max_size=6))
    return AllReduceCost.through(list(points), list(points.values()))


def all_plans(n: int):
    """Yield every way to cut n gradients into neighbouring buckets."""
    for cuts in range(n):
        for inner in combinations(range(1, n), cuts):
            yield (*inner, n)


# ── the bound of all plans ───────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=8), curves(), st.randoms(use_true_random=False))
def test_no_plan_in_another_order_beats_the_bound(ready_times, cost, random):
    """Buckets hold any gradients and are sent in any order; each bucket waits for its last gradient."""
    numbers = list(range(len(ready_times.nbytes)))
    random.shuffle(numbers)
    cut = random.choice(list(all_plans(len(numbers))))
    free = -np.inf
    for start, end in pairwise((0, *cut)):
        held = numbers[start:end]
        time = cost(np.array([sum(ready_times.nbytes[i] for i in held)], dtype=float))[0]
        free = max(free, *(ready_times.ready_s[i] for i in held)) + time
    assert lower_bound(ready_times, cost) <= free - ready_times.ready_s[-1] + NANOSECOND


def test_a_case_that_can_be_computed_by_hand():
    """Three gradients of 1 MB are ready at 0, 10 and 11 ms, on a link of 2 ms + 1 GB/s."""
    ready_times = ReadyTimes.of([10**6] * 3, [0.011, 0.010, 0.0])
    assert ready_times.order == (2, 1, 0)
    assert buckets.bucket_bytes(ready_times, (1, 3)) == (10**6, 2 * 10**6)
    assert tail_s(ready_times, (1, 3), LINK) == pytest.approx(0.004)
    assert tail_s(ready_times, (1, 2, 3), LINK) == pytest.approx(0.005)
    assert lower_bound(ready_times, LINK) == pytest.approx(0.003)


# ── uniform caps and torch ───────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=12), st.integers(1, 5 * 10**8))
def test_any_cap_does_what_the_next_larger_useful_cap_does(ready_times, cap):
    larger = [useful for useful in buckets.useful_caps(ready_times, 10**4) if useful >= cap]
    if larger:
        assert buckets.uniform(ready_times, cap) == buckets.uniform(ready_times, larger[0])
    else:
        assert buckets.uniform(ready_times, cap) == (len(ready_times.nbytes),)


@PATIENT
@given(profiles(most=20), st.lists(st.integers(1, 10**8), min_size=1, max_size=4))
def test_caps_make_the_buckets_that_torch_makes(ready_times, caps):
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in ready_times.nbytes]
    numbers = list(range(len(tensors)))
    made, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors), numbers)
    plan = buckets.by_caps(ready_times.nbytes, caps)
    assert made == [numbers[start:end] for start, end in pairwise((0, *plan))]


@PATIENT
@given(profiles(most=20), st.integers(1, 10**8))
def test_a_cap_in_mib_makes_the_same_plan_again(ready_times, cap):
    """torch converts a cap in MiB by int(cap * 2**20)."""
    again = int(buckets.cap_mib(ready_times, cap) * 2**20)
    assert buckets.uniform(ready_times, again) == buckets.uniform(ready_times, cap)


def test_a_cap_has_no_more_decimals_than_it_needs():
    large = ReadyTimes.of([2**20, 4 * 2**20, 2**10, 2**20 + 1], [0.1, 0.2, 0.3, 0.4])
    assert buckets.cap_mib(large, 3 * 2**20) == 3.0
    assert buckets.cap_mib(ReadyTimes.of([1000] * 3, [0.1, 0.2, 0.3]), 1500) == 0.001


def test_torch_default_has_a_small_first_bucket_and_an_explicit_25_has_none():
    mib = 2**20
    ready_times = ReadyTimes.of([mib] * 60, [float(60 - i) for i in range(60)])
    assert buckets.bucket_bytes(ready_times, buckets.torch_default(ready_times)) == (mib, 25 * mib, 25 * mib, 9 * mib)
    explicit = buckets.uniform(ready_times, buckets.TORCH_CAPS[1])
    assert buckets.bucket_bytes(ready_times, explicit) == (25 * mib, 25 * mib, 10 * mib)


def test_thousands_of_caps_are_thinned_out_evenly():
    ready_times = ReadyTimes.of([2**k for k in range(20)], [float(k) for k in range(20)])
    every, some = buckets.useful_caps(ready_times, 10**4), buckets.useful_caps(ready_times, 50)
    assert len(every) == 20 * 21 / 2 and len(some) == 50
    assert set(some) < set(every) and {some[0], some[-1]} == {every[0], every[-1]}


# ── the link ─────────────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(curves())
def test_a_curve_never_falls_and_lies_above_its_floors(cost):
    sizes = np.unique(np.concatenate([np.linspace(0, 1e8, 300), cost.sizes]))
    times = cost(sizes)
    assert np.all(np.diff(times) >= 0)
    for alpha, beta in cost.floors():
        assert alpha >= 0 and np.all(alpha + beta * sizes <= times * (1 + 1e-9) + 1e-12)


def test_a_measured_curve_goes_through_its_points_and_on_and_a_falling_one_is_levelled():
    cost = AllReduceCost.through([4000, 1000, 2000], [5e-3, 2e-3, 3e-3])
    assert cost(np.array([0.0, 1000, 1500, 4000, 5000])) == pytest.approx([1e-3, 2e-3, 2.5e-3, 5e-3, 6e-3])
    cost = AllReduceCost.through([1000, 2000, 4000], [1e-3, 4e-3, 1e-3])
    assert cost(np.array([1000.0, 2000, 4000])) == pytest.approx([1e-3, 2e-3, 2e-3])
    assert cost(np.array([8000.0]))[0] > 2e-3  # a level line gives no rate for larger sizes
    with pytest.raises(BenchError, match="two sizes"):
        AllReduceCost.through([1000], [1.0])


# ── ready times ──────────────────────────────────────────────────────────────────────────────────
def test_readiness_may_differ_from_registration_and_needs_times():
    ready_times = ReadyTimes.of([10, 20, 0, 40], [0.3, 0.1, 0.0, 0.3])
    assert ready_times == ReadyTimes((20, 40, 10), (0.1, 0.3, 0.3), (1, 3, 0))
    for times in ([], [float("nan")]):
        with pytest.raises(BenchError):
            ReadyTimes.of([4] * len(times), times)


def test_by_sizes_is_backward_by_flops():
    preset = PRESETS["nano"]
    ready_times = ReadyTimes.of_shape(shape_by_flops(preset, 0.060))
    assert ready_times.order == tuple(reversed(range(len(gradients(preset)))))
    head, last = 512 * 64, 2 * (4 * 64 * 64 + 3 * 64 * 172)
    assert ready_times.ready_s[0] == pytest.approx(0.060 * head / (head + last))
    assert ready_times.ready_s[-1] == ready_times.ready_s[-3] == pytest.approx(0.060)
    assert ready_times.total == sum(gradient.nbytes for gradient in gradients(preset))
    assert ReadyTimes.of_shape(shape_by_flops(preset, 0.060, 2)).total == ready_times.total / 2


def test_a_name_of_sizes_is_a_model():
    assert find("d2560-ff10240-l32-h32-v10000") == PRESETS["xl-2026"] and find("nothing") is None
    for wrong, why in (("d64-ff0-l1-h2-v5", "at least 1"), ("d64-ff128-l1-h5-v5", "not divided into 5 heads")):
        with pytest.raises(ValueError, match=why):
            find(wrong)


def test_a_timeline_gives_the_median_over_ranks():
    two = tuple(Gradient(name, 4, 16) for name in ("first", "second"))
    ranks = tuple(
        RankTimeline(rank, 0.0, 0.1, 0.5, 0.6, 0.7, ready, ())
        for rank, ready in enumerate([(0.5, 0.2), (0.4, 0.3), (0.9, 0.1)])
    )
    shape = recorded_shape(Timeline(two, ranks))
    assert ReadyTimes.of_shape(shape) == ReadyTimes((16, 16), (pytest.approx(0.1), pytest.approx(0.4)), (1, 0))
    with pytest.raises(BenchError, match="no time"):
        recorded_shape(Timeline(two, ()))
