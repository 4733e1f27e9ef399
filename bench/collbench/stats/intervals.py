"""Compute confidence intervals, by one definition for the stop rule *and* for the report.

In: numpy arrays of seconds. Out: `conclusions.Interval`. Formulas and reasons: docs/method.md.

Written with numpy and `scipy.special`, not `scipy.stats`: importing the latter takes longer than a
whole report may (1.2 s against 0.2 s, measured). Ranks load neither, if no precision is asked for.
`scipy.special` has the same quantile functions; tests compare the results with `scipy.stats`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.model.conclusions import Interval, IntervalKind

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
ERROR_RATE = 1 - CONFIDENCE
# Fewest blocks for an interval: the means of fewer blocks show too little of the variance between blocks.
FEWEST_BLOCKS = 4
# Fewest calls for an interval from one launch. If a fifth of the calls are in a slow mode, ten in a row, intervals from
# 160 calls contain the mean in 90 % of launches, and intervals from 300 in 95 % (claim coverage-one-launch).
FEWEST_OF_ONE_LAUNCH = 300
# Launches for a 95 % interval and for a `LaunchScatter`. The range of k launches contains their median with probability
# 1 - 2^(1-k), for any distribution: 88 % for 4 launches, 94 % for 5.
FEWEST_OVER_LAUNCHES = 5
# Largest autocorrelation that few launches can show.
MOST_CORRELATED = 0.8
# Below this, skewness changes no digit of an interval, and Hall's transformation divides by it.
LEAST_SKEWNESS = 1e-6
# Percentile → smallest count at which an order statistic bounds it from above at 95 % confidence (10: from below).
FEWEST_FOR_PERCENTILE = {10: 36, 50: 1, 90: 36, 99: 368}


def within_launch(times_s: Floats, blocks: Sequence[int]) -> Interval:
    """Return the mean of all iterations of one launch, and its interval.

    blocks: number of iterations in each block, in order. The interval comes from the means of the blocks: Student's t
    on their logarithms, around the mean of all. Blocks lie far enough apart to be independent; iterations do not.
    With fewer than FEWEST_BLOCKS there is no interval.
    """
    mean = float(np.mean(times_s))
    if len(blocks) < FEWEST_BLOCKS:
        return without_interval(mean)
    variance = float(np.var(np.log(block_means(times_s, blocks)), ddof=1)) / len(blocks)
    factor = float(np.exp(student_quantile(len(blocks) - 1) * np.sqrt(variance)))
    return Interval(mean, mean / factor, mean * factor, IntervalKind.WITHIN_RUN)


def of_one_launch(times_s: Floats, blocks: Sequence[int]) -> Interval:
    """Return the interval of a run of one launch; none below FEWEST_OF_ONE_LAUNCH calls, which may miss a slow mode."""
    interval = within_launch(times_s, blocks)
    return interval if len(times_s) >= FEWEST_OF_ONE_LAUNCH else without_interval(interval.value)


def block_means(times_s: Floats, blocks: Sequence[int]) -> Floats:
    """Return the mean of each block of one launch's iterations."""
    ends = np.cumsum(blocks)
    return np.asarray(np.add.reduceat(times_s, [0, *ends[:-1]]) / blocks)


def quantiles(ordered: Floats, shares: Sequence[float]) -> list[float]:
    """Return quantiles of a sorted array, linear between values: `numpy.quantile`, ten times as fast if short."""
    last = len(ordered) - 1
    values: list[float] = np.interp(np.multiply(shares, last), np.arange(last + 1), ordered).tolist()
    return values


@dataclass(frozen=True, slots=True)
class LaunchScatter:
    """Scatter that the launches of a kind of cases have in common: the launches of one case are too few to show it."""

    # Correlation of successive launches, from 0 to MOST_CORRELATED.
    autocorrelation: float = 0.0
    # Skewness of the logarithms of the launches' means.
    skewness: float = 0.0


# Launches that are assumed to be independent and lognormal.
LOGNORMAL = LaunchScatter()


def of_launches(means: Floats, scatter: LaunchScatter = LOGNORMAL) -> Interval:
    """Return the interval over launches: the range of fewer than FEWEST_OVER_LAUNCHES, else `launch_interval`.

    One launch has none: its between-launch variance is unknown.
    """
    if len(means) == 1:
        return without_interval(float(means[0]))
    if len(means) >= FEWEST_OVER_LAUNCHES:
        return launch_interval(means, scatter)
    center = float(np.exp(np.mean(np.log(means)))) if np.all(means > 0) else float(np.mean(means))
    return Interval(center, float(means.min()), float(means.max()), IntervalKind.RANGE)


def launch_interval(means: Floats, scatter: LaunchScatter = LOGNORMAL) -> Interval:
    """Return the geometric mean of the launches' means, with Student's t on their logarithms (two launches or more).

    Autocorrelation of successive launches widens the interval, because it reduces the effective sample size. Skewness
    widens the interval on the side of the rare launches (Hall, J. R. Statist. Soc. B 54, 1992).
    """
    logs = np.log(means)
    count, apart = len(logs), np.arange(1, len(logs))
    wider = 1 + 2 * float(np.sum((1 - apart / count) * scatter.autocorrelation**apart))
    variance = float(np.var(logs, ddof=1)) / count * wider * (count - 1) / (count - wider)
    t = student_quantile(count - 1)
    down, up = (_without_skewness(sign * t, scatter.skewness, count) * float(np.sqrt(variance)) for sign in (1, -1))
    return _from_logs(float(np.mean(logs)), down, -up, IntervalKind.OVER_LAUNCHES)


