"""Make a run from a configuration, measure what it lacks, and conclude it, for the verbs that measure.

In: a configuration that is not yet parsed, or the folder of a run. Out: the exit code; the run's samples, how it ended
and the machine before and after it, its tables, report and plots.
"""

import contextlib
import importlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from bench import __version__
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.benchmarks import Benchmark
from bench.cli.nccl_tests_options import ConfigSource
from bench.cli.output import show, write_report
from bench.machine import host
from bench.model.errors import StoreError, UnmeasurableError
from bench.model.records import Json
from bench.store import folders, ledger
from bench.store.folders import Journal

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


def start(
    asked: ConfigSource, sets: list[str], plots: bool, coordinator: "Coordinator | None", argv: Sequence[str]
) -> int:
    """Plan a new run, measure it and write its report; return the exit code."""
    typer.echo(asked.shown, nl=bool(asked.shown))
    benchmark, settings = benchmarks.read_config(asked.raw, asked.name, sets, asked.default_name)
    unsupported = host.unsupported_platform()
    if unsupported:
        raise UnmeasurableError(unsupported)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    machine = host.machine() if coordinator is None else coordinator.machine(benchmark.demands(settings))
    plan = benchmark.expand(settings, machine, seed)
    reason = benchmark.unmeasurable_reason(plan)
    if reason is not None:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {reason}")
    facts = {"argv": list(argv), "overrides": sets, "collbench": __version__}
    path = folders.create(RESULTS, benchmark.codec.value, plan, asked.raw, facts)
    return measured(benchmark, path, plots, coordinator)


def measured(benchmark: Benchmark, path: Path, plots: bool, coordinator: "Coordinator | None") -> int:
    """Measure what the run's plan contains and its folder does not; then print and write the report."""
    measure(benchmark, path, plots, coordinator)
    try:
        return _conclude(benchmark, path, plots)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; all of it was measured and is kept: report {path.name} writes the report", err=True)
        raise


def _conclude(benchmark: Benchmark, path: Path, plots: bool) -> int:
    """Print the tables and notes of a run that has ended, write report and plots; return the exit code."""
    run: Any = benchmark.read(path)
    analysis = benchmark.analyze(run)
    show(benchmark.terminal(run, analysis))
    typer.echo("\n" + "\n".join(write_report(benchmark, run, analysis, plots, path)))
    if benchmark.ledger_entry is not None:
        entry = benchmark.ledger_entry(run, analysis)
        if entry is not None:
            ledger.append(RESULTS, entry)
    problems = benchmark.problems(run, analysis)
    for problem in problems:
        typer.echo(problem, err=True)
    return 1 if problems else 0


def measure(benchmark: Benchmark, path: Path, plots: bool, coordinator: "Coordinator | None" = None) -> None:
    """Measure what is missing in a run, with a progress bar."""
    with Journal(path) as journal:
        if not journal.locked:
            typer.echo(f"note: {path}: its file system has no locks: let no other process measure into it", err=True)
        before = benchmark.read(path)
        done = benchmark.done(before.plan, before.facts)
        if done is None:
            return
        launcher = benchmark.launcher() if coordinator is None else contextlib.nullcontext(coordinator.launcher)
        session = recorded_session(path, before.environment, coordinator.facts() if coordinator else {})
        observer = benchmark.observer(Console(stderr=True), before.plan.total, done)
        with session as launches, launcher as entered, observer as observing:
            modules = (*benchmark.report_modules, *(benchmark.pictures.value.modules if plots else ()))
            loading = threading.Thread(target=_load, args=(modules,), daemon=True)
            loading.start()
            log = path / folders.LOG
            benchmark.sweep(
                before.plan, before.facts, entered, journal.append, log, launches.append, observing, loading.join
            )


def _load(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)


@contextlib.contextmanager
def recorded_session(path: Path, sessions: list[Json], more: Json | None = None) -> Iterator[list[Json]]:
    """Context that records one session of a run: its status, and the machine before and after.

    Yields a list for what the ranks of each launch said of themselves. more: further facts of the session.
    """
    from bench.machine import host

    with _marked(path):
        session: Json = {"host": host.facts(), "before": host.state(), **(more or {})}
        folders.write_environment(path, [*sessions, session])
        launches: list[Json] = []
        try:
            yield launches
        finally:
            session |= {"after": host.state(), "launches": launches}
            with contextlib.suppress(StoreError):  # a full disk has been reported already
                folders.write_environment(path, [*sessions, session])


@contextlib.contextmanager
def recorded_sides(path: Path, sessions: list[Json], facts: Mapping[str, Json]) -> Iterator[dict[str, list[Json]]]:
    """The same for a run of two sides: a session of each side. facts: by side. Yields a list for each side."""
    from bench.machine import host

    with _marked(path):
        state = host.state()
        added: dict[str, Json] = {side: {"side": side, **of_side, "before": state} for side, of_side in facts.items()}
        folders.write_environment(path, [*sessions, *added.values()])
        launches: dict[str, list[Json]] = {side: [] for side in facts}
        try:
            yield launches
        finally:
            after = host.state()
            for side, session in added.items():
                session |= {"after": after, "launches": launches[side]}
            with contextlib.suppress(StoreError):  # a full disk has been reported already
                folders.write_environment(path, [*sessions, *added.values()])


@contextlib.contextmanager
def _marked(path: Path) -> Iterator[None]:
    """Write into the manifest how the run ended; after an interrupt, print how to go on."""

    def mark(status: str) -> None:
        folders.update_manifest(path, status=status, finished=datetime.now(UTC).isoformat(timespec="seconds"))

    try:
        folders.update_manifest(path, status="running")
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(StoreError):
            mark("interrupted")
        typer.echo(f"interrupted; what was measured is kept, go on with: run --resume {path}", err=True)
        raise
    except BaseException:
        with contextlib.suppress(StoreError):
            mark("failed")
        raise
    mark("complete")
