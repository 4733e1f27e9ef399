"""Compute confidence intervals, by one definition for the stop rule *and* for the report.

In: numpy arrays of seconds. Out: `conclusions.Interval`. Formulas and reasons: docs/method.md.

Written with numpy and `scipy.special`, not `scipy.stats`: importing the latter takes longer than a
whole report may (1.2 s against 0.2 s, measured), and each rank needs the stop rule at start-up.
`scipy.special` has the same quantile functions; tests compare the results with `scipy.stats`.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, ndtri, stdtrit

from bench.model.conclusions import NO_INTERVAL, Interval

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
# With fewer iterations no interval of the median at 95 % exists (2 * 0.5**6 < 0.05 < 2 * 0.5**5).
FEWEST_FOR_MEDIAN = 6
# With fewer blocks, their medians say too little about how blocks scatter.
FEWEST_BLOCKS = 4
# Below so many, the ends of the interval of a median are order statistics, which cover more rather than less.
FEW_SAMPLES = 20
# Few batches, so that each is longer than the correlation: gloo on two cores keeps a mode for some 20 to 50 iterations.
BATCHES, FEWEST_PER_BATCH = 5, 8
NORMAL_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))
# Percentile → smallest count at which an order statistic bounds it from above at 95 % confidence.
FEWEST_FOR_PERCENTILE = {90: 36, 95: 72, 99: 368}


def median_interval(samples: Floats) -> Interval:
    """Interval of the median of one launch's iterations, which are autocorrelated.

    Its ends are order statistics for an effective sample size (`effective_size`).
    With fewer than FEWEST_FOR_MEDIAN samples the interval is their range, and its kind says so.
    """
    if len(samples) < FEWEST_FOR_MEDIAN:
        return Interval(float(np.median(samples)), float(np.min(samples)), float(np.max(samples)), "range of too few")
    effective = effective_size(samples)
    order = _binomial_half_quantile((1 - CONFIDENCE) / 2, effective)
    # Few samples would cover 87 % (6) and 91 % (7) only; the next one out covers 95 % or more.
    q = (order - 1) / (effective - 1) if effective < FEW_SAMPLES else order / effective
    low, middle, high = quantiles(np.sort(samples), [q, 0.5, 1 - q])
    return Interval(middle, low, high, "within-run")


def within_launch(times_s: Floats, blocks: Sequence[int]) -> Interval:
    """Median of all iterations of one launch, and its interval.

    blocks: number of iterations in each block, in order. With FEWEST_BLOCKS or more, the interval comes from the
    medians of the blocks: Student's t on their logarithms, around the median of all. Blocks lie far enough apart to be
    independent; iterations do not. With fewer blocks: `median_interval`.
    """
    if len(blocks) < FEWEST_BLOCKS:
        return median_interval(times_s)
    variance = float(np.var(np.log(block_medians(times_s, blocks)), ddof=1)) / len(blocks)
    half = _t_half_width(variance, len(blocks) - 1)
    return _from_logs(float(np.log(np.median(times_s))), half, half, "within-run")


def block_medians(times_s: Floats, blocks: Sequence[int]) -> list[float]:
    """The median of each block of one launch's iterations."""
    return [float(np.median(block)) for block in np.split(times_s, np.cumsum(blocks)[:-1])]


def quantiles(ordered: Floats, shares: Sequence[float]) -> list[float]:
    """Quantiles of a sorted array, linear between its values: `numpy.quantile`, ten times as fast for short series."""
    last = len(ordered) - 1
    values: list[float] = np.interp(np.multiply(shares, last), np.arange(last + 1), ordered).tolist()
    return values


