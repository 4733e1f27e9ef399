"""Model the time of an all-reduce on a link, by a formula or through measured points, from a user's text or a run.

In: a latency and a rate, measured points, text such as "2ms+1GB/s", or summaries of a run of collectives. Out: an
`AllReduceCost`, which the bucket advisor and the emulated link use, or a `LinkModel` with its description. Measures
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression

from collbench.catalog.backends import BACKENDS
from collbench.model.conclusions import Summary
from collbench.model.divisions import WORLD
from collbench.model.errors import BenchError, ConfigError
from collbench.model.projection import SIZES
from collbench.model.records import Case, case_order
from collbench.model.units import counted, format_bytes, format_rate, format_seconds, parse_link
from collbench.packages.training.step_records import Link
from collbench.packages.training.synchronisation import Scenario
from collbench.stats.intervals import Floats

# On gloo over a link of 1 Gbit/s, isolated calls predicted 54 % more time than measured for a plan of 1 MiB buckets;
# pipelined calls predicted all of 7 plans within 7 % (proof/accuracy.md).
ISOLATED = (
    "The link was measured by isolated calls, but buckets follow each other, which takes less time: measure it with "
    "`metrics: [pipelined]`."
)


# ── the cost of a call ───────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class AllReduceCost:
    """The time of an all-reduce, which is linear between the points (sizes, times_s)."""

    # Bytes, ascending from 0.
    sizes: tuple[float, ...]
    # Seconds, never decreasing; the first value is the latency α.
    times_s: tuple[float, ...]
    # Seconds for each byte beyond the last point.
    slope_s: float

    def __call__(self, nbytes: Floats) -> Floats:
        """Return the seconds of an all-reduce, for each element of nbytes."""
        inside = np.interp(nbytes, self.sizes, self.times_s)
        return np.asarray(inside + np.maximum(0.0, nbytes - self.sizes[-1]) * self.slope_s)

    @classmethod
    def of_link(cls, latency_s: float, bytes_per_s: float) -> AllReduceCost:
        """Return the α–β model: latency_s + bytes / bytes_per_s."""
        return cls((0.0,), (latency_s,), 1 / bytes_per_s)

    @classmethod
    def emulated(cls, link: Link) -> AllReduceCost:
        """Return the cost of an emulated link: through its points if it has any, otherwise by its latency and rate."""
        if link.points:
            return cls.through(*zip(*link.points, strict=True))
        return cls.of_link(link.latency_s, link.bytes_per_s)

    def as_link(self) -> Link:
        """Return an emulated link with this cost."""
        points = tuple(zip(self.sizes[1:], self.times_s[1:], strict=True))
        return Link(self.latency_s, 1 / self.slope_s, points)

    @classmethod
    def through(cls, sizes: Sequence[float], times_s: Sequence[float]) -> AllReduceCost:
        """Return the curve through measured points. If noise makes the times fall with size, they are levelled.

        Below the smallest size, the first segment is extended, to a latency of at least zero. Beyond the largest size,
        the last segment is extended; if it is level, a byte costs the mean time per byte at the largest size. Raises
        BenchError for fewer than two sizes, a size given twice, or a size that is not positive.
        """
        order = np.argsort(sizes)
        bytes_ = np.asarray(sizes, dtype=float)[order]
        if len(bytes_) < 2 or bytes_[0] <= 0 or not np.all(np.diff(bytes_) > 0):
            raise BenchError("a curve needs the times of two sizes or more, each of them once")
        # Fit logarithms, because noise is proportional to the time.
        times = np.exp(isotonic_regression(np.log(np.asarray(times_s, dtype=float)[order])).x)
        slopes = np.diff(times) / np.diff(bytes_)
        latency = max(0.0, float(times[0] - slopes[0] * bytes_[0]))
        last_slope = float(slopes[-1]) or float(times[-1] / bytes_[-1])
        return cls((0.0, *map(float, bytes_)), (latency, *map(float, times)), last_slope)

    @property
    def latency_s(self) -> float:
        return self.times_s[0]

    def off_by(self, latency: float, rate: float) -> AllReduceCost:
        """Return this cost with the latency multiplied by `latency` and the rate multiplied by `rate`."""
        alpha = self.latency_s
        times = tuple(alpha * latency + (time - alpha) / rate for time in self.times_s)
        return AllReduceCost(self.sizes, times, self.slope_s / rate)

    def floors(self) -> list[tuple[float, float]]:
        """Return lines α + β·size, α, β ≥ 0, that are nowhere above the curve; for any size, the highest is included.

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


