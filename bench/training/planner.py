"""The bucket advisor: which gradients to send together so that the least communication remains after backward.

In: an `AllReduceCost`, the time of an all-reduce by its bytes, and a `ReadyTimes`, when each gradient is ready. Out:
plans, the time that each leaves exposed, a bound that no plan beats, and all of these as an `Advice`, on request with
its explanation. A plan is a tuple of ends: bucket k holds the gradients ends[k-1] .. ends[k] - 1, counted in the order
in which they become ready.

The link is FIFO: a bucket starts when its last gradient is ready and the bucket before it is done. Not modelled:
computing that slows down while communicating, and the cost of flattening. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from bench.intervals import Floats
from bench.training import buckets
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.conclusions import Advice, Deviation, ExplainedAdvice, PlannedBucket, PlanPrediction
from bench.training.ready_times import ReadyTimes
from bench.units import format_rounded_bytes

BucketPlan = buckets.Ends

MIB = 2**20
# torch's defaults: dist._DEFAULT_FIRST_BUCKET_BYTES, then _DEFAULT_BUCKET_CAP_MB, in nn/parallel/distributed.py.
TORCH_CAPS = (MIB, 25 * MIB)
# The resolution of clocks; plans that differ by no more than this count as equal.
RESOLUTION_S = 1e-9
# The error assumed in the latency and the rate of a link.
LINK_ERROR = 0.2
# Most caps to try: enough for every cap that matters in a transformer of 300 tensors; of more, an even selection.
MOST_CAPS = 4096
# Caps in a picture; more points could not be told apart.
DRAWN_CAPS = 256


def bucket_bytes(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[int, ...]:
    """Bytes of each bucket, in the order in which they are sent."""
    return tuple(sum(ready_times.nbytes[start:end]) for start, end in pairwise((0, *plan)))


def members(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[tuple[int, ...], ...]:
    """The registration numbers of the gradients in each bucket."""
    return tuple(ready_times.order[start:end] for start, end in pairwise((0, *plan)))


def schedule(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> list[tuple[float, float]]:
    """When the all-reduce of each bucket starts and when it is done."""
    calls: list[tuple[float, float]] = []
    free = -math.inf
    for end, time in zip(plan, cost(np.array(bucket_bytes(ready_times, plan), dtype=float)), strict=True):
        start = max(free, ready_times.ready_s[end - 1])
        free = start + float(time)
        calls.append((start, free))
    return calls


def finish(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> float:
    """When the all-reduce of the last bucket is done."""
    return schedule(ready_times, plan, cost)[-1][1]


def exposed(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> float:
    """Seconds of communication that remain after backward: the tail."""
    return finish(ready_times, plan, cost) - ready_times.ready_s[-1]


# ── plans ────────────────────────────────────────────────────────────────────────────────────────
def optimal(ready_times: ReadyTimes, cost: AllReduceCost) -> BucketPlan:
    """The plan that is done first, exactly, by dynamic programming over where the last bucket begins.

    f[j] = min over i < j of max(f[i], ready[j-1]) + time(bytes of i .. j-1). Being done earlier with the first i
    gradients never delays the rest, so that only the best f[i] counts. Of all plans that reach f[n], one with large
    buckets is taken: backwards from the end, each begins at the earliest gradient that its deadline permits. About n²
    costs are looked up.
    """
    n, sent = len(ready_times.nbytes), _sent(ready_times)
    f = np.full(n + 1, -math.inf)
    for j in range(1, n + 1):
        f[j] = np.min(np.maximum(f[:j], ready_times.ready_s[j - 1]) + cost(sent[j] - sent[:j]))
    ends, deadline = [n], float(f[n])
    while True:
        j = ends[-1]
        times = cost(sent[j] - sent[:j])
        i = int(np.argmax(np.maximum(f[:j], ready_times.ready_s[j - 1]) + times <= deadline + RESOLUTION_S))
        if i == 0:
            return tuple(reversed(ends))
        ends.append(i)
        deadline -= float(times[i])


def best_plan(ready_times: ReadyTimes, advice: Advice) -> BucketPlan:
    """The plan of an advice, rebuilt by using its buckets' sizes as caps."""
    return buckets.by_caps(ready_times.nbytes, advice.buckets)


def uniform(ready_times: ReadyTimes, cap: int, bucket_boundary: str = "after") -> BucketPlan:
    """Buckets of one cap, as `bucket_cap_mb` makes them after torch has rebuilt its buckets."""
    return buckets.by_caps(ready_times.nbytes, (cap,), bucket_boundary)


