"""What training adds to reports, as the core asks for it."""

import json
from collections.abc import Collection

from bench.model.conclusions import Analysis
from bench.model.records import Case
from bench.model.units import counted
from bench.report.blocks import Blocks, items, section
from bench.report.parts import ReportPart
from bench.training.catalog.strategies import label, strategy_of
from bench.training.conclusions import training_of
from bench.training.model import TRAINING_STEP
from bench.training.report import lists, steps, trace
from bench.training.report.machine_format import COLUMNS


def sections(analysis: Analysis, failed: Collection[Case]) -> Blocks:
    """Each scenario, scaling over ranks, and the ladder of call sizes."""
    scenarios = training_of(analysis).scenarios
    return [*(block for one in scenarios for block in steps.section(one, failed)), *_over_ranks_and_calls(analysis, 2)]


def brief(analysis: Analysis) -> Blocks:
    """The same for a terminal."""
    scenarios = training_of(analysis).scenarios
    return [*(block for one in scenarios for block in steps.brief_section(one)), *_over_ranks_and_calls(analysis, 3)]


def _over_ranks_and_calls(analysis: Analysis, level: int) -> Blocks:
    found = training_of(analysis)
    return [
        *section("Scaling over numbers of ranks", steps.scaling(found.scaling), level),
        *section("The same bytes in more and more calls", steps.call_sizes(found.call_sizes), level),
    ]


def folded(analysis: Analysis) -> list[tuple[str, Blocks]]:
    """The invariants, and what the columns are."""
    scenarios = training_of(analysis).scenarios
    if not scenarios:
        return []
    return [
        ("What must hold of training steps", steps.invariants(scenarios)),
        (
            "What exposed communication is, and what the columns of training steps are",
            [steps.DEFINITION, *items(steps.COLUMNS)],
        ),
    ]


def precision(analysis: Analysis) -> list[str]:
    """By what two copies of one strategy differ."""
    noise = [scenario.noise_s for scenario in training_of(analysis).scenarios if scenario.aa_pairs]
    return [f"two copies of one strategy differ by up to {steps.seconds(max(noise))} a step"] if noise else []


def circumstances(analysis: Analysis) -> list[str]:
    """How many scenarios, and how many of their strategies have a time."""
    scenarios = training_of(analysis).scenarios
    results = [result for scenario in scenarios for result in scenario.results]
    timed = f"{sum(result.step is not None for result in results)} of {len(results)} strategies timed"
    return [f"**Training steps**: {counted(len(scenarios), 'scenario')}; {timed}"] if scenarios else []


def files(analysis: Analysis) -> dict[str, str]:
    """The timelines of steps, for a viewer of traces."""
    scenarios = training_of(analysis).scenarios
    if not any(result.timeline for scenario in scenarios for result in scenario.results):
        return {}
    return {"trace.json": json.dumps(trace.trace(scenarios))}


REPORT = ReportPart(
    operations=(TRAINING_STEP,),
    answers=lambda analysis: steps.answers(training_of(analysis).scenarios),
    sections=sections,
    brief=brief,
    folded=folded,
    precision=precision,
    caveats=lambda analysis: steps.unexplained(training_of(analysis).scenarios),
    circumstances=circumstances,
    method=steps.method_line,
    files=files,
    page="training steps in docs/training.md",
    span=steps.span,
    words={
        "strategy": lambda case: label(strategy_of(case.strategy)) if case.strategy else "",
        "threads": lambda case: f"{case.threads} threads a rank" if case.threads > 1 else "",
    },
    first=("strategy", "model"),
    metric=lambda case: f"{case.depth} steps back to back" if case.depth > 1 else "single steps",
    planned=lists.planned,
    verified="the invariants of every strategy were checked before its first timed step",
    best=lists.best,
    columns=COLUMNS,
)
