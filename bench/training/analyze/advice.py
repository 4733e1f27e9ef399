"""Find the best bucket plan for a scenario, from what its run measured of the link and the gradients.

In: a `TrainingRun` and a `Scenario`. Out: an `Advice`, or None. The link is the emulated one, or comes from the
all-reduces of the call-size sweep and of the strategies' communication-only measurements. The gradients' ready times
are those of the one step without synchronisation that was recorded in detail, scaled to the length of the timed steps.
"""

from dataclasses import replace

import numpy as np

from bench.errors import BenchError
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.analyze.rounds import by_launch, facts_of, kept
from bench.training.conclusions import Advice
from bench.training.planner import advise
from bench.training.ready_times import ReadyTimes, recorded
from bench.training.records import (
    REFERENCE,
    CallSizePoint,
    CommunicationOnly,
    Scenario,
    Shape,
    TimedBlock,
    Timeline,
    TrainingRun,
)

FLOAT32_BYTES = 4


def advice_for(run: TrainingRun, scenario: Scenario) -> Advice | None:
    """The best bucket plan; None where the run measured too little of the link or of the gradients."""
    cost = all_reduce_cost_of(run, scenario)
    if cost is None:
        return None
    try:
        shape = shape_of(run, scenario)
        return None if shape is None else advise(ReadyTimes.of_shape(shape), cost)
    except BenchError:
        return None


def shape_of(run: TrainingRun, scenario: Scenario) -> Shape | None:
    """The gradients and when they are ready; None without a recorded step. Raises BenchError if that is incomplete."""
    step = next((one for one in facts_of(run, Timeline, scenario) if one.strategy == REFERENCE), None)
    if step is None:
        return None
    shape, timed = recorded(step), by_launch(kept(run, scenario), REFERENCE, _backward_ended_s)
    if not timed:
        return shape
    # The length of a single step is a matter of chance, and stamps for each gradient take time.
    factor = float(np.median(np.concatenate(list(timed.values())))) / max(shape.ready_s)
    return replace(shape, ready_s=tuple(factor * time_s for time_s in shape.ready_s))


def _backward_ended_s(block: TimedBlock, steps: int) -> float:
    return sum(float(np.mean(block.parts_ns[part])) for part in ("forward", "backward")) / steps / 1e9


def all_reduce_cost_of(run: TrainingRun, scenario: Scenario) -> AllReduceCost | None:
    """Time of one all-reduce by its bytes, where calls follow each other; None with fewer than two sizes."""
    if scenario.link is not None:
        return AllReduceCost.emulated(scenario.link)
    points: dict[float, list[float]] = {}
    for point in facts_of(run, CallSizePoint):
        if (point.backend, point.world_size) == (scenario.backend, scenario.world_size):
            size = point.parameters * FLOAT32_BYTES / point.calls
            points.setdefault(size, []).append(float(np.median(point.times_s)) / point.calls)
    for one in facts_of(run, CommunicationOnly, scenario):
        if len(set(one.calls)) == 1:
            points.setdefault(float(one.calls[0]), []).append(float(np.median(one.times_s)) / len(one.calls))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return AllReduceCost.through(sizes, [float(np.median(points[size])) for size in sizes])
