"""How time depends on size: a piecewise α–β model of each series, and what no run can beat.

In: summaries. Out: one `Fit` for each series of sizes, and `Bound`s. Where the model is far from what was measured
there is none, and its note says so. Does not judge a result against a bound and does not format.

α–β and n½: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994). Bounds beside results:
Hoefler & Belli, "Scientific benchmarking of parallel computing systems", SC'15, rule 11.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri, stdtrit

from bench import intervals
from bench.conclusions import Bound, Fit, Interval, Segment, Summary
from bench.intervals import Floats
from bench.records import Case, case_order
from bench.units import format_bytes

Spans = list[tuple[int, int]]

# Two parameters through three points leave one degree of freedom: any bend would look like a protocol of its own.
FEWEST_SIZES = 4
# Eager, rendezvous, and one for what a cache or a second algorithm does; more would be drawing by numbers.
MOST_SEGMENTS = 3
# Relative deviation that nobody would call a segment. Without it BIC takes a perfect series apart for its rounding.
RESOLUTION = 0.01
# Off by more than a third somewhere, α–β hides more than it tells. Series of gloo on two cores reached 0.04 to 0.29,
# and noise alone stays below: among 20 sizes that scatter by 10 %, the worst residual passes 0.35 in under 1 %.
WORST_RESIDUAL = 0.35
# Share of a time below which a term of the model is rounding: no clock resolves a billionth of what it measures.
ROUNDING = 1e-9
# Operation whose time is that of one exchange: each rank sends `size` bytes and receives as many at once.
PAIRWISE = "pairwise"


# ── the model ────────────────────────────────────────────────────────────────────────────────────
def fits(summaries: Sequence[Summary]) -> list[Fit]:
    """A fit for every series, that is all cases alike but for their size, with FEWEST_SIZES measured sizes."""
    series: dict[Case, list[Summary]] = defaultdict(list)
    for summary in summaries:
        if summary.time_s is not None:
            series[replace(summary.case, size_bytes=0)].append(summary)
    ordered = [sorted(group, key=lambda s: s.case.size_bytes) for group in series.values()]
    ordered.sort(key=lambda group: case_order(group[0].case))
    return [_fit(group) for group in ordered if len(group) >= FEWEST_SIZES]


def _fit(series: list[Summary]) -> Fit:
    """`series`: one or more summaries with a time, by ascending size."""
    sizes = np.array([s.case.size_bytes for s in series], dtype=float)
    times = np.array([s.time_s.value for s in series if s.time_s is not None])
    spans = _segmentation(sizes, times)
    parameters = [_relative_affine(sizes[a:b], times[a:b]) for a, b in spans]
    model = [alpha + beta * sizes[a:b] for (a, b), (alpha, beta) in zip(spans, parameters, strict=True)]
    residuals = np.abs(np.concatenate(model) / times - 1)
    worst = float(residuals.max())
    case, seen = series[0].case, _half_size_seen(sizes, times)
    if worst > WORST_RESIDUAL:
        where = format_bytes(series[int(residuals.argmax())].case.size_bytes)
        note = f"no model: latency plus size over rate is off by {worst:.0%} at {where} even in its best segments"
        return Fit(case, (), None, None, None, seen, worst, note)
    segments = tuple(
        Segment(series[a].case.size_bytes, series[b - 1].case.size_bytes, alpha, beta)
        for (a, b), (alpha, beta) in zip(spans, parameters, strict=True)
    )
    first, last = spans[0], spans[-1]
    alpha_s, _, _ = _parameter_intervals(series[first[0] : first[1]])
    _, rate, half_size = _parameter_intervals(series[last[0] : last[1]])
    return Fit(case, segments, alpha_s, rate, half_size, seen, worst)


def _relative_affine(sizes: Floats, times: Floats) -> tuple[float, float]:
    """α in seconds and β in seconds a byte, neither negative, that minimise Σ (model/t - 1)².

    Relative, as noise is: absolute residuals see the largest sizes only, and α is what is left over from them.
    """
    from scipy.optimize import nnls

    rows = np.column_stack([1 / times, sizes / times])
    # The columns differ by many powers of ten; the solver's tolerance is one number.
    scale = np.linalg.norm(rows, axis=0)
    (alpha, beta), _ = nnls(rows / scale, np.ones(len(times)))
    # The solver leaves a rounding error where a term is zero, of a size that depends on the CPU.
    shares = rows / scale * (alpha, beta)
    alpha, beta = np.where(shares.max(axis=0) > ROUNDING, (alpha, beta), 0.0)
    return float(alpha / scale[0]), float(beta / scale[1])


def _cost(sizes: Floats, times: Floats, start: int, end: int) -> float:
    """Sum of squared relative residuals of the best α and β for sizes[start:end]."""
    alpha, beta = _relative_affine(sizes[start:end], times[start:end])
    return float(np.sum(((alpha + beta * sizes[start:end]) / times[start:end] - 1) ** 2))


# ── where one segment ends and the next begins ───────────────────────────────────────────────────
def _segmentation(sizes: Floats, times: Floats) -> Spans:
    """Positions [start, end) of the 1 to 3 segments with the least BIC (Schwarz 1978).

    m segments have 2m coefficients and m - 1 places where they meet.
    """
    n = len(sizes)
    candidates: list[Spans] = [[(0, n)]]
    if n >= 2 * FEWEST_SIZES:
        candidates += _best_partitions(sizes, times)

    def bic(spans: Spans) -> float:
        squares = sum(_cost(sizes, times, a, b) for a, b in spans)
        return n * math.log(squares / n + RESOLUTION**2) + (3 * len(spans) - 1) * math.log(n)

    return min(candidates, key=bic)


def _best_partitions(sizes: Floats, times: Floats) -> Iterable[Spans]:
    """For each number of segments from 2 on, the partition of least cost, by dynamic programming."""
    from ruptures import Dynp  # with its imports 1.3 s, needed by long series only

    search = Dynp(custom_cost=_cost_class()(), min_size=FEWEST_SIZES, jump=1)
    search.fit(np.column_stack([sizes, times]))
    for count in range(2, min(MOST_SEGMENTS, len(sizes) // FEWEST_SIZES) + 1):
        ends = search.predict(n_bkps=count - 1)
        yield list(zip([0, *ends[:-1]], ends, strict=True))


@functools.cache
def _cost_class() -> type:
    """The cost in the form that ruptures wants; made on first use, as its base class is imported late."""
    from ruptures.base import BaseCost

    class RelativeAffine(BaseCost):  # type: ignore[misc]
        """Signal: columns size and time."""

        model = "relative affine"
        min_size = FEWEST_SIZES

        def fit(self, signal: Floats) -> "RelativeAffine":
            """Take the signal and forget the costs of the one before."""
            self.signal = signal
            self.known: dict[tuple[int, int], float] = {}
            return self

        def error(self, start: int, end: int) -> float:
            """Cost of one segment; asked for far more often than there are segments."""
            if (start, end) not in self.known:
                self.known[start, end] = _cost(self.signal[:, 0], self.signal[:, 1], start, end)
            return self.known[start, end]

    return RelativeAffine


# ── how sure the parameters are ──────────────────────────────────────────────────────────────────
def _parameter_intervals(segment: list[Summary]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """α (s), r∞ (bytes/s) and n½ (bytes) of one segment; None what cannot be told from zero or infinity.

    Where all sizes have the same launches, two or more, each launch gives values of its own: whatever slowed a
    launch slowed all its sizes, and only this sees it. The value is then the launches' geometric mean, which may
    differ a little from the segment's. Otherwise the intervals of the times are propagated.
    """
    sizes = np.array([s.case.size_bytes for s in segment], dtype=float)
    counts = {len(s.medians_s) for s in segment}
    times = [s.time_s for s in segment if s.time_s is not None]
    if not all(time.known for time in times):
        return _without_intervals(sizes, times)
    if len(counts) > 1 or counts.pop() < 2:
        return _propagated(sizes, times)
    launches = np.array([s.medians_s for s in segment]).T
    alpha, beta = np.array([_relative_affine(sizes, medians) for medians in launches]).T
    if not beta.all():
        return _over_launches(alpha), None, None
    return _over_launches(alpha), _over_launches(1 / beta), _over_launches(alpha / beta)


def _without_intervals(
    sizes: Floats, times: list[Interval]
) -> tuple[Interval | None, Interval | None, Interval | None]:
    """The values alone, where the times have no intervals: that a line fits does not say how sure its points are."""
    alpha, beta = _relative_affine(sizes, np.array([t.value for t in times]))
    half_size = intervals.bare(alpha / beta) if alpha and beta else None
    return (
        intervals.bare(alpha) if alpha else None,
        intervals.bare(1 / beta) if beta else None,
        half_size,
    )


def _over_launches(values: Floats) -> Interval | None:
    """Student's t on logarithms; on the values themselves, cut at zero, where some launch gave a zero.

    With zero in every launch, None: an interval without width would claim to know what was not resolved.
    """
    if values.all():
        return intervals.launch_interval(values)
    if not values.any():
        return None
    quantile = float(stdtrit(len(values) - 1, (1 + intervals.CONFIDENCE) / 2))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return _around(float(np.mean(values)), half, "over launches")


def _propagated(sizes: Floats, times: list[Interval]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """The same from the intervals of the times, to first order, sizes taken as independent (delta method).

    Cov(θ) = X⁺ diag(σ²) X⁺ᵀ with the rows X = (1, size)/t and σ the standard deviation of log t, or the scatter
    around the model where that is larger. What all sizes of a launch have in common is not in it, so the kind is
    that of the weakest of the times.
    """
    values = np.array([t.value for t in times])
    theta = alpha, beta = _relative_affine(sizes, values)
    free = [i for i in range(2) if theta[i]]  # a parameter at its boundary is a constant
    freedom = len(times) - len(free)
    scatter = math.sqrt(np.sum(((alpha + beta * sizes) / values - 1) ** 2) / freedom)
    normal, student = ndtri((1 + intervals.CONFIDENCE) / 2), stdtrit(freedom, (1 + intervals.CONFIDENCE) / 2)
    sigma = np.array([max(scatter, math.log(t.high / t.low) / 2 / normal) for t in times])
    covariance = np.zeros((2, 2))
    inverse = np.linalg.pinv((np.column_stack([np.ones_like(sizes), sizes]) / values[:, None])[:, free])
    covariance[np.ix_(free, free)] = inverse * sigma**2 @ inverse.T
    kind = "over launches" if all(t.kind == "over launches" for t in times) else "within-run"
    half_alpha, half_beta = student * np.sqrt(np.diag(covariance))
    alpha_s = _around(alpha, float(half_alpha), kind) if alpha else None
    if not beta or half_beta >= beta:
        return alpha_s, None, None
    rate = Interval(1 / beta, float(1 / (beta + half_beta)), float(1 / (beta - half_beta)), kind)
    if not alpha:
        return alpha_s, rate, None
    gradient = np.array([1 / beta, -alpha / beta**2])
    return alpha_s, rate, _around(alpha / beta, float(student) * math.sqrt(gradient @ covariance @ gradient), kind)


def _around(value: float, half: float, kind: str) -> Interval:
    """Symmetric, but never below zero."""
    return Interval(value, max(0.0, value - half), value + half, kind)


def _half_size_seen(sizes: Floats, times: Floats) -> float | None:
    """Bytes at which the measured rate first reaches half its best; None if the smallest size already does.

    Interpolated between neighbouring sizes, both axes logarithmic.
    """
    rates = sizes / times
    after = int(np.argmax(rates >= rates.max() / 2))
    if after == 0:
        return None
    low, high = np.log(rates[after - 1 : after + 1])
    share = (math.log(rates.max() / 2) - low) / (high - low)
    return float(sizes[after - 1] * (sizes[after] / sizes[after - 1]) ** share)


# ── what no run can beat ─────────────────────────────────────────────────────────────────────────
def bounds(summaries: Sequence[Summary], link_bytes_per_s: float | None) -> list[Bound]:
    """Bus bandwidths in bytes/s that cases with two or more ranks cannot exceed, by backend and world size.

    "link as given": what the user says that the link can do. "ring of measured pairs": the best rate of a measured
    exchange, that of the slowest pair of its round. Every link of a ring carries the bus bandwidth, so a ring moves
    no more than its slowest link does. What goes another way than a ring may beat it.
    """
    found: dict[tuple[str, int, str], float] = {}
    for summary in summaries:
        case = summary.case
        if case.world_size < 2:
            continue
        if link_bytes_per_s is not None:
            found[case.backend, case.world_size, "link as given"] = link_bytes_per_s
        if case.op == PAIRWISE and summary.time_s is not None:
            name = (case.backend, case.world_size, "ring of measured pairs")
            found[name] = max(found.get(name, 0.0), case.size_bytes / summary.time_s.value)
    return [Bound(*name, busbw) for name, busbw in sorted(found.items())]