def effective_size(samples: Floats) -> int:
    """Number of independent samples that carry the same information, at least FEWEST_FOR_MEDIAN.

    The smaller of two estimates: from the autocorrelation at all lags, and from the scatter of BATCHES consecutive
    batches, which shows drifts. Each misses something that the other shows. A series too short for batches allows only
    an estimate from the correlation of neighbours.
    """
    n = len(samples)
    if n < FEWEST_PER_BATCH * BATCHES:
        r = max(0.0, rank_correlation(samples[:-1], samples[1:]))
        return max(FEWEST_FOR_MEDIAN, int(n * (1 - r) / (1 + r)))
    ranks = average_ranks(samples) / n
    # Integrated autocorrelation time by the initial monotone sequence (Geyer, Statistical Science 7, 1992).
    correlation_time = 1.0
    spectrum = np.fft.rfft(ranks - ranks.mean(), 2 * n)
    lags = np.fft.irfft(spectrum * spectrum.conj())[: n // 2 * 2]
    if lags[0] > 0:
        pairs = (lags[0::2] + lags[1::2]) / lags[0]
        positive = pairs[: int(np.argmax(pairs <= 0)) or None] if (pairs <= 0).any() else pairs
        correlation_time = max(1.0, float(2 * np.minimum.accumulate(positive).sum() - 1))
    # Variance of the mean if samples were independent, over that estimated from batch means (with Student's t).
    efficiency = 1.0
    means = ranks[: n // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    variance = float(means.var(ddof=1)) / BATCHES * (student_quantile(BATCHES - 1) / NORMAL_QUANTILE) ** 2
    if variance > 0:
        efficiency = min(1.0, float(ranks.var()) / n / variance)
    return max(FEWEST_FOR_MEDIAN, int(min(n / correlation_time, n * efficiency)))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's rho with average ranks for ties; 0 where one side is constant."""
    ranks_a, ranks_b = average_ranks(a), average_ranks(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return 0.0
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def launch_interval(medians: Floats) -> Interval:
    """Geometric mean of the launches' medians with Student's t on their logarithms (two or more)."""
    logs = np.log(medians)
    half = _t_half_width(float(np.var(logs, ddof=1)) / len(logs), len(logs) - 1)
    center = float(np.mean(logs))
    return _from_logs(center, half, half, "over launches")


def mean_interval(values: Floats, variance: float, freedom: float) -> Interval:
    """Mean of one value a launch with Student's t; values may be negative, as differences are.

    variance, freedom: of one value, with its degrees of freedom, as `verdicts.moderated` gives them.
    """
    half, center = _t_half_width(variance / len(values), freedom), float(np.mean(values))
    return Interval(center, center - half, center + half, "over launches")


def without_interval(value: float) -> Interval:
    """A value without an interval."""
    return Interval(value, value, value, NO_INTERVAL)


def ratio_of_intervals(before: Interval, after: Interval) -> Interval:
    """AFTER / BEFORE where a side has one launch: half-widths of the logarithms add in quadrature.

    It does not include how launches differ, so no verdict may rest on it alone. Without an interval if a side has none.
    """
    if not (before.known and after.known):
        return without_interval(after.value / before.value)
    center = np.log(after.value / before.value)
    down = np.hypot(np.log(before.high / before.value), np.log(after.value / after.low))
    up = np.hypot(np.log(before.value / before.low), np.log(after.high / after.value))
    return _from_logs(center, down, up, "within-run")


def difference_of_intervals(before: Interval, after: Interval) -> Interval:
    """AFTER − BEFORE where a side has too few launches: half-widths add in quadrature. No verdict may rest on it."""
    down = float(np.hypot(before.high - before.value, after.value - after.low))
    up = float(np.hypot(before.value - before.low, after.high - after.value))
    center = after.value - before.value
    return Interval(center, center - down, center + up, "within-run")


@functools.cache
def _binomial_half_quantile(p: float, n: int) -> float:
    """Smallest k with P(X <= k) >= p for X ~ Binomial(n, 1/2); `scipy.stats.binom.ppf(p, n, 0.5)`."""
    k = np.ceil(bdtrik(p, n, 0.5))
    below = max(k - 1, 0)
    return float(below if bdtr(below, n, 0.5) >= p else k)


@functools.cache
def student_quantile(freedom: float) -> float:
    """Student's quantile of a two-sided interval at CONFIDENCE."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _t_half_width(variance: float, freedom: float) -> float:
    return float(student_quantile(freedom) * np.sqrt(variance))


def _from_logs(center: float, down: float, up: float, kind: str) -> Interval:
    return Interval(float(np.exp(center)), float(np.exp(center - down)), float(np.exp(center + up)), kind)


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean; `scipy.stats.rankdata`, several times as fast for short series."""
    order = np.argsort(values)
    ordered = values[order]
    ranks = np.empty(len(values))
    if np.all(ordered[1:] > ordered[:-1]):
        ranks[order] = np.arange(1.0, len(values) + 1)
        return ranks
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: Floats = np.cumsum(counts) - (counts - 1) / 2
    return shared[inverse]
