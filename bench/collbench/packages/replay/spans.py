"""Divide overlapping spans of time: count each moment for one span, and measure the time that no span covers.

In: starts and ends, in one unit. Out: lengths in that unit; lengths of spans add up to the length of their union.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def attributed(starts: Sequence[float], stops: Sequence[float]) -> Floats:
    """Return, per span, the time in which it ends first of all spans in progress; the sum is their union's length."""
    own_s = np.zeros(len(starts))
    taken: list[list[float]] = []  # time of spans that end earlier, as disjoint spans
    for place in np.argsort(stops, kind="stable").tolist():
        start, stop = starts[place], stops[place]
        own = stop - start
        while taken and taken[-1][1] > start:
            begin, end = taken.pop()
            own -= end - max(start, begin)
            start = min(start, begin)
        taken.append([start, stop])
        own_s[place] = own
    return own_s


def free_until(starts: NDArray[Any], stops: NDArray[Any], moments: NDArray[Any]) -> Floats:
    """Return, for each moment, the uncovered time before it; only differences between results are meaningful.

    The result is a clock that stops during the spans: a length by this clock is the length of uncovered time.
    """
    if not len(starts):
        return np.asarray(moments, dtype=float)
    order = np.argsort(starts)
    begin, latest = starts[order], np.maximum.accumulate(stops[order])
    # The part of each span that no earlier span covers: disjoint, in order.
    begin = np.maximum(begin, np.concatenate([begin[:1], latest[:-1]]))
    end = np.maximum(begin, latest)
    covered = np.cumsum(np.stack([np.zeros(len(begin)), end - begin], axis=1))
    return np.asarray(moments - np.interp(moments, np.stack([begin, end], axis=1).ravel(), covered), dtype=float)
