"""Bucket plans: which gradients are sent together, and how much communication then remains after backward.

In: an `AllReduceCost`, the time of an all-reduce by its bytes, and a `ReadyTimes`, when each gradient is ready. Out:
plans, the time that each leaves exposed, and a bound that no plan beats. `advisor` chooses among them. A plan is a
tuple of ends: bucket k holds the gradients ends[k-1] .. ends[k] - 1, counted in the order in which they become ready.

The link is FIFO: a bucket starts when its last gradient is ready and the bucket before it is done. Not modelled:
computing that slows down while communicating, and the cost of flattening. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from bench.stats.intervals import Floats
from bench.training import buckets
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.ready_times import ReadyTimes
from bench.training.records import Strategy

BucketPlan = buckets.Ends
# Which of several plans that are done at the same time; see `optimal`.
Ties = Literal["large", "small", "early"]

MIB = 2**20
# torch's defaults: dist._DEFAULT_FIRST_BUCKET_BYTES, then _DEFAULT_BUCKET_CAP_MB, in nn/parallel/distributed.py.
TORCH_CAPS = (MIB, 25 * MIB)
# The resolution of clocks; plans that differ by no more than this count as equal.
RESOLUTION_S = 1e-9
# Most caps to try: enough for every cap that matters in a transformer of 300 tensors; of more, an even selection.
MOST_CAPS = 4096


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
def optimal(
    ready_times: ReadyTimes, cost: AllReduceCost, ties: Ties = "large", largest: float = math.inf
) -> BucketPlan:
    """The plan that is done first, exactly, by dynamic programming over where the last bucket begins.

    f[j] = min over i < j of max(f[i], ready[j-1]) + time(bytes of i .. j-1). Being done earlier with the first i
    gradients never delays the rest, so that only the best f[i] counts. About n² costs are looked up. ties: of all plans
    that reach f[n], one is taken backwards from the end, each bucket as "large" or as "small" as its deadline permits,
    or so that its predecessors are done as "early" as they can be. largest: most bytes of a bucket of several.
    """
    n, sent = len(ready_times.nbytes), sent_bytes(ready_times)
    f = np.full(n + 1, -math.inf)

    def times_of(j: int) -> Floats:
        """Of the buckets that end with gradient j and begin with gradient 0 … j − 1."""
        sizes = sent[j] - sent[:j]
        too_large = sizes > largest
        too_large[-1] = False
        return np.where(too_large, math.inf, cost(sizes))

    for j in range(1, n + 1):
        f[j] = np.min(np.maximum(f[:j], ready_times.ready_s[j - 1]) + times_of(j))
    ends, deadline = [n], float(f[n])
    while True:
        j = ends[-1]
        times = times_of(j)
        fits = np.flatnonzero(np.maximum(f[:j], ready_times.ready_s[j - 1]) + times <= deadline + RESOLUTION_S)
        i = int(fits[0] if ties == "large" else fits[-1])
        if i == 0:
            return tuple(reversed(ends))
        ends.append(i)
        deadline = float(f[i]) if ties == "early" else max(float(f[i]), deadline - float(times[i]))


def uniform(ready_times: ReadyTimes, cap: int, bucket_boundary: str = "after") -> BucketPlan:
    """Buckets of one cap, as `bucket_cap_mb` makes them after torch has rebuilt its buckets."""
    return buckets.by_caps(ready_times.nbytes, (cap,), bucket_boundary)


def of_strategy(ready_times: ReadyTimes, strategy: Strategy) -> BucketPlan | None:
    """The plan that a strategy follows; None if it is not one of those that send during backward."""
    number = len(ready_times.nbytes)
    if strategy.name == "overlap_param":
        return tuple(range(1, number + 1))
    if strategy.name == "overlap_bucket" and strategy.cap_bytes is not None:
        return uniform(ready_times, strategy.cap_bytes, strategy.bucket_boundary)
    return buckets.by_sizes(ready_times.nbytes, strategy.buckets) if strategy.name == "plan" else None


def torch_default(ready_times: ReadyTimes) -> BucketPlan:
    """The default buckets of DistributedDataParallel: a cap of 1 MiB for the first, then 25 MiB."""
    return buckets.by_caps(ready_times.nbytes, TORCH_CAPS)


def explicit_25(ready_times: ReadyTimes) -> BucketPlan:
    """The buckets of `bucket_cap_mb=25`, which is not the default: it drops the first bucket of 1 MiB."""
    return uniform(ready_times, TORCH_CAPS[1])


def useful_caps(ready_times: ReadyTimes, most: int = MOST_CAPS) -> Sequence[int]:
    """Caps at which a uniform plan changes: sums of consecutive gradients; an even selection if more than `most`.

    A bucket closes when such a sum reaches the cap, so any other cap gives the plan of the next larger one of these.
    """
    sent = sent_bytes(ready_times).astype(np.int64)
    sums: set[int] = set()
    for start in range(len(sent) - 1):
        sums.update((sent[start + 1 :] - sent[start]).tolist())
    return evenly(sorted(sums), most)


def evenly(values: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of the values, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def sent_bytes(ready_times: ReadyTimes) -> Floats:
    """Bytes of the first 0, 1, .. n gradients together; exact up to 2⁵³."""
    return np.concatenate([[0.0], np.cumsum(np.array(ready_times.nbytes, dtype=float))])


# ── lower bound ──────────────────────────────────────────────────────────────────────────────────
def lower_bound(ready_times: ReadyTimes, cost: AllReduceCost) -> float:
    """Seconds that every plan leaves exposed at least, in whatever order it sends the gradients.

    Let B be the bytes of gradient j and of those that become ready after it. Each of these gradients is in a bucket
    that starts at ready[j] or later. These are k ≥ 1 buckets with at least B bytes. For any line α + β·b, α, β ≥ 0,
    that is nowhere above the curve, they take at least k·α + β·B ≥ α + β·B seconds on a link that carries one at a
    time. So no plan is done before ready[j] + α + β·B, for every j and every such line.
    """
    ready, sent = np.array(ready_times.ready_s), sent_bytes(ready_times)
    rest = sent[-1] - sent[:-1]
    return max(float(np.max(ready + alpha + beta * rest)) for alpha, beta in cost.floors()) - ready_times.ready_s[-1]
