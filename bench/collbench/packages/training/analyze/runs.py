"""Take the advisor's inputs from a run, and plan another run that tests its predictions.

In: a `Run` and one of its scenarios. Out: an `AllReduceCost`, a `Shape` and an `Advice`, or None if too little was
measured. To verify an advice: a `Plan` that measures bucket plans, then from its results a `Verified` for each bucket
plan.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from collbench.analyze.against import by_launch, rounds_of, samples_of
from collbench.analyze.round_series import pooled_mean
from collbench.model.divisions import WORLD
from collbench.model.errors import BenchError, UnmeasurableError
from collbench.model.records import Launch, Machine, Plan, Run, Sampling, Settings, Skip
from collbench.model.units import counted
from collbench.packages.training.analyze.steps import parts_s
from collbench.packages.training.catalog.strategies import kind, unsupported
from collbench.packages.training.conclusions import Advice, ScenarioAnalysis, Verified
from collbench.packages.training.planning.advisor import advise, tail_s
from collbench.packages.training.planning.buckets import BucketPlan, ReadyTimes, recorded_shape, torch_default, uniform
from collbench.packages.training.planning.link_model import AllReduceCost, LinkModel, costs_cpu
from collbench.packages.training.planning.steps import unsupported_scenario, with_controls
from collbench.packages.training.step_records import Shape, detail_of
from collbench.packages.training.synchronisation import (
    REFERENCE,
    TRAINING_STEP,
    Scenario,
    StepSettings,
    Strategy,
    label,
    with_strategy,
)
from collbench.stats.series import over_launches

# Three launches give an interval over launches; a few rounds of two steps per launch take half a minute.
LAUNCHES, ROUNDS, STEPS = 3, 6, 2
TIMEOUT_S = 60.0
# Sampling of other operations, which are not timed here.
SAMPLING = Sampling(0, 0.0, ROUNDS, None, 1.0, ROUNDS)
# Name → strategy and bucket plan, for the best cap and for plans in common use.
Candidates = Mapping[str, tuple[Strategy, BucketPlan]]


# ── inputs from a run ────────────────────────────────────────────────────────────────────────────
def advice_for(run: Run, scenario: Scenario) -> Advice | None:
    """Return the advice on buckets; None if the run measured too little of the link or of the gradients."""
    try:
        cost, shape = all_reduce_cost_of(run, scenario), shape_of(run, scenario)
        return advise(ReadyTimes.of_shape(shape), cost) if cost is not None and shape is not None else None
    except BenchError:
        return None


def shape_of(run: Run, scenario: Scenario) -> Shape | None:
    """Return the gradients and their ready times in backward; None without a recorded step of the reference.

    For a shape both are known, so the report advises the plan that `buckets: advised` measured. Raises BenchError for
    an incomplete step.
    """
    if scenario.shape is not None:
        return scenario.shape
    reference = with_strategy(scenario.case, Strategy(REFERENCE))
    details = (detail_of(samples) for samples in samples_of(run, scenario.case).get(reference, []))
    timeline = next((detail.timeline for detail in details if detail is not None and detail.timeline is not None), None)
    if timeline is None:
        return None
    shape, timed = recorded_shape(timeline), by_launch(rounds_of(run, scenario.case), reference, parts_s("backward"))
    # Scale to the mean backward: the time of a single step varies, and stamps for each gradient take time.
    factor = pooled_mean(timed) / max(shape.ready_s) if timed else 1.0
    return replace(shape, ready_s=tuple(factor * time_s for time_s in shape.ready_s))


def all_reduce_cost_of(run: Run, scenario: Scenario) -> AllReduceCost | None:
    """Return the time of an all-reduce by its bytes, if calls follow each other; None with fewer than two sizes.

    The cost of an emulated link is known. A real link is measured by pipelined all-reduces of several sizes (`metrics:
    [pipelined]`, `calls: [async]`), and by the calls alone of strategies whose calls all have one size.
    """
    if scenario.link is not None:
        return AllReduceCost.emulated(scenario.link)
    points: dict[int, list[float]] = defaultdict(list)
    for samples in run.samples:
        case, timed = samples.case, samples.timed
        same_group = (case.backend, case.world_size) == (scenario.case.backend, scenario.case.world_size)
        back_to_back = (case.op, case.metric, case.call, case.groups) == ("all_reduce", "pipelined", "async", WORLD)
        if same_group and back_to_back and timed is not None and samples.failure is None:
            points[case.size_bytes].append(float(np.mean(timed.slowest_s)))
    for samples in (samples for tries in samples_of(run, scenario.case).values() for samples in tries):
        if (detail := detail_of(samples)) is not None and detail.alone_s and len(set(detail.calls or ())) == 1:
            (nbytes,) = set(detail.calls or ())
            points[nbytes].append(float(np.mean(detail.alone_s)) / len(detail.calls or ()))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return AllReduceCost.through(sizes, [over_launches(points[size]) for size in sizes])


def link_of(run: Run, scenario: Scenario) -> LinkModel | None:
    """Return the link of a scenario, as the run measured or emulated it; None if the run measured too little of it."""
    cost, case, name = all_reduce_cost_of(run, scenario), scenario.case, scenario.options.link
    if cost is None:
        return None
    if scenario.link is not None:
        return LinkModel(cost, f"the run's own link, {name}, as emulated", name)
    words = f"the run's own {case.backend}, {counted(case.world_size, 'rank')}, as its calls took"
    return LinkModel(cost, words, name, costs_cpu(case.backend), ranks=case.world_size)


# ── verification ─────────────────────────────────────────────────────────────────────────────────
def candidates(ready_times: ReadyTimes, advice: Advice, of_shape: bool) -> Candidates:
    """Return the plans to measure. torch cannot wrap a shape: there ddp is left out, and its default becomes a plan."""
    cap, default = uniform(ready_times, advice.cap_bytes), torch_default(ready_times)
    usual = Strategy("plan", buckets=advice.default.buckets) if of_shape else Strategy("ddp")
    number = len(ready_times.nbytes)
    plans = {
        "best cap": (Strategy("overlap_bucket", cap_bytes=advice.cap_bytes), cap),
        "torch's default": (usual, default),
        "all in one": (Strategy("flat"), (number,)),
        "one call a gradient": (Strategy("overlap_param"), tuple(range(1, number + 1))),
    }
    if not of_shape:
        plans["best cap, by DistributedDataParallel"] = (Strategy("ddp", cap_bytes=advice.cap_bytes), cap)
    return plans


def planned(scenario: Scenario, strategies: Iterable[Strategy], name: str, seed: int, machine: Machine) -> Plan:
    """Plan the measurement of strategies, references and A/A pairs. Raises UnmeasurableError if none is measurable."""
    scenario = replace(scenario, case=replace(scenario.case, depth=STEPS))
    case, missing = scenario.case, unsupported_scenario(scenario, machine)
    reasons = {strategy: missing or unsupported(strategy, scenario, machine) for strategy in strategies}
    supported = [strategy for strategy, reason in reasons.items() if reason is None]
    if not supported:
        raise UnmeasurableError("", *dict.fromkeys(reason for reason in reasons.values() if reason is not None))
    cases = tuple(with_strategy(case, strategy) for strategy in with_controls(supported))
    own = StepSettings(
        rounds=ROUNDS,
        shapes={} if scenario.shape is None else {scenario.options.model: scenario.shape},
        links={} if scenario.link is None else {scenario.options.link: scenario.link},
    )
    settings = Settings(SAMPLING, seed, TIMEOUT_S, pool_bytes=0, own={TRAINING_STEP: own})
    order = tuple(Launch(case.backend, case.world_size, number, cases) for number in range(1, LAUNCHES + 1))
    skips = (Skip(with_strategy(case, strategy), reason) for strategy, reason in reasons.items() if reason is not None)
    return Plan(name, order, tuple(skips), LAUNCHES, settings)


def verified(
    plans: Candidates, ready_times: ReadyTimes, cost: AllReduceCost, measured: ScenarioAnalysis
) -> list[Verified]:
    """Return the prediction and the measurement of each plan.

    If a model computes, backward takes longer while gradients are copied into buckets and sent. The prediction then
    assumes a backward that is longer by the measured amount, because calls had that time, too.
    """
    splits = {result.label: result.split for result in measured.results}
    verdicts = []
    for name, (strategy, ends) in plans.items():
        split, ready = splits.get(label(strategy)), ready_times
        if split is not None and kind(strategy).overlaps and measured.scenario.shape is None:
            longer_s = max(0.0, split.interference_s + (split.pack_s or 0.0))
            factor = 1 + longer_s / ready.ready_s[-1]
            ready = replace(ready, ready_s=tuple(factor * ready_s for ready_s in ready.ready_s))
        verdicts.append(Verified(name, tail_s(ready, ends, cost), split.last_rank_s if split else None))
    return verdicts
