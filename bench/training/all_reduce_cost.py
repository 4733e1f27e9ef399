"""The time of an all-reduce on a link by its size, for the bucket advisor and the emulated link.

In: a latency and a rate, or measured points. Out: an `AllReduceCost`. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from bench.model.errors import BenchError
from bench.stats.intervals import Floats
from bench.training.records import Link


@dataclass(frozen=True, slots=True)
class AllReduceCost:
    """The time of an all-reduce: linear between the points (sizes, times_s), slope_s seconds per byte beyond the last.

    sizes: bytes, ascending from 0. times_s: seconds that never fall; the first is the latency α.
    """

    sizes: tuple[float, ...]
    times_s: tuple[float, ...]
    slope_s: float

    def __call__(self, nbytes: Floats) -> Floats:
        """Seconds of an all-reduce of nbytes, for each element of nbytes."""
        inside = np.interp(nbytes, self.sizes, self.times_s)
        return np.asarray(inside + np.maximum(0.0, nbytes - self.sizes[-1]) * self.slope_s)

    @classmethod
    def of_link(cls, latency_s: float, bytes_per_s: float) -> AllReduceCost:
        """The α–β model: latency_s + bytes / bytes_per_s."""
        return cls((0.0,), (latency_s,), 1 / bytes_per_s)

    @classmethod
    def emulated(cls, link: Link) -> AllReduceCost:
        """The cost of an emulated link: through its points if it has any, otherwise by its latency and rate."""
        if link.points:
            return cls.through(*zip(*link.points, strict=True))
        return cls.of_link(link.latency_s, link.bytes_per_s)

    def as_link(self) -> Link:
        """An emulated link with this cost."""
        points = tuple(zip(self.sizes[1:], self.times_s[1:], strict=True))
        return Link(self.latency_s, 1 / self.slope_s, points)

    @classmethod
    def through(cls, sizes: Sequence[float], times_s: Sequence[float]) -> AllReduceCost:
        """The curve through measured points. Where noise makes the times fall with size, they are levelled.

        Below the smallest size the first line is extended, to a latency of zero at least. Beyond the largest size the
        last line is extended; where it is level, a byte costs the mean time per byte at the largest size. Raises
        BenchError for fewer than two sizes, a size given twice, or one that is not positive.
        """
        order = np.argsort(sizes)
        bytes_ = np.asarray(sizes, dtype=float)[order]
        if len(bytes_) < 2 or bytes_[0] <= 0 or not np.all(np.diff(bytes_) > 0):
            raise BenchError("a curve needs the times of two sizes or more, each of them once")
        # Fit logarithms, because noise is proportional to the time.
        times = np.exp(isotonic_regression(np.log(np.asarray(times_s, dtype=float)[order])).x)
        slopes = np.diff(times) / np.diff(bytes_)
        latency = max(0.0, float(times[0] - slopes[0] * bytes_[0]))
        beyond = float(slopes[-1]) or float(times[-1] / bytes_[-1])
        return cls((0.0, *map(float, bytes_)), (latency, *map(float, times)), beyond)

    @property
    def latency_s(self) -> float:
        return self.times_s[0]

    def off_by(self, latency: float, rate: float) -> AllReduceCost:
        """This cost with the latency multiplied by `latency` and the rate multiplied by `rate`."""
        alpha = self.latency_s
        times = tuple(alpha * latency + (time - alpha) / rate for time in self.times_s)
        return AllReduceCost(self.sizes, times, self.slope_s / rate)

    def floors(self) -> list[tuple[float, float]]:
        """Lines α + β·size, α, β ≥ 0, that are nowhere above the curve; for any size the highest such is among them.

        For a slope β the highest line has α(β) = min over points of time − β·size. α(β) is concave and bends only at
        slopes between two points. β is at most the slope beyond the last point, and α(β) must not be negative.
        """
        sizes, times = np.array(self.sizes), np.array(self.times_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            chords = (times[:, None] - times) / (sizes[:, None] - sizes)
            rays = times[1:] / sizes[1:]
        steepest = float(min([self.slope_s, *rays]))
        slopes = {steepest, *(float(slope) for slope in chords.ravel() if 0 <= slope < steepest)}
        return [(max(0.0, float(np.min(times - beta * sizes))), beta) for beta in sorted(slopes)]
