"""Runs of the training benchmark made of invented numbers: a model, a FIFO link, and what strategies do on it.

`comparison` works a step out on paper for each strategy, so that its timeline, its times and its split agree.
"""

from pathlib import Path

from bench.catalog.presets import PRESETS, gradients
from bench.catalog.strategies import label
from bench.model.conclusions import (
    AAPair,
    Advice,
    Interval,
    PlanPrediction,
    ScenarioAnalysis,
    Split,
    StrategyResult,
    TrainingAnalysis,
)
from bench.model.records import Failure, Scenario
from bench.model.training import (
    REFERENCE,
    CallRecord,
    CallSizePoint,
    InvariantCheck,
    LaunchFailure,
    Link,
    RankTimeline,
    SkippedStrategy,
    Strategy,
    Timeline,
    TrainingLaunch,
    TrainingPlan,
    TrainingRun,
)

SCENARIO = Scenario("micro", "gloo", 2, 8, 64)
LINK = Link(0.4e-3, 1e9)
GRADIENTS = gradients(PRESETS["micro"])
FORWARD, BACKWARD, UPDATE, PACK = 6e-3, 12e-3, 1.2e-3, 0.2e-3
PLAN = Strategy("plan", buckets=(1_100_000, 2_000_000, 1_000_000, 1_178_624))
STRATEGIES = (
    Strategy(REFERENCE),
    Strategy("naive"),
    Strategy("naive_async"),
    Strategy("flat"),
    Strategy("overlap_param"),
    Strategy("overlap_bucket", cap_bytes=2**18),
    Strategy("overlap_bucket", cap_bytes=2**20),
    Strategy("overlap_bucket", cap_bytes=25 * 2**20),
    Strategy("overlap_bucket", cap_bytes=2**20, bucket_boundary="before"),
    PLAN,
)


def interval(value, width=0.3e-3):
    return Interval(value, value - width, value + width, "over launches")


def ready_times():
    """Of each gradient, in the order of the model: the last is ready first."""
    count = len(GRADIENTS)
    return tuple(FORWARD + BACKWARD * (count - number) / count for number in range(count))


def buckets_of(strategy):
    """Numbers of the gradients of each call."""
    order = list(reversed(range(len(GRADIENTS))))
    if strategy.name in {"naive", "naive_async", "overlap_param"}:
        return [[number] for number in order]
    if strategy.name == "flat":
        return [order]
    limits = iter(strategy.buckets or ())
    limit, found, filled = next(limits, strategy.cap_bytes), [[]], 0
    for number in order:
        early = strategy.bucket_boundary == "before" and filled + GRADIENTS[number].nbytes > (limit or 1)
        if filled and (early or filled >= (limit or 1)):
            found.append([])
            limit, filled = next(limits, strategy.cap_bytes), 0
        found[-1].append(number)
        filled += GRADIENTS[number].nbytes
    return found


def rank_line(strategy, rank=0, link=LINK):
    ready, free, calls = ready_times(), 0.0, []
    backward = FORWARD + BACKWARD
    blocked = {"naive", "naive_async", "flat"}
    for bucket in [] if strategy.name == REFERENCE else buckets_of(strategy):
        nbytes = sum(GRADIENTS[number].nbytes for number in bucket)
        last = max(ready[number] for number in bucket)
        launched = max(last, backward if strategy.name in blocked else 0.0, free if strategy.name == "naive" else 0.0)
        free = max(free, launched) + link.latency_s + nbytes / link.bytes_per_s
        calls.append(CallRecord(nbytes, last, launched, free, tuple(bucket)))
    usable = max(backward, free) + (PACK if calls else 0.0)
    return RankTimeline(rank, 0.2e-3 * rank, FORWARD, backward, usable, usable + UPDATE, ready, tuple(calls))


def timeline(strategy, ranks=2, scenario=SCENARIO):
    return Timeline(scenario.key, 1, label(strategy), GRADIENTS, tuple(rank_line(strategy, r) for r in range(ranks)))


def result(strategy, place=None, shift=0.0, **more):
    """What the timeline says, `shift` added to what is exposed."""
    line = rank_line(strategy)
    step = line.end_s + shift
    exposed = step - rank_line(Strategy(REFERENCE)).end_s
    if strategy.name == REFERENCE:
        return StrategyResult(strategy, label(strategy), 12, interval(step, 0.1e-3), 0.2e-3, adds_up=None, **more)
    alone = sum(f.nbytes / LINK.bytes_per_s + LINK.latency_s for f in line.calls)
    tail = line.usable_s - line.backward_s - PACK
    values = {
        "step": interval(step), "step_std": 0.4e-3, "exposed": interval(exposed), "exposed_std": 0.5e-3,
        "share": exposed / step, "share_std": 0.01, "split": Split(tail, PACK, 0.1e-3, exposed - tail - PACK - 0.1e-3),
        "communication_only_s": alone, "hidden": 1 - exposed / alone, "calls": tuple(f.nbytes for f in line.calls),
        "adds_up": True, "checks": (InvariantCheck("I1", True, "ranks agree bit by bit"),),
    }  # fmt: skip
    return StrategyResult(strategy, label(strategy), 12, place=place, **{**values, **more})


