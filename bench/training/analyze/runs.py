"""Advise on runs: take from one what the advisor needs, and measure in another whether its predictions hold.

In: a `Run` and one of its scenarios. Out: an `AllReduceCost`, a `Shape`, a `Stretch`, or None where too little was
measured; and the run's analysis with the `Advice` on each scenario. To verify an advice: a `Plan` that measures bucket
plans, then from its results a `Verified` for each.

A `Stretch` says how much longer backward takes because gradients are copied into buckets and sent meanwhile. By it,
ready times of a step without synchronisation become those of a step under a plan: a link that carries calls while
backward takes longer has more time, so that less of them is left at the end.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from bench.analyze.round_series import pooled_mean
from bench.model.errors import BenchError, UnmeasurableError
from bench.model.records import Launch, Machine, Plan, Run, Sampling, Settings, Skip
from bench.model.steps import Shape
from bench.stats.series import over_launches
from bench.training.analyze.steps import (
    by_launch,
    parts_s,
    reference_case,
    rounds_of,
    samples_of,
    scenarios_of,
)
from bench.training.catalog.strategies import kind, label, strategy_of, unsupported
from bench.training.conclusions import Advice, ScenarioAnalysis, StrategyResult, Verified
from bench.training.model import REFERENCE, Scenario, Strategy
from bench.training.planning import buckets, planner
from bench.training.planning.advisor import advise, plan_of
from bench.training.planning.buckets import BucketPlan, ReadyTimes, recorded_shape
from bench.training.planning.link_model import AllReduceCost
from bench.training.planning.steps import case_of, unsupported_scenario, with_controls

# Three launches give an interval over launches; a few rounds of two steps per launch take half a minute.
LAUNCHES, ROUNDS, STEPS = 3, 6, 2
TIMEOUT_S = 60.0
# Of operations that are not timed here.
SAMPLING = Sampling(0, 0.0, ROUNDS, None, 1.0, ROUNDS)
# The plan and others in common use, each as a strategy, by name.
Candidates = Mapping[str, tuple[Strategy, BucketPlan]]


# ── what a run tells ─────────────────────────────────────────────────────────────────────────────
def with_advice(run: Run, scenarios: Iterable[ScenarioAnalysis]) -> tuple[ScenarioAnalysis, ...]:
    """The results of a run's scenarios, each with the advice on its buckets."""
    return tuple(replace(result, advice=advice_for(run, result.scenario)) for result in scenarios)


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
    factor = pooled_mean(timed) / max(shape.ready_s) if timed else 1.0
    return replace(shape, ready_s=tuple(factor * time_s for time_s in shape.ready_s))


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
            points[case.size_bytes].append(float(np.mean(timed.slowest_s)))
    for samples in (samples for tries in samples_of(run, scenario).values() for samples in tries):
        if (detail := samples.detail) is not None and detail.alone_s and len(set(detail.calls or ())) == 1:
            (nbytes,) = set(detail.calls or ())
            points[nbytes].append(float(np.mean(detail.alone_s)) / len(detail.calls or ()))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return AllReduceCost.through(sizes, [over_launches(points[size]) for size in sizes])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Seconds that forward and backward take longer: call_s a call, and byte_s a byte that is copied into a bucket.

    A bucket of one gradient is sent in place, so that none of its bytes are copied.
    """

    call_s: float = 0.0
    byte_s: float = 0.0

    def of(self, ready_times: ReadyTimes, plan: BucketPlan) -> float:
        """Seconds under this plan."""
        return self.call_s * len(plan) + self.byte_s * copied_bytes(ready_times, plan)

    def stretched(self, ready_times: ReadyTimes, plan: BucketPlan) -> ReadyTimes:
        """The ready times under this plan: all later by the same share."""
        factor = 1 + self.of(ready_times, plan) / ready_times.ready_s[-1]
        return replace(ready_times, ready_s=tuple(factor * ready for ready in ready_times.ready_s))


def copied_bytes(ready_times: ReadyTimes, plan: BucketPlan) -> int:
    """Bytes of the buckets that hold several gradients."""
    return sum(sum(ready_times.nbytes[a:b]) for a, b in pairwise((0, *plan)) if b - a > 1)


def fitted_stretch(ready_times: ReadyTimes, plans: Sequence[BucketPlan], longer_s: Sequence[float]) -> Stretch:
    """From how much longer computing took under each plan; least squares without negative terms."""
    if not plans:
        return Stretch()
    known = np.array([[len(plan), copied_bytes(ready_times, plan) / ready_times.total] for plan in plans], dtype=float)
    (call_s, whole_s), _ = nnls(known, np.maximum(np.asarray(longer_s, dtype=float), 0.0))
    return Stretch(float(call_s), float(whole_s) / ready_times.total)


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
            longer.append(pooled_mean(more))
    return fitted_stretch(ready_times, plans, longer)


# ── verification ─────────────────────────────────────────────────────────────────────────────────
def candidates(ready_times: ReadyTimes, advice: Advice, of_shape: bool) -> Candidates:
    """The plans to measure. torch cannot wrap a shape, so ddp is left out."""
    best, cap, default = (plan_of(ready_times, plan) for plan in (advice.plan, advice.cap, advice.default))
    sizes = advice.default.buckets
    plans = {
        "plan": (Strategy("plan", buckets=advice.plan.buckets), best),
        "best uniform cap": (Strategy("overlap_bucket", cap_bytes=advice.cap.cap), cap),
        "torch's default": (Strategy("plan", buckets=sizes) if of_shape else Strategy("ddp"), default),
        "all in one": (Strategy("flat"), (len(ready_times.nbytes),)),
        "one call a gradient": (Strategy("overlap_param"), tuple(range(1, len(ready_times.nbytes) + 1))),
    }
    if not of_shape:
        plans["plan, by DistributedDataParallel"] = (Strategy("ddp", buckets=advice.plan.buckets), best)
    return plans


def planned(scenario: Scenario, strategies: Iterable[Strategy], name: str, seed: int, machine: Machine) -> Plan:
    """A plan to measure strategies, with references and A/A pairs. Raises UnmeasurableError if none can be measured."""
    scenario = replace(scenario, case=replace(scenario.case, depth=STEPS))
    case, missing = scenario.case, unsupported_scenario(scenario, machine)
    reasons = {strategy: missing or unsupported(strategy, scenario, machine) for strategy in strategies}
    fit = [strategy for strategy, reason in reasons.items() if reason is None]
    if not fit:
        raise UnmeasurableError("; ".join(dict.fromkeys(str(reason) for reason in reasons.values())))
    cases = tuple(case_of(scenario, strategy) for strategy in with_controls(fit))
    settings = Settings(
        SAMPLING, seed, TIMEOUT_S, pool_bytes=0, rounds=ROUNDS,
        shapes={} if scenario.shape is None else {case.model: scenario.shape},
        links={} if scenario.link is None else {case.link: scenario.link},
    )  # fmt: skip
    order = tuple(Launch(case.backend, case.world_size, number, cases) for number in range(1, LAUNCHES + 1))
    skips = (Skip(case_of(scenario, strategy), reason) for strategy, reason in reasons.items() if reason is not None)
    return Plan(name, order, tuple(skips), LAUNCHES, settings)


def verified(
    plans: Candidates,
    ready_times: ReadyTimes,
    cost: AllReduceCost,
    results: Iterable[StrategyResult],
    stretch: Stretch,
) -> list[Verified]:
    """The prediction of each plan beside its measurement. stretch: of computing, under plans that send meanwhile."""
    measured = {result.label: result for result in results}
    verdicts = []
    for name, (strategy, ends) in plans.items():
        ready = stretch.stretched(ready_times, ends) if kind(strategy).overlaps else ready_times
        predicted_s, result = planner.exposed(ready, ends, cost), measured.get(label(strategy))
        if result is None:
            verdicts.append(Verified(name, predicted_s))
            continue
        tail_s = None if result.split is None else result.split.tail_s - result.split.late_s
        verdicts.append(Verified(name, predicted_s, tail_s, result.exposed, result.refused))
    return verdicts
