"""Write the results of a training run as tables: Markdown for people, CSV for pandas, JSON for programs.

In: a `ScenarioAnalysis` or a `TrainingAnalysis`. Out: text; of most tables for people, an empty text where there is
nothing to say. Columns have the field's usual names; comm_time is exposed communication, which is what other tools mean
to measure under that name. Computes nothing but layout.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from statistics import median
from typing import Any

import pandas as pd

from bench.catalog.backends import BACKENDS
from bench.catalog.strategies import kind, label
from bench.model.conclusions import Interval, ScenarioAnalysis, Split, StrategyResult, TrainingAnalysis
from bench.model.records import Json, Scenario
from bench.model.training import InvariantCheck, SkippedStrategy, Strategy, TrainingPlan, TrainingRun
from bench.model.units import format_bytes, format_rounded_bytes
from bench.report import machine_format, markdown
from bench.report.labels import NOTHING
from bench.report.training_labels import (
    bounds,
    cell,
    global_batch,
    is_reference,
    names_of,
    ordered,
    percent,
    place_text,
    seconds,
    short_name,
    spread,
)

# What each invariant says, in the order of docs/training.md.
INVARIANTS = {
    "I1": "ranks hold the same bits after some steps",
    "I2": "training equals that of one process with the whole batch",
    "I3": "exact strategies with the same calls give the same bits",
    "I4": "negative control: without synchronisation ranks differ",
    "I5": "bytes sent are the gradients' bytes, once",
    "I6": "the bucket plan is the one that was carried out",
    "I7": "all ranks launch their calls in the same order",
    "I8": "the parts of exposed communication add up to it",
    "I9": "ranks start from the same parameters",
    "I10": "mean and sum of gradients need the learning rate that theory says",
    "I11": "the sampler gives each rank its share of the data",
    "I12": "shares of the optimizer's state add up to one copy",
}
# Most reasons, or violating strategies, that one cell lists.
MOST_NAMED = 4
PREDICTION = (
    "Predicted from the link and from when gradients become ready; where communication takes CPU time from computing, "
    "it is a lower bound."
)
SHARED_CORES = "; computing and communicating share cores here, so that the size of buckets hardly matters"
NO_STRATEGY = "the run itself"
NOT_TIMED = "No strategy was timed."


# ── for people, of one scenario ──────────────────────────────────────────────────────────────────
def overview(comparison: ScenarioAnalysis) -> str:
    """One row for each strategy that was timed, by place: estimate ± standard deviation over rounds."""
    scenario, names = comparison.scenario, names_of(comparison)
    rows = [
        [
            scenario.case.model,
            scenario.case.backend,
            str(scenario.case.world_size),
            str(global_batch(scenario)),
            names[result.label],
            place_text(result, comparison),
            spread(result.step.value, result.step_std, seconds),
            spread(_value(result.exposed), result.exposed_std, seconds),
            bounds(result.exposed),
            spread(result.share, result.share_std, percent),
            percent(result.hidden),
        ]
        for result in ordered(comparison)
        if result.step is not None
    ]
    headers = ["model", "backend", "world_size", "global_batch_size", "strategy", "place"]
    headers += ["step_time ± std", "comm_time ± std", "its 95 % interval", "comm_frac ± std, %", "hidden, %"]
    align = ["left", "left", "right", "right", "left", "left", *["right"] * 5]
    return markdown.table(rows, headers, align) if rows else NOT_TIMED


def brief(comparison: ScenarioAnalysis) -> str:
    """The table of `overview` for a terminal: without standard deviations, and without what the title says."""
    names = names_of(comparison)
    rows = [
        [
            names[result.label],
            place_text(result, comparison).removesuffix(", not resolved"),
            seconds(result.step.value),
            f"{seconds(result.exposed.value)} {bounds(result.exposed)}" if result.exposed else NOTHING,
            percent(result.share),
        ]
        for result in ordered(comparison)
        if result.step is not None
    ]
    headers = ["strategy", "place", "step_time", "comm_time [95 % interval]", "of it, %"]
    return markdown.table(rows, headers, ["left", "left", *["right"] * 3]) if rows else NOT_TIMED


def split(comparison: ScenarioAnalysis) -> str:
    """The parts of exposed communication: one row for each strategy with a split."""
    names, rows = names_of(comparison), []
    sharded = any(kind(result.strategy).sharded for result in comparison.results)
    for result in ordered(comparison):
        parts = result.split
        if parts is None:
            continue
        times = [parts.tail_s, parts.late_s, parts.pack_s, parts.interference_s, parts.update_s]
        times += [*([parts.gather_s] if sharded else []), parts.residual_s, result.communication_only_s]
        adds_up = {True: "yes", False: "NO", None: NOTHING}[result.adds_up]
        calls = NOTHING if result.calls is None else str(len(result.calls))
        rows.append([names[result.label], calls, seconds(_value(result.exposed)), *map(seconds, times), adds_up])
    headers = ["strategy", "calls a step", "comm_time", "tail", "of it late ranks", "pack", "interference", "update"]
    headers += [*(["gather"] if sharded else []), "residual", "calls alone", "adds up"]
    return _table(rows, headers, ["left", *["right"] * (len(headers) - 2), "left"])


def refused(comparison: ScenarioAnalysis) -> str:
    """Strategies without times, with the reason."""
    names = names_of(comparison)
    return markdown.lines(
        f"**{names[result.label]}** got no times: {cell(result.refused)}"
        for result in ordered(comparison)
        if result.refused
    )


def ranking(comparison: ScenarioAnalysis) -> str:
    """The order in words: a line for each place, for what is not resolved, and for what the run itself advised."""
    scenario, names = comparison.scenario, names_of(comparison)
    timed = [result for result in ordered(comparison) if result.step is not None and not is_reference(result)]
    places: dict[int, list[StrategyResult]] = {}
    for result in timed:
        if result.place is not None:
            places.setdefault(result.place, []).append(result)
    lines = []
    for place, members in places.items():
        steps = [result.step.value for result in members if result.step]
        if len(members) == 1:
            lines.append(f"**{place}.** {names[members[0].label]}: {seconds(steps[0])} a step")
            continue
        # Whether several of these send during backward, and differ in what they send when.
        distinct = {replace(result.strategy, again=0) for result in members}
        kinds = [kind(strategy) for strategy in distinct]
        differ = sum(entry.overlaps and entry.all_reduces and entry.sends for entry in kinds) > 1
        on_cores = scenario.link is None and BACKENDS[scenario.case.backend].device == "cpu"
        which = ", ".join(names[result.label] for result in members)
        why = SHARED_CORES if on_cores and differ else ""
        span = f"{seconds(min(steps))} to {seconds(max(steps))} a step"
        lines.append(f"**{place}.** {which}: {span}, cannot be told apart{why}")
    unresolved = [names[result.label] for result in timed if not result.resolved]
    if unresolved:
        verb = "exposes" if len(unresolved) == 1 else "expose"
        lines.append(f"**not resolved**: the interval of what {', '.join(unresolved)} {verb} holds 0")
    for result in timed:
        if result.strategy.called and result.strategy.name == "ddp":
            cap, sizes = result.strategy.cap_bytes, ", ".join(map(format_rounded_bytes, result.strategy.buckets))
            setting = f"bucket_cap_mb={cap / 2**20:g}" if cap else f"buckets of {sizes}"
            lines.append(
                f"**{names[result.label]}**: DistributedDataParallel with {setting}, as the launches before it advised"
            )
    return markdown.lines(lines)


def aa_pairs(comparison: ScenarioAnalysis) -> str:
    """The A/A pairs: what two copies of one strategy differ by."""
    rows = []
    for pair in comparison.aa_pairs:
        difference, holds_zero = pair.difference, NOTHING
        if difference.known:
            # One in twenty intervals of 95 % misses the true value.
            inside = difference.low <= 0 <= difference.high
            holds_zero = "yes" if inside else "NO (by chance, 1 pair in 20 does not)"
        rows.append([short_name(pair.label), seconds(difference.value), bounds(difference), holds_zero])
    headers = ["strategy, twice", "second − first, a step", "its 95 % interval", "holds 0"]
    return _table(rows, headers, ["left", "right", "right", "left"])


def advice(comparison: ScenarioAnalysis) -> str:
    """The advised plan, the best cap and torch's default: the predicted tail, and what was measured of them."""
    advised = comparison.advice
    if advised is None:
        return ""
    default = Strategy("plan", buckets=advised.default.buckets) if comparison.scenario.shape else Strategy("ddp")
    measured = {
        replace(result.strategy, called=""): (
            seconds(result.split.tail_s - result.split.late_s),
            f"{seconds(result.exposed.value)} {bounds(result.exposed)}",
        )
        for result in comparison.results
        if result.split and result.exposed
    }
    plan, cap = Strategy("plan", buckets=advised.plan.buckets), Strategy("overlap_bucket", cap_bytes=advised.cap.cap)
    rows = [
        [
            name,
            which,
            seconds(prediction.exposed_s),
            seconds(prediction.worst_regret_s),
            *measured.get(strategy, (NOTHING, NOTHING)),
        ]
        for name, which, prediction, strategy in (
            ("plan", f"{len(advised.plan.buckets)} buckets", advised.plan, plan),
            ("best uniform cap", format_bytes(advised.cap.cap or 0), advised.cap, cap),
            ("torch's default", NOTHING, advised.default, default),
        )
    ]
    rows.append(["bound: no plan beats it", NOTHING, seconds(advised.bound_s), NOTHING, NOTHING, NOTHING])
    headers = ["buckets", "which", "predicted tail", "worst regret", "measured tail"]
    headers.append("exposed communication (comm_time)")
    table = markdown.table(rows, headers, ["left", "left", *["right"] * 4])
    sizes = ", ".join(map(format_rounded_bytes, advised.plan.buckets))
    what = {"default": "Leave torch's default", "cap": "Set the cap", "plan": "Set the plan"}[advised.advised]
    return f"**{what}.** {PREDICTION} The plan, in the order in which buckets are sent: {sizes}.\n\n{table}"


