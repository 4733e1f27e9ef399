"""Do the times of a case fall into two groups: usual ones, and ones that stalled?

In: times of one case. Out: a `Stall` with the share and the size of the second mode, or None. Nothing is
trimmed because of it. A second mode is a second peak of the density of the logarithms (Gaussian kernel), with
a valley between the two, that is slower by half or more and holds enough of the times to matter.
"""

import numpy as np
from numpy.typing import NDArray

from bench.conclusions import Stall

Floats = NDArray[np.float64]

# Kernel width in standard deviations: the usual rules, made for one mode, would blur two into one.
BANDWIDTH = 0.25
GRID = 160
# Below these the second mode is chance, or does not matter.
FEWEST_SLOW, SMALLEST_SHARE, SMALLEST_RATIO = 5, 0.03, 1.5
# The valley between two modes, as a share of the lower peak; a dent in one mode is shallower.
DEEPEST_ALLOWED = 0.5
# More times than this say the same, slower.
MOST_LOOKED_AT = 600


def second_mode(times_s: Floats) -> Stall | None:
    """The slower one of two modes; None where there is one mode."""
    logs = np.log(times_s)
    # Cheap first: nothing is half slower than the median, so there is no second mode.
    slow = np.count_nonzero(logs > np.median(logs) + np.log(SMALLEST_RATIO))
    fast = np.count_nonzero(logs < np.median(logs) - np.log(SMALLEST_RATIO))
    if max(slow, fast) < max(FEWEST_SLOW, SMALLEST_SHARE * len(logs)):
        return None
    valley = _deepest_valley(logs[:: max(1, len(logs) // MOST_LOOKED_AT)])
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
    """Where to cut between two modes: the valley that is deepest against the lower of its two sides."""
    from scipy.stats import gaussian_kde  # here: slow to load, and most cases do not come this far

    grid = np.linspace(logs.min(), logs.max(), GRID)
    density = gaussian_kde(logs, bw_method=BANDWIDTH)(grid)
    sides = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    depth = density / sides
    at = int(np.argmin(depth))
    return float(grid[at]) if depth[at] < DEEPEST_ALLOWED else None