def torch_default(ready_times: ReadyTimes) -> BucketPlan:
    """The default buckets of DistributedDataParallel: a cap of 1 MiB for the first, then 25 MiB."""
    return buckets.by_caps(ready_times.nbytes, TORCH_CAPS)


def explicit_25(ready_times: ReadyTimes) -> BucketPlan:
    """The buckets of `bucket_cap_mb=25`, which is not the default: it drops the first bucket of 1 MiB."""
    return uniform(ready_times, TORCH_CAPS[1])


def textbook_cap(ready_times: ReadyTimes, cost: AllReduceCost) -> int:
    """√(s·w·o), the cap that minimises (s/k)/w + k·o over k buckets, as if ready times did not matter.

    s: all bytes; w: bytes a second of large messages; o: latency of a call.
    """
    return max(1, round(math.sqrt(ready_times.total * cost.latency_s / cost.slope_s)))


def useful_caps(ready_times: ReadyTimes, most: int = MOST_CAPS) -> Sequence[int]:
    """Caps at which a uniform plan changes: sums of consecutive gradients; an even selection if more than `most`.

    A bucket closes when such a sum reaches the cap, so any other cap gives the plan of the next larger one of these.
    """
    sent = _sent(ready_times).astype(np.int64)
    sums: set[int] = set()
    for start in range(len(sent) - 1):
        sums.update((sent[start + 1 :] - sent[start]).tolist())
    caps = sorted(sums)
    if len(caps) <= most:
        return caps
    return [caps[i] for i in np.unique(np.linspace(0, len(caps) - 1, most).round().astype(int))]


def uniform_exposures(ready_times: ReadyTimes, cost: AllReduceCost, caps: Sequence[int]) -> list[float]:
    """Seconds that each uniform cap leaves exposed: `exposed(uniform(cap))` of all caps, computed at once."""
    limits = np.array(caps, dtype=float)
    filled, free = np.zeros(len(limits)), np.full(len(limits), -math.inf)
    for nbytes, ready in zip(ready_times.nbytes, ready_times.ready_s, strict=True):
        filled += nbytes
        closed = filled >= limits
        free[closed] = np.maximum(free[closed], ready) + cost(filled[closed])
        filled[closed] = 0
    rest = filled > 0
    free[rest] = np.maximum(free[rest], ready_times.ready_s[-1]) + cost(filled[rest])
    return [float(left) for left in free - ready_times.ready_s[-1]]


def _best(tried: Sequence[tuple[int, float]]) -> tuple[int, float]:
    least = min(left for _, left in tried)
    return max(pair for pair in tried if pair[1] <= least + RESOLUTION_S)


def _sent(ready_times: ReadyTimes) -> Floats:
    """Bytes of the first 0, 1, .. n gradients together; exact up to 2⁵³."""
    return np.concatenate([[0.0], np.cumsum(np.array(ready_times.nbytes, dtype=float))])


