"""Write the report of a training run, and the shorter text for the terminal.

In: a run, its analysis, and the pictures that exist. Out: Markdown, and the other files of a report. The table of
pictures is in `pictures`.
"""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from bench.model.conclusions import ScenarioAnalysis, TrainingAnalysis
from bench.model.training import TrainingPlan, TrainingRun
from bench.report import markdown, trace, training
from bench.report.document import duration, machine_lines
from bench.report.labels import NOTHING
from bench.report.pictures import Picture
from bench.report.training_labels import cell, scenario_text, seconds

TRACE = "trace.json"
DEFINITION = (
    "Exposed communication (comm_time) is the time of a step less the time of the same step without synchronisation, "
    "measured in the same launch, in turns, and paired round by round; it may be negative and is never cut off at "
    "zero. It is not the time that a timer sees spent in waiting, which misses what was waited for elsewhere: in "
    "hooks, in copies, in a device synchronise, or in slower computing."
)
COLUMNS = (
    "**comm_frac**: comm_time of the time of a step; **calls alone**: the same calls back to back without computing; "
    "**hidden**: 1 − comm_time / calls alone, below 0 where the calls cost more than alone",
    "**tail**: blocked after backward until the last gradient was usable; **of it late ranks**: waiting for ranks "
    "whose backward ended later, which no synchronisation avoids; **pack**: hooks, flattening, copying, dividing, as "
    f"far as no call is under way that is waited for anyway ({NOTHING}: inside a library, where we do not see it); "
    "**interference**: growth of forward and backward; **update**: growth of clipping and the update, below 0 where "
    "each rank updates its share only; **gather**: calls of a sharded optimizer: those that send what was updated, and "
    "those within forward and backward; **residual**: what these do not explain; **adds up**: "
    "whether the residual is as small as it must be",
    "**place**: strategies that cannot be told apart share the place of the first of them (=)",
)


def build(run: TrainingRun, analysis: TrainingAnalysis, pictures: Sequence[Picture], address: str) -> str:
    """The whole report. address: relative path from the report to its pictures."""
    when = str(run.manifest.get("started", ""))[:16].replace("T", " ")
    title = f"# {run.manifest.get('name', run.plan.name)}: gradient synchronisation"
    parts = [title + (f", {when} UTC" if when else ""), markdown.lines(_head(run, analysis))]
    for comparison in analysis.scenarios:
        parts += [f"## {scenario_text(comparison.scenario)}", _reference(comparison), training.overview(comparison)]
        parts += filter(None, [training.refused(comparison)])
        parts += _titled(
            {
                "### Order": training.ranking(comparison),
                "### Where exposed communication goes": training.split(comparison),
                "### A/A pairs: the difference of two copies of a strategy": training.aa_pairs(comparison),
                "### Best buckets": training.advice(comparison),
            }
        )
    parts += [
        "## How far to trust it",
        markdown.lines(_trust(analysis)) or "Nothing was found that speaks against these numbers.",
        *markdown.folded("What was measured, and what the columns are", [DEFINITION, markdown.lines(COLUMNS)]),
        method_line(run.plan),
        "## What must hold",
        training.invariants(analysis),
        *_titled(
            {
                "## The same parameters in more and more calls": training.call_sizes(analysis),
                "## Left out": training.left_out(analysis),
                "## Broken off": training.failures(analysis),
            }
        ),
    ]
    if pictures:
        parts += ["## Pictures", *(f"![{title}]({address}/{name}.png)" for title, name in pictures)]
    parts.append("Terms and formulas: docs/training.md.")
    return "\n\n".join(parts) + "\n"


