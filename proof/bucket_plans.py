"""Plans of buckets: is what is predicted what is measured, and is the best one better than what people use?"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from bench.advise import advisor, planner, runs
from bench.advise.runs import shape_of as shape_of_run
from bench.advise.runs import stretch_of
from bench.analyze.analysis import analyze
from bench.analyze.summaries import headlines
from bench.analyze.training import by_launch, estimate, left_s, rounds_of, scenarios_of
from bench.catalog.presets import PRESETS
from bench.catalog.strategies import text_of
from bench.model.conclusions import Verified
from bench.model.records import Case, Run
from bench.model.training import Strategy
from bench.model.units import format_seconds
from bench.planning import buckets
from bench.planning import link_model as known_links
from bench.planning.buckets import ReadyTimes
from bench.planning.link_model import AllReduceCost
from bench.planning.training import shape_of
from proof import links
from proof.claim import Effort, Outcome, counted
from proof.links import NamespacedLauncher
from proof.rig import Rig

MS = 1e-3
LATENCY_S, BYTES_PER_S = 2e-3, 1e9
EMULATED = AllReduceCost.of_link(LATENCY_S, BYTES_PER_S)
MIB = 2**20
ROOT = Path(__file__).resolve().parents[1]
# What must be told apart in the order of buckets.
APART_S = 2e-3
CAPS = (256 * 1024, 512 * 1024, MIB, 3 * MIB // 2, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 12 * MIB, 16 * MIB)
BEFORE = (2 * MIB, 8 * MIB)
TRAINING = """
backends: [gloo]
world_sizes: [2]
launches: {launches}
training:
  models: [{model}]
  links: [{link}]
  batch: 1
  rounds: 8
  steps: 2
  strategies: {strategies}
"""
CURVE = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
metrics: [pipelined]
buffers: hot
launches: {launches}
sizes: {{from: 4KiB, to: 32MiB, factor: 2}}
sampling: {{warmup: 2, warmup_seconds: 0, iterations: 8}}
timeout: 60s
"""
# A link on which tiny's gradients take about as long as this backward: 27 MB at 1 Gbit/s.
SHAPED, SHAPED_BACKWARD_S = "1gbit", 0.25


# ── on paper ─────────────────────────────────────────────────────────────────────────────────────
def planning(_: Rig, effort: Effort) -> list[Outcome]:
    """The largest preset, from its sizes to the whole advice."""
    times, advised = [], []
    for _ in range(effort.splits):
        began = time.perf_counter()
        profile = ReadyTimes.of_shape(shape_of("xl-2026", 1.0, "float32"))
        planner.optimal(profile, EMULATED)
        times.append(time.perf_counter() - began)
        advisor.advise(profile, EMULATED)
        advised.append(time.perf_counter() - began)
    return [
        Outcome(
            f"the exact plan of xl-2026, {len(profile.nbytes)} gradients of {profile.total / 4e9:.2f} billion in all",
            "< 1 s",
            f"{format_seconds(max(times))} at most of {len(times)}; all of `advise` {format_seconds(max(advised))}",
            max(advised) < 1,
        )
    ]


def against_uniform_caps(_: Rig, effort: Effort) -> list[Outcome]:
    """The model of a FIFO link only; regrets over a finer grid than the one by which the plan was chosen."""
    worse, advised, caps, defaults, exact = 0, [], [], [], []
    finer = planner.Grid.over(planner.Box(), 9)
    for preset in PRESETS:
        for backward_s in (0.01, 0.06, 0.3, 2.0):
            for latency_s, rate in ((50e-6, 1e10), (1e-4, 1e8), (2e-3, 1e9), (1e-2, 1e10)):
                profile, cost = _of(preset, backward_s), AllReduceCost.of_link(latency_s, rate)
                found = advisor.advise(profile, cost)
                least = planner.least_exposures(profile, cost, finer)
                mine, cap, default, optimal = (
                    float(np.max(planner.exposures(profile, plan, cost, finer) - least)) / MS
                    for plan in (
                        *(advisor.plan_of(profile, one) for one in (found.plan, found.cap, found.default)),
                        planner.optimal(profile, cost),
                    )
                )
                worse += mine > min(cap, default) + planner.RESOLUTION_S / MS
                advised.append(mine)
                caps.append(cap)
                defaults.append(default)
                exact.append(optimal)
    said = "; ".join(
        f"{name} {np.median(regrets):.2f} ms in the median, {max(regrets):.1f} ms at most"
        for name, regrets in (
            ("the plan", advised), ("the best cap", caps), ("torch's default", defaults), ("best as assumed", exact),
        )
    )  # fmt: skip
    return [
        Outcome(
            "worst regret of the advised plan over ±20 %, all presets, 4 backwards, 4 links, 729 points each",
            "never above that of the best cap or of torch's default",
            f"{len(advised) - worse} of {len(advised)}: {said}",
            worse == 0,
        )
    ]


def _of(preset: str, backward_s: float) -> ReadyTimes:
    return ReadyTimes.of_shape(shape_of(preset, backward_s, "float32"))


