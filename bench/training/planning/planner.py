"""Predict what bucket plans leave exposed: the communication that remains after backward; and find the best plan.

In: an `AllReduceCost`, the time of an all-reduce by its bytes; a `ReadyTimes`, when each gradient is ready; plans
(`buckets`); and a `Box`, how far latency, rate and backward may be off. Out: the plan that is done first, the
seconds that a plan leaves exposed, at one point or over the box, and a bound that no plan beats. `advisor` chooses.

The link is FIFO: a bucket starts when its last gradient is ready and the bucket before it is done. Not modelled:
computing that slows down while communicating, and the cost of flattening. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from bench.stats.intervals import Floats
from bench.training.planning.buckets import BucketPlan, ReadyTimes, bucket_bytes, sent_bytes
from bench.training.planning.link_model import AllReduceCost

# Which of several plans that are done at the same time; see `optimal`.
Ties = Literal["large", "small", "early"]

# The resolution of clocks; plans that differ by no more than this count as equal.
RESOLUTION_S = 1e-9
# Values of each factor: the regret of a plan bends between the corners of a box, so that corners alone miss its peak.
LEVELS = 5
# A link that is known worse than this is not known.
LARGEST = 0.8


def schedule(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> list[tuple[float, float]]:
    """The times at which the all-reduce of each bucket starts and is done."""
    calls: list[tuple[float, float]] = []
    free = -math.inf
    for end, time in zip(plan, cost(np.array(bucket_bytes(ready_times, plan), dtype=float)), strict=True):
        start = max(free, ready_times.ready_s[end - 1])
        free = start + float(time)
        calls.append((start, free))
    return calls


def exposed(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> float:
    """Seconds of communication that remain after backward: the tail."""
    return schedule(ready_times, plan, cost)[-1][1] - ready_times.ready_s[-1]


# ── the best plan ────────────────────────────────────────────────────────────────────────────────────────
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
        """Seconds of each bucket that ends with gradient j and begins with gradient 0 … j − 1."""
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


# ── where link and backward are not as assumed ───────────────────────────────────────────────────
# At a point with factors l, r, b, an all-reduce takes α·l + (time − α) / r, and gradients are ready at b times their
# ready times.
@dataclass(frozen=True, slots=True)
class Box:
    """The shares by which each may be off: 0.2 stands for 20 % less to 20 % more."""

    latency: float = 0.2
    rate: float = 0.2
    backward: float = 0.2

    def at_least(self, of_link: float) -> Box:
        """A box as large as the interval of the link's times, if that is larger; no side reaches 1."""
        share = min(of_link, LARGEST)
        return Box(max(self.latency, share), max(self.rate, share), self.backward)


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of a box: a factor of latency, rate and backward for each, in arrays of one length."""

    latency: Floats
    rate: Floats
    backward: Floats

    @classmethod
    def over(cls, box: Box, levels: int = LEVELS) -> Grid:
        """`levels` values of each factor; the middle one of an odd number is 1."""
        axes = [np.linspace(1 - error, 1 + error, levels) for error in (box.latency, box.rate, box.backward)]
        return cls(*np.array(list(product(*axes))).T)

    @classmethod
    def point(cls) -> Grid:
        """Only the point where all is as assumed."""
        return cls(np.ones(1), np.ones(1), np.ones(1))

    def times(self, cost: AllReduceCost, nbytes: Floats) -> Floats:
        """Seconds of all-reduces, shape (points, sizes)."""
        alpha = cost.latency_s
        return np.asarray(alpha * self.latency[:, None] + (cost(nbytes) - alpha) / self.rate[:, None])


def exposures(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost, grid: Grid) -> Floats:
    """Seconds that the plan leaves exposed at each point.

    The plan is done when the link has sent the last bucket. That is the latest of these instants, one for each bucket:
    its ready time, plus the times of this bucket and of all that follow it.
    """
    ready = np.array([ready_times.ready_s[end - 1] for end in plan])
    times = grid.times(cost, np.array(bucket_bytes(ready_times, plan), dtype=float))
    left = np.cumsum(times[:, ::-1], axis=1)[:, ::-1]
    scaled = ready * grid.backward[:, None]
    return np.asarray(np.max(scaled + left, axis=1) - scaled[:, -1])


def exposures_of_caps(ready_times: ReadyTimes, cost: AllReduceCost, caps: Sequence[int], grid: Grid) -> Floats:
    """Seconds that each uniform cap leaves exposed at each point, shape (points, caps)."""
    limits = np.array(caps, dtype=float)
    filled, free = np.zeros(len(limits)), np.full((len(grid.rate), len(limits)), -np.inf)
    for nbytes, ready in zip(ready_times.nbytes, ready_times.ready_s, strict=True):
        filled += nbytes
        closed = filled >= limits
        if closed.any():
            begin = np.maximum(free[:, closed], ready * grid.backward[:, None])
            free[:, closed] = begin + grid.times(cost, filled[closed])
            filled[closed] = 0
    end = ready_times.ready_s[-1] * grid.backward[:, None]
    rest = filled > 0
    free[:, rest] = np.maximum(free[:, rest], end) + grid.times(cost, filled[rest])
    return np.asarray(free - end)


def least_exposures(ready_times: ReadyTimes, cost: AllReduceCost, grid: Grid) -> Floats:
    """Seconds that the plan which is best at a point leaves exposed there, for each point.

    As `optimal`, at all points at once.
    """
    sent = sent_bytes(ready_times)
    done = np.full((len(grid.rate), len(sent)), -np.inf)
    for j, ready in enumerate(ready_times.ready_s, start=1):
        begin = np.maximum(done[:, :j], ready * grid.backward[:, None])
        done[:, j] = np.min(begin + grid.times(cost, sent[j] - sent[:j]), axis=1)
    return np.asarray(done[:, -1] - ready_times.ready_s[-1] * grid.backward)