def markdown_of(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The report without pictures."""
    return build(run, analysis, [], "")


def documents(
    run: TrainingRun, analysis: TrainingAnalysis, pictures: Sequence[Picture], folder: Path, output: Path
) -> dict[str, str]:
    """The files of a report, by name. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    text = build(run, analysis, pictures, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    timelines = [timeline for comparison in analysis.scenarios for timeline in comparison.timelines]
    return {
        "summary.csv": training.to_csv(run, analysis),
        "report.md": text,
        "report.html": markdown.page(text, run.name, files),
        TRACE: json.dumps(trace.trace(timelines)),
    }


def summary_tables(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The text for a terminal, at the end of a run and for the verb `report`.

    For each scenario its main table and the order in words; then violated invariants, failures and warnings.
    """
    parts = []
    for comparison in analysis.scenarios:
        parts += [f"### {scenario_text(comparison.scenario)}", _reference(comparison)]
        parts += [training.brief(comparison), training.ranking(comparison), training.refused(comparison)]
    broken = [f"broken off: {b.strategy or 'launch'} {b.launch}: {cell(b.failure.text)}" for b in analysis.failures]
    parts.append(markdown.lines([*_violations(analysis), *broken, *map(cell, analysis.warnings)]))
    return "\n\n".join(filter(None, parts)) or "Nothing was measured."


def problems(run: TrainingRun, analysis: TrainingAnalysis) -> list[str]:
    """A sentence on each strategy that got no number, each invariant that is violated, each launch that broke off."""
    results = [result for comparison in analysis.scenarios for result in comparison.results]
    texts = [f"{result.label}: {result.refused}" for result in results if result.refused]
    texts += [f"{check.invariant}: {check.text}" for check in analysis.checks if check.ok is False]
    texts += [broken.failure.text for broken in analysis.failures]
    return [f"failed: {text}" for text in dict.fromkeys(texts)]


def method_line(plan: TrainingPlan) -> str:
    """One line that says how the numbers were measured."""
    return (
        f"How measured: {plan.steps} steps of a strategy between two barriers, slowest rank · all strategies in every "
        f"round, each round in another random order, seed {plan.seed} · {plan.warmup} steps of each beforehand · "
        f"{plan.launches} launch{'' if plan.launches == 1 else 'es'} of fresh processes · blocks in which others used "
        f"more than {plan.max_foreign_cpu:.0%} of the machine's CPU time are left out · ± is the standard deviation "
        "over rounds"
    )


def _head(run: TrainingRun, analysis: TrainingAnalysis) -> list[str]:
    results = [result for comparison in analysis.scenarios for result in comparison.results]
    timed = sum(result.step is not None for result in results)
    scenarios = f"{len(analysis.scenarios)} scenario{'' if len(analysis.scenarios) == 1 else 's'}"
    return [
        f"**What**: {scenarios}; {timed} of {len(results)} strategies timed, {len(analysis.skips)} left out",
        f"**State**: {run.manifest.get('status')}{duration(run.manifest)}",
        *machine_lines(run.environment[0] if run.environment else {}),
    ]


def _trust(analysis: TrainingAnalysis) -> list[str]:
    """The reasons to doubt the numbers, one line each."""
    lines = _violations(analysis)
    for comparison in analysis.scenarios:
        unexplained = [result.label for result in comparison.results if result.adds_up is False]
        if unexplained:
            names = ", ".join(unexplained)
            lines.append(f"{comparison.scenario.case.key}: the split of {names} does not add up to comm_time")
    if analysis.failures:
        lines.append(f"launches or strategies that did not finish: {len(analysis.failures)}, see below")
    return [*lines, *map(cell, analysis.warnings)]


def _violations(analysis: TrainingAnalysis) -> list[str]:
    return [
        f"**{check.invariant} violated** by {strategy}: {cell(check.text)}"
        for strategy, check in training.checks(analysis)
        if check.ok is False
    ]


def _titled(bodies: dict[str, str]) -> list[str]:
    """Each text with its title, but for those that are empty."""
    return [part for title, body in bodies.items() if body for part in (title, body)]


def _reference(comparison: ScenarioAnalysis) -> str:
    """One line: the step without synchronisation, the timed blocks used, and how far two equal things differ."""
    compute = comparison.compute
    without = f"{seconds(compute.value)} a step" if compute else "not known"
    used = comparison.blocks - comparison.dropped
    if comparison.aa_pairs and math.isfinite(comparison.noise_s):
        limit = f"two copies of one strategy differ by up to {seconds(comparison.noise_s)} a step"
    else:
        limit = "no strategy was measured twice"
    return f"Computing without synchronisation: {without} · {used} of {comparison.blocks} timed blocks used · {limit}"
