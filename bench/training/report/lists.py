"""Write what `plan` and `list` say of training steps."""

from collections.abc import Mapping, Sequence

from bench.model.records import Machine, Plan
from bench.model.units import format_rounded_bytes, format_seconds
from bench.report import markdown
from bench.report.labels import ranks_text
from bench.report.parts import PlannedText
from bench.training.catalog.presets import EXAMPLE, PRESETS, gradients, parameters
from bench.training.catalog.strategies import competes, kind, label, strategy_of
from bench.training.model import TRAINING_STEP
from bench.training.planning.steps import notes, rank_bytes, scenarios_of
from bench.training.report import steps as training

# Columns of `list models`.
MODEL_SIZES = ("d_model", "d_ff", "layers", "heads", "vocabulary")


def planned(plan: Plan, machine: Machine) -> PlannedText:
    """Scenarios, number of rounds and steps, and notes."""
    scenes = _scenarios(plan)
    steps = "–".join(map(str, sorted({case.depth for case in plan.cases if case.op == TRAINING_STEP})))
    how = [f"{plan.settings.rounds} rounds of every strategy, {steps} steps each"] if scenes else []
    return PlannedText(scenes, how, notes(plan, machine.cores))


def _scenarios(plan: Plan) -> list[str]:
    """Of each scenario of training steps: its strategies, controls first, and the memory that a rank needs."""
    lines = []
    for scenario, planned in scenarios_of(plan).items():
        strategies = sorted(planned, key=lambda strategy: (competes(strategy), label(strategy)))
        needed = rank_bytes(scenario, strategies, plan.settings.step_memory)
        memory = "" if needed is None else f"; {format_rounded_bytes(needed)} of memory a rank, without activations"
        rows = [(label(strategy), kind(strategy).about) for strategy in strategies]
        lines += [f"{training.scenario_text(scenario)}: {len(rows)} strategies{memory}", ""]
        lines += [markdown.table(rows, ["strategy", "what it does"], "ll"), ""]
    return lines


def best(measured: Sequence[Mapping[str, str]]) -> str | None:
    """Of rows of a summary, the shortest step; None if there is none."""
    steps = [row for row in measured if row.get("strategy") and competes(strategy_of(row["strategy"]))]
    if steps:
        row = min(steps, key=lambda row: float(row["time_s"]))
        step = f"{format_seconds(float(row['time_s']))} a step: {row['label']}"
        return f"{step}, {row['model']}, {row['backend']}, {ranks_text(int(row['world_size']))}"
    return None


def models() -> str:
    """The presets, with their sizes."""
    rows = [
        [
            name,
            f"{parameters(preset):,}",
            str(len(gradients(preset))),
            *(str(getattr(preset, size)) for size in MODEL_SIZES),
        ]
        for name, preset in PRESETS.items()
    ]
    headers = ["model", "parameters", "gradients", *MODEL_SIZES]
    table = markdown.table(rows, headers, "lrrrrrrr")
    return (
        f"{table}\n\nAny other by its sizes, such as {EXAMPLE}; either with -v50000 (vocabulary), -kv2 (heads of keys "
        "and values) and -tied behind it; or your own: {import: package.module:build}"
    )