# ── a link with its description ──────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class LinkModel:
    """A link and its cost."""

    cost: AllReduceCost
    # Description of the link.
    words: str
    # Name of an emulated link with this cost, in cases.
    name: str
    # True if communicating on the link takes CPU time. None if unknown.
    cpu: bool | None = None
    # Largest size measured in bytes, beyond which the curve is extrapolated. None for a formula.
    largest: int | None = None
    notes: tuple[str, ...] = ()
    # Number of ranks for which the cost is valid. None if unknown.
    ranks: int | None = None
    # True for gloo of this machine, so that plans can be measured on it.
    here: bool = False
    # Relative error that the times may have. None if unknown.
    error: float | None = None

    def under(self, scenario: Scenario) -> Scenario:
        """Return the scenario on this link: gloo if a run measured gloo here, else an emulated link of equal cost."""
        case = replace(scenario.case, own=replace(scenario.options, link="" if self.here else self.name))
        if self.here and self.ranks is not None:
            return replace(scenario, case=replace(case, backend="gloo", world_size=self.ranks), link=None)
        return replace(scenario, case=case, link=self.cost.as_link())


def stated(text: str) -> LinkModel:
    """Return the link of a text such as "2ms+1GB/s": latency, and buffer bytes over time. Raises ConfigError."""
    try:
        latency_s, bytes_per_s = parse_link(text)
    except ValueError as error:
        raise ConfigError(f"--link {text}: {error}") from None
    words = f"a link of {format_seconds(latency_s)} and {format_rate(bytes_per_s)} GB/s, bytes of the buffer over time"
    return LinkModel(AllReduceCost.of_link(latency_s, bytes_per_s), words, text.strip())


def measured(summaries: Iterable[Summary], run: str, dtype: str, world_size: int | None = None) -> LinkModel:
    """Return the link of a run's all-reduces. Raises ConfigError for fewer than two sizes, or for several links.

    Among several variants, a pipelined variant is preferred, because buckets follow each other; then the variant with
    the fewest extras; then the in-place variant, because DistributedDataParallel reduces in place. Without all-reduces
    in `dtype`, all-reduces in another dtype are used, because the time depends mostly on the bytes.
    """
    every = [s for s in summaries if s.case.op == "all_reduce" and s.time_s is not None and s.case.groups == WORLD]
    if not every:
        raise ConfigError(f"{run}: no all_reduce was measured, so it has no data on the link")
    backends = sorted({s.case.backend for s in every})
    if len(backends) > 1:
        raise ConfigError(f"{run}: it has all-reduces on {' and '.join(backends)}: name a run with one backend")
    matching = [s for s in every if world_size in (None, s.case.world_size)]
    worlds = sorted({s.case.world_size for s in matching or every})
    if not matching or len(worlds) > 1:
        raise ConfigError(f"{run}: choose by --world-size {' or '.join(map(str, worlds))}")
    series = _series([s for s in matching if s.case.dtype == dtype] or matching)
    if len(series) < 2:
        raise ConfigError(f"{run}: all_reduce was measured at one size only; a curve needs two")
    case = series[0].case
    notes = [] if case.dtype == dtype else [f"The link was measured with {case.dtype}, not with {dtype}."]
    if case.metric == "isolated":
        notes.append(ISOLATED)
    if unusual := replace(case, metric="isolated", depth=1).extras:
        notes.append(f"The link was measured with {', '.join(unusual)}.")
    times = [s.time_s.value for s in series if s.time_s is not None]
    sizes = [s.case.size_bytes for s in series]
    words = (
        f"{run}: {case.backend}, {counted(case.world_size, 'rank')}, {len(sizes)} sizes "
        f"from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
    )
    widths = [s.time_s.relative_half_width for s in series if s.time_s is not None and s.time_s.known]
    return LinkModel(
        cost=AllReduceCost.through(sizes, times),
        words=words,
        name=run,
        cpu=costs_cpu(case.backend),
        largest=sizes[-1],
        notes=tuple(notes),
        ranks=case.world_size,
        here=case.backend == "gloo",
        error=float(np.median(widths)) if widths else None,
    )


def costs_cpu(backend: str) -> bool | None:
    """Return whether communicating on this backend takes CPU time from computing; None if unknown."""
    entry = BACKENDS.get(backend)
    return entry.device == "cpu" if entry else None


def _series(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries of the variant that `usual` ranks first, smallest size first; if possible of two sizes."""

    def usual(case: Case) -> tuple[object, ...]:
        return (case.metric != "pipelined", len(case.extras), case.placement == "out", case_order(case))

    series = SIZES.tables(summaries, lambda summary: summary.case)
    first = min(series, key=lambda case: (len(series[case]) < 2, *usual(case)))
    return sorted(series[first], key=lambda summary: summary.case.size_bytes)
