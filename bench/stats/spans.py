"""Measure spans of time that may overlap: how long any of them lasts. In: begins and ends, in one unit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.stats.intervals import Floats


def covered(starts: NDArray[Any], stops: NDArray[Any]) -> Floats:
    """Length of the union of intervals along the last axis."""
    order = np.argsort(starts, axis=-1)
    begin, end = np.take_along_axis(starts, order, -1), np.take_along_axis(stops, order, -1)
    latest = np.maximum.accumulate(end, axis=-1)
    before = np.concatenate([begin[..., :1], latest[..., :-1]], axis=-1)
    return np.asarray(np.clip(end - np.maximum(begin, before), 0, None).sum(axis=-1), dtype=float)