# ── on an emulated link ──────────────────────────────────────────────────────────────────────────
def tails(rig: Rig, effort: Effort) -> list[Outcome]:
    """Every plan on ranks: of tiny by its shape, whose backward waits, and of tiny itself, which computes."""
    shape = shape_of("tiny", 0.06, "float32")
    found = []
    for words, model, profile in (
        ("tiny by its shape", "{shape: tiny, backward: 60ms}", ReadyTimes.of_shape(shape)),
        ("tiny itself", "tiny", _recorded(rig)),
    ):
        asked = _asked(profile)
        text = _text(model, "2ms + 1GB/s", effort.links, [strategy for strategy, _ in asked.values()])
        run = rig.measure(text)
        of_shape = "shape" in model
        pairs = _pairs(run, asked, profile, EMULATED) if of_shape else _pairs_over_launches(run, asked)
        close = sum(bool(Verified(name, *pair).holds) for name, pair in pairs.items())
        off = np.array([abs(measured - predicted) for predicted, measured in pairs.values()]) / MS
        found.append(
            Outcome(
                f"predicted against measured tail on an emulated link of 2 ms and 1 GB/s, {words}, {len(pairs)} plans",
                "within max(1 ms, 10 %) in 90 %",
                f"{close} of {len(pairs)}; off by {np.median(off):.2f} ms in the median, {off.max():.2f} ms at most",
                close >= 0.9 * len(pairs),
            )
        )
    return found


def _recorded(rig: Rig) -> ReadyTimes:
    """Of tiny itself, as one short run has it."""
    return _ready(rig.measure(_text("tiny", "2ms + 1GB/s", 1, [Strategy("flat")])))


def _ready(run: Run) -> ReadyTimes:
    """As the run's own advice has it."""
    (scenario,) = scenarios_of(run)
    return ReadyTimes.of_shape(shape_of_run(run, scenario))


def _asked(profile: ReadyTimes) -> dict[str, tuple[Strategy, planner.BucketPlan]]:
    """Eighteen plans, each as a strategy."""
    every = len(profile.nbytes)
    found = {
        "all in one": (Strategy("flat"), (every,)),
        "one call a gradient": (Strategy("overlap_param"), tuple(range(1, every + 1))),
        "best": (_plan(profile, best := planner.optimal(profile, EMULATED)), best),
        "torch's default": (_plan(profile, default := buckets.torch_default(profile)), default),
        "25 MiB": (_plan(profile, large := buckets.uniform(profile, buckets.TORCH_CAPS[1])), large),
    }
    for cap in CAPS:
        found[f"cap {cap}"] = (Strategy("overlap_bucket", cap_bytes=cap), buckets.uniform(profile, cap))
    for cap in BEFORE:
        strategy = Strategy("overlap_bucket", cap_bytes=cap, bucket_boundary="before")
        found[f"before {cap}"] = (strategy, buckets.uniform(profile, cap, "before"))
    return found


def _plan(profile: ReadyTimes, ends: planner.BucketPlan) -> Strategy:
    return Strategy("plan", buckets=buckets.bucket_bytes(profile, ends))


def _text(model: str, link: str, launches: int, strategies: list[Strategy]) -> str:
    """A configuration; JSON is YAML."""
    asked = []
    for one in strategies:
        settings: dict[str, object] = {}
        if one.cap_bytes is not None:
            settings |= {"cap": one.cap_bytes, "bucket_boundary": one.bucket_boundary}
        if one.buckets:
            settings["buckets"] = list(one.buckets)
        asked.append({one.name: settings} if settings else one.name)
    return TRAINING.format(model=model, link=link, launches=launches, strategies=json.dumps(asked))


def _pairs_over_launches(
    run: Run, asked: dict[str, tuple[Strategy, planner.BucketPlan]]
) -> dict[str, tuple[float, float]]:
    """Means of each launch's prediction, from its own ready times, and of its tail."""
    launches = []
    for number in range(1, run.plan.launches + 1):
        one = of_launches(run, [number])
        launches.append(_pairs(one, asked, _ready(one), EMULATED))
    return {name: tuple(np.mean([pairs[name] for pairs in launches], axis=0)) for name in asked}


def of_launches(run: Run, wanted: Sequence[int]) -> Run:
    """What a run of these launches only would be; the steps in detail are those of the whole run."""
    order = tuple(launch for launch in run.plan.order if launch.number in wanted)
    samples = [
        entry if entry.launch in wanted else replace(entry, timed=None)
        for entry in run.samples
        if entry.launch in wanted or entry.detail is not None
    ]
    return replace(run, plan=replace(run.plan, order=order), samples=samples)


def _pairs(
    run: Run, asked: dict[str, tuple[Strategy, planner.BucketPlan]], profile: ReadyTimes, cost: AllReduceCost
) -> dict[str, tuple[float, float]]:
    """(predicted, measured) tails, of the rank that came last in a step."""
    (comparison,) = analyze(run).scenarios
    stretch = stretch_of(run, comparison.scenario, profile)
    plans = runs.verified(asked, profile, cost, comparison.results, stretch)
    return {plan.name: (plan.predicted_s, plan.tail_s) for plan in plans}


