"""The bucket advisor: what to set so that little communication remains after backward, also on a link known roughly.

In: ready times, an `AllReduceCost` and a `Box`. Out: an `Advice`, and on request its explanation, with what else
DistributedDataParallel can be set to (`ways`).

The plan that is best for one link and one backward is fragile: with a link 5 % slower it can cost four times what
torch's default costs. So candidates are compared by their worst regret over the box: the plans that are best at its
corners and in its middle, the best uniform caps, and torch's default. What is advised in place of the default saves a
share of the step and loses nowhere in the box. Measures nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from bench.model.units import format_rounded_bytes
from bench.stats.intervals import Floats
from bench.training.conclusions import Advice, ExplainedAdvice, PlannedBucket, PlanPrediction
from bench.training.planning import buckets, planner
from bench.training.planning.buckets import BucketPlan, ReadyTimes, bucket_bytes, uniform
from bench.training.planning.link_model import AllReduceCost, LinkModel
from bench.training.planning.planner import RESOLUTION_S, Box, Grid, exposures, exposures_of_caps, least_exposures
from bench.training.planning.ways import computing_s, ways, worth_typing

# Caps that are compared over the whole box at once, and that are drawn.
COMPARED_CAPS = 256
# Limits on the size of a bucket, between the largest gradient and all of them.
LIMITS = 8
TIES: tuple[planner.Ties, ...] = ("large", "small", "early")
USUAL = Box()


def advise(ready_times: ReadyTimes, cost: AllReduceCost, box: Box = USUAL) -> Advice:
    """The plan and the cap with the least worst regret, torch's default, and which of them to use."""
    judge = _Judge(ready_times, cost, box)
    every = buckets.useful_caps(ready_times)
    coarse = buckets.evenly(every, COMPARED_CAPS)
    at_caps = exposures_of_caps(ready_times, cost, coarse, judge.grid)
    cap = judge.best_cap(every, coarse, at_caps)
    as_assumed = exposures_of_caps(ready_times, cost, coarse, Grid.point())[0]
    default = buckets.torch_default(ready_times)
    plans = {
        *_optima(ready_times, cost, box),
        uniform(ready_times, cap),
        uniform(ready_times, coarse[int(np.argmin(as_assumed))]),
        default,
    }
    plan = min(plans, key=lambda plan: (round(judge.worst_regret(plan) / RESOLUTION_S), len(plan), plan))
    return Advice(
        advised=judge.advised(default, {"cap": uniform(ready_times, cap), "plan": plan}),
        plan=judge.predicted(plan),
        cap=replace(judge.predicted(uniform(ready_times, cap)), cap=cap),
        default=judge.predicted(default),
        least_s=float(least_exposures(ready_times, cost, Grid.point())[0]),
        bound_s=planner.lower_bound(ready_times, cost),
        box=(box.latency, box.rate, box.backward),
        caps=tuple(zip(coarse, as_assumed.tolist(), strict=True)),
    )


class _Judge:
    """Exposed seconds of plans over the box, and their regrets."""

    def __init__(self, ready_times: ReadyTimes, cost: AllReduceCost, box: Box) -> None:
        self.ready_times, self.cost, self.grid = ready_times, cost, Grid.over(box)
        self.least = least_exposures(ready_times, cost, self.grid)

    def exposures(self, plan: BucketPlan) -> Floats:
        return exposures(self.ready_times, plan, self.cost, self.grid)

    def worst_regret(self, plan: BucketPlan) -> float:
        return float(np.max(self.exposures(plan) - self.least))

    def predicted(self, plan: BucketPlan) -> PlanPrediction:
        regrets = self.exposures(plan) - self.least
        worst = int(np.argmax(regrets))
        at = tuple(float(axis[worst]) for axis in (self.grid.latency, self.grid.rate, self.grid.backward))
        left = planner.exposed(self.ready_times, plan, self.cost)
        return PlanPrediction(bucket_bytes(self.ready_times, plan), left, float(regrets[worst]), (at[0], at[1], at[2]))

    def best_cap(self, every: Sequence[int], coarse: Sequence[int], at_caps: Floats) -> int:
        """The cap with the least worst regret: of `coarse`, then of all between its neighbours there."""
        number = self._least(at_caps)
        low, high = coarse[max(number - 1, 0)], coarse[min(number + 1, len(coarse) - 1)]
        near = buckets.evenly([cap for cap in every if low <= cap <= high], COMPARED_CAPS)
        return near[self._least(exposures_of_caps(self.ready_times, self.cost, near, self.grid))]

    def _least(self, at_caps: Floats) -> int:
        """The largest of the caps whose worst regret is the least."""
        worst = np.max(at_caps - self.least[:, None], axis=0)
        return int(np.flatnonzero(worst <= worst.min() + RESOLUTION_S)[-1])

    def advised(self, default: BucketPlan, settings: Mapping[str, BucketPlan]) -> str:
        """The last of `settings` that is worth typing in place of the one before it; "default" if none is."""
        name, usual = "default", self.exposures(default)
        for setting, plan in settings.items():
            mine = self.exposures(plan)
            if worth_typing(mine, usual, computing_s(self.ready_times)):
                name, usual = setting, mine
        return name


