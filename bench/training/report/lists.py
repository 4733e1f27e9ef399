"""Write what `plan` and `list` say of training steps."""

from collections.abc import Mapping, Sequence

from bench.model.records import Machine, Plan
from bench.model.units import format_rounded_bytes, format_seconds
from bench.report.blocks import Blocks, Column, keyed, left, table
from bench.report.labels import ranks_text
from bench.report.parts import PlannedText
from bench.training.catalog.presets import EXAMPLE, PRESETS, gradients, parameters
from bench.training.catalog.strategies import competes, kind, label, strategy_of
from bench.training.model import TRAINING_STEP, Strategy
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


def _scenarios(plan: Plan) -> Blocks:
    """Of each scenario of training steps: its strategies, controls first, and the memory that a rank needs."""
    shown: Blocks = []
    for scenario, planned in scenarios_of(plan).items():
        strategies = sorted(planned, key=lambda strategy: (competes(strategy), label(strategy)))
        needed = rank_bytes(scenario, strategies, plan.settings.step_memory)
        memory = "" if needed is None else f"; {format_rounded_bytes(needed)} of memory a rank, without activations"
        shown += [f"{training.scenario_text(scenario)}: {len(strategies)} strategies{memory}"]
        shown += table(strategies, STRATEGIES)
    return shown


STRATEGIES: list[Column[Strategy]] = [
    left("strategy", label),
    left("what it does", lambda strategy: kind(strategy).about),
]


def best(measured: Sequence[Mapping[str, str]]) -> str | None:
    """Of rows of a summary, the shortest step; None if there is none."""
    steps = [row for row in measured if row.get("strategy") and competes(strategy_of(row["strategy"]))]
    if steps:
        row = min(steps, key=lambda row: float(row["time_s"]))
        step = f"{format_seconds(float(row['time_s']))} a step: {row['label']}"
        return f"{step}, {row['model']}, {row['backend']}, {ranks_text(int(row['world_size']))}"
    return None


def models() -> Blocks:
    """The presets, with their sizes."""
    columns: list[Column[str]] = [
        left("model", lambda name: name),
        Column("parameters", lambda name: f"{parameters(PRESETS[name]):,}"),
        Column("gradients", lambda name: str(len(gradients(PRESETS[name])))),
    ]
    columns += keyed([(size, size) for size in MODEL_SIZES], lambda name, size: str(getattr(PRESETS[name], size)))
    others = (
        f"Any other by its sizes, such as {EXAMPLE}; either with -v50000 (vocabulary), -kv2 (heads of keys "
        "and values) and -tied behind it; or your own: {import: package.module:build}"
    )
    return [*table(PRESETS, columns), others]
