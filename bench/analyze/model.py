"""Model how time depends on size (piecewise α–β, one model per series), and compute bounds that no run can beat.

In: summaries. Out: one `Fit` for each series of sizes, and `Bound`s. Where the model is far from what was measured,
the `Fit` has no segments and its note says why. Does not judge a result against a bound and does not format.

α–β and n½: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994). Bounds beside results:
Hoefler & Belli, "Scientific benchmarking of parallel computing systems", SC'15, rule 11.
"""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.special import ndtri, stdtrit

from bench.model.conclusions import Bound, Fit, Interval, Segment, Summary
from bench.model.records import Case, case_order
from bench.model.units import format_bytes
from bench.stats import intervals
from bench.stats.intervals import Floats

Spans = list[tuple[int, int]]

# Two parameters through three points leave one degree of freedom: any bend would look like another protocol.
FEWEST_SIZES = 4
# Eager protocol, rendezvous protocol, and one for a cache or a second algorithm; more would overfit.
MOST_SEGMENTS = 3
# Relative deviation too small to justify a segment. Without it BIC splits a perfect series at its rounding errors.
RESOLUTION = 0.01
# A model that is off by more than a third at some size misleads. Series of gloo on two cores reached 0.04 to 0.29, and
# noise alone stays below: with 20 sizes that scatter by 10 %, the worst residual exceeds 0.35 in under 1 % of series.
WORST_RESIDUAL = 0.35
# A term below this share of each time is a rounding error: no clock resolves a billionth of what it measures.
ROUNDING = 1e-9
# Ratios of β to α that are tried first: one in each factor of about 2.5 over all that could matter, and steps from the
# best of them, of which ten suffice as a rule.
GRID, MOST_STEPS = 120, 50
# Operation whose time is that of one exchange: each rank sends `size` bytes and receives as many at once.
PAIRWISE = "pairwise"


# ── the model ────────────────────────────────────────────────────────────────────────────────────
def fits(summaries: Sequence[Summary]) -> list[Fit]:
    """A fit for each series (cases that differ in size only) with FEWEST_SIZES measured sizes or more."""
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
    parameters = [_affine(sizes[a:b], times[a:b]) for a, b in spans]
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


def _affine(sizes: Floats, times: Floats) -> tuple[float, float]:
    """α in seconds and β in seconds a byte, neither negative, that minimise Σ (log model − log t)².

    Residuals are those of logarithms, as noise is: relative ones would bias the model by −1.5 σ², and absolute ones
    would fit the largest sizes only, leaving α to chance. With ρ = β / α, log t = log α + log(1 + ρ size). The best α
    of a ρ is a mean, so ρ alone is searched: on a grid, and then by Gauss-Newton steps.
    """
    logs = np.log(times)

    def residuals(rho: Floats) -> Floats:
        """Of each ρ (rows) and size (columns), for the best α."""
        rest = logs - np.log1p(np.multiply.outer(rho, sizes))
        return np.asarray(rest - rest.mean(axis=-1, keepdims=True))

    grid = np.geomspace(ROUNDING**2 / sizes[-1], ROUNDING**-2 / sizes[0], GRID)
    costs = (residuals(grid) ** 2).sum(axis=1)
    rho, cost = float(grid[costs.argmin()]), float(costs.min())
    for _ in range(MOST_STEPS):
        rest = residuals(np.array(rho))
        slope = rho * sizes / (1 + rho * sizes)
        slope = slope - slope.mean()
        step = float(rest @ slope) / max(float(slope @ slope), np.finfo(float).tiny)
        nearer = rho * math.exp(max(-1.0, min(1.0, step)))
        found = float((residuals(np.array(nearer)) ** 2).sum())
        if not found < cost:
            break
        rho, cost = nearer, found
    alpha = math.exp(float(np.mean(logs - np.log1p(rho * sizes))))
    beta = alpha * rho
    # A term that no clock could see is zero.
    if beta * sizes[-1] < ROUNDING * alpha:
        return math.exp(float(logs.mean())), 0.0
    if alpha < ROUNDING * beta * sizes[0]:
        return 0.0, math.exp(float(np.mean(logs - np.log(sizes))))
    return alpha, beta


def _cost(sizes: Floats, times: Floats, start: int, end: int) -> float:
    """Sum of squared residuals of the logarithms for the best α and β of sizes[start:end]."""
    alpha, beta = _affine(sizes[start:end], times[start:end])
    return float(np.sum(np.log((alpha + beta * sizes[start:end]) / times[start:end]) ** 2))


