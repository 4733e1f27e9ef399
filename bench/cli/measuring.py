"""Measure what a run's plan contains and its folder does not yet hold, for the verbs that measure."""

import contextlib
import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from bench.cli.benchmarks import Benchmark
from bench.cli.session import recorded_session
from bench.store import folders
from bench.store.folders import Journal

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


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