def order_of_buckets(rig: Rig, effort: Effort) -> list[Outcome]:
    """The first half of `make bench-ddp`, again and again: 1, 4, 16 MiB, torch's default, the advised plan, and flat.

    Right: of two that are predicted to differ by APART_S or more, the difference is resolved and has the predicted
    sign; two copies of one strategy are not resolved from each other.
    """
    text = (ROOT / "configs/ddp-buckets.yaml").read_text()
    right, alike, off = 0, 0, []
    for _ in range(effort.minutes):
        run = rig.measure(text)
        (comparison,) = analyze(run).scenarios
        rounds, profile = rounds_of(run, comparison.scenario), ReadyTimes.of_shape(comparison.scenario.shape)
        flat, again = (
            replace(comparison.scenario.case, strategy=text_of(Strategy("flat", again=copy))) for copy in (0, 1)
        )
        ends = {result.case: buckets.of_strategy(profile, result.strategy) for result in comparison.results}
        predicted = {case: planner.exposed(profile, plan, EMULATED) for case, plan in ends.items() if plan}
        predicted[flat] = planner.exposed(profile, (len(profile.nbytes),), EMULATED)
        pairs = [pair for pair in combinations(predicted, 2) if abs(_apart(predicted, *pair)) >= APART_S]
        differences = [estimate(by_launch(rounds, a, left_s, b)) for a, b in pairs]
        right += all(
            (found.low > 0) if _apart(predicted, *pair) > 0 else (found.high < 0)
            for pair, found in zip(pairs, differences, strict=True)
        )
        copies = estimate(by_launch(rounds, again, left_s, flat))
        alike += copies.low <= 0 <= copies.high
        off += [pair.difference.value for pair in comparison.aa_pairs]
    return [
        Outcome(
            "order of buckets on the emulated link: every pair that theory separates by "
            f"{APART_S / MS:g} ms is resolved",
            "in ≥ 9 of 10 runs",
            counted(right, effort.minutes),
            right >= 0.9 * effort.minutes,
        ),
        Outcome(
            "and two copies of one strategy are not", "in ≥ 9 of 10 runs", counted(alike, effort.minutes),
            alike >= 0.9 * effort.minutes,
        ),
        Outcome(
            "exposed time of A/A pairs in these runs",
            "within ±6 ms in 9 of 10",
            f"{sum(abs(one) <= 6 * MS for one in off)} of {len(off)}; {max(map(abs, off)) / MS:.2f} ms at most",
            sum(abs(one) <= 6 * MS for one in off) >= 0.9 * len(off),
        ),
    ]  # fmt: skip


def _apart(predicted: dict[Case, float], a: Case, b: Case) -> float:
    return predicted[a] - predicted[b]


# ── on a real one ────────────────────────────────────────────────────────────────────────────────
def on_a_shaped_link(rig: Rig, effort: Effort) -> list[Outcome]:
    """Two namespaces and a cable: the link's own curve is measured first, then plans on it."""
    claims = (
        f"predicted against measured tail on a link shaped to {SHAPED}, tiny by its shape, {SHAPED_BACKWARD_S * 1e3:g} "
        "ms backward",
        "the same order: of two plans predicted to differ by a fifth, the shorter tail is the one predicted",
    )
    reason = links.unsupported()
    if reason:
        return [Outcome(claim, "", reason, None) for claim in claims]
    profile = ReadyTimes.of_shape(shape_of("tiny", SHAPED_BACKWARD_S, "float32"))
    # Back to back, as buckets follow each other: a call alone also waits for its own messages' ways there and back.
    sweep = CURVE.format(launches=effort.links)
    with links.shaped_pair(SHAPED) as network:
        starter = NamespacedLauncher(rig.launcher, network)
        cost = known_links.measured(headlines(rig.measure(sweep, starter)), "proof", "float32").cost
        asked = {name: one for name, one in _asked(profile).items() if name in ON_SHAPED}
        asked["best"] = (_plan(profile, ends := planner.optimal(profile, cost)), ends)
        model = f"{{shape: tiny, backward: {SHAPED_BACKWARD_S}s}}"
        text = _text(model, "real", effort.links, [strategy for strategy, _ in asked.values()])
        pairs = _pairs(rig.measure(text, starter), asked, profile, cost)
    off = {name: measured / predicted - 1 for name, (predicted, measured) in pairs.items()}
    close = sum(abs(one) <= 0.2 for one in off.values())
    apart = [(a, b) for a, b in combinations(pairs.values(), 2) if max(a[0], b[0]) > 1.2 * min(a[0], b[0])]
    alike = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)
    said = ", ".join(
        f"{name} {pairs[name][0] / MS:.0f} → {pairs[name][1] / MS:.0f} ms ({off[name]:+.0%})" for name in off
    )
    return [
        Outcome(claims[0], "within 20 %", f"{close} of {len(off)}: {said}", close == len(off)),
        Outcome(claims[1], "every pair", f"{alike} of {len(apart)}", alike == len(apart)),
    ]


ON_SHAPED = {"all in one", "torch's default", f"cap {MIB}", f"cap {4 * MIB}", f"cap {8 * MIB}", f"cap {16 * MIB}"}