# ── caps that make torch follow a plan ───────────────────────────────────────────────────────────
def caps_mib(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[float, ...]:
    """`bucket_cap_mb_list` in MiB that makes torch follow the plan, each with as few decimals as possible.

    A bucket closes once it has reached its cap: any cap works that is reached with its last gradient and not before.
    """
    ranges = _cap_ranges(ready_times, plan)
    return tuple(_shortest_mib(low, high) for low, high in ranges)


def cap_mib(ready_times: ReadyTimes, cap: int) -> float:
    """`bucket_cap_mb` that gives the same plan as `cap` bytes, with as few decimals as possible."""
    ranges = _cap_ranges(ready_times, uniform(ready_times, cap))
    # The last bucket may end because no gradient is left, so it sets no upper limit on the cap.
    return _shortest_mib(max(low for low, _ in ranges), min([cap, *(high for _, high in ranges[:-1])]))


def _cap_ranges(ready_times: ReadyTimes, plan: BucketPlan) -> list[tuple[int, int]]:
    """For each bucket, its bytes without its last gradient, and with it."""
    sizes = bucket_bytes(ready_times, plan)
    return [(size - ready_times.nbytes[end - 1], size) for size, end in zip(sizes, plan, strict=True)]


def _shortest_mib(low: int, high: int) -> float:
    """The shortest number of MiB that torch, by int(mib * 2**20), turns into more than low and at most high bytes."""
    # 2^-20 has 20 decimals, so with 20 decimals high is exact.
    for decimals in range(21):
        scale = int(10**decimals)
        mib = high * scale // MIB / scale
        if low < int(mib * MIB) <= high:
            return mib
    return high / MIB


# ── lower bound, sensitivity, advice ─────────────────────────────────────────────────────────────
def lower_bound(ready_times: ReadyTimes, cost: AllReduceCost) -> float:
    """Seconds that every plan leaves exposed at least, in whatever order it sends the gradients.

    Let B be the bytes of gradient j and of those that become ready after it. Each of these gradients is in a bucket
    that starts at ready[j] or later. These are k ≥ 1 buckets with at least B bytes. For any line α + β·b, α, β ≥ 0,
    that is nowhere above the curve, they take at least k·α + β·B ≥ α + β·B seconds on a link that carries one at a
    time. So no plan is done before ready[j] + α + β·B, for every j and every such line.
    """
    ready, sent = np.array(ready_times.ready_s), _sent(ready_times)
    rest = sent[-1] - sent[:-1]
    return max(float(np.max(ready + alpha + beta * rest)) for alpha, beta in cost.floors()) - ready_times.ready_s[-1]


def sensitivity(
    ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost, error: float = LINK_ERROR
) -> tuple[Deviation, ...]:
    """What the plan and the best plan leave exposed if latency, rate or both are lower or higher by `error`."""
    factors = [1.0, 1 - error, 1 + error]
    return tuple(
        Deviation(
            latency, rate, exposed(ready_times, plan, real), exposed(ready_times, optimal(ready_times, real), real)
        )
        for latency, rate in product(factors, factors)
        for real in [cost.off_by(latency, rate)]
    )


def advise(ready_times: ReadyTimes, cost: AllReduceCost) -> Advice:
    """The best plan, with the best uniform cap, torch's default and the bound."""
    caps = useful_caps(ready_times)
    tried = list(zip(caps, uniform_exposures(ready_times, cost, caps), strict=True))
    plan, best = optimal(ready_times, cost), _best(tried)
    drawn = {tried[i] for i in np.linspace(0, len(tried) - 1, DRAWN_CAPS).round().astype(int)} | {best}
    return Advice(
        buckets=bucket_bytes(ready_times, plan),
        exposed_s=exposed(ready_times, plan, cost),
        best_cap=best[0],
        best_cap_exposed_s=best[1],
        default_exposed_s=exposed(ready_times, torch_default(ready_times), cost),
        bound_s=lower_bound(ready_times, cost),
        caps=tuple(sorted(drawn)),
    )


def explain(ready_times: ReadyTimes, cost: AllReduceCost, advice: Advice) -> ExplainedAdvice:
    """The advice with predictions of plans in common use, its buckets, its sensitivity and caps for torch."""
    plan, number = best_plan(ready_times, advice), len(ready_times.nbytes)
    cap, textbook = cap_mib(ready_times, advice.best_cap), textbook_cap(ready_times, cost)
    named = {
        "best plan": plan,
        f"best uniform cap, {cap:g} MiB": uniform(ready_times, advice.best_cap),
        f"textbook cap √(s·w·o), {format_rounded_bytes(textbook)}": uniform(ready_times, textbook),
        "torch's default, 1 MiB then 25 MiB": torch_default(ready_times),
        "bucket_cap_mb=25": explicit_25(ready_times),
        "all in one": (number,),
        "one call a gradient": tuple(range(1, number + 1)),
    }
    sizes, held, times = bucket_bytes(ready_times, plan), members(ready_times, plan), schedule(ready_times, plan, cost)
    ready = [ready_times.ready_s[end - 1] for end in plan]
    return ExplainedAdvice(
        advice=advice,
        gradients=number,
        total=ready_times.total,
        backward_s=ready_times.ready_s[-1],
        predictions=tuple(
            PlanPrediction(name, len(ends), max(bucket_bytes(ready_times, ends)), exposed(ready_times, ends, cost))
            for name, ends in named.items()
        ),
        buckets=tuple(
            PlannedBucket(size, inside, at, *took)
            for size, inside, at, took in zip(sizes, held, ready, times, strict=True)
        ),
        sensitivity=sensitivity(ready_times, plan, cost),
        caps_mib=caps_mib(ready_times, plan),
        cap_mib=cap,
    )
