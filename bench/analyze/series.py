"""Find an unfinished warm-up, a late change of level, and a second mode in a series of times.

In: times of one case. Out: a `Steadiness` and a `Stall`. Outliers and stalls are reported, never removed.

Change points: PELT with a squared-error cost (Killick, Fearnhead & Eckley 2012) on normal scores of the ranks
(so that outliers weigh no more than ranks do), penalty 3 ln n, segments of 5 or more, on the first 200 times.

A second mode is a second peak of the density of the logarithms (Gaussian kernel) that is slower by half or more and
holds enough of the times to matter, with a valley between the two.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from bench.conclusions import Stall
from bench.intervals import FEWEST_FOR_MEDIAN, Floats, average_ranks

MOST_OF_SERIES = 200
SHORTEST_SEGMENT = 5
PENALTY = 3.0
# With fewer times a change point and chance cannot be told apart.
FEWEST_FOR_CHANGE = 20

# Kernel width in standard deviations: the usual rules, made for one mode, would blur two into one.
BANDWIDTH = 0.25
GRID = 160
# Below these a second mode is chance, or does not matter: slow times, their share, ratio of the two modes.
FEWEST_SLOW, SMALLEST_SHARE, SMALLEST_RATIO = 5, 0.03, 1.5
# Highest valley between two modes, as a share of the lower peak; a dent in one mode is shallower.
DEEPEST_ALLOWED = 0.5
# Times that the density is estimated from: more give the same result more slowly.
MOST_OF_DENSITY = 600


# ── steady or not ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Steadiness:
    """trimmed: times to leave out at the beginning. steady: False if the level changes in the last quarter."""

    trimmed: int
    steady: bool


def steadiness(times_s: Floats) -> Steadiness:
    """The result of a change-point check on one launch's times, which must be in measured order."""
    looked_at = times_s[:MOST_OF_SERIES]
    n = len(looked_at)
    if n < FEWEST_FOR_CHANGE or np.ptp(looked_at) == 0:
        return Steadiness(0, True)
    changes = _change_points(ndtri((average_ranks(looked_at) - 0.5) / n))
    early = [at for at in changes if at <= n / 4]
    trimmed = early[-1] if early else 0
    # Only a slow beginning is a warm-up. Leaving out a fast one would make an honest number worse.
    if trimmed and np.median(looked_at[:trimmed]) <= np.median(looked_at[trimmed:]):
        trimmed = 0
    if len(times_s) - trimmed < FEWEST_FOR_MEDIAN:
        trimmed = 0
    return Steadiness(trimmed, not any(at >= 3 * n / 4 for at in changes))


def _change_points(scores: Floats) -> list[int]:
    """Where the level changes: multiples of SHORTEST_SEGMENT.

    The search runs on sums of SHORTEST_SEGMENT neighbours, divided by the root of that number. The variance within a
    sum does not depend on where segments end, so the result is that of searching all scores with that step, in a
    fifth of the time.
    """
    from ruptures import KernelCPD  # here: loading it takes longer than most reports

    whole = len(scores) // SHORTEST_SEGMENT * SHORTEST_SEGMENT
    sums = scores[:whole].reshape(-1, SHORTEST_SEGMENT).sum(axis=1, keepdims=True) / np.sqrt(SHORTEST_SEGMENT)
    search = KernelCPD(kernel="linear", min_size=1).fit(sums)
    return [SHORTEST_SEGMENT * int(at) for at in search.predict(pen=PENALTY * np.log(len(scores)))[:-1]]


# ── two modes ────────────────────────────────────────────────────────────────────────────────────
def second_mode(times_s: Floats) -> Stall | None:
    """The slower one of two modes; None where there is one mode."""
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
    usual, stalled = float(np.median(lower)), float(np.median(upper))
    if stalled < SMALLEST_RATIO * usual:
        return None
    return Stall(share=len(upper) / len(times_s), fast_s=usual, extra_s=stalled - usual)


def _deepest_valley(logs: Floats) -> float | None:
    """Where to cut between two modes: the valley deepest relative to its lower side; None if none is deep enough."""
    from scipy.stats import gaussian_kde  # here: slow to load, and most cases do not come this far

    grid = np.linspace(logs.min(), logs.max(), GRID)
    density = gaussian_kde(logs, bw_method=BANDWIDTH)(grid)
    sides = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    depth = density / sides
    at = int(np.argmin(depth))
    return float(grid[at]) if depth[at] < DEEPEST_ALLOWED else None
