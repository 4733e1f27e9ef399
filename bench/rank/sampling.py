"""Decide how many iterations of a case to measure: the only feedback loop of the suite.

In: a function that measures a block of iterations on every rank and returns the timings of all ranks. Out: warm-up,
samples, and why measuring stopped. Every rank applies the same rules to the same gathered numbers, so all ranks decide
the same without a vote; no local clock is read here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.intervals import FEWEST_FOR_MEDIAN, median_interval, slowest_rank_s
from bench.records import Sampling, Timings

# Iterations of the first block: fewer say too little about the interval to decide by it (docs/method.md, "Order,
# warm-up, stopping"). Where iterations go through rounds, whole cycles of them.
FIRST_BLOCK, FIRST_CYCLES = 20, 8
# Where 20 do not fit into the time: launches differ by more than a few further iterations could tell (4 to 9 % where a
# call takes 50 ms or more), so the time is better spent on another launch.
FEWEST = 3
GROWTH = 2.0
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class AgreedTimings:
    """Timings of all ranks for one block. elapsed_s: of the slowest rank, with everything around the calls."""

    timings: Timings
    elapsed_s: float


MeasureBlock = Callable[[int], AgreedTimings]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of `sample`: warm-up (None without one), the samples, and why measuring stopped."""

    warmup: Timings | None
    timed: Timings
    stopped_by: str


def sample(
    sampling: Sampling, measure: MeasureBlock, cycle: int = 1, most: int = UNBOUNDED, first_s: float = 0.0
) -> Sampled:
    """Warm up, then measure until `decide` says stop. cycle: iterations until an operation is back at its first round.

    most: upper limit of the iterations of the warm-up, and of those after it (`footprint.most_iterations`).
    first_s: how long one call took that was made before, on the slowest rank.
    """
    sampling = _at_most(sampling, most)
    warmup = _warm_up(sampling, measure, most, first_s)
    blocks: list[AgreedTimings] = []
    count = sampling.iterations or _first_block(sampling, warmup, cycle)
    stopped_by = "count" if sampling.iterations else None
    while True:
        blocks.append(measure(count))
        if stopped_by is None:
            slowest = np.concatenate([slowest_rank_s(block.timings) for block in blocks])
            count, stopped_by = decide(sampling, slowest, sum(block.elapsed_s for block in blocks))
        if stopped_by:
            return Sampled(_join(warmup), _join(blocks) or blocks[0].timings, stopped_by)


def decide(sampling: Sampling, slowest_s: NDArray[np.float64], elapsed_s: float) -> tuple[int, str | None]:
    """(iterations to measure next, None), or, to stop, (0, "precision" | "time" | "count")."""
    interval = median_interval(slowest_s)
    done = len(slowest_s)
    if done >= FEWEST_FOR_MEDIAN and interval.relative_half_width <= sampling.relative_error:
        return 0, "precision"
    if done >= sampling.max_iterations:
        return 0, "count"
    affordable = int((sampling.seconds_per_case - elapsed_s) / (elapsed_s / done))
    if affordable < 1:
        return 0, "time"
    return min(math.ceil(done * (GROWTH - 1)), affordable, sampling.max_iterations - done), None


def _at_most(sampling: Sampling, most: int) -> Sampling:
    """The same with at most `most` iterations, also where their number is fixed."""
    return replace(
        sampling,
        iterations=min(sampling.iterations, most) if sampling.iterations else None,
        max_iterations=min(sampling.max_iterations, most),
        warmup=min(sampling.warmup, most),
    )


def _first_block(sampling: Sampling, warmup: list[AgreedTimings], cycle: int) -> int:
    """Iterations that the first decision needs; fewer, if the warm-up shows that these would take too long."""
    wanted = min(FIRST_BLOCK if cycle == 1 else FIRST_CYCLES * cycle, sampling.max_iterations)
    if not warmup or not warmup[-1].elapsed_s:
        return wanted
    one = warmup[-1].elapsed_s / len(warmup[-1].timings.duration_ns)
    return max(min(wanted, FEWEST * cycle), min(wanted, int(sampling.seconds_per_case / one)))


def _warm_up(sampling: Sampling, measure: MeasureBlock, most: int, first_s: float) -> list[AgreedTimings]:
    """`sampling.warmup` calls, or as many as fill `warmup_s` where calls are long; then more until it is filled."""
    blocks: list[AgreedTimings] = []
    count = sampling.warmup
    if first_s > 0:
        count = min(count, max(1, math.ceil(sampling.warmup_s / first_s)))
    if count:
        blocks.append(measure(count))
    elapsed = sum(block.elapsed_s for block in blocks)
    left = most - count
    if elapsed < sampling.warmup_s and left > 0:
        one = elapsed / count if count else math.inf
        blocks.append(measure(min(left, max(1, math.ceil((sampling.warmup_s - elapsed) / one)))))
    return blocks


def _join(blocks: list[AgreedTimings]) -> Timings | None:
    if not blocks:
        return None
    parts = [block.timings for block in blocks]
    hosts = [part.host_ns for part in parts if part.host_ns is not None]
    return Timings(
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.duration_ns for part in parts]),
        np.concatenate(hosts) if hosts else None,
        parts[0].calls,
    )
