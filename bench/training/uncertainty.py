"""What bucket plans leave exposed where the link and backward are not as assumed.

In: ready times, an `AllReduceCost`, plans, and a `Box`, which says how far latency, rate and backward may be off. Out:
seconds that stay exposed, in arrays with one entry per point of a grid over the box. Chooses nothing.

At a point with factors l, r, b, an all-reduce takes α·l + (time − α) / r, and gradients are ready at b times their
ready times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.stats.intervals import Floats
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.planner import BucketPlan, bucket_bytes, sent_bytes
from bench.training.ready_times import ReadyTimes

# Values of each factor: the regret of a plan bends between the corners of a box, so that corners alone miss its peak.
LEVELS = 5
# A link that is known worse than this is not known.
LARGEST = 0.8


@dataclass(frozen=True, slots=True)
class Box:
    """How far off each may be, as a share: 0.2 stands for 20 % less to 20 % more."""

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

    As `planner.optimal`, at all points at once.
    """
    sent = sent_bytes(ready_times)
    done = np.full((len(grid.rate), len(sent)), -np.inf)
    for j, ready in enumerate(ready_times.ready_s, start=1):
        begin = np.maximum(done[:, :j], ready * grid.backward[:, None])
        done[:, j] = np.min(begin + grid.times(cost, sent[j] - sent[:j]), axis=1)
    return np.asarray(done[:, -1] - ready_times.ready_s[-1] * grid.backward)