# ── for people, of the run ───────────────────────────────────────────────────────────────────────
def invariants(analysis: TrainingAnalysis) -> str:
    """One row for each invariant: how many strategies keep it, which violate it, why it does not apply to others."""
    all_checks = checks(analysis)
    rows = []
    for invariant in dict.fromkeys([*INVARIANTS, *(check.invariant for _, check in all_checks)]):
        of_it = [(strategy, check) for strategy, check in all_checks if check.invariant == invariant]
        kept = {strategy for strategy, check in of_it if check.ok}
        violations = [(strategy, check) for strategy, check in of_it if check.ok is False]
        violating = {strategy for strategy, _ in violations}
        # A strategy checked in several launches keeps an invariant if it violates it in none of them.
        holds = str(len(kept - violating)) if of_it else "not checked"
        reasons = Counter(
            check.text for strategy, check in of_it if check.ok is None and strategy not in kept | violating
        )
        rows.append(
            [
                invariant,
                INVARIANTS.get(invariant, NOTHING),
                holds,
                _listed(f"{strategy}: {check.text}" for strategy, check in violations),
                _listed(f"{count} × {text}" for text, count in reasons.items()),
            ]
        )
    headers = ["invariant", "what must hold", "holds of", "VIOLATED by", "does not apply"]
    return markdown.table(rows, headers, ["left", "left", "right", "left", "left"])


