"""Write the report of a training run, and the shorter text for the terminal.

In: a run, its analysis, and the pictures that exist. Out: Markdown, and the other files of a report.
`report.document.page` turns the Markdown into one HTML file.
"""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import machine_format, markdown
from bench.report.document import duration, machine_lines
from bench.report.page import page
from bench.report.pictures import Picture
from bench.training.conclusions import ScenarioAnalysis, TrainingAnalysis
from bench.training.records import TrainingPlan, TrainingRun
from bench.training.report import sections, tables, trace
from bench.training.report.labels import NOTHING, cell, scenario_text, seconds

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
    manifest: dict[str, Any] = run.manifest
    when = str(manifest.get("started", ""))[:16].replace("T", " ")
    parts = [
        f"# {manifest.get('name', run.plan.name)}: gradient synchronisation" + (f", {when} UTC" if when else ""),
        markdown.lines(_head(run, analysis)),
    ]
    for comparison in analysis.scenarios:
        parts += _scenario(comparison)
    parts += [
        "## How far to trust it",
        markdown.lines(_trust(run, analysis)) or "Nothing was found that speaks against these numbers.",
        *markdown.folded("What was measured, and what the columns are", [DEFINITION, markdown.lines(COLUMNS)]),
        method_line(run.plan),
    ]
    parts += ["## What must hold", sections.invariants(analysis)]
    ends = {
        "## The same parameters in more and more calls": sections.call_sizes(analysis),
        "## Left out": sections.left_out(analysis),
        "## Broken off": sections.failures(analysis),
    }
    parts += [text for title, body in ends.items() if body for text in (title, body)]
    if pictures:
        parts += ["## Pictures", *(f"![{title}]({address}/{name}.png)" for title, name in pictures)]
    parts.append("Terms and formulas: docs/training.md.")
    return "\n\n".join(parts) + "\n"


def markdown_of(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The report without pictures."""
    return build(run, analysis, [], "")


def csv_of(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """One row for each strategy and scenario, for pandas."""
    return tables.to_csv(analysis, run.plan)


def json_of(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The rows of `csv_of` and the rest of the analysis, for programs."""
    return tables.to_json(analysis, run.plan, machine_format.head(run))


def tables_of(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """The tables that the verb `report` prints."""
    return summary_tables(analysis)


def terminal(run: TrainingRun, analysis: TrainingAnalysis) -> str:
    """What is printed at the end of a run: its tables, violated invariants, failures and warnings."""
    return summary_tables(analysis)


def problems(run: TrainingRun, analysis: TrainingAnalysis) -> list[str]:
    """A sentence on each strategy that got no number, each invariant that is violated, each launch that broke off."""
    found = [f"{o.label}: {o.refused}" for c in analysis.scenarios for o in c.results if o.refused]
    found += [f"{check.invariant}: {check.text}" for check in analysis.checks if check.ok is False]
    found += [one.failure.text for one in analysis.failures]
    return [f"failed: {text}" for text in dict.fromkeys(found)]


def documents(
    run: TrainingRun, analysis: TrainingAnalysis, pictures: Sequence[Picture], folder: Path, output: Path
) -> dict[str, str]:
    """The files of a report, by name. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    text = build(run, analysis, pictures, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    timelines = [one for comparison in analysis.scenarios for one in comparison.timelines]
    return {
        "summary.csv": csv_of(run, analysis),
        "report.md": text,
        "report.html": page(text, run.name, files),
        TRACE: json.dumps(trace.trace(timelines)),
    }


def summary_tables(analysis: TrainingAnalysis) -> str:
    """For each scenario its main table and the order in words; then violated invariants, failures and warnings."""
    parts = []
    for comparison in analysis.scenarios:
        parts += [f"### {scenario_text(comparison.scenario)}", _reference(comparison)]
        parts += [tables.brief(comparison), sections.ranking(comparison), tables.refused(comparison)]
    violated = [f"**{c.invariant} violated** by {who}: {cell(c.text)}" for who, c in _violated(analysis)]
    gone = [f"broken off: {b.strategy or 'launch'} {b.launch}: {cell(b.failure.text)}" for b in analysis.failures]
    parts.append(markdown.lines([*violated, *gone, *map(cell, analysis.warnings)]))
    return "\n\n".join(part for part in parts if part) or "Nothing was measured."


def method_line(plan: TrainingPlan) -> str:
    """One line that says how the numbers were measured."""
    return (
        f"How measured: {plan.steps} steps of a strategy between two barriers, slowest rank · all strategies in every "
        f"round, each round in another random order, seed {plan.seed} · {plan.warmup} steps of each beforehand · "
        f"{_count(plan.launches, 'launch', 'launches')} of fresh processes · blocks in which others used more than "
        f"{plan.max_foreign_cpu:.0%} of the machine's CPU time are left out · ± is the standard deviation over rounds"
    )


def _head(run: TrainingRun, analysis: TrainingAnalysis) -> list[str]:
    manifest: dict[str, Any] = run.manifest
    session: dict[str, Any] = run.environment[0] if run.environment else {}
    timed = sum(o.step is not None for c in analysis.scenarios for o in c.results)
    every = sum(len(c.results) for c in analysis.scenarios)
    what = _count(len(analysis.scenarios), "scenario", "scenarios")
    return [
        f"**What**: {what}; {timed} of {every} strategies timed, {len(analysis.skips)} left out",
        f"**State**: {manifest.get('status')}{duration(manifest)}",
        *machine_lines(session),
    ]


def _trust(run: TrainingRun, analysis: TrainingAnalysis) -> list[str]:
    found = [f"**{c.invariant} violated** by {who}: {cell(c.text)}" for who, c in _violated(analysis)]
    for comparison in analysis.scenarios:
        open_ = [o.label for o in comparison.results if o.adds_up is False]
        if open_:
            found.append(f"{comparison.scenario.key}: the split of {', '.join(open_)} does not add up to comm_time")
    if analysis.failures:
        found.append(f"launches or strategies that did not finish: {len(analysis.failures)}, see below")
    return [*found, *map(cell, analysis.warnings)]


def _violated(analysis: TrainingAnalysis) -> list[tuple[str, Any]]:
    return [(who, check) for who, check in sections.checks(analysis) if check.ok is False]


def _scenario(comparison: ScenarioAnalysis) -> list[str]:
    under = {
        "### Order": sections.ranking(comparison),
        "### Where exposed communication goes": tables.split(comparison),
        "### A/A pairs: the difference of two copies of a strategy": sections.aa_pairs(comparison),
        "### Best buckets": sections.advice(comparison),
    }
    parts = [f"## {scenario_text(comparison.scenario)}", _reference(comparison), tables.overview(comparison)]
    parts.append(tables.refused(comparison))
    parts += [text for title, body in under.items() if body for text in (title, body)]
    return [part for part in parts if part]


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


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
