"""Take from a run what the advisor needs: the link, when gradients are ready, and what sending costs computing.

In: a `Run` and one of its scenarios. Out: an `AllReduceCost`, a `Shape`, a `Stretch`, or None where too little was
measured; and the run's analysis with the `Advice` on each scenario.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from bench.advise import verification
from bench.advise.advisor import advise
from bench.advise.verification import Stretch
from bench.analyze.training import (
    by_launch,
    parts_s,
    pooled_median,
    reference_case,
    rounds_of,
    samples_of,
    scenarios_of,
)
from bench.catalog.strategies import strategy_of
from bench.model.advice import Advice
from bench.model.conclusions import Analysis
from bench.model.errors import BenchError
from bench.model.records import Run, Scenario
from bench.model.training import REFERENCE, Shape
from bench.planning import buckets
from bench.planning.buckets import ReadyTimes, recorded_shape
from bench.planning.link_model import AllReduceCost


def with_advice(run: Run, analysis: Analysis) -> Analysis:
    """The analysis of a run with the advice on each of its scenarios."""
    scenarios = (replace(result, advice=advice_for(run, result.scenario)) for result in analysis.scenarios)
    return replace(analysis, scenarios=tuple(scenarios))


def advice_for(run: Run, scenario: Scenario) -> Advice | None:
    """The best bucket plan; None where the run measured too little of the link or of the gradients."""
    try:
        cost, shape = all_reduce_cost_of(run, scenario), shape_of(run, scenario)
        return advise(ReadyTimes.of_shape(shape), cost) if cost is not None and shape is not None else None
    except BenchError:
        return None


def shape_of(run: Run, scenario: Scenario) -> Shape | None:
    """The gradients and when each is ready in backward; None without a recorded step of the reference.

    Of a shape both are known, so that the report advises the plan that `buckets: advised` measured. Raises BenchError
    for an incomplete step.
    """
    if scenario.shape is not None:
        return scenario.shape
    reference = replace(scenario.case, strategy=REFERENCE)
    details = (samples.detail for samples in samples_of(run, scenario).get(reference, []))
    timeline = next((detail.timeline for detail in details if detail is not None and detail.timeline is not None), None)
    if timeline is None:
        return None
    shape, timed = recorded_shape(timeline), by_launch(rounds_of(run, scenario), reference, parts_s("backward"))
    # The length of a single step is a matter of chance, and stamps for each gradient take time.
    factor = pooled_median(timed) / max(shape.ready_s) if timed else 1.0
    return replace(shape, ready_s=tuple(factor * time_s for time_s in shape.ready_s))


def stretch_of(run: Run, scenario: Scenario, ready_times: ReadyTimes) -> Stretch:
    """The seconds by which computing takes longer while gradients are copied and sent, from this run's own strategies.

    Zero where nothing is computed, and where no strategy was measured that sends during backward.
    """
    rounds, plans, longer = rounds_of(run, scenario), [], []
    for case in scenarios_of(run).get(scenario, ()) if scenario.shape is None else ():
        strategy = strategy_of(case.strategy)
        plan = buckets.of_strategy(ready_times, strategy) if strategy.accumulate == 1 else None
        more = by_launch(rounds, case, parts_s("forward", "backward", "pack"), reference_case(case))
        if plan is not None and more:
            plans.append(plan)
            longer.append(pooled_median(more))
    return verification.fitted_stretch(ready_times, plans, longer)


def all_reduce_cost_of(run: Run, scenario: Scenario) -> AllReduceCost | None:
    """Time of one all-reduce by its bytes, where calls follow each other; None with fewer than two sizes.

    That of an emulated link is known. A real one is measured by the ladder of call sizes, and by the calls alone of
    strategies whose calls are all of one size.
    """
    if scenario.link is not None:
        return AllReduceCost.emulated(scenario.link)
    points: dict[int, list[float]] = defaultdict(list)
    for samples in run.samples:
        case, timed = samples.case, samples.timed
        same = (case.backend, case.world_size) == (scenario.case.backend, scenario.case.world_size)
        back_to_back = (case.op, case.metric, case.call, case.groups) == ("all_reduce", "pipelined", "async", "world")
        if same and back_to_back and timed is not None and samples.failure is None:
            points[case.size_bytes].append(float(np.median(timed.slowest_s)))
    for samples in (samples for tries in samples_of(run, scenario).values() for samples in tries):
        if (detail := samples.detail) is not None and detail.alone_s and len(set(detail.calls or ())) == 1:
            (nbytes,) = set(detail.calls or ())
            points[nbytes].append(float(np.median(detail.alone_s)) / len(detail.calls or ()))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return AllReduceCost.through(sizes, [float(np.median(points[size])) for size in sizes])