def _optima(ready_times: ReadyTimes, cost: AllReduceCost, box: Box) -> Iterator[BucketPlan]:
    """The best plans at the corners and in the middle of the box; where several are best, different ones of them.

    And the best plans, there and with a backward that is off by half as much, whose buckets have a limit: a large
    bucket, which saves latency at one point, waits for too many gradients at another.
    """
    latencies, rates, backwards = ((1 - error, 1 + error) for error in (box.latency, box.rate, box.backward))
    for point in [(1.0, 1.0, 1.0), *product(latencies, rates, backwards)]:
        for ties in TIES:
            yield planner.optimal(*_at(ready_times, cost, point), ties)
    limits = np.geomspace(max(ready_times.nbytes), ready_times.total, LIMITS, endpoint=False)
    slow = (1 + box.latency, 1 - box.rate, 1 - box.backward)
    for point in [(1.0, 1.0, 1.0), (1.0, 1.0, 1 - box.backward / 2), (1.0, 1.0, 1 + box.backward / 2), slow]:
        for limit in limits:
            yield planner.optimal(*_at(ready_times, cost, point), largest=limit)


def _at(
    ready_times: ReadyTimes, cost: AllReduceCost, point: tuple[float, float, float]
) -> tuple[ReadyTimes, AllReduceCost]:
    latency, rate, backward = point
    there = replace(ready_times, ready_s=tuple(backward * ready for ready in ready_times.ready_s))
    return there, cost.off_by(latency, rate)


def plan_of(ready_times: ReadyTimes, prediction: PlanPrediction) -> BucketPlan:
    """The plan of a prediction, rebuilt by using its buckets' sizes as caps."""
    return buckets.by_caps(ready_times.nbytes, prediction.buckets)


def buckets_for(ready_times: ReadyTimes, cost: AllReduceCost) -> tuple[int, ...]:
    """Bytes of the buckets with the least worst regret: what a configuration calls advised."""
    return advise(ready_times, cost).plan.buckets


def explain(
    advice: Advice, ready_times: ReadyTimes, link: LinkModel, itemsize: int, model: str = ""
) -> ExplainedAdvice:
    """The advice with predictions of plans in common use, its buckets, other settings, and caps for torch."""
    judge = _Judge(ready_times, link.cost, Box(*advice.box))
    cap = buckets.cap_mib(ready_times, advice.cap.cap or 1)
    plan = plan_of(ready_times, advice.chosen)
    planned = tuple(
        PlannedBucket(size, inside, ready_times.ready_s[end - 1], *times)
        for size, inside, end, times in zip(
            advice.chosen.buckets,
            buckets.members(ready_times, plan),
            plan,
            planner.schedule(ready_times, plan, link.cost),
            strict=True,
        )
    )
    notes = list(link.notes)
    if link.largest is not None and ready_times.total > link.largest:
        beyond = "and so has a bucket of the plan" if max(advice.chosen.buckets) > link.largest else "but no bucket has"
        notes.append(
            f"All gradients together have more bytes than the largest size measured, {beyond}: above "
            f"{format_rounded_bytes(link.largest)} the curve goes on as a straight line."
        )
    return ExplainedAdvice(
        advice=advice,
        model=model,
        link=link.words,
        cpu=link.cpu,
        notes=tuple(notes),
        total=ready_times.total,
        itemsize=itemsize,
        backward_s=ready_times.ready_s[-1],
        bytes_s=ready_times.total * link.cost.slope_s,
        step_s=computing_s(ready_times) + advice.default.exposed_s,
        predictions=(
            ("torch's default", advice.default),
            (f"best single cap, {cap:g} MiB", advice.cap),
            ("plan of the least regret", advice.plan),
        ),
        buckets=planned,
        ways=tuple(ways(ready_times, plan, link.cost, judge.grid, itemsize)),
        caps_mib=buckets.caps_mib(ready_times, plan_of(ready_times, advice.plan)),
        cap_mib=cap,
        ranks=link.ranks,
    )
