"""Estimate means over launches of what was measured round by round, such as differences of cases of one round.

In: for each launch, one value a round. Out: means with intervals. Numbers in, numbers out.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bench.model.conclusions import Interval, IntervalKind
from bench.stats import intervals
from bench.stats.intervals import Floats
from bench.stats.verdicts import moderated

# Fewer launches than this say little of how launches differ: Student's t of one degree of freedom is 12.7.
LAUNCHES_FOR_INTERVAL = 3
# Seconds squared: below the resolution of clocks. Variances of invented or emulated times may be 0.
LEAST_VARIANCE = 1e-18

# Launch → one value a round.
Series = dict[int, Floats]
K = TypeVar("K", bound=Hashable)


def means(series: Series) -> Floats:
    """The mean of each launch."""
    return np.array([float(np.mean(values)) for values in series.values()])


def pooled(series: Series) -> Floats:
    """The rounds of all launches."""
    return np.concatenate(list(series.values()))


def pooled_mean(series: Series) -> float:
    """The mean over the rounds of all launches."""
    return float(np.mean(pooled(series)))


def estimate(series: Series) -> Interval:
    """The interval of one series, as by `estimates`."""
    return estimates({"": series}, {"": (1.0,)})[""]


def estimates(
    many: Mapping[K, Series], levels_s: Mapping[K, Sequence[float]], error_rate: float = intervals.ERROR_RATE
) -> dict[K, Interval]:
    """Mean of the launches' means of each, with Student's t; with too few launches, the mean of all rounds.

    levels_s: the times of the steps that each is the difference of. Steps scatter in proportion to their times, so that
    a difference has a variance in proportion to the sum of their squares, and divided by that sum variances are alike.
    Five launches know a variance to a factor of 3 only, so these are moderated over all of `many`, which differ by the
    same launches (`bench.stats.verdicts`). The interval of rounds takes each as a block, and does not include how
    launches differ; there is none with fewer than `intervals.FEWEST_BLOCKS` rounds. Empty series are left out.
    error_rate: of each interval.
    """
    filled = {name: series for name, series in many.items() if series}
    per_launch = {name: means(series) for name, series in filled.items() if len(series) >= LAUNCHES_FOR_INTERVAL}
    freedom = np.array([len(values) - 1.0 for values in per_launch.values()])
    squares = np.array([float(np.sum(np.square(levels_s[name]))) for name in per_launch])
    variances = np.array([max(float(np.var(values, ddof=1)), LEAST_VARIANCE) for values in per_launch.values()])
    relative, known = moderated(variances / squares, freedom) if per_launch else (variances, freedom)
    over_launches = {
        name: intervals.mean_interval(values, float(variance), float(degrees), error_rate)
        for (name, values), variance, degrees in zip(per_launch.items(), relative * squares, known, strict=True)
    }
    return {
        name: over_launches[name] if name in over_launches else _of_rounds(pooled(series), error_rate)
        for name, series in filled.items()
    }


def _of_rounds(values: Floats, error_rate: float) -> Interval:
    if len(values) < intervals.FEWEST_BLOCKS:
        return intervals.without_interval(float(np.mean(values)))
    of_rounds = intervals.mean_interval(values, float(np.var(values, ddof=1)), len(values) - 1.0, error_rate)
    return replace(of_rounds, kind=IntervalKind.WITHIN_RUN)
