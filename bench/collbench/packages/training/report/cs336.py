"""Format all-reduces and training steps as assignment 2 of CS336 requires: `report --format cs336`.

In: the `View` of a run. Out: Markdown. The table of all-reduces has a row per backend and number of processes, and a
column per size; a cell contains the mean over iterations of the slowest process's time. Cells that could not be
measured are numbered, with the reasons below. The tables of training steps have a row per strategy, with its times, its
memory if measured, and its throughput if numbers of processes differ.
"""

from collections.abc import Sequence

from collbench.catalog.backends import BACKENDS
from collbench.model.conclusions import Analysis
from collbench.model.records import Case
from collbench.model.units import format_bytes, format_seconds
from collbench.packages.training.conclusions import ScenarioAnalysis, StrategyResult, training_of
from collbench.packages.training.report import steps as training
from collbench.packages.training.synchronisation import Scenario, options_of, step_settings
from collbench.report import markdown
from collbench.report.blocks import Blocks, Column, Heading, in_line, items, keyed, left, section, table
from collbench.report.labels import NOTHING, counted, with_interval
from collbench.report.notices import sentence
from collbench.report.view import View

DEVICES = {"cpu": "CPU", "cuda": "GPU"}
ABOUT = (
    "Each cell: the mean over the iterations of the time of the slowest process, for one all-reduce; with several "
    "launches, their geometric mean. In brackets its 95 % interval, over launches or within the only one. Untimed "
    "calls came first, each timed call began at a barrier, and every element of the result was verified."
)
ABOUT_STEPS = (
    "Time per step: of the slowest process, the mean over rounds of steps between two barriers. Communication: that "
    "time less the time of the same step without any communication (none), not the time that a timer sees around the "
    "calls; each is a mean of its own, so columns need not subtract. ± is the standard deviation over rounds; all ways "
    'took turns in every round. What is called "again" is the same once more: by how much its rows differ is noise.'
)


def document(view: View) -> str:
    """Return the tables, an explanation of their cells, and the reasons for empty cells, as Markdown."""
    analysis = view.analysis
    shown = [*_all_reduces(view), *_steps(view), *_memory(analysis), *_scaling(analysis)]
    nothing = ["No all_reduce and no training step is in this run."]
    return markdown.written([Heading(f"Run {view.run.name}", 1), *(shown or nothing)])


def _steps(view: View) -> Blocks:
    analysis = view.analysis
    results = [(scenario, result) for scenario in _ascending(analysis) for result in training.ordered(scenario)]
    reasons = list(dict.fromkeys(in_line(result.refused) for _, result in results if result.refused))

    def step(result: StrategyResult) -> str:
        if result.step is not None:
            return training.spread(result.step.value, result.step_std, training.seconds)
        return f"[{reasons.index(in_line(result.refused)) + 1}]" if result.refused else NOTHING

    def communication(result: StrategyResult) -> str:
        exposed = result.exposed.value if result.exposed and result.step is not None else None
        return training.spread(exposed, result.exposed_std, training.seconds)

    columns: list[Column[tuple[ScenarioAnalysis, StrategyResult]]] = [
        left("model", lambda row: row[0].scenario.options.model),
        left("backend + device", lambda row: _device(row[0].scenario.case.backend) + _link(row[0].scenario)),
        Column("processes", lambda row: str(row[0].scenario.case.world_size)),
        Column("global batch", lambda row: str(training.global_batch(row[0].scenario.case))),
        left("gradients", lambda row: training.names_of(row[0])[row[1].label]),
        Column("time per step", lambda row: step(row[1])),
        Column("communication", lambda row: communication(row[1])),
        Column("of the step, %", lambda row: training.percent(row[1].share if row[1].step is not None else None)),
    ]
    if not results:
        return []
    plan, settings = view.run.plan, step_settings(view.run.plan.settings)
    steps = "–".join(map(str, sorted({scenario.scenario.case.depth for scenario, _ in results})))
    notes = [
        f"{counted(plan.launches, 'launch')}, {settings.rounds} rounds of every way in each, {steps} timed steps "
        f"a round; {settings.warmup_steps} warm-up steps before",
        *(note for scenario in _ascending(analysis) for note in _notes(scenario)),
        *view.caveats,
    ]
    return [Heading("Training steps"), *table(results, columns), ABOUT_STEPS, *_numbered(reasons), *items(notes)]


