"""Divide overlapping spans of time: which of them a moment counts for, and what no span covers.

In: begins and ends, in one unit. Out: lengths in that unit, which add up to the length of their union.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def attributed(starts: Sequence[float], stops: Sequence[float]) -> Floats:
    """The time in which each span is the one under way that ends first; together the length of `covered`."""
    own_s = np.zeros(len(starts))
    taken: list[list[float]] = []  # what spans that end earlier have taken, as disjoint spans
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
    """For each moment, how much of the time before it no span covers; only differences of the results have a meaning.

    A clock that stands still during the spans: lengths by this clock are lengths of what is not covered.
    """
    if not len(starts):
        return np.asarray(moments, dtype=float)
    order = np.argsort(starts)
    begin, latest = starts[order], np.maximum.accumulate(stops[order])
    # Each span as far as no earlier one covers it: disjoint, in order.
    begin = np.maximum(begin, np.concatenate([begin[:1], latest[:-1]]))
    end = np.maximum(begin, latest)
    before = np.concatenate([[0.0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, moments, side="right")
    reached = np.minimum(moments, end[np.maximum(place - 1, 0)]) - begin[np.maximum(place - 1, 0)]
    covered_before = np.where(place > 0, before[np.maximum(place - 1, 0)] + reached, 0.0)
    return np.asarray(moments - covered_before, dtype=float)
