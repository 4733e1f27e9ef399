"""Find where the time of a case changes level over three or more runs, oldest first.

In: runs with their summaries, in any order. Out: a `Trend` for each case that was measured in at least FEWEST_RUNS of
them. Reports where a level changes, not why. A single run with another time is not a level, unless it is the last
run, which may be the first run of a new level.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import geometric_mean

import numpy as np
from scipy.special import stdtrit

from collbench.model.comparisons import MIN_CHANGE, Level, Trend
from collbench.model.conclusions import Summary
from collbench.model.projection import grouped
from collbench.model.records import Run, case_order
from collbench.stats.intervals import Floats
from collbench.stats.series import change_points
from collbench.stats.verdicts import FEWEST_CASES, SMALLEST_SCATTER

FEWEST_RUNS = 3
# Fewest runs that make a level, except the last level: a single run that differs from the others is not a change.
RUNS_OF_A_LEVEL = 2
# Upper limit of the correlation of neighbouring runs: beyond it, nothing would ever be a step.
MOST_CORRELATION = 0.9
# False-alarm rate: the probability that any case gets a step although no case has changed.
ERROR_RATE = 0.05
# Degrees of freedom that each difference of two runs adds to a median absolute deviation; simulated flat series of 4 to
# 40 runs fit 0.6 to 0.7. From FEWEST_CASES cases on, the noise of a case is at least the median over cases, and each
# difference is worth twice as much: of simulated flat series of 20 cases and 6 or 12 runs 0 to 3 % have a step, and
# 12 to 18 % without this rule; 8 % if runs differ by Student's t of 3 degrees of freedom.
WORTH_OF_A_DIFFERENCE, MORE_CASES = 0.5, 2
# 1.4826 turns a median absolute deviation into a standard deviation; a difference of two runs has twice the variance.
FROM_MAD = 1.4826 / np.sqrt(2)

Measured = tuple[Run, Sequence[Summary]]


def in_order(runs: Sequence[Measured]) -> list[Measured]:
    """Return the runs, oldest first, by the time of their start (UTC, ISO 8601, from the manifest)."""
    return sorted(runs, key=lambda measured: (str(measured[0].manifest.get("started")), measured[0].name))


def trend(runs: Sequence[Measured], min_change: float = MIN_CHANGE) -> list[Trend]:
    """Return a trend for each case that FEWEST_RUNS runs or more have timed, in the order of the tables.

    min_change: smallest step that matters.
    """
    timed = [(run.name, s) for run, summaries in in_order(runs) for s in summaries if s.time_s is not None]
    rows = [row for row in grouped(timed, lambda named: named[1].case).values() if len(row) >= FEWEST_RUNS]
    rows.sort(key=lambda row: case_order(row[0][1].case))
    means = [[np.array(summary.means_s) for _, summary in row] for row in rows]
    # The median noise over cases is a lower limit for the noise of each.
    noises = [_noise(series, _levels(series))[0] for series in means]
    floor = float(np.median(noises)) if len(noises) >= FEWEST_CASES else 0.0
    return [_trend(row, steps(series, min_change, len(rows), floor)) for row, series in zip(rows, means, strict=True)]


def _trend(row: Sequence[tuple[str, Summary]], starts: Sequence[int]) -> Trend:
    times = tuple(summary.time_s for _, summary in row if summary.time_s)
    edges = [0, *starts, len(times)]
    means = [geometric_mean(time.value for time in times[a:b]) for a, b in pairwise(edges)]
    ratios = [1.0, *(after / before for before, after in pairwise(means))]
    names = tuple(name for name, _ in row)
    levels = tuple(map(Level, edges[:-1], means, [names[first] for first in edges[:-1]], ratios))
    return Trend(names, times, levels, row[0][1].case)


def steps(
    means: Sequence[Floats], min_change: float = MIN_CHANGE, cases: int = 1, floor: float = 0.0
) -> tuple[int, ...]:
    """Return the positions of the runs at which a new level begins. means: launch means of each run, in seconds.

    floor: the median noise over all cases; 0 if there are too few cases for a median.

    The partition has the least squared deviations from the levels' means, plus `noise² t²` per step: t is Student's
    quantile for the uncertainty of the noise, at ERROR_RATE over all possible positions of a step and all cases
    (Bonferroni). Steps smaller than `min_change` are left out.
    """
    level = _levels(means)
    places = len(level) - 2 * RUNS_OF_A_LEVEL + 1
    if places < 1:
        return ()
    noise, freedom = _noise(means, level)
    noise, freedom = max(noise, floor), freedom * (MORE_CASES if floor else 1)
    t = float(stdtrit(freedom, 1 - ERROR_RATE / (2 * places * cases)))
    earlier, earlier_noise = _changes(level[:-1], noise, t)
    same_level = level[earlier[-1] if earlier else 0 : -1]
    margin = t * earlier_noise * np.sqrt(1 + 1 / len(same_level))
    # The last run lies outside the prediction interval of its level.
    if len(same_level) >= FEWEST_RUNS and abs(level[-1] - same_level.mean()) > margin:
        changes = [*earlier, len(level) - 1]
    else:
        changes, _ = _changes(level, noise, t)
    edges = [0, *changes, len(level)]
    levels = [float(level[a:b].mean()) for a, b in pairwise(edges)]
    moved = np.abs(np.diff(levels))
    return tuple(edge for edge, change in zip(edges[1:-1], moved, strict=True) if change >= np.log1p(min_change))


def _levels(means: Sequence[Floats]) -> Floats:
    return np.array([float(np.mean(np.log(launches))) for launches in means])


def _changes(level: Floats, noise: float, t: float) -> tuple[list[int], float]:
    """Return where levels change, and the noise, which is larger if neighbouring runs correlate: drift has no steps."""
    # Deviations are in units of the noise: numbers near 1, for any unit of time.
    deviations = level - level.mean()
    changes = change_points(deviations / noise, RUNS_OF_A_LEVEL, t**2)
    if changes:
        noise *= _autocorrelation_factor(level, changes)
        changes = change_points(deviations / noise, RUNS_OF_A_LEVEL, t**2)
    return changes, noise


def _autocorrelation_factor(level: Floats, changes: Sequence[int]) -> float:
    """Return the factor by which autocorrelation makes the mean of runs less certain: √((1 + ρ) / (1 − ρ)), at least 1.

    ρ is the autocorrelation of the residuals from the levels, less its bias for this number of runs and levels.
    """
    edges = [0, *changes, len(level)]
    left = np.concatenate([level[a:b] - level[a:b].mean() for a, b in pairwise(edges)])
    if not left.any():
        return 1.0
    observed = float(left[1:] @ left[:-1] / (left @ left))
    rho = (observed + (2 * len(changes) + 1) / len(left)) / (1 - 3 / len(left))
    rho = float(np.clip(rho, 0.0, MOST_CORRELATION))
    return float(np.sqrt((1 + rho) / (1 - rho)))


def _noise(means: Sequence[Floats], level: Floats) -> tuple[float, float]:
    """Return the standard deviation of a run's level if nothing changes, and the degrees of freedom of that estimate.

    The standard deviation is the larger of two estimates: from the launches within runs, and from neighbouring runs
    (the median of their differences, which a few changes of level do not move). Machines drift more than launches show.
    """
    between = FROM_MAD * float(np.median(np.abs(np.diff(level))))
    freedom = WORTH_OF_A_DIFFERENCE * (len(level) - 1)
    several = [np.log(launches) for launches in means if len(launches) >= 2]
    if several:
        spare = [len(launches) - 1 for launches in several]
        variance = sum(float(np.var(logs, ddof=1)) * n for logs, n in zip(several, spare, strict=True)) / sum(spare)
        within = float(np.sqrt(variance * np.mean([1 / len(launches) for launches in means])))
        if within >= between:
            between, freedom = within, float(sum(spare))
    return max(between, SMALLEST_SCATTER), freedom
