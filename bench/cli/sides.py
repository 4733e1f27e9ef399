"""Measure two sides in pairs of launches until the verdict stands, and conclude; for `ab`, `run` and `report`.

In: the folder of a run of two sides. Out: more lines in its samples.jsonl, and a report. Nothing is kept that could not
be read from the folder again, so an interrupted run goes on where it was.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from bench.cli import benchmarks
from bench.cli.app import PLOTS
from bench.cli.benchmarks import Benchmark, facts_of_launch, one_launch
from bench.cli.measuring import recorded_sides
from bench.cli.output import is_ours, show
from bench.launch.side_process import SideProcess
from bench.machine import host
from bench.model.comparisons import PairedComparison
from bench.model.records import Json
from bench.report.progress import PairProgress
from bench.store import folders
from bench.store.folders import SIDES, Journal

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

# Measures what a launch of a side lacks: side, number of the launch, what takes each line, what takes the records.
Measure = Callable[[str, int, Callable[[bytes], None], Callable[[Json], None]], None]


@dataclass(slots=True)
class _TwoSides:
    """What is known of a run of two sides, by side. plans: with all launches that could be needed."""

    benchmark: Benchmark
    plans: dict[str, Any]
    facts: dict[str, list[Any]]
    environments: dict[str, list[Json]]

    def cases(self) -> Any:
        """The cases of both sides in pairs, and the names of those without a partner (`analyze.pairs.matched`)."""
        from bench.analyze import pairs

        timed = [self.benchmark.timed_cases(self.facts[side], self.plans[side]) for side in SIDES]
        return pairs.matched(*timed)

    def complete(self, side: str, number: int) -> bool:
        """Whether all of a launch has been measured."""
        plan = one_launch(self.plans[side], number)
        done = self.benchmark.done(plan, facts_of_launch(self.facts[side], number))
        return bool(plan.order) and done is None


def measure_sides(path: Path, coordinator: "Coordinator | None" = None) -> None:
    """Measure pairs until `analyze.pairs.why_end` says to end or the budget is spent; writes why into the manifest."""
    manifest = folders.read_manifest(path)
    asked, sides = manifest["ab"], manifest["sides"]
    benchmark = benchmarks.of_run(path)
    with Journal(path) as journal, contextlib.ExitStack() as stack:
        measured = _read(path, benchmark)
        if asked.get("ended"):
            return
        measure, facts = stack.enter_context(_measuring(path, measured, sides, coordinator))
        sessions = [session for side in SIDES for session in measured.environments[side]]
        records = stack.enter_context(recorded_sides(path, sessions, facts))
        progress = stack.enter_context(PairProgress(Console(stderr=True), asked["budget_s"], asked["spent_s"]))

        def measure_launch(side: str, number: int) -> None:
            def keep(line: bytes) -> None:
                journal.append(folders.of_side(line, side))
                fact = benchmark.codec.value.fact_from_line(line)
                measured.facts[side].append(fact)
                failure = getattr(fact, "failure", None)
                if failure is not None:
                    progress.print_failure(f"side {side}: {failure.text}")

            measure(side, number, keep, records[side].append)

        began = time.monotonic() - asked["spent_s"]
        try:
            asked["ended"] = _until_decided(measured, asked, measure_launch, began, progress)
        finally:
            asked["spent_s"] = round(time.monotonic() - began, 2)
            folders.update_manifest(path, ab=asked)


def _until_decided(
    measured: _TwoSides, asked: Json, measure_launch: Callable[[str, int], None], began: float, progress: PairProgress
) -> str:
    """Measure pair after pair; returns why it ended."""
    from bench.analyze import pairs

    first, decided_at, made, latest_s = pairs.FirstLook(), None, 0, 0.0
    for number in range(1, pairs.LOOKS[-1] + 1):
        order = list(SIDES)
        random.Random(f"{asked['seed']}/{number}").shuffle(order)
        missing = [side for side in order if not measured.complete(side, number)]
        spent = time.monotonic() - began
        if missing and made and spent + latest_s > asked["budget_s"]:
            return f"the budget of {asked['budget_s']:g} s was spent after {made} pairs"
        for side in missing:
            measure_launch(side, number)
        made, latest_s = number, time.monotonic() - began - spent
        if number not in pairs.LOOKS:
            progress.show_pairs(made, time.monotonic() - began)
            continue
        judged = pairs.look(measured.cases()[0], number, asked["min_change"], first)
        if judged.whole is not None and judged.whole.verdict in {"SLOWER", "FASTER"} and decided_at is None:
            decided_at = made
        progress.show_look(judged.whole, [judgement.verdict for judgement in judged.judgements.values()], made)
        progress.show_pairs(made, time.monotonic() - began)
        why = pairs.why_end(judged, made, decided_at)
        if why is not None:
            return why
    return f"{made} pairs are the most"


def _read(path: Path, benchmark: Benchmark) -> _TwoSides:
    plans = dict(zip(SIDES, folders.read_plans(path, benchmark.codec.value), strict=True))
    runs = {side: benchmark.read(path / side) for side in SIDES}
    facts = {side: list(run.facts) for side, run in runs.items()}
    return _TwoSides(benchmark, plans, facts, {side: run.environment for side, run in runs.items()})


# ── who starts the ranks of a side ───────────────────────────────────────────────────────────────
@contextlib.contextmanager
def _measuring(
    path: Path, measured: _TwoSides, sides: Mapping[str, Json], coordinator: "Coordinator | None"
) -> Iterator[tuple[Measure, dict[str, Json]]]:
    """The function that measures a launch of a side, and the facts of each side's host and packages.

    A side with an interpreter or variables of its own has a process of its own; all others share one fork server.
    """
    with contextlib.ExitStack() as stack:
        processes = {
            side: stack.enter_context(
                SideProcess(
                    f"side {side.upper()}",
                    [*sides[side]["python"], "-m", "bench.cli.side", str(path / side)],
                    sides[side]["variables"],
                )
            )
            for side in SIDES
            if sides[side]["own_process"]
        }
        launcher: Any = None
        if len(processes) < len(SIDES):
            launcher = None if coordinator else stack.enter_context(measured.benchmark.launcher())
        for process in processes.values():
            process.wait_until_ready()

        def measure(side: str, number: int, append: Callable[[bytes], None], launched: Callable[[Json], None]) -> None:
            if side in processes:
                processes[side].measure(number, append, launched)
                return
            done = facts_of_launch(measured.facts[side], number)
            plan = one_launch(measured.plans[side], number)
            starter = replace(coordinator.launcher, side=side) if coordinator else launcher
            measured.benchmark.sweep(plan, done, starter, append, path / folders.LOG, launched, benchmarks.SILENT)

        more = coordinator.facts() if coordinator else {}
        facts = {side: {"host": processes[side].facts if side in processes else host.facts(), **more} for side in SIDES}
        yield measure, facts


# ── the report ───────────────────────────────────────────────────────────────────────────────────
def conclude_sides(path: Path, plots: bool) -> PairedComparison:
    """Print the comparison, write it into the run's folder, and draw it."""
    from bench.report import comparison, machine_format

    result = compared(path)
    text = comparison.pairs_document(result)
    show(text)
    if is_ours(path):
        written = {folders.REPORT: text, folders.SUMMARY: machine_format.pairs_csv(result)}
        for name, content in written.items():
            folders.write(path / name, content)
        typer.echo("\n" + "\n".join(str(path / name) for name in written))
    if plots:
        from bench.report.plots import comparison as pictures  # here: loads matplotlib

        typer.echo(str(pictures.draw_pairs(result, PLOTS / path.resolve().name)))
    return result


def compared(path: Path) -> PairedComparison:
    """The comparison of the two sides, as far as they have been measured."""
    from bench.analyze import pairs
    from bench.analyze.sessions import differences, of_sessions

    manifest = folders.read_manifest(path)
    asked, sides = manifest["ab"], manifest["sides"]
    benchmark = benchmarks.of_run(path)
    measured = _read(path, benchmark)
    ended = asked.get("ended") or "interrupted: run --resume goes on"
    cases, alone = measured.cases()
    called = f"A: {sides['a']['text']}", f"B: {sides['b']['text']}"
    result = pairs.conclude(cases, called, asked["min_change"], ended)
    environments = [of_sessions(measured.environments[side]) for side in SIDES]
    return replace(
        result,
        differences=differences(*environments),
        warnings=(*result.warnings, *alone),
        fail_on=tuple(asked["fail_on"]),
    )
