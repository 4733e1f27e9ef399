"""Provide training's part of reports, of `plan` and of `list`, as a `ReportPart`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from collbench.model.conclusions import Analysis
from collbench.model.pages import page
from collbench.model.records import Case, Machine, Plan, Run
from collbench.model.results import columns
from collbench.model.units import counted, format_rounded_bytes, format_seconds
from collbench.packages.training.catalog.presets import EXAMPLE, PRESETS, Preset, gradients, parameters
from collbench.packages.training.catalog.strategies import competes, kind
from collbench.packages.training.conclusions import ScenarioAnalysis, StrategyResult, TrainingAnalysis, training_of
from collbench.packages.training.planning.steps import rank_bytes, scenarios_of, traps
from collbench.packages.training.report import steps
from collbench.packages.training.synchronisation import (
    TRAINING_STEP,
    Strategy,
    label,
    step_settings,
)
from collbench.report.blocks import Blocks, Column, items, keyed, left, section, table
from collbench.report.labels import ranks_text, seconds_text
from collbench.report.notices import sentences
from collbench.report.parts import Description, PackageResults, PlannedText, ReportPart


def describe(run: Run, analysis: Analysis) -> Description:
    """Return training's description of a run; empty for a run without training steps."""
    conclusions = training_of(analysis)
    scenarios = conclusions.scenarios
    scaling = steps.scaling(conclusions.scaling)
    failed = {samples.case for samples in run.samples if samples.failure is not None}
    checked = any(samples.case.op == TRAINING_STEP for samples in run.samples)
    noise = [scenario.noise_s for scenario in scenarios if scenario.aa_pairs]
    results = [result for scenario in scenarios for result in scenario.results]
    timed = f"{sum(result.step is not None for result in results)} of {len(results)} strategies timed"
    return Description(
        answer=steps.answers(scenarios),
        body=[
            *(block for scenario in scenarios for block in steps.section(scenario, failed)),
            *section("Scaling over numbers of ranks", scaling, 2),
        ],
        brief=[
            *(block for scenario in scenarios for block in steps.brief_section(scenario)),
            *section("Scaling over numbers of ranks", scaling, 3),
        ],
        folded=folded(scenarios),
        precision=[f"two copies of one strategy differ by up to {seconds_text(max(noise))} per step"] if noise else [],
        verified="the invariants of every strategy were checked before its first timed step" if checked else "",
        caveats=steps.unexplained(scenarios),
        circumstances=[f"**Training steps**: {counted(len(scenarios), 'scenario')}; {timed}"] if scenarios else [],
        method=steps.method_line(run),
        page=f"training steps: {page('training')}",
        leads=bool(scenarios),
    )


def folded(scenarios: Sequence[ScenarioAnalysis]) -> list[tuple[str, Blocks]]:
    """Return the invariants, and an explanation of the columns."""
    if not scenarios:
        return []
    titled = ((column.fact.title, column.fact.about) for column in columns(StrategyResult) if column.fact.title)
    return [
        ("Invariants of training steps", steps.invariants(scenarios)),
        (
            "Exposed communication, and the columns of training steps",
            [steps.DEFINITION, *items(f"**{title}**: {about}" for title, about in titled)],
        ),
    ]


# ── text of `plan` and `list` ─────────────────────────────────────────────────────────────────────
def planned(plan: Plan, machine: Machine) -> PlannedText:
    """Return the text of `plan`: scenarios, number of rounds and steps, and notes."""
    scenes = _scenarios(plan)
    steps = "–".join(map(str, sorted({case.depth for case in plan.cases if case.op == TRAINING_STEP})))
    method = [f"{step_settings(plan.settings).rounds} rounds of every strategy, {steps} steps each"] if scenes else []
    return PlannedText(scenes, method, sentences(traps(plan, machine.cores)), "the steps" if scenes else "")


def _scenarios(plan: Plan) -> Blocks:
    """For each scenario, return its strategies, controls first, and the memory that a rank needs."""
    blocks: Blocks = []
    for scenario, planned in scenarios_of(plan).items():
        strategies = sorted(planned, key=lambda strategy: (competes(strategy), label(strategy)))
        needed = rank_bytes(scenario, strategies, step_settings(plan.settings).step_memory)
        memory = "" if needed is None else f"; {format_rounded_bytes(needed)} of memory per rank, without activations"
        blocks += [f"{steps.scenario_text(scenario)}: {len(strategies)} strategies{memory}"]
        blocks += table(strategies, STRATEGIES)
    return blocks


STRATEGIES: list[Column[Strategy]] = [
    left("strategy", label),
    left("action", lambda strategy: kind(strategy).about),
]


def best(measured: Sequence[Mapping[str, str]]) -> str | None:
    """Return the shortest step among the rows of a summary, as text; None if there is none."""
    # Only strategies that may be chosen have a place.
    if placed := [row for row in measured if row.get("place")]:
        row = min(placed, key=lambda row: float(row["time_s"]))
        step = f"{format_seconds(float(row['time_s']))} per step: {row['label']}"
        return f"{step}, {row['model']}, {row['backend']}, {ranks_text(int(row['world_size']))}"
    return None


def models() -> Blocks:
    """Return the presets with their sizes."""
    model_columns: list[Column[str]] = [
        left("model", lambda name: name),
        Column("parameters", lambda name: f"{parameters(PRESETS[name]):,}"),
        Column("gradients", lambda name: str(len(gradients(PRESETS[name])))),
    ]
    sizes = [(size.name, size.name) for size in fields(Preset)]
    model_columns += keyed(sizes, lambda name, size: str(getattr(PRESETS[name], size)))
    note = f"Any other by its sizes, such as {EXAMPLE}, or your own: {{import: package.module:build}}"
    return [*table(PRESETS, model_columns), note]


def results(analysis: Analysis) -> dict[Case, StrategyResult]:
    """Return the result of each case of training steps."""
    return {result.case: result for scenario in training_of(analysis).scenarios for result in scenario.results}


REPORT = ReportPart(describe, planned, best, PackageResults(StrategyResult, results, TrainingAnalysis, training_of))
