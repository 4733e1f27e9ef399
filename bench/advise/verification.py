"""Verify bucket plans: which plans to measure, and their predictions beside the measurements.

In: a scenario, ready times, an all-reduce cost and the advice that follows from them; then the measured results. Out:
a `Plan` that measures them, then a `Verified` for each.

A `Stretch` says how much longer backward takes because gradients are copied into buckets and sent meanwhile. By it,
ready times of a step without synchronisation become those of a step under a plan: a link that carries calls while
backward takes longer has more time, so that less of them is left at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from bench.advise import planner
from bench.advise.advisor import plan_of
from bench.catalog.strategies import kind, label, unsupported
from bench.model.advice import Advice
from bench.model.capabilities import Machine
from bench.model.conclusions import StrategyResult, Verified
from bench.model.errors import UnmeasurableError
from bench.model.records import Launch, Plan, Sampling, Scenario, Settings, Skip
from bench.model.training import Strategy
from bench.planning.buckets import BucketPlan, ReadyTimes
from bench.planning.link_model import AllReduceCost
from bench.planning.training import case_of, unsupported_scenario, with_controls

# Three launches give an interval over launches; a few rounds of two steps per launch take half a minute.
LAUNCHES, ROUNDS, STEPS = 3, 6, 2
TIMEOUT_S = 60.0
# Of operations that are not timed here.
SAMPLING = Sampling(0, 0.0, ROUNDS, 0.05, 1.0, ROUNDS)
# The plan and others in common use, each as a strategy, by name.
Candidates = Mapping[str, tuple[Strategy, BucketPlan]]


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
        split = result.split if result is not None else None
        tail_s = None if split is None else split.tail_s - split.late_s
        verdicts.append(
            Verified(name, predicted_s, tail_s, result.exposed, result.refused)
            if result is not None
            else Verified(name, predicted_s)
        )
    return verdicts