def checks(analysis: TrainingAnalysis) -> list[tuple[str, InvariantCheck]]:
    """Every check with the strategy that was checked; the words name the scenario too where there are several."""
    named = [(NO_STRATEGY, check) for check in analysis.checks]
    for comparison in analysis.scenarios:
        where = f" ({comparison.scenario.case.key})" if len(analysis.scenarios) > 1 else ""
        names = names_of(comparison)
        named += [(names[result.label] + where, check) for result in comparison.results for check in result.checks]
    return named


def call_sizes(analysis: TrainingAnalysis) -> str:
    """The call-size sweep: medians over repetitions and launches, and their ratio to the fastest point."""
    sweeps: dict[tuple[str, int, int], dict[int, list[float]]] = {}
    for point in analysis.call_sizes:
        sweep = sweeps.setdefault((point.backend, point.world_size, point.parameters), {})
        sweep.setdefault(point.calls, []).extend(point.times_s)
    rows = []
    for (backend, world, parameters), sweep in sweeps.items():
        times = {calls: median(values) for calls, values in sorted(sweep.items()) if values}
        best = min(times.values(), default=0.0)
        for calls, time in times.items():
            ratio = f"{time / best:.1f}" if best else NOTHING
            a_call = f"{parameters / calls:,.0f}"
            rows.append([backend, str(world), f"{parameters:,}", str(calls), a_call, seconds(time), ratio])
    headers = ["backend", "ranks", "parameters", "calls", "parameters a call", "median time", "times the fastest"]
    return _table(rows, headers, ["left", *["right"] * 6])


def left_out(analysis: TrainingAnalysis) -> str:
    """The strategies that were asked for and not measured: one row for each strategy and reason."""
    reasons: dict[tuple[str, str], list[SkippedStrategy]] = {}
    for skip in analysis.skips:
        name = short_name(label(skip.strategy)) if skip.strategy else "all strategies"
        reasons.setdefault((name, skip.reason), []).append(skip)
    rows = [
        [name, _listed(skip.scenario.case.key for skip in skips), cell(reason)]
        for (name, reason), skips in reasons.items()
    ]
    return _table(rows, ["strategy", "scenario", "why"], ["left"] * 3)


def failures(analysis: TrainingAnalysis) -> str:
    """Launches and strategies that did not reach their end."""
    rows = [
        [
            broken.scenario,
            str(broken.launch),
            NOTHING if broken.strategy is None else short_name(broken.strategy),
            broken.failure.kind,
            NOTHING if broken.failure.rank is None else str(broken.failure.rank),
            cell(broken.failure.text),
        ]
        for broken in analysis.failures
    ]
    return _table(rows, ["scenario", "launch", "strategy", "kind", "rank", "what happened"], ["left"] * 6)