def predicted(cap):
    line = rank_line(Strategy("overlap_bucket", cap_bytes=cap))
    return line.usable_s - line.backward_s - PACK


def advice():
    caps = tuple((2**k, predicted(2**k)) for k in range(14, 25))
    best = min(caps, key=lambda pair: pair[1])
    at = (1.2, 0.8, 1.0)
    plan = PlanPrediction(PLAN.buckets, 1.2e-3, 0.3e-3, at)
    cap = PlanPrediction(PLAN.buckets, best[1], 0.5e-3, at, cap=best[0])
    default = PlanPrediction((2**23,), predicted(2**23), 4e-3, at)
    return Advice("plan", plan, cap, default, 1.1e-3, 0.8e-3, (0.2, 0.2, 0.2), caps)


def comparison(scenario=SCENARIO, strategies=STRATEGIES):
    """Strategies of which the last two cannot be told apart, one is faster than computing, one is refused."""
    steps = {s: rank_line(s).end_s for s in strategies if s.name != REFERENCE}
    order = sorted(steps, key=lambda s: steps[s])
    places = {s: number + 2 for number, s in enumerate(order)}
    places[order[1]] = places[order[0]]
    results = [result(s, places.get(s)) for s in strategies]
    noop, zero, bf16 = (Strategy("ddp", options=("noop",)), Strategy("zero1"), Strategy("ddp", options=("bf16",)))
    # its calls carry nothing: a step that is a little faster than the reference's, within the noise
    results.append(
        result(
            noop, 1, shift=rank_line(Strategy(REFERENCE)).end_s - rank_line(noop).end_s - 0.4e-3, resolved=False,
            split=None, hidden=None, communication_only_s=None, calls=None, adds_up=None,
            checks=(InvariantCheck("I1", None, "noop does not synchronise"),),
        )
    )  # fmt: skip
    results.append(StrategyResult(bf16, label(bf16), 0, refused="torch's bf16 hook raises on gloo"))
    failed = (InvariantCheck("I12", False, "the shares of the optimizer's state add up to 1.5 copies"),)
    results.append(StrategyResult(zero, label(zero), 0, refused="I12 is violated", checks=failed))
    aa_pairs = (AAPair("ddp", interval(0.1e-3, 0.5e-3)), AAPair("flat", interval(-0.2e-3, 0.4e-3)))
    lines = tuple(timeline(s, scenario=scenario) for s in strategies)
    compute = interval(rank_line(Strategy(REFERENCE)).end_s, 0.1e-3)
    return ScenarioAnalysis(scenario, compute, tuple(results), aa_pairs, 0.6e-3, 14, 168, 2, lines, advice())


def call_sizes():
    return tuple(
        CallSizePoint(
            "gloo",
            world,
            launch,
            6_000_000,
            calls,
            tuple((1 + 0.1 * k) * (12e-3 + 0.6e-3 * calls) * world for k in range(3)),
        )
        for world in (2, 4)
        for launch in (1, 2)
        for calls in (1, 6, 60, 600)
    )


def analysis(scenarios=None):
    return TrainingAnalysis(
        (comparison(),) if scenarios is None else scenarios,
        (InvariantCheck("I11", True, "rank::2 interleaving, padding with the first examples"),),
        call_sizes(),
        (SkippedStrategy(SCENARIO, Strategy("fsdp2"), "an emulated link carries all-reduces only"),),
        (LaunchFailure(SCENARIO.key, 2, "fsdp2", Failure("killed", 1, "rank 1 was ended by SIGKILL")),),
        ("2 ranks share 1 core", f"{SCENARIO.key}: 2 of 168 timed blocks left out: other processes used the CPU"),
    )


def run():
    launch = TrainingLaunch(SCENARIO, 1, STRATEGIES, 7)
    plan = TrainingPlan("invented", (launch,), (), 2, 5, 3, 1, 60.0, 0.06)
    manifest = {"name": "invented", "status": "finished", "started": "2026-01-02T03:04:05+00:00"}
    return TrainingRun(Path("results/invented"), manifest, plan, [], [])
