"""Find a change of level, a second mode and outliers in the times of launches.

In: times of one case. Out: whether they were steady, a `Stall`, numbers of outliers. No time is left out because of
these results.

A second mode is a second peak of the density of the logarithms (Gaussian kernel) that is slower by half or more and
contains enough of the times to matter, with a valley between the two.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from collbench.model.conclusions import Stall
from collbench.stats import intervals
from collbench.stats.intervals import Floats, average_ranks

# A launch is divided into at most MOST_PARTS parts of at least SHORTEST_PART times each.
MOST_PARTS, SHORTEST_PART = 40, 5
# Penalty of a change, in units of the variance, per unit of the logarithm of the number of times.
PENALTY = 3.0
# Fewest times with which a change can be distinguished from chance.
FEWEST_FOR_CHANGE = 20
# A change within this share of the launch, at its beginning or its end, leaves too few times for a level there.
ENDS = 0.25
# Kernel width in standard deviations: the usual rules, made for one mode, would blur two into one.
BANDWIDTH = 0.25
GRID = 160
# Below these a second mode is chance, or does not matter: slow times, their share, ratio of the two modes.
FEWEST_SLOW, SMALLEST_SHARE, SMALLEST_RATIO = 5, 0.03, 1.5
# Highest valley between two modes, as a share of the lower peak; a dent in one mode is shallower.
DEEPEST_ALLOWED = 0.5
# Number of times from which the density is estimated: more give the same result more slowly.
MOST_OF_DENSITY = 600


# ── steady or not ────────────────────────────────────────────────────────────────────────────────
def steady(times_s: Floats) -> bool:
    """Return whether the level stays the same in the first and in the last quarter of one launch's times, in order.

    Times are replaced by normal scores of their ranks, so that an outlier weighs no more than its rank. Sums of
    neighbours over the root of their number have the variance of single scores: a search of few parts suffices.
    """
    n = len(times_s)
    if n < FEWEST_FOR_CHANGE or np.ptp(times_s) == 0:
        return True
    scores = ndtri((average_ranks(times_s) - 0.5) / n)
    length = max(SHORTEST_PART, math.ceil(n / MOST_PARTS))
    parts = scores[: n // length * length].reshape(-1, length).sum(axis=1) / math.sqrt(length)
    changes = change_points(parts, 1, PENALTY * math.log(n))
    return not any(at <= ENDS * len(parts) or at >= (1 - ENDS) * len(parts) for at in changes)


def change_points(values: Floats, shortest: int, penalty: float) -> list[int]:
    """Return the positions at which the level of a series changes, ascending: each is the first of a new level.

    Optimal partitioning (Jackson et al., IEEE Signal Processing Letters 12, 2005): of all partitions into segments of
    `shortest` values or more, it takes the one with the least squared deviations from the segments' means, plus
    `penalty` per change. The result is exact; the time grows with the square of the length.
    """
    n = len(values)
    sums, squares = (np.concatenate([[0.0], np.cumsum(values**power)]) for power in (1, 2))
    least = np.full(n + 1, np.inf)  # cost of the best partition of the first `end` values
    least[0] = -penalty
    before = np.zeros(n + 1, dtype=int)
    for end in range(shortest, n + 1):
        starts = np.arange(end - shortest + 1)
        spread = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        costs = least[starts] + spread + penalty
        before[end] = int(np.argmin(costs))
        least[end] = costs[before[end]]
    changes = []
    end = int(before[n])
    while end > 0:
        changes.append(end)
        end = int(before[end])
    return changes[::-1]


# ── two modes ────────────────────────────────────────────────────────────────────────────────────
def second_mode(times_s: Floats) -> Stall | None:
    """Return the slower of two modes; None if there is one mode."""
    logs = np.log(times_s)
    # A cheap test first: too few times differ from the median by the smallest ratio, so there is no second mode.
    slow = np.count_nonzero(logs > np.median(logs) + np.log(SMALLEST_RATIO))
    fast = np.count_nonzero(logs < np.median(logs) - np.log(SMALLEST_RATIO))
    if max(slow, fast) < max(FEWEST_SLOW, SMALLEST_SHARE * len(logs)):
        return None
    valley = _deepest_valley(logs[:: max(1, len(logs) // MOST_OF_DENSITY)])
    if valley is None:
        return None
    lower, upper = times_s[logs <= valley], times_s[logs > valley]
    if len(upper) < max(FEWEST_SLOW, SMALLEST_SHARE * len(logs)) or len(lower) < FEWEST_SLOW:
        return None
    if np.median(upper) < SMALLEST_RATIO * np.median(lower):
        return None
    return Stall(share=len(upper) / len(times_s), fast_s=float(lower.mean()), slow_s=float(upper.mean()))


def _deepest_valley(logs: Floats) -> float | None:
    """Return the cut between two modes: the valley deepest relative to its lower side; None if none is deep enough."""
    grid = np.linspace(logs.min(), logs.max(), GRID)
    density = _density(logs, grid)
    sides = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    depth = density / sides
    at = int(np.argmin(depth))
    return float(grid[at]) if depth[at] < DEEPEST_ALLOWED else None


def _density(values: Floats, grid: Floats) -> Floats:
    """Return the density on a grid, up to a factor: `scipy.stats.gaussian_kde`, whose import takes too long."""
    width = BANDWIDTH * float(np.std(values, ddof=1))
    return np.asarray(np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2).sum(axis=1))


def common_mode(launches: Sequence[Floats]) -> Stall | None:
    """Return the second mode of at least half of the launches. They are never pooled: a slow launch is not a mode.

    share: mean over all launches. fast_s, slow_s: geometric means over the launches that have the mode.
    """
    modes = [mode for times in launches if (mode := second_mode(times)) is not None]
    if 2 * len(modes) < len(launches) or not modes:
        return None
    share = sum(mode.share for mode in modes) / len(launches)
    return Stall(share, over_launches([mode.fast_s for mode in modes]), over_launches([mode.slow_s for mode in modes]))


def outliers(launches: Sequence[Floats]) -> tuple[int, int]:
    """Count iterations above Tukey's fences, 1.5 and 3 interquartile ranges above the upper quartile of a launch."""
    near = far = 0
    for times_s in launches:
        low, high = intervals.quantiles(np.sort(times_s), [0.25, 0.75])
        near += int(np.count_nonzero(times_s > high + 1.5 * (high - low)))
        far += int(np.count_nonzero(times_s > high + 3 * (high - low)))
    return near, far


def over_launches(values: Sequence[float] | Floats) -> float:
    """Return the geometric mean: launches differ by factors, and its reciprocal is the geometric mean of the rates."""
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-12)))))
