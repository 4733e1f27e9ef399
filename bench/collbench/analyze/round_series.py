"""Estimate means over launches of values measured round by round, such as differences of cases of one round.

In: for each launch, one value per round. Out: means with intervals. Numbers in, numbers out.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from collbench.model.conclusions import Interval, IntervalKind
from collbench.stats import intervals
from collbench.stats.intervals import Floats
from collbench.stats.verdicts import moderated

# Fewer launches estimate the between-launch variance poorly: Student's t of one degree of freedom is 12.7.
LAUNCHES_FOR_INTERVAL = 3
# Seconds squared: below the resolution of clocks. Variances of invented or emulated times may be 0.
LEAST_VARIANCE = 1e-18

# Launch → one value per round.
Series = dict[int, Floats]
K = TypeVar("K", bound=Hashable)


def means(series: Series) -> Floats:
    """Return the mean of each launch."""
    return np.array([float(np.mean(values)) for values in series.values()])


def pooled(series: Series) -> Floats:
    """Return the values of the rounds of all launches."""
    return np.concatenate(list(series.values()))


def pooled_mean(series: Series) -> float:
    """Return the mean over the rounds of all launches."""
    return float(np.mean(pooled(series)))


def estimate(series: Series) -> Interval:
    """Return the interval of one series, computed as in `estimates`."""
    return estimates({"": series}, {"": (1.0,)})[""]


def estimates(
    many: Mapping[K, Series], levels_s: Mapping[K, Sequence[float]], error_rate: float = intervals.ERROR_RATE
) -> dict[K, Interval]:
    """Return the mean of the launch means of each series, with Student's t; with too few launches, of all rounds.

    levels_s: the times of the steps whose difference the series is. Steps scatter in proportion to their times, so the
    variance of a difference is proportional to the sum of their squares, and variances divided by that sum are similar.
    Five launches show a variance only to a factor of 3, so variances are shrunk towards a common value over all of
    `many`, which have the same launches (`stats.verdicts`). The interval of rounds takes each round as a block,
    without the between-launch variance; it needs at least `intervals.FEWEST_BLOCKS` rounds. Empty series are left out.
    error_rate: error rate of each interval.
    """
    filled = {name: series for name, series in many.items() if series}
    per_launch = {name: means(series) for name, series in filled.items() if len(series) >= LAUNCHES_FOR_INTERVAL}
    freedom = np.array([len(values) - 1.0 for values in per_launch.values()])
    squares = np.array([float(np.sum(np.square(levels_s[name]))) for name in per_launch])
    variances = np.array([max(float(np.var(values, ddof=1)), LEAST_VARIANCE) for values in per_launch.values()])
    relative, new_freedom = moderated(variances / squares, freedom) if per_launch else (variances, freedom)
    over_launches = {
        name: intervals.mean_interval(values, float(variance), float(degrees), error_rate)
        for (name, values), variance, degrees in zip(per_launch.items(), relative * squares, new_freedom, strict=True)
    }
    return {
        name: over_launches[name] if name in over_launches else _round_interval(pooled(series), error_rate)
        for name, series in filled.items()
    }


def _round_interval(values: Floats, error_rate: float) -> Interval:
    if len(values) < intervals.FEWEST_BLOCKS:
        return intervals.without_interval(float(np.mean(values)))
    interval = intervals.mean_interval(values, float(np.var(values, ddof=1)), len(values) - 1.0, error_rate)
    return replace(interval, kind=IntervalKind.WITHIN_RUN)