def _link(scenario: Scenario) -> str:
    return f", emulated link of {scenario.options.link}" if scenario.link is not None else ""


def _notes(scenario: ScenarioAnalysis) -> list[str]:
    """Return notes on the rows of a scenario: how they were measured, and which of them are not resolved."""
    name = training.scenario_text(scenario.scenario)
    return [f"{name}: {training.reference(scenario)}", *(f"{name}: {text}" for text in training.not_resolved(scenario))]


def _device(backend: str) -> str:
    return f"{backend} + {DEVICES[BACKENDS[backend].device]}"


def _ascending(analysis: Analysis) -> list[ScenarioAnalysis]:
    """Return the scenarios, fewest processes first."""
    return sorted(training_of(analysis).scenarios, key=lambda scenario: scenario.scenario.case.world_size)


def _memory(analysis: Analysis) -> Blocks:
    """Return the table of peak memory, as the assignment asks for it for optimizer state sharding."""
    rows = [
        (scenario.scenario.case, row) for scenario in _ascending(analysis) for row in training.memory_rows(scenario)
    ]
    peaks = ["after initialization", "before optimizer step", "after optimizer step", "later steps", "computed"]
    columns: list[Column[tuple[Case, Sequence[str]]]] = [
        left("model", lambda row: options_of(row[0]).model),
        Column("processes", lambda row: str(row[0].world_size)),
        left("optimizer", lambda row: options_of(row[0]).optimizer),
        left("gradients", lambda row: row[1][0]),
    ]
    columns += keyed([(peak, number) for number, peak in enumerate(peaks, 1)], lambda row, number: row[1][number])
    return section("Peak memory of a process", [*table(rows, columns), *([training.MEMORY] if rows else [])])


def _scaling(analysis: Analysis) -> Blocks:
    return section("Scaling over processes", training.scaling(training_of(analysis).scaling))


def _numbered(reasons: Sequence[str]) -> Blocks:
    return ["\n".join(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))] if reasons else []


def _all_reduces(view: View) -> Blocks:
    run = view.of_calls.run
    times = {_place(s.case): s.time_s for s in view.calls if s.case.op == "all_reduce"}
    missing = {_place(skip.case): sentence(skip.reason) for skip in run.plan.skips if skip.case.op == "all_reduce"}
    missing |= {_place(s.case): s.failure.text for s in run.samples if s.failure is not None}
    every = sorted({*times, *missing}, key=lambda place: (list(BACKENDS).index(place[0]), *place[1:]))
    if not every:
        return []
    sizes = sorted({size for *_, size in every})
    reasons = list(dict.fromkeys(missing[place] for place in every if place in missing and times.get(place) is None))

    def cell(place: tuple[str, int, int]) -> str:
        if times.get(place) is not None:
            return with_interval(times[place], format_seconds)
        return f"[{reasons.index(missing[place]) + 1}]" if place in missing else NOTHING

    columns: list[Column[tuple[str, int]]] = [
        left("backend + device", lambda row: _device(row[0])),
        Column("processes", lambda row: str(row[1])),
    ]
    columns += keyed([(_size(size), size) for size in sizes], lambda row, size: cell((*row, size)))
    rows = dict.fromkeys(place[:2] for place in every)
    return [Heading("All-reduce of float32"), *table(rows, columns), ABOUT, *_numbered(reasons)]


def _place(case: Case) -> tuple[str, int, int]:
    return case.backend, case.world_size, case.size_bytes


def _size(size: int) -> str:
    """Format a size in decimal units, as in the assignment, if they are exact."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return format_bytes(size)
