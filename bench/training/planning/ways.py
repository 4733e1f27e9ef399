"""Predict what torch's DistributedDataParallel saves besides with its own settings: a hook, and no_sync.

In: ready times, a bucket plan, an `AllReduceCost`, and the points of a box. Out: a `Way` for each: what it leaves after
backward, and whether that is worth typing. Not modelled: casting, and computing that slows down while communicating.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.stats.intervals import Floats
from bench.training.conclusions import WORTH, Way
from bench.training.planning.buckets import BucketPlan, ReadyTimes
from bench.training.planning.link_model import AllReduceCost
from bench.training.planning.planner import RESOLUTION_S, Grid, exposures

# Forward multiplies once by each weight where backward does twice.
FORWARD_OF_BACKWARD = 0.5
FLOAT32_BYTES = 4
# Batches a step with no_sync.
BATCHES = 4


def computing_s(ready_times: ReadyTimes) -> float:
    """Seconds of forward and backward together."""
    return (1 + FORWARD_OF_BACKWARD) * ready_times.ready_s[-1]


def worth_typing(mine: Floats, usual: Floats, computing_s: float) -> bool:
    """Whether a way saves WORTH of the usual step where all is as assumed, and is slower at no point of the box."""
    middle = len(usual) // 2
    saved, step_s = float(usual[middle] - mine[middle]), computing_s + float(usual[middle])
    return saved >= WORTH * step_s and bool(np.all(mine <= usual + RESOLUTION_S))


def ways(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost, grid: Grid, itemsize: int) -> Iterator[Way]:
    """The settings beside `plan` that there is code for. itemsize: bytes of an element of a gradient."""
    usual = exposures(ready_times, plan, cost, grid)
    middle, computing = len(usual) // 2, computing_s(ready_times)

    def way(name: str, tail: Floats, number: int = 0) -> Way:
        saved = float(usual[middle] - tail[middle]) / (computing + float(usual[middle]))
        return Way(name, number, float(tail[middle]), saved, worth_typing(tail, usual, computing))

    if itemsize == FLOAT32_BYTES:
        # With a hook, buckets are made of the gradients as they are, and half of their bytes are sent.
        halved = replace(ready_times, nbytes=tuple(nbytes // 2 for nbytes in ready_times.nbytes))
        yield way("hook", exposures(halved, plan, cost, grid))
    yield way("no_sync", usual / BATCHES, number=BATCHES)
