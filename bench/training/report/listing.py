"""List what the training benchmark has: the plan of a run, its headline, its pictures, and the models.

In: a `TrainingPlan`, rows of a summary. Out: text for a terminal, and the table of pictures. Loads neither pandas nor
matplotlib.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.catalog.presets import EXAMPLE, PRESETS, gradients, parameters
from bench.catalog.strategies import kind, label
from bench.model.capabilities import Machine
from bench.model.conclusions import TrainingAnalysis
from bench.model.deferred import Deferred
from bench.model.training import REFERENCE, TrainingPlan
from bench.model.units import format_rounded_bytes, format_seconds
from bench.planning.training import estimate_s, notes, rank_bytes
from bench.report import markdown
from bench.report.pictures import Catalogue, PictureKind

# Columns of `list models`.
SIZES = ("d_model", "d_ff", "layers", "heads", "vocabulary")


def plan(plan: TrainingPlan, machine: Machine) -> str:
    """Scenarios, strategies, what is left out, how long starting and checking take, and notes on the settings."""
    first = {launch.scenario.key: launch for launch in plan.order}
    lines = []
    for launch in first.values():
        rows = [(label(strategy), kind(strategy).about) for strategy in launch.strategies]
        needed = rank_bytes(launch.scenario, launch.strategies)
        memory = "" if needed is None else f"; {format_rounded_bytes(needed)} of memory a rank, without activations"
        head = f"{launch.scenario.key}: {len(rows)} strategies{memory}"
        lines += [head, "", markdown.table(rows, ["strategy", "what it does"], ["left"] * 2), ""]
    for skip in plan.skips:
        lines.append(f"left out: {label(skip.strategy) if skip.strategy else skip.scenario.key}: {skip.reason}")
    rounds = next(iter(first.values())).rounds if first else 0
    lines.append(
        f"{plan.launches} launches of {rounds} rounds, each strategy {plan.steps} steps a round in random order; "
        f"starting and checking take about {format_seconds(estimate_s(plan))}, the steps come on top"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in notes(plan, machine.cores))])


def headline(rows: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """The number of timed strategies in a summary, and the one with the shortest step."""
    timed = [row for row in rows if row.get("step_time_avg")]
    synchronised = [row for row in timed if row["strategy"].split()[0] != REFERENCE]
    best = min(synchronised, key=lambda row: float(row["step_time_avg"]), default=None)
    if best is None:
        return "0", "-"
    step = format_seconds(float(best["step_time_avg"]))
    return str(len(timed)), f"{step} a step: {best['strategy']}, {best['model']}, {best['world_size']} ranks"


def models() -> str:
    """The presets, with their sizes."""
    rows = [
        [name, f"{parameters(preset):,}", str(len(gradients(preset))), *(str(getattr(preset, size)) for size in SIZES)]
        for name, preset in PRESETS.items()
    ]
    headers = ["model", "parameters", "gradients", *SIZES]
    table = markdown.table(rows, headers, ["left", *["right"] * 7])
    return (
        f"{table}\n\nAny other by its sizes, such as {EXAMPLE}; either with -v50000 (vocabulary), -kv2 (heads of keys "
        "and values) and -tied behind it; or your own: {import: package.module:build}"
    )


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class OfEachScenario(Deferred):
    """A function (analysis of a scenario) → figures, called for each scenario of a run."""

    def __call__(self, run: Any, analysis: TrainingAnalysis) -> list[Any]:
        return [figure for scenario in analysis.scenarios for figure in self.value(scenario)]


PICTURES = Catalogue(
    (
        PictureKind(
            "training-steps",
            "Step time: computing and exposed communication",
            OfEachScenario("training.report.plots.steps:steps"),
        ),
        PictureKind(
            "training-timeline",
            "One step of each strategy: when communication overlaps with computing",
            OfEachScenario("training.report.plots.timelines:timelines"),
        ),
        PictureKind(
            "training-buckets",
            "Exposed communication against bucket size",
            OfEachScenario("training.report.plots.steps:buckets"),
        ),
        PictureKind(
            "training-call-sizes",
            "The same parameters in more and more calls",
            Deferred("report.plots.training_steps:call_sizes"),
        ),
    ),
    most_pages=12,  # a page shows one scenario, or a dozen strategies of it
)
