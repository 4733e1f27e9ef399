"""Say what the training steps of a run cost, and list the models."""

from collections.abc import Sequence
from dataclasses import fields

from collbench.model.conclusions import Analysis
from collbench.model.records import Run
from collbench.model.results import columns
from collbench.packages.training.catalog.presets import EXAMPLE, PRESETS, Preset, gradients, parameters
from collbench.packages.training.conclusions import ScenarioAnalysis, StrategyResult, training_of
from collbench.packages.training.report import steps
from collbench.report.blocks import Blocks, Column, fold, items, keyed, left, section, table
from collbench.report.text import Text


def describe(run: Run, analysis: Analysis) -> Text:
    """Return training's description of a run; empty for a run without training steps."""
    conclusions = training_of(analysis)
    scenarios = conclusions.scenarios
    scaling = steps.scaling(conclusions.scaling)
    failed = {samples.case for samples in run.samples if samples.failure is not None}
    return Text(
        answer=steps.answers(scenarios),
        body=[
            *(block for scenario in scenarios for block in steps.section(scenario, failed)),
            *section("Scaling over numbers of ranks", scaling, 2),
            *_explained(scenarios),
        ],
        brief=[
            *(block for scenario in scenarios for block in steps.brief_section(scenario)),
            *section("Scaling over numbers of ranks", scaling, 3),
        ],
    )


def _explained(scenarios: Sequence[ScenarioAnalysis]) -> Blocks:
    """Return the invariants, and an explanation of the columns, folded."""
    if not scenarios:
        return []
    titled = ((column.fact.title, column.fact.about) for column in columns(StrategyResult) if column.fact.title)
    return [
        *fold("Invariants of training steps", steps.invariants(scenarios)),
        *fold(
            "Exposed communication, and the columns of training steps",
            [steps.DEFINITION, *items(f"**{title}**: {about}" for title, about in titled)],
        ),
    ]


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
