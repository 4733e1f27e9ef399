"""Was a series steady: did it begin with a warm-up that was not over, and did it change again at its end?

In: the times of one launch in their order. Out: how many to leave out at the beginning, and whether it was
steady after that. Changes nothing and decides nothing else: outliers and stalls stay.

Change points: PELT with a squared-error cost (Killick, Fearnhead & Eckley 2012) on normal scores of the ranks
(so that outliers weigh no more than ranks do), penalty 3 ln n, segments of 5 or more, on the first 200 times.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from bench.intervals import FEWEST_FOR_MEDIAN, average_ranks

Floats = NDArray[np.float64]

MOST_LOOKED_AT = 200
SHORTEST_SEGMENT = 5
PENALTY = 3.0
# With fewer times a change point and chance cannot be told apart.
FEWEST = 20


@dataclass(frozen=True, slots=True)
class Steadiness:
    """trimmed: times to leave out at the beginning. steady: False if the last quarter is on another level."""

    trimmed: int
    steady: bool


def steadiness(times_s: Floats) -> Steadiness:
    """What a change-point check says of one launch's times, which must be in their order."""
    looked_at = times_s[:MOST_LOOKED_AT]
    n = len(looked_at)
    if n < FEWEST or np.ptp(looked_at) == 0:
        return Steadiness(0, True)
    changes = _change_points(ndtri((average_ranks(looked_at) - 0.5) / n))
    early = [at for at in changes if at <= n / 4]
    trimmed = early[-1] if early else 0
    # A warm-up is slow at first. A fast beginning is no warm-up, and leaving it out would flatter nobody.
    if trimmed and np.median(looked_at[:trimmed]) <= np.median(looked_at[trimmed:]):
        trimmed = 0
    if len(times_s) - trimmed < FEWEST_FOR_MEDIAN:
        trimmed = 0
    return Steadiness(trimmed, not any(at >= 3 * n / 4 for at in changes))


def _change_points(scores: Floats) -> list[int]:
    """Where the level changes, in steps of SHORTEST_SEGMENT.

    Searched on the sums of so many neighbours, divided by the root of their number: the variance within them does
    not depend on where segments end, so this is the same search with that step, in a fifth of the time.
    """
    from ruptures import KernelCPD  # here: loading it takes longer than most reports

    whole = len(scores) // SHORTEST_SEGMENT * SHORTEST_SEGMENT
    sums = scores[:whole].reshape(-1, SHORTEST_SEGMENT).sum(axis=1, keepdims=True) / np.sqrt(SHORTEST_SEGMENT)
    search = KernelCPD(kernel="linear", min_size=1).fit(sums)
    return [SHORTEST_SEGMENT * int(at) for at in search.predict(pen=PENALTY * np.log(len(scores)))[:-1]]
