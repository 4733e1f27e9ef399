"""The bucket advisor: what to set so that little communication remains after backward, also on a link known roughly.

In: ready times, an `AllReduceCost` and a `Box`. Out: an `Advice`, and on request its explanation, with what other ways
than a bucket plan leave exposed.

The plan that is best for one link and one backward is fragile: with a link 5 % slower it can cost four times what
torch's default costs. So candidates are compared by their worst regret over the box: the plans that are best at its
corners and in its middle, the best uniform caps, and torch's default. Measures nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from bench.advise import planner
from bench.advise.planner import RESOLUTION_S, Box, Grid, exposures, exposures_of_caps, least_exposures
from bench.model.conclusions import WORTH, Advice, ExplainedAdvice, OtherWay, PlannedBucket, PlanPrediction
from bench.model.units import format_rounded_bytes
from bench.planning import buckets
from bench.planning.buckets import BucketPlan, ReadyTimes, bucket_bytes, uniform
from bench.planning.link_model import AllReduceCost, LinkModel
from bench.stats.intervals import Floats

# Caps that are compared over the whole box at once, and that are drawn.
COMPARED_CAPS = 256
# Limits on the size of a bucket, between the largest gradient and all of them.
LIMITS = 8
TIES: tuple[planner.Ties, ...] = ("large", "small", "early")
USUAL = Box()
FLOAT32_BYTES = 4
# Forward multiplies once by each weight where backward does twice.
FORWARD_OF_BACKWARD = 0.5
MICRO_BATCHES = (2, 4)
# Caps that are tried for gathering.
TRIED_CAPS = 48


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
        advised=judge.simplest({"default": default, "cap": uniform(ready_times, cap), "plan": plan}),
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

    def simplest(self, ways: dict[str, BucketPlan]) -> str:
        """The first of `ways` that nowhere in the box loses more than WORTH of backward to another; else "plan"."""
        worth = WORTH * self.ready_times.ready_s[-1]
        left = {name: self.exposures(plan) for name, plan in ways.items()}
        for name, mine in left.items():
            if all(float(np.max(mine - other)) <= worth for other in left.values()):
                return name
        return "plan"


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
    advice: Advice, ready_times: ReadyTimes, link: LinkModel, itemsize: int, names: Sequence[str] = (), model: str = ""
) -> ExplainedAdvice:
    """The advice with predictions of plans in common use, its buckets, other ways, and caps for torch."""
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
        names=tuple(names),
        link=link.words,
        cpu=link.cpu,
        notes=tuple(notes),
        total=ready_times.total,
        itemsize=itemsize,
        backward_s=ready_times.ready_s[-1],
        bytes_s=ready_times.total * link.cost.slope_s,
        predictions=(
            ("plan with the least worst regret", advice.plan),
            (f"best uniform cap, {cap:g} MiB", advice.cap),
            ("torch's default, 1 MiB then 25 MiB", advice.default),
            ("best if all is as assumed", judge.predicted(planner.optimal(ready_times, link.cost))),
            ("bucket_cap_mb=25", judge.predicted(uniform(ready_times, buckets.TORCH_CAPS[1]))),
            ("all in one", judge.predicted((len(ready_times.nbytes),))),
        ),
        buckets=planned,
        others=tuple(other_ways(ready_times, link.cost, itemsize)),
        caps_mib=buckets.caps_mib(ready_times, plan_of(ready_times, advice.plan)),
        cap_mib=cap,
    )


def other_ways(ready_times: ReadyTimes, cost: AllReduceCost, itemsize: int) -> Iterator[OtherWay]:
    """Other ways than a bucket plan to leave less exposed, each with its own best buckets.

    itemsize: bytes of an element of a gradient. Not modelled: the cost of casting, the optimizer's step, and that
    computing slows down while communicating. Forward is taken to be spread over the gradients as backward is.
    """

    def least(there: ReadyTimes, cost: AllReduceCost) -> float:
        return planner.exposed(there, planner.optimal(there, cost), cost)

    if itemsize == FLOAT32_BYTES:
        halved = replace(ready_times, nbytes=tuple(max(1, nbytes // 2) for nbytes in ready_times.nbytes))
        yield OtherWay("bf16 or fp16 hook", least(halved, cost), "gradients are rounded before they are added")
    whole = least(ready_times, cost)
    for count in MICRO_BATCHES:
        note = f"a step has {count} times the examples; time is that of a micro-batch"
        yield OtherWay(f"no_sync, {count} micro-batches a step", whole / count, note)

    # A reduce-scatter and an all-gather, which together make an all-reduce.
    half = AllReduceCost(cost.sizes, tuple(time / 2 for time in cost.times_s), cost.slope_s / 2)
    stalls = []
    for plan in {uniform(ready_times, cap) for cap in buckets.useful_caps(ready_times, TRIED_CAPS)}:
        # Gathers begin with forward, in its order, one after the other: the last bucket comes first.
        gathered = np.cumsum(half(np.array(bucket_bytes(ready_times, plan), dtype=float))[::-1])
        ends = np.array([ready_times.ready_s[end - 1] for end in plan])
        forward = np.diff(ends, prepend=0.0)[::-1] * FORWARD_OF_BACKWARD
        # Forward ends at the latest of: the parameters of bucket k are there, plus the computing from k on.
        left = np.cumsum(forward[::-1])[::-1]
        stalls.append(max(0.0, float(np.max(gathered + left)) - float(left[0])))
    sharded = least(ready_times, half) + min(stalls)
    yield OtherWay("reduce-scatter, then all-gather in forward", sharded, "ZeRO-1, FSDP: optimizer states are sharded")
