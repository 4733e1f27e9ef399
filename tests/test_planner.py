"""The bound holds for all plans, a cap makes torch's buckets, and advice is worth typing and loses on no link."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.model.errors import BenchError
from collbench.packages.training.planning import advisor, buckets
from collbench.packages.training.planning.advisor import WORTH, lower_bound, tail_s
from collbench.packages.training.planning.buckets import ReadyTimes
from collbench.packages.training.planning.link_model import AllReduceCost

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
@given(profiles(most=20), st.lists(st.integers(1, 10**8), min_size=1, max_size=4))
def test_caps_make_the_buckets_that_torch_makes(ready_times, caps):
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in ready_times.nbytes]
    numbers = list(range(len(tensors)))
    made, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors), numbers)
    plan = buckets.by_caps(ready_times.nbytes, caps)
    assert made == [numbers[start:end] for start, end in pairwise((0, *plan))]


# ── the link ─────────────────────────────────────────────────────────────────────────────────────
def test_a_measured_curve_goes_through_its_points_and_on_and_a_falling_one_is_levelled():
    cost = AllReduceCost.through([4000, 1000, 2000], [5e-3, 2e-3, 3e-3])
    assert cost(np.array([0.0, 1000, 1500, 4000, 5000])) == pytest.approx([1e-3, 2e-3, 2.5e-3, 5e-3, 6e-3])
    cost = AllReduceCost.through([1000, 2000, 4000], [1e-3, 4e-3, 1e-3])
    assert cost(np.array([1000.0, 2000, 4000])) == pytest.approx([1e-3, 2e-3, 2e-3])
    assert cost(np.array([8000.0]))[0] > 2e-3  # a level line gives no rate for larger sizes
    with pytest.raises(BenchError, match="two sizes"):
        AllReduceCost.through([1000], [1.0])


# ── the advised cap ──────────────────────────────────────────────────────────────────────────────
@PATIENT
@given(profiles(most=12), curves())
def test_advice_saves_a_share_of_the_step_and_loses_on_no_link(ready_times, cost):
    advice = advisor.advise(ready_times, cost)
    saved_s = advice.default.tail_s - advice.cap.tail_s
    worth = saved_s >= WORTH * (advisor.computing_s(ready_times) + advice.default.tail_s)
    pairs = zip(advice.cap.tails_s, advice.default.tails_s, strict=True)
    assert advice.advised == (worth and all(mine <= usual + advisor.RESOLUTION_S for mine, usual in pairs))
