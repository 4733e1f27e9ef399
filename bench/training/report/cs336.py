"""Lay all-reduces and training steps out as assignment 2 of CS336 asks for them: `report --format cs336`.

In: a `Run` and its analysis. Out: Markdown. Of all-reduces, a row for each backend and number of processes, a column
for each size; a cell has the mean over iterations of the slowest process's time; cells that could not be measured are
numbered, with the reasons below. Of training steps, a row for each way to synchronise gradients, with its
times, its memory where that was measured, and its throughput where numbers of processes differ.
"""

from collections.abc import Sequence

from bench.catalog.backends import BACKENDS
from bench.model.conclusions import Analysis
from bench.model.records import Case, Run
from bench.model.units import format_bytes, format_seconds
from bench.report import markdown
from bench.report.labels import NOTHING, interval_text
from bench.report.parts import calls_only
from bench.training.conclusions import ScenarioAnalysis, training_of
from bench.training.report import steps as training

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
    "took turns in every round."
)


def document(run: Run, analysis: Analysis) -> str:
    """The tables, what their cells are, and why some are empty."""
    parts = [*_all_reduces(run, analysis), *_steps(analysis), *_memory(analysis), *_scaling(analysis)]
    return "\n\n".join([f"# Run {run.name}", *(parts or ["No all_reduce and no training step is in this run."])])


def _steps(analysis: Analysis) -> list[str]:
    results = [(scenario, result) for scenario in _ascending(analysis) for result in training.ordered(scenario)]
    reasons = list(dict.fromkeys(markdown.cell(result.refused) for _, result in results if result.refused))
    rows = []
    for scenario, result in results:
        case = scenario.scenario.case
        cells = [NOTHING] * 3
        if result.refused:
            cells[0] = f"[{reasons.index(markdown.cell(result.refused)) + 1}]"
        if result.step is not None:
            cells = [
                training.spread(result.step.value, result.step_std, training.seconds),
                training.spread(result.exposed.value if result.exposed else None, result.exposed_std, training.seconds),
                training.percent(result.share),
            ]
        device, batch = DEVICES[BACKENDS[case.backend].device], str(training.global_batch(case))
        name = training.names_of(scenario)[result.label]
        rows.append([case.model, f"{case.backend} + {device}", str(case.world_size), batch, name, *cells])
    headers = ["model", "backend + device", "processes", "global batch", "gradients", "time per step", "communication"]
    align = "llrrlrrr"
    table = markdown.table(rows, [*headers, "of the step, %"], align)
    return ["## Training steps", table, ABOUT_STEPS, *_numbered(reasons)] if rows else []


def _ascending(analysis: Analysis) -> list[ScenarioAnalysis]:
    """The scenarios, those of fewer processes first."""
    return sorted(training_of(analysis).scenarios, key=lambda scenario: scenario.scenario.case.world_size)


def _memory(analysis: Analysis) -> list[str]:
    """As for optimizer state sharding: peaks after initialization, before and after the optimizer's step."""
    rows = []
    for scenario in _ascending(analysis):
        place = [scenario.scenario.case.model, str(scenario.scenario.case.world_size), scenario.scenario.case.optimizer]
        rows += [[*place, *row] for row in training.memory_rows(scenario)]
    headers = ["model", "processes", "optimizer", "gradients", "after initialization", "before optimizer step"]
    headers += ["after optimizer step", "later steps", "computed"]
    table = markdown.table(rows, headers, "lrllrrrrr")
    return ["## Peak memory of a process", table, training.MEMORY] if rows else []


def _scaling(analysis: Analysis) -> list[str]:
    tables = training.scaling(training_of(analysis).scaling)
    return ["## Scaling over processes", tables] if tables else []


def _numbered(reasons: Sequence[str]) -> list[str]:
    return ["\n".join(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))] if reasons else []


def _all_reduces(run: Run, analysis: Analysis) -> list[str]:
    run, analysis = calls_only(run, analysis)
    times = {_place(s.case): s.time_s for s in analysis.summaries if s.case.op == "all_reduce"}
    missing = {_place(skip.case): skip.reason for skip in run.plan.skips if skip.case.op == "all_reduce"}
    missing |= {_place(s.case): s.failure.text for s in run.samples if s.failure is not None}
    every = sorted({*times, *missing}, key=lambda place: (list(BACKENDS).index(place[0]), *place[1:]))
    if not every:
        return []
    sizes = sorted({size for *_, size in every})
    reasons = list(dict.fromkeys(missing[place] for place in every if place in missing and times.get(place) is None))
    rows = []
    for backend, ranks in dict.fromkeys(place[:2] for place in every):
        cells = []
        for size in sizes:
            time_s = times.get((backend, ranks, size))
            reason = missing.get((backend, ranks, size))
            if time_s is not None:
                span = f" {interval_text(time_s, format_seconds)}" if time_s.known else ""
                cells.append(format_seconds(time_s.value) + span)
            else:
                cells.append(f"[{reasons.index(reason) + 1}]" if reason else NOTHING)
        rows.append([f"{backend} + {DEVICES[BACKENDS[backend].device]}", str(ranks), *cells])
    headers = ["backend + device", "processes", *map(_size, sizes)]
    table = markdown.table(rows, headers, "l" + "r" * (len(sizes) + 1))
    return ["## All-reduce of float32", table, ABOUT, *_numbered(reasons)]


def _place(case: Case) -> tuple[str, int, int]:
    return case.backend, case.world_size, case.size_bytes


def _size(size: int) -> str:
    """In decimal units, as the assignment has them, where they are exact."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return format_bytes(size)