# ── the segments ─────────────────────────────────────────────────────────────────────────────────
def _segmentation(sizes: Floats, times: Floats) -> Spans:
    """Positions [start, end) of the 1 to 3 segments with the least BIC (Schwarz 1978).

    m segments have 2m coefficients and m - 1 boundaries.
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
    """For each number of segments from 2 on, the partition of least cost: all are tried."""
    n = len(sizes)

    @functools.cache
    def cost(start: int, end: int) -> float:
        return _cost(sizes, times, start, end)

    for count in range(2, min(MOST_SEGMENTS, n // FEWEST_SIZES) + 1):
        partitions = (
            list(pairwise([0, *inner, n]))
            for inner in itertools.combinations(range(FEWEST_SIZES, n - FEWEST_SIZES + 1), count - 1)
        )
        long_enough = (spans for spans in partitions if all(end - start >= FEWEST_SIZES for start, end in spans))
        yield min(long_enough, key=lambda spans: sum(cost(start, end) for start, end in spans))


# ── the intervals of the parameters ──────────────────────────────────────────────────────────────
def _parameter_intervals(segment: list[Summary]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """α (s), r∞ (bytes/s) and n½ (bytes) of one segment; None for one that cannot be told from zero or infinity.

    If all sizes have the same number of launches, two or more, each launch is fitted: what slows a launch slows all
    its sizes, and only this accounts for it. The value is then the geometric mean over launches, which may differ a
    little from the segment's. Otherwise the intervals of the times are propagated.
    """
    sizes = np.array([s.case.size_bytes for s in segment], dtype=float)
    counts = {len(s.medians_s) for s in segment}
    times = [s.time_s for s in segment if s.time_s is not None]
    if not all(time.known for time in times):
        return _without_intervals(sizes, times)
    if len(counts) > 1 or counts.pop() < 2:
        return _propagated(sizes, times)
    launches = np.array([s.medians_s for s in segment]).T
    alpha, beta = np.array([_affine(sizes, medians) for medians in launches]).T
    if not beta.all():
        return _over_launches(alpha), None, None
    return _over_launches(alpha), _over_launches(1 / beta), _over_launches(alpha / beta)


def _without_intervals(
    sizes: Floats, times: list[Interval]
) -> tuple[Interval | None, Interval | None, Interval | None]:
    """The values alone, where the times have no intervals: a good fit does not show how certain its points are."""
    alpha, beta = _affine(sizes, np.array([t.value for t in times]))
    half_size = intervals.without_interval(alpha / beta) if alpha and beta else None
    return (
        intervals.without_interval(alpha) if alpha else None,
        intervals.without_interval(1 / beta) if beta else None,
        half_size,
    )


def _over_launches(values: Floats) -> Interval | None:
    """Student's t on logarithms; on the values themselves, cut at zero, if some launch gave zero.

    None if every launch gave zero: an interval without width would claim a precision that was not reached.
    """
    if values.all():
        return intervals.launch_interval(values)
    if not values.any():
        return None
    quantile = float(stdtrit(len(values) - 1, (1 + intervals.CONFIDENCE) / 2))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return _around(float(np.mean(values)), half, "over launches")


def _propagated(sizes: Floats, times: list[Interval]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """The same parameters from the intervals of the times, to first order, sizes taken as independent (delta method).

    Cov(θ) = X⁺ diag(σ²) X⁺ᵀ with the rows X = (1, size)/t and σ the standard deviation of log t, or the scatter
    around the model where that is larger. This leaves out what all sizes of a launch have in common, so the kind is
    "over launches" only if that of every time is.
    """
    values = np.array([t.value for t in times])
    theta = alpha, beta = _affine(sizes, values)
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


# ── the bounds ───────────────────────────────────────────────────────────────────────────────────
def bounds(summaries: Sequence[Summary], link_bytes_per_s: float | None) -> list[Bound]:
    """Bus bandwidths in bytes/s that cases with two or more ranks cannot exceed, by backend and world size.

    "link as given": the rate that the user states for the link. "ring of measured pairs": the best rate over the
    sizes of `pairwise`, whose time is that of the slowest pair of a round. Every link of a ring carries the bus
    bandwidth, so a ring moves no more than its slowest link does. An algorithm other than a ring may exceed it.
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
