"""Start a run from a configuration, for the verbs that make one, and conclude it.

In: a configuration that is not yet parsed. Out: the exit code; the run's folder, its tables, report and plots.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench import __version__
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.benchmarks import Benchmark
from bench.cli.measuring import measure
from bench.cli.nccl_tests_options import ConfigSource
from bench.cli.run_files import write_report
from bench.cli.screen import show
from bench.machine import host
from bench.model.errors import UnmeasurableError
from bench.store import folders, ledger

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
