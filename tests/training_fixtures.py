"""Runs with training steps made of invented numbers.

`run_of` plants effects in the samples of a run. `comparison` computes a step of each strategy by hand (a model, a FIFO
link, and the calls of the strategy on the link), so that the timeline, the times and the split of the step agree.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from collbench.analyze.against import BLOCKS_LEFT_OUT
from collbench.model.conclusions import Analysis, Diagnosis, Interval, Summary
from collbench.model.notices import kind_named
from collbench.model.records import (
    Case,
    Failure,
    InvariantCheck,
    Launch,
    Plan,
    Run,
    Samples,
    Sampling,
    Settings,
    Skip,
    Timings,
    Usage,
)
from collbench.packages.training.catalog.presets import PRESETS, gradients
from collbench.packages.training.conclusions import (
    PACKAGE,
    AAPair,
    Advice,
    PlanPrediction,
    ScenarioAnalysis,
    Split,
    StrategyResult,
    TrainingAnalysis,
    training_of,
)
from collbench.packages.training.planning.buckets import by_caps
from collbench.packages.training.step_records import CallRecord, Link, RankTimeline, StepDetail, Timeline
from collbench.packages.training.synchronisation import (
    PARTS,
    REFERENCE,
    TAILS,
    TRAINING_STEP,
    Scenario,
    StepOptions,
    StepSettings,
    Strategy,
    reference_of,
    with_strategy,
)
from collbench.protocol import messages

STEPS = 5
SCENARIO = Scenario(
    Case(
        "training_step", "gloo", 2, "float32", 0, metric="pipelined", depth=STEPS,
    own=StepOptions(model="micro", batch=8, sequence=64, optimizer="sgd", threads=1))
)  # fmt: skip
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
    Strategy("overlap_bucket", cap_bytes=2**22),
    PLAN,
)


def interval(value, width=0.3e-3):
    return Interval(value, value - width, value + width, "over launches")


def ready_times():
    """Return the ready time per gradient, in the order of the model: the last gradient is ready first."""
    count = len(GRADIENTS)
    return tuple(FORWARD + BACKWARD * (count - number) / count for number in range(count))


def buckets_of(strategy):
    """Return the numbers of the gradients per call."""
    order = list(reversed(range(len(GRADIENTS))))
    if strategy.name == "flat":
        return [order]
    ends = by_caps([GRADIENTS[number].nbytes for number in order], strategy.buckets or (strategy.cap_bytes or 1,))
    return [order[begin:end] for begin, end in pairwise((0, *ends))]


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


def timeline(strategy, ranks=2):
    return Timeline(GRADIENTS, tuple(rank_line(strategy, rank) for rank in range(ranks)))


def case_of(strategy, scenario=SCENARIO):
    return with_strategy(scenario.case, strategy)


def result(strategy, place=None, shift=0.0, scenario=SCENARIO, **more):
    """Return the result that the timeline shows, with `shift` added to exposed communication."""
    line, case = rank_line(strategy), case_of(strategy, scenario)
    step = line.end_s + shift
    exposed = step - rank_line(Strategy(REFERENCE)).end_s
    if strategy.name == REFERENCE:
        general = (InvariantCheck("I4", True, "ranks differ, as must be without synchronisation"),)
        values = {"step": interval(step, 0.1e-3), "step_std": 0.2e-3, "checks": general, "timeline": timeline(strategy)}
        return StrategyResult(case, rounds=12, **{**values, **more})
    alone = sum(f.nbytes / LINK.bytes_per_s + LINK.latency_s for f in line.calls)
    tail = line.usable_s - line.backward_s - PACK
    values = {
        "step": interval(step), "step_std": 0.4e-3, "exposed": interval(exposed), "exposed_std": 0.5e-3,
        "share": exposed / step, "share_std": 0.01, "split": Split(
            tail_s=tail, late_s=0.0, pack_s=PACK, interference_s=0.1e-3, update_s=0.0, gather_s=0.0,
            residual_s=exposed - tail - PACK - 0.1e-3,
        ),
        "calls_alone_s": alone, "hidden": 1 - exposed / alone, "calls": tuple(f.nbytes for f in line.calls),
        "adds_up": True, "checks": (InvariantCheck("I1", True, "ranks agree bit by bit"),),
        "timeline": timeline(strategy),
    }  # fmt: skip
    return StrategyResult(case, rounds=12, place=place, **{**values, **more})


def predicted(cap):
    line = rank_line(Strategy("overlap_bucket", cap_bytes=cap))
    return line.usable_s - line.backward_s - PACK


def advice():
    caps = tuple((2**k, predicted(2**k)) for k in range(14, 25))
    best_cap, best_s = min(caps, key=lambda pair: pair[1])
    cap = PlanPrediction(PLAN.buckets, best_s, 1.3 * best_s, 0.7 * best_s)
    default_s = predicted(2**23)
    default = PlanPrediction((2**23,), default_s, 1.3 * default_s, 0.7 * default_s)
    return Advice(True, best_cap, cap, default, 0.8e-3, 0.2, caps)


def comparison(scenario=SCENARIO, strategies=STRATEGIES):
    """Return an analysis: two strategies share a place, one is faster than computing, and two are refused."""
    steps = {s: rank_line(s).end_s for s in strategies if s.name != REFERENCE}
    order = sorted(steps, key=lambda s: steps[s])
    places = {s: number + 2 for number, s in enumerate(order)}
    places[order[1]] = places[order[0]]
    results = [result(s, places.get(s), scenario=scenario) for s in strategies]
    noop, zero, bf16 = (Strategy("ddp", options=("noop",)), Strategy("zero1"), Strategy("ddp", options=("bf16",)))
    # Calls of noop carry nothing: its step is a little faster than that of the reference, within the noise.
    results.append(
        result(
            noop, 1, shift=rank_line(Strategy(REFERENCE)).end_s - rank_line(noop).end_s - 0.4e-3, scenario=scenario,
            resolved=False, split=None, hidden=None, calls_alone_s=None, calls=None, adds_up=None,
            checks=(InvariantCheck("I1", None, "noop does not synchronise"),), timeline=None,
        )
    )  # fmt: skip
    failed = (InvariantCheck("I12", False, "the shares of the optimizer's state add up to 1.5 copies"),)
    for strategy, reason, checks in ((bf16, "torch's bf16 hook raises on gloo", ()), (zero, "I12 is violated", failed)):
        case = case_of(strategy, scenario)
        results.append(StrategyResult(case, refused=reason, checks=checks))
    aa_pairs = (AAPair(Strategy("ddp"), interval(0.1e-3, 0.5e-3)), AAPair(Strategy("flat"), interval(-0.2e-3, 0.4e-3)))
    compute = interval(rank_line(Strategy(REFERENCE)).end_s, 0.1e-3)
    return ScenarioAnalysis(scenario, tuple(results), compute, aa_pairs, 0.6e-3, 168, 2, advice())


def analysis(scenarios=None):
    """Return the conclusions from `run`, made by hand."""
    scenarios = (comparison(),) if scenarios is None else scenarios
    summaries = tuple(
        Summary(result.case, result.step, launches=2, iterations=result.rounds)
        for scenario in scenarios
        for result in scenario.results
        if result.step is not None
    )
    case = SCENARIO.case
    where = {"what": SCENARIO.options.model, "backend": case.backend, "ranks": case.world_size}
    return Analysis(
        summaries,
        (
            kind_named("crowded")(ranks=(2,), cores=1),
            BLOCKS_LEFT_OUT(**where, dropped=2, blocks=168),
        ),
        Diagnosis(()),
        of_packages={PACKAGE: TrainingAnalysis(scenarios)},
    )


def run():
    """Return a run of STRATEGIES in two launches with details, a strategy that was left out, and a killed strategy."""
    compute_s, killed = rank_line(Strategy(REFERENCE)).end_s, Strategy("zero1")
    made = run_of(
        {strategy: rank_line(strategy).end_s - compute_s for strategy in STRATEGIES}, launches=2, rounds=6,
        noise_s=1e-4, scenario=SCENARIO, strategies=STRATEGIES, compute_s=compute_s,
    )  # fmt: skip
    first, second = made.samples[: len(STRATEGIES)], made.samples[len(STRATEGIES) :]
    details = [StepDetail(tuple(call.nbytes for call in rank_line(s).calls), (), timeline(s)) for s in STRATEGIES]
    first = [replace(samples, detail=detail) for samples, detail in zip(first, details, strict=True)]
    failed = Samples(case_of(killed), 2, 0.0, failure=Failure("killed", 1, "rank 1 was ended by SIGKILL"))
    order = tuple(replace(launch, cases=(*launch.cases, case_of(killed))) for launch in made.plan.order)
    skip = Skip(case_of(Strategy("fsdp2")), kind_named("link-of-all-reduces")(strategy="fsdp2"))
    plan = replace(made.plan, order=order, skips=(skip,))
    return replace(made, samples=[*first, *second, failed], plan=plan)


# ── planted numbers ──────────────────────────────────────────────────────────────────────────────
NANO = Scenario(replace(SCENARIO.case, depth=2, own=replace(SCENARIO.options, model="nano", batch=2, sequence=8)))
COMPUTE_S = 0.1


def with_copies(*strategies):
    """Return the strategies, the reference, and second copies of the reference and first strategy: two A/A pairs."""
    first = [replace(strategies[0], again=1)] if strategies else []
    references = dict.fromkeys(map(reference_of, (Strategy(REFERENCE), *strategies)))
    return (*references, *strategies, Strategy(REFERENCE, again=1), *first)


FLAT_AND_NAIVE = with_copies(Strategy("flat"), Strategy("naive"))


def block(parts_s, wall_s, tails_s=None, steps=2):
    """Return (walls, inner durations) in nanoseconds of a block of two ranks. Arguments: seconds per step, slower rank.

    parts_s: by name, equal on both ranks. tails_s: the tail of every step, per rank; by default that in parts_s.
    """
    tails = tails_s or (parts_s.get("tail", 0.0),) * 2
    walls = (int(steps * wall_s * 0.9e9), int(steps * wall_s * 1e9))
    parts = [{**parts_s, "tail": tail} for tail in tails]
    inner = {name: [int(steps * rank_parts.get(name, 0.0) * 1e9) for rank_parts in parts] for name in PARTS}
    return walls, {**inner, TAILS: [[int(rank_parts["tail"] * 1e9)] * steps for rank_parts in parts]}


def run_of(
    extra_s, launches=4, rounds=12, noise_s=1e-3, foreign=None, hidden_s=0.0, scenario=NANO, strategies=FLAT_AND_NAIVE,
    compute_s=COMPUTE_S, more_parts_s=None, launch_scatter=0.0, factors=None, seed=3, name="t",
):  # fmt: skip
    """Return a run with these planted steps.

    extra_s: seconds that a strategy's tail adds to a step, by strategy or its name. hidden_s: seconds added to steps
    with a tail, but to none of their parts. more_parts_s: seconds per step that do not lengthen it, by part and name of
    a strategy. foreign: share of other processes in a block, from (strategy, round from 1); a share above one tenth
    makes the block three times as long. launch_scatter: standard deviation of the logarithm of all times of a launch.
    factors: factor of the step of a strategy, by its name.
    """
    dice = np.random.default_rng(seed)
    steps = scenario.case.depth
    cases = {strategy: case_of(strategy, scenario) for strategy in strategies}
    samples = []
    for launch in range(1, launches + 1):
        launch_factor = np.exp(dice.normal(0, launch_scatter))
        for strategy, case in cases.items():
            extra = extra_s.get(strategy, extra_s.get(strategy.name, 0.0))
            blocks, shares = [], []
            for number in range(1, rounds + 1):
                drift = 0.2 * compute_s * number / rounds  # the same for all: only pairing within rounds removes it
                share = foreign(strategy, number) if foreign else 0.0
                factor = launch_factor * (factors or {}).get(strategy.name, 1.0) * (3 if (share or 0) > 0.1 else 1)
                wall = compute_s + drift + extra + (hidden_s if extra else 0.0) + dice.normal(0, noise_s)
                parts = {"backward": compute_s + drift, "tail": extra}
                parts |= {part: times_s.get(strategy.name, 0.0) for part, times_s in (more_parts_s or {}).items()}
                parts = {part: factor * time_s for part, time_s in parts.items()}
                blocks.append(block(parts, factor * wall, steps=steps))
                shares.append(share)
            samples.append(samples_of(case, launch, blocks, shares))
    return run_with(samples, scenario, tuple(cases.values()), launches, rounds, name)


def samples_of(case, launch, blocks, shares=(), **more):
    """Return the samples of a case with these blocks, as made by `block`."""
    walls = np.array([walls for walls, _ in blocks], dtype=np.int64)
    inner = {name: np.array([inner[name] for _, inner in blocks], dtype=np.int64) for name in (*PARTS, TAILS)}
    starts = np.arange(len(walls), dtype=np.int64)[:, None] * 10**10 + np.zeros_like(walls)
    timed = Timings(
        starts, walls, calls=case.depth, blocks=(1,) * len(walls), inner_ns=inner, foreign_cpu=tuple(shares)
    )
    usage = Usage(1.0, [0.5] * 2, [3] * 2, [10**8] * 2, 0, [80.0] * 2, None, None)
    return Samples(case, launch, 1e9 + launch, 123, None, timed, "count", usage, **more)


def run_with(samples, scenario=NANO, cases=None, launches=1, rounds=12, name="t"):
    """Return a run of these samples of one scenario. cases: the planned cases; by default the measured cases."""
    case = scenario.case
    cases = tuple(dict.fromkeys(s.case for s in samples)) if cases is None else cases
    order = tuple(Launch(case.backend, case.world_size, number, cases) for number in range(1, launches + 1))
    links = {} if scenario.link is None else {scenario.options.link: scenario.link}
    shapes = {} if scenario.shape is None else {scenario.options.model: scenario.shape}
    own = {TRAINING_STEP: StepSettings(rounds=rounds, links=links, shapes=shapes)}
    settings = Settings(Sampling(5, 0.05, None, 0.05, 1.0, 2000), 1, 60.0, 2**20, own=own)
    manifest = {"name": name, "status": "complete", "started": "2026-01-02T03:04:05+00:00", "finished": None}
    return Run(Path("results") / name, manifest, Plan(name, order, (), launches, settings), [], samples)


def with_training(base, **changes):
    """Return an analysis with other conclusions from training steps; the package shows their cases."""
    concluded = replace(training_of(base), **changes)
    return replace(base, of_packages={PACKAGE: concluded})


def draw_as_text(monkeypatch):
    """Write pictures as SVG, in which text stays text, under the name of the PNG."""
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: save(figure, path, format="svg"))


def answers_of(launcher, entry, job):
    """Run a function of `training_ranks` on two ranks, and return their answers."""
    ranks = launcher.start(2, f"training_ranks:{entry}", job)
    try:
        assert all(member.connection.poll(300) for member in ranks.members), "a rank does not answer"
        answers = [messages.receive(member.connection)[0] for member in ranks.members]
    finally:
        ranks.kill()
    assert {answer["kind"] for answer in answers} == {"done"}, answers
    return answers
