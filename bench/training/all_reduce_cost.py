"""How long an all-reduce of so many bytes takes on a link, as the bucket advisor needs it.

In: α and β, or measured points. Out: a `AllReduceCost`. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from bench.errors import BenchError
from bench.intervals import Floats
from bench.training.records import Link


@dataclass(frozen=True, slots=True)
class AllReduceCost:
    """Time of an all-reduce: straight lines through (sizes, times_s), and slope_s seconds a byte beyond the last.

    sizes ascend from 0, times never fall: times_s[0] is the latency α.
    """

    sizes: tuple[float, ...]
    times_s: tuple[float, ...]
    slope_s: float

    def __call__(self, nbytes: Floats) -> Floats:
        """Seconds for each of so many bytes."""
        inside = np.interp(nbytes, self.sizes, self.times_s)
        return np.asarray(inside + np.maximum(0.0, nbytes - self.sizes[-1]) * self.slope_s)

    @classmethod
    def of_link(cls, latency_s: float, bytes_per_s: float) -> AllReduceCost:
        """α–β: latency_s + bytes / bytes_per_s."""
        return cls((0.0,), (latency_s,), 1 / bytes_per_s)

    @classmethod
    def emulated(cls, link: Link) -> AllReduceCost:
        """What an emulated link takes."""
        if link.points:
            return cls.through(*zip(*link.points, strict=True))
        return cls.of_link(link.latency_s, link.bytes_per_s)

    def as_link(self) -> Link:
        """An emulated link that takes as long."""
        points = tuple(zip(self.sizes[1:], self.times_s[1:], strict=True))
        return Link(self.latency_s, 1 / self.slope_s, points)

    @classmethod
    def through(cls, sizes: Sequence[float], times_s: Sequence[float]) -> AllReduceCost:
        """Through measured points, two sizes at least. Where noise makes times fall, they are levelled.

        Below the smallest size the first line goes on, to zero at least; beyond the largest the last one does, or the
        mean rate at the largest size where that line is level.
        """
        order = np.argsort(sizes)
        bytes_ = np.asarray(sizes, dtype=float)[order]
        if len(bytes_) < 2 or bytes_[0] <= 0 or not np.all(np.diff(bytes_) > 0):
            raise BenchError("a curve needs the times of two sizes or more, each of them once")
        # On logarithms, as noise is relative.
        times = np.exp(isotonic_regression(np.log(np.asarray(times_s, dtype=float)[order])).x)
        slopes = np.diff(times) / np.diff(bytes_)
        latency = max(0.0, float(times[0] - slopes[0] * bytes_[0]))
        beyond = float(slopes[-1]) or float(times[-1] / bytes_[-1])
        return cls((0.0, *map(float, bytes_)), (latency, *map(float, times)), beyond)

    @property
    def latency_s(self) -> float:
        return self.times_s[0]

    def off_by(self, latency: float, rate: float) -> AllReduceCost:
        """The same with so many times the latency and so many times the rate."""
        alpha = self.latency_s
        times = tuple(alpha * latency + (time - alpha) / rate for time in self.times_s)
        return AllReduceCost(self.sizes, times, self.slope_s / rate)

    def floors(self) -> list[tuple[float, float]]:
        """Lines (α, β), neither negative, that lie nowhere above the curve; for any size the best such is among them.

        For a slope β the highest is α(β) = min over points of time − β·size. It is concave in β and bends only at
        slopes between two points; it counts up to the last slope, and as long as it is not negative.
        """
        sizes, times = np.array(self.sizes), np.array(self.times_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            chords = (times[:, None] - times) / (sizes[:, None] - sizes)
            rays = times[1:] / sizes[1:]
        steepest = float(min([self.slope_s, *rays]))
        slopes = {steepest, *(float(slope) for slope in chords.ravel() if 0 <= slope < steepest)}
        return [(max(0.0, float(np.min(times - beta * sizes))), beta) for beta in sorted(slopes)]
