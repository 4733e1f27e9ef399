"""Write the results of strategies as tables: Markdown for people, CSV for pandas, JSON for programs.

In: a `ScenarioAnalysis` or a `TrainingAnalysis`. Out: text. Columns have the field's usual names; comm_time is exposed
communication, which is what other tools mean to measure under that name. Computes nothing but layout.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from bench.model.conclusions import Interval
from bench.model.records import Json
from bench.report import markdown
from bench.training.conclusions import ScenarioAnalysis, Split, StrategyResult, TrainingAnalysis
from bench.training.records import InvariantCheck, Scenario, TrainingPlan
from bench.training.report.labels import (
    NOTHING,
    bounds,
    cell,
    global_batch,
    names,
    ordered,
    percent,
    place_text,
    seconds,
    spread,
)
from bench.training.strategies import kind


# ── for people ───────────────────────────────────────────────────────────────────────────────────
def overview(comparison: ScenarioAnalysis) -> str:
    """One row for each strategy that was timed, by place: estimate ± standard deviation over rounds."""
    scenario, called = comparison.scenario, _names(comparison)
    rows = [
        [
            scenario.model,
            scenario.backend,
            str(scenario.world_size),
            str(global_batch(scenario)),
            called[result.label],
            place_text(result, comparison),
            spread(_value(result.step), result.step_std, seconds),
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
    return markdown.table(rows, headers, align) if rows else "No strategy was timed."


def brief(comparison: ScenarioAnalysis) -> str:
    """The same for a terminal: without what the title says, and without standard deviations."""
    called = _names(comparison)
    rows = [
        [
            called[result.label],
            place_text(result, comparison).removesuffix(", not resolved"),
            seconds(_value(result.step)),
            f"{seconds(_value(result.exposed))} {bounds(result.exposed)}" if result.exposed else NOTHING,
            percent(result.share),
        ]
        for result in ordered(comparison)
        if result.step is not None
    ]
    headers = ["strategy", "place", "step_time", "comm_time [95 % interval]", "of it, %"]
    return markdown.table(rows, headers, ["left", "left", *["right"] * 3]) if rows else "No strategy was timed."


def split(comparison: ScenarioAnalysis) -> str:
    """Where exposed communication goes: one row for each strategy with a split; empty if there is none."""
    called, rows = _names(comparison), []
    sharded = any(kind(result.strategy).sharded for result in comparison.results)
    for result in ordered(comparison):
        parts = result.split
        if parts is None:
            continue
        times = [parts.tail_s, parts.late_s, parts.pack_s, parts.interference_s, parts.update_s]
        times += [*([parts.gather_s] if sharded else []), parts.residual_s, result.communication_only_s]
        adds_up = {True: "yes", False: "NO", None: NOTHING}[result.adds_up]
        calls = NOTHING if result.calls is None else str(len(result.calls))
        exposed = seconds(_value(result.exposed))
        rows.append([called[result.label], calls, exposed, *map(seconds, times), adds_up])
    headers = ["strategy", "calls a step", "comm_time", "tail", "of it late ranks", "pack", "interference", "update"]
    headers += [*(["gather"] if sharded else []), "residual", "calls alone", "adds up"]
    return markdown.table(rows, headers, ["left", *["right"] * (len(headers) - 2), "left"]) if rows else ""


def refused(comparison: ScenarioAnalysis) -> str:
    """Strategies without times, with the reason; empty if there are none."""
    called = _names(comparison)
    found = [f"**{called[o.label]}** got no times: {cell(o.refused)}" for o in ordered(comparison) if o.refused]
    return markdown.lines(found)


def _names(comparison: ScenarioAnalysis) -> dict[str, str]:
    return names([result.label for result in comparison.results])


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


# ── for pandas and programs ──────────────────────────────────────────────────────────────────────
def frame(analysis: TrainingAnalysis, plan: TrainingPlan | None = None) -> pd.DataFrame:
    """One typed row for each strategy and scenario: seconds, bytes and shares; empty where there is no number."""
    table = pd.DataFrame(_rows(analysis, plan))
    return table.convert_dtypes() if len(table) else table


def to_csv(analysis: TrainingAnalysis, plan: TrainingPlan | None = None) -> str:
    """`frame` as CSV text. The plan adds the numbers of warm-up steps and of timed steps."""
    return str(frame(analysis, plan).to_csv(index=False))


def to_json(analysis: TrainingAnalysis, plan: TrainingPlan | None = None, head: Json | None = None) -> str:
    """The rows of `frame` and the rest of the analysis; null where there is no number. head: comes before them."""
    data = {
        **(head or {}),
        "strategies": _rows(analysis, plan),
        "scenarios": [_scenario_json(comparison) for comparison in analysis.scenarios],
        "checks": _checks(analysis),
        "call_sizes": [asdict(point) for point in analysis.call_sizes],
        "left": [{**asdict(left), "scenario": left.scenario.key} for left in analysis.skips],
        "failures": [asdict(failure) for failure in analysis.failures],
        "warnings": list(analysis.warnings),
    }
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False)


def _rows(analysis: TrainingAnalysis, plan: TrainingPlan | None) -> list[Json]:
    return [
        _row(comparison.scenario, result, plan) for comparison in analysis.scenarios for result in ordered(comparison)
    ]


def _row(scenario: Scenario, result: StrategyResult, plan: TrainingPlan | None) -> Json:
    link, parts = scenario.link, result.split
    return {
        "model": scenario.model,
        "backend": scenario.backend,
        "world_size": scenario.world_size,
        "global_batch_size": global_batch(scenario),
        "warmup_steps": plan.warmup if plan else None,
        "benchmark_steps": plan.steps * result.rounds if plan else None,
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
        "sequence": scenario.sequence,
        "dtype": scenario.dtype,
        "optimizer": scenario.optimizer,
        "threads": scenario.threads,
        "link_latency_s": link.latency_s if link else None,
        "link_bytes_per_s": link.bytes_per_s if link else None,
        "bucket_bytes": result.strategy.cap_bytes,
        "accumulate": result.strategy.accumulate,
        "scenario": scenario.key,
    }


def _columns(name: str, interval: Interval | None, std: float | None) -> Json:
    known = interval is not None and interval.known
    return {
        f"{name}_avg": interval.value if interval else None,
        f"{name}_std": std,
        f"{name}_low": interval.low if interval and known else None,
        f"{name}_high": interval.high if interval and known else None,
    }


def _scenario_json(comparison: ScenarioAnalysis) -> Json:
    return {
        "scenario": comparison.scenario.key,
        "compute": asdict(comparison.compute) if comparison.compute else None,
        "noise_s": comparison.noise_s,
        "rounds": comparison.rounds,
        "blocks": comparison.blocks,
        "dropped": comparison.dropped,
        "aa_pairs": [asdict(pair) for pair in comparison.aa_pairs],
        "advice": asdict(comparison.advice) if comparison.advice else None,
    }


def _checks(analysis: TrainingAnalysis) -> list[Json]:
    """Every check, with its scenario and strategy; both null where it concerns the whole run."""
    found: list[tuple[str | None, str | None, Sequence[InvariantCheck]]] = [(None, None, analysis.checks)]
    found += [(c.scenario.key, o.label, o.checks) for c in analysis.scenarios for o in c.results]
    return [{"scenario": s, "strategy": o, **asdict(check)} for s, o, checks in found for check in checks]


def _finite(data: Any) -> Any:
    """The same data with None for numbers that JSON cannot hold: NaN and infinities."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