def _without_skewness(t: float, skewness: float, count: int) -> float:
    """Return the t statistic of `count` skewed values that is as rare as `t` is without skewness."""
    if abs(skewness) < LEAST_SKEWNESS:
        return t
    root = float(np.sqrt(count))
    inside = 1 + skewness * (t / root - skewness / (6 * count))
    return 3 * root / skewness * (float(np.cbrt(inside)) - 1)


def launch_scatter(cases: Sequence[Floats]) -> LaunchScatter:
    """Return autocorrelation and skewness of launches, pooled over cases, from the logarithms of each case's launches.

    The autocorrelation of n values around their own mean is too low, to first order by (1 + 3r) / n (Kendall,
    Biometrika 41, 1954); this bias is corrected. The skewness is the mean of the cases' G1 (Joanes and Gill, J. R.
    Statist. Soc. D 47, 1998). Cases with fewer than FEWEST_OVER_LAUNCHES launches, or without scatter, do not count.
    """
    centred = [logs - np.mean(logs) for logs in cases if len(logs) >= FEWEST_OVER_LAUNCHES and np.ptp(logs) > 0]
    if not centred:
        return LOGNORMAL
    count = float(np.mean([len(values) for values in centred]))
    total = sum(float(np.sum(values**2)) for values in centred)
    observed = sum(float(np.sum(values[1:] * values[:-1])) for values in centred) / total
    correlation = min(max((count * observed + 1) / (count - 3), 0.0), MOST_CORRELATED)
    return LaunchScatter(correlation, float(np.mean([_skewness(values) for values in centred])))


def _skewness(centred: Floats) -> float:
    n = len(centred)
    return n / ((n - 1) * (n - 2)) * float(np.sum((centred / np.std(centred, ddof=1)) ** 3))


def mean_interval(values: Floats, variance: float, freedom: float, error_rate: float = ERROR_RATE) -> Interval:
    """Return the mean of one value per launch with Student's t; values may be negative, as differences are.

    variance, freedom: variance of one value and its degrees of freedom, as `verdicts.moderated` returns them.
    """
    half = student_quantile(freedom, error_rate) * float(np.sqrt(variance / len(values)))
    center = float(np.mean(values))
    return Interval(center, center - half, center + half, IntervalKind.OVER_LAUNCHES)


def without_interval(value: float) -> Interval:
    """Return a value without an interval."""
    return Interval(value, value, value, IntervalKind.NONE)


def ratio_of_intervals(before: Interval, after: Interval) -> Interval:
    """Return AFTER / BEFORE if a side has one launch: half-widths of the logarithms add in quadrature.

    It excludes the between-launch variance, so no verdict may rest on it alone. It has no interval if a side has none.
    """
    if not (before.known and after.known):
        return without_interval(after.value / before.value)
    center = np.log(after.value / before.value)
    down = np.hypot(np.log(before.high / before.value), np.log(after.value / after.low))
    up = np.hypot(np.log(before.value / before.low), np.log(after.high / after.value))
    return _from_logs(center, down, up, IntervalKind.WITHIN_RUN)


def difference_of_intervals(before: Interval, after: Interval) -> Interval:
    """Return AFTER − BEFORE if a side has too few launches: half-widths add in quadrature. No verdict may rest on it.

    It has no interval if a side has none.
    """
    if not (before.known and after.known):
        return without_interval(after.value - before.value)
    down = float(np.hypot(before.high - before.value, after.value - after.low))
    up = float(np.hypot(before.value - before.low, after.high - after.value))
    center = after.value - before.value
    return Interval(center, center - down, center + up, IntervalKind.WITHIN_RUN)


def of_share(hits: int, trials: int, error_rate: float = 0.05) -> tuple[float, float]:
    """Return the limits of the exact interval of a probability (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.special import betaincinv  # here: no rank needs it

    low = betaincinv(hits, trials - hits + 1, error_rate / 2) if hits else 0.0
    high = betaincinv(hits + 1, trials - hits, 1 - error_rate / 2) if hits < trials else 1.0
    return float(low), float(high)


@functools.cache
def student_quantile(freedom: float, error_rate: float = ERROR_RATE) -> float:
    """Return Student's quantile for a two-sided interval that misses at this rate."""
    from scipy.special import stdtrit  # here: a rank loads it only if a stop rule needs it

    return float(stdtrit(freedom, 1 - error_rate / 2))


def _from_logs(center: float, down: float, up: float, kind: IntervalKind) -> Interval:
    return Interval(float(np.exp(center)), float(np.exp(center - down)), float(np.exp(center + up)), kind)


def average_ranks(values: Floats) -> Floats:
    """Return ranks from 1, with mean ranks for ties: `scipy.stats.rankdata`, several times as fast for short series."""
    order = np.argsort(values)
    ordered = values[order]
    ranks = np.empty(len(values))
    if np.all(ordered[1:] > ordered[:-1]):
        ranks[order] = np.arange(1.0, len(values) + 1)
        return ranks
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: Floats = np.cumsum(counts) - (counts - 1) / 2
    return shared[inverse]