def _table(rows: list[list[str]], headers: list[str], align: list[str]) -> str:
    return markdown.table(rows, headers, align) if rows else ""


def _listed(items: Iterable[str]) -> str:
    """Each item once, the first MOST_NAMED of them, in one cell."""
    distinct = list(dict.fromkeys(map(cell, items)))
    more = [f"and {len(distinct) - MOST_NAMED} more"] if len(distinct) > MOST_NAMED else []
    return "; ".join(distinct[:MOST_NAMED] + more) or NOTHING


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


# ── for pandas and programs ──────────────────────────────────────────────────────────────────────
def to_csv(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """One typed row for each strategy and scenario: seconds and shares; empty where there is no number."""
    table = pd.DataFrame(_rows(run.plan, analysis))
    return str((table.convert_dtypes() if len(table) else table).to_csv(index=False))


def to_json(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The rows of `to_csv` and the rest of the analysis, as one object; null where there is no number."""
    # Every check, with its scenario and strategy; both null where it concerns the whole run.
    all_checks: list[Json] = [{"scenario": None, "strategy": None, **asdict(check)} for check in analysis.checks]
    for comparison in analysis.scenarios:
        for result in comparison.results:
            origin = {"scenario": comparison.scenario.case.key, "strategy": result.label}
            all_checks += [{**origin, **asdict(check)} for check in result.checks]
    data = {
        **machine_format.head(run),
        "strategies": _rows(run.plan, analysis),
        "scenarios": [
            {
                "scenario": comparison.scenario.case.key,
                "compute": asdict(comparison.compute) if comparison.compute else None,
                "noise_s": comparison.noise_s,
                "rounds": comparison.rounds,
                "blocks": comparison.blocks,
                "dropped": comparison.dropped,
                "aa_pairs": [asdict(pair) for pair in comparison.aa_pairs],
                "advice": asdict(comparison.advice) if comparison.advice else None,
            }
            for comparison in analysis.scenarios
        ],
        "checks": all_checks,
        "call_sizes": [asdict(point) for point in analysis.call_sizes],
        "left": [{**asdict(skip), "scenario": skip.scenario.case.key} for skip in analysis.skips],
        "failures": [asdict(failure) for failure in analysis.failures],
        "warnings": list(analysis.warnings),
    }
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False)


def _rows(plan: TrainingPlan, analysis: TrainingAnalysis) -> list[Json]:
    return [
        _row(plan, comparison.scenario, result) for comparison in analysis.scenarios for result in ordered(comparison)
    ]


def _row(plan: TrainingPlan, scenario: Scenario, result: StrategyResult) -> Json:
    link, parts = scenario.link, result.split
    return {
        "model": scenario.case.model,
        "backend": scenario.case.backend,
        "world_size": scenario.case.world_size,
        "global_batch_size": global_batch(scenario),
        "warmup_steps": plan.warmup,
        "benchmark_steps": plan.steps * result.rounds,
        "strategy": result.label,
        **_columns("step_time", result.step, result.step_std),
        **_columns("comm_time", result.exposed, result.exposed_std),
        "comm_frac_avg": result.share,
        "comm_frac_std": result.share_std,
        "hidden": result.hidden,
        **{part.name: getattr(parts, part.name) if parts else None for part in fields(Split)},
        "calls_alone_s": result.communication_only_s,
        "calls": len(result.calls) if result.calls is not None else None,
        "place": result.place,
        "resolved": result.resolved if result.step else None,
        "adds_up": result.adds_up,
        "rounds": result.rounds,
        "refused": result.refused,
        "sequence": scenario.case.sequence,
        "dtype": scenario.case.dtype,
        "optimizer": scenario.case.optimizer,
        "threads": scenario.case.threads,
        "link_latency_s": link.latency_s if link else None,
        "link_bytes_per_s": link.bytes_per_s if link else None,
        "bucket_bytes": result.strategy.cap_bytes,
        "accumulate": result.strategy.accumulate,
        "scenario": scenario.case.key,
    }


def _columns(name: str, interval: Interval | None, std: float | None) -> Json:
    known = interval is not None and interval.known
    return {
        f"{name}_avg": _value(interval),
        f"{name}_std": std,
        f"{name}_low": interval.low if interval and known else None,
        f"{name}_high": interval.high if interval and known else None,
    }


def _finite(data: Any) -> Any:
    """The same data with None for numbers that JSON cannot hold: NaN and infinities."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
