"""What stays exposed at other numbers of ranks: the link's cost carried over, and the lateness of the slowest rank.

In: ready times, an `AllReduceCost` and the number of ranks that it holds for, and how late the last rank came in steps
that were measured. Out: a `Forecast` for each number of ranks. Measures nothing.

Ring: an all-reduce of b bytes over n ranks takes 2 (n − 1) steps of b / n bytes, so that latency grows with n − 1, and
time per byte with (n − 1) / n. Tree: up and down log₂ n levels, pipelined, so that latency grows with log₂ n, and time
per byte is that of 2 b. The faster of both counts, for each size. Networks that are slower between hosts than within
them, and that share links, are not modelled.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bench.model.conclusions import Interval
from bench.stats.intervals import Floats
from bench.training import planner
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.conclusions import Forecast
from bench.training.ready_times import ReadyTimes
from bench.training.uncertainty import Box, Grid, exposures, least_exposures

RANKS = (8, 64, 1024)
RESAMPLED = 400
# Sizes at which ring and tree are compared, beside those of the curve.
LEAST_BYTES, MOST_BYTES, COMPARED_SIZES = 2**10, 2**38, 57


def at_ranks(cost: AllReduceCost, known: int, ranks: int) -> AllReduceCost:
    """The cost of an all-reduce over `ranks` ranks, if `cost` is that of a ring of `known` ranks."""
    alpha = cost.latency_s
    step_s = alpha / (2 * (known - 1))
    share = 2 * (known - 1) / known
    compared = np.geomspace(LEAST_BYTES, MOST_BYTES, COMPARED_SIZES)
    sizes = np.unique(np.concatenate([np.array(cost.sizes[1:]), compared]))
    # Seconds that the bytes take if each crosses the link once.
    once = (cost(sizes) - alpha) / share
    ring = 2 * (ranks - 1) * step_s + 2 * (ranks - 1) / ranks * once
    tree = 2 * math.ceil(math.log2(ranks)) * step_s + 2 * once
    return AllReduceCost.through(sizes.tolist(), np.minimum(ring, tree).tolist())


def forecasts(
    ready_times: ReadyTimes, cost: AllReduceCost, known: int, box: Box, late: Sequence[float] = ()
) -> Iterator[Forecast]:
    """For `known` ranks and for RANKS. late: seconds by which the last of `known` ranks came after the mean."""
    # A range needs the corners, not what lies between them.
    grid, default = Grid.over(box, 2), planner.torch_default(ready_times)
    for ranks in sorted({known, *RANKS}):
        there = cost if ranks == known else at_ranks(cost, known, ranks)
        best = (least_exposures(ready_times, there, points) for points in (Grid.point(), grid))
        of_default = (exposures(ready_times, default, there, points) for points in (Grid.point(), grid))
        yield Forecast(
            ranks,
            ready_times.total * there.slope_s,
            _range(*best),
            _range(*of_default),
            lateness(late, known, ranks) if len(late) else None,
        )


def _range(middle: Floats, points: Floats) -> Interval:
    return Interval(float(middle[0]), float(points.min()), float(points.max()), "over the box")


def lateness(late: Sequence[float], known: int, ranks: int) -> Interval:
    """Expected lateness of the last of `ranks` ranks, with a 95 % interval by resampling the steps.

    The largest of many is distributed as Gumbel; of m times as many ranks it lies scale · ln m higher (Gumbel,
    "Statistics of Extremes", 1958). Its scale and location are those with the measured mean and deviation.
    """
    values = np.asarray(late, dtype=float)
    drawn = np.random.default_rng(len(values)).choice(values, (RESAMPLED, len(values)))
    every = [_expected(sample, ranks / known) for sample in drawn]
    low, high = np.quantile(every, (0.025, 0.975))
    return Interval(_expected(values, ranks / known), float(low), float(high), "over steps")


def _expected(values: Floats, times_as_many: float) -> float:
    scale = float(np.std(values)) * math.sqrt(6) / math.pi
    return float(np.mean(values)) + scale * math.log(times_as_many)
