"""Find the best bucket plan for a scenario, from what its run measured of the link and the gradients.

In: a `TrainingRun` and a `Scenario`. Out: an `Advice`, or None. The link is the emulated one, or comes from the
all-reduces of the call-size sweep and of the strategies' communication-only measurements. The gradients' ready times
are those of the one step without synchronisation that was recorded in detail, scaled to the length of the timed steps.
"""

from dataclasses import dataclass, replace

import numpy as np

from bench.advise import verification
from bench.advise.advisor import advise
from bench.advise.verification import Stretch
from bench.analyze.training_rounds import by_launch, facts_of, kept, parts_s, pooled_median
from bench.catalog.strategies import label
from bench.model.conclusions import Advice
from bench.model.errors import BenchError
from bench.model.records import Scenario
from bench.model.training import REFERENCE, CallSizePoint, CommunicationOnly, Shape, Timeline, TrainingRun
from bench.planning import buckets
from bench.planning.link_model import AllReduceCost
from bench.planning.ready_times import ReadyTimes, recorded

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step without synchronisation. shape: ready times since its beginning. forward_s: when its backward began."""

    shape: Shape
    forward_s: float

    @property
    def ready_times(self) -> ReadyTimes:
        return ReadyTimes.of_shape(self.shape, self.forward_s)


def advice_for(run: TrainingRun, scenario: Scenario) -> Advice | None:
    """The best bucket plan; None where the run measured too little of the link or of the gradients."""
    cost = all_reduce_cost_of(run, scenario)
    if cost is None:
        return None
    try:
        step = shape_of(run, scenario)
        return None if step is None else advise(step.ready_times, cost)
    except BenchError:
        return None


def ddp_setting(run: TrainingRun, scenario: Scenario, lists: bool) -> tuple[int | None, tuple[int, ...]] | None:
    """`cap_bytes` and `buckets` of a `Strategy`, as advised: None and empty for torch's default.

    None if the run has measured too little yet. lists: torch takes the size of each bucket; else the best cap is taken.
    """
    advice, step = advice_for(run, scenario), shape_of(run, scenario)
    if advice is None or step is None:
        return None
    if advice.advised == "plan" and lists:
        return None, advice.plan.buckets
    if advice.advised == "default":
        return None, ()
    return int(buckets.cap_mib(step.ready_times, advice.cap.cap or 1) * buckets.MIB), ()


def shape_of(run: TrainingRun, scenario: Scenario) -> RecordedStep | None:
    """The gradients and when they are ready; None without a recorded step. Raises BenchError if that is incomplete.

    Of a shape both are known, so that the report advises the plan that `buckets: advised` measured.
    """
    if scenario.shape is not None:
        return RecordedStep(scenario.shape, 0.0)
    step = next((line for line in facts_of(run, Timeline, scenario) if line.strategy == REFERENCE), None)
    if step is None:
        return None
    shape, timed = recorded(step), by_launch(kept(run, scenario), REFERENCE, parts_s("forward", "backward"))
    forward_s = float(np.median([rank.forward_s for rank in step.ranks]))
    if not timed:
        return RecordedStep(shape, forward_s)
    # The length of a single step is a matter of chance, and stamps for each gradient take time.
    factor = pooled_median(timed) / max(shape.ready_s)
    scaled = replace(shape, ready_s=tuple(factor * time_s for time_s in shape.ready_s))
    return RecordedStep(scaled, factor * forward_s)


def stretch_of(run: TrainingRun, scenario: Scenario, ready_times: ReadyTimes) -> Stretch:
    """The seconds by which computing takes longer while gradients are copied and sent, from this run's own strategies.

    Zero where nothing is computed, and where no strategy was measured that sends during backward.
    """
    strategies = next((launch.strategies for launch in run.plan.order if launch.scenario == scenario), ())
    rounds, plans, longer = kept(run, scenario), [], []
    for strategy in strategies if scenario.shape is None else ():
        plan = buckets.of_strategy(ready_times, strategy) if strategy.accumulate == 1 else None
        more = by_launch(rounds, label(strategy), parts_s("forward", "backward", "pack"), REFERENCE)
        if plan is not None and more:
            plans.append(plan)
            longer.append(pooled_median(more))
    return verification.fitted_stretch(ready_times, plans, longer)


def all_reduce_cost_of(run: TrainingRun, scenario: Scenario) -> AllReduceCost | None:
    """Time of one all-reduce by its bytes, where calls follow each other; None with fewer than two sizes."""
    if scenario.link is not None:
        return AllReduceCost.emulated(scenario.link)
    points: dict[float, list[float]] = {}
    for point in facts_of(run, CallSizePoint):
        if (point.backend, point.world_size) == (scenario.case.backend, scenario.case.world_size):
            size = point.parameters * FLOAT32_BYTES / point.calls
            points.setdefault(size, []).append(float(np.median(point.times_s)) / point.calls)
    for alone in facts_of(run, CommunicationOnly, scenario):
        if len(set(alone.calls)) == 1:
            points.setdefault(float(alone.calls[0]), []).append(float(np.median(alone.times_s)) / len(alone.calls))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return AllReduceCost.through(sizes, [float(np.median(points[size])) for size in sizes])
