"""The verb `compare`: compare two runs, two sides of one run, many runs over time, or a run with a table."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import benchmarks
from bench.cli.app import PLOTS, RESULTS
from bench.cli.comparison import MIN_CHANGE, ComparisonFormat, FailOn, compare_runs, print_as, print_comparison, share
from bench.model.conclusions import Summary
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.records import Run
from bench.store import folders
from bench.store.encoding import CODEC

SLOWER_OR_FAILED = 1
DEFAULT_MIN_CHANGE = f"{MIN_CHANGE:.0%}"


Against = Annotated[
    Path | None, typer.Option(help="A table of expected bandwidths (YAML) to hold one run against.", metavar="FILE")
]
MinChange = Annotated[str, typer.Option(help="Smallest change of time that matters.", metavar="SHARE")]
NoiseFloor = Annotated[
    str | None,
    typer.Option(help="For one launch a side: by how much two equal measurements may differ.", metavar="SHARE"),
]
Across = Annotated[
    str | None,
    typer.Option(
        help="Compare along a field (backend, world_size, ...), or two of its values: backend=gloo,nccl.",
        metavar="AXIS",
    ),
]
WhatFails = Annotated[
    FailOn | None, typer.Option(help="What gives exit code 1 (default: slower; with --against: inconclusive).")
]


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Two runs, or more, or one with --against or --across.", metavar="BEFORE AFTER"),
    ] = None,
    against: Against = None,
    min_change: MinChange = DEFAULT_MIN_CHANGE,
    noise_floor: NoiseFloor = None,
    across: Across = None,
    fail_on: WhatFails = None,
    format: Annotated[  # noqa: A002
        ComparisonFormat | None, typer.Option(help="Print only this format; draw no picture.")
    ] = None,
) -> int:
    """Two runs: a verdict on each case; of the training benchmark: on each strategy's step and exposed communication.

    Three runs or more: since which run each case has taken another time.

    One run --against a table: does each case reach the bandwidth that the table expects?

    One run --across backend=gloo,mpi: which of the two is faster (in the newest run if none is named).

    Exit code 1 if the run as a whole or a case is slower, was measured before and failed after, or does not reach its
    table; within one run a slower case is no fault. 3 if nothing is comparable.
    """
    runs = runs or []
    smallest = share("--min-change", min_change)
    floor = share("--noise-floor", noise_floor) if noise_floor is not None else None
    pairwise = [name for name, value in (("--noise-floor", noise_floor), ("--across", across)) if value is not None]
    if against is not None:
        pairwise += ["--min-change"] * (min_change != DEFAULT_MIN_CHANGE)
        _refuse(pairwise, "compares two runs, not one with a table")
        if len(runs) != 1:
            raise ConfigError(f"--against takes one run, but {len(runs)} were named: {', '.join(runs)}")
        return _check(runs[0], against, format, fail_on or FailOn.INCONCLUSIVE)
    if len(runs) < 2 and across is not None:
        return _within(runs[0] if runs else None, format, smallest, floor, across)
    if not runs:
        raise ConfigError("compare what? Name BEFORE and AFTER, or one run with --across backend=gloo,mpi")
    if len(runs) == 1:
        raise ConfigError(f"compare {runs[0]} with what? Name BEFORE and AFTER, or a table: --against FILE")
    if len(runs) == 2:
        benchmark, result, folder = compare_runs(runs[0], runs[1], smallest, floor, across)
        result = replace(result, fail_on=(fail_on or FailOn.SLOWER).verdicts)
        print_comparison(benchmark, result, folder, format)
        return SLOWER_OR_FAILED if result.failed else 0
    _refuse(pairwise, f"is for two runs, but {len(runs)} were named")
    return _trend(runs, format, smallest)


def _refuse(options: list[str], why: str) -> None:
    if options:
        raise ConfigError(f"{options[0]} {why}")


def _within(
    name: str | None,
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float,
    noise_floor: float | None,
    across: str,
) -> int:
    """Compare two sides of one run, such as two backends. Neither came first, so a slower one is no fault."""
    field, _, values = across.partition("=")
    sides = values.split(",")
    run = _read(name, "--across")
    if len(sides) != 2:
        raise ConfigError(f"--across {across}: within one run, say which two: --across {field}=ONE,OTHER")
    result = benchmarks.COLLECTIVES.compare(run, run, min_change, noise_floor, across)
    result = replace(result, before=f"{run.name}: {sides[0]}", after=f"{run.name}: {sides[1]}", fail_on=())
    print_comparison(benchmarks.COLLECTIVES, result, PLOTS / f"{run.name}-{'-vs-'.join(sides)}", format)
    return SLOWER_OR_FAILED if result.failed else 0


def _trend(runs: list[str], format: ComparisonFormat | None, min_change: float) -> int:  # noqa: A002
    from bench.analyze import trend
    from bench.report import comparison, machine_format

    if format is ComparisonFormat.JUNIT:
        raise ConfigError("--format junit is for two runs or for --against: a trend has no verdict")
    measured = trend.in_order([_summarized(name, "comparing more than two runs") for name in runs])
    names = [run.name for run, _ in measured]
    if len(set(names)) < len(names):
        raise ConfigError(f"a run was named twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    trends = trend.trend(measured, min_change)
    if not trends:
        raise UnmeasurableError(f"no case was measured in {trend.FEWEST_RUNS} of these {len(runs)} runs")
    writers = {
        benchmarks.MARKDOWN: lambda: comparison.trend_document(trends, names),
        benchmarks.CSV: lambda: machine_format.trend_csv(trends),
        benchmarks.JSON: lambda: machine_format.trend_json(trends, names),
    }
    print_as(format, writers)
    if format is None:
        from bench.report.plots import comparison as pictures  # here: loads matplotlib

        typer.echo(f"\n{pictures.draw_trend(trends, names, PLOTS / f'{names[0]}-to-{names[-1]}')}")
    return 0


def _check(name: str, table: Path, format: ComparisonFormat | None, fail_on: FailOn) -> int:  # noqa: A002
    from bench.analyze import expect
    from bench.analyze.sessions import places_of
    from bench.analyze.summaries import headlines
    from bench.config import expected, shipped
    from bench.report import comparison, machine_format

    run = _read(name, "--against")
    expectations = expected.load(shipped.path_of(table, shipped.EXPECTED))
    result = expect.check(expectations, headlines(run), places_of(run))
    if all(check.measured is None for check in result.checks):
        raise UnmeasurableError(f"{run.name} has measured nothing of what {table} expects ({result.reason})")
    # A line that was not measured is a failure in any case.
    failing = {expect.FAIL, expect.MISSING, *([expect.INCONCLUSIVE] if fail_on is FailOn.INCONCLUSIVE else [])}
    writers = {
        benchmarks.MARKDOWN: lambda: comparison.checks_document(result, run.name),
        benchmarks.CSV: lambda: machine_format.checks_csv(result.checks),
        benchmarks.JSON: lambda: machine_format.checks_json(result, run.name),
        benchmarks.JUNIT: lambda: machine_format.checks_junit(result, run.name, failing),
    }
    print_as(format, writers)
    return SLOWER_OR_FAILED if result.verdict in failing else 0


def _read(name: str | None, what: str) -> Run:
    """Read a run of collectives. what: the option or verb that needs one, for the error."""
    path = folders.find(RESULTS, name)
    benchmarks.collectives_only([path], what)
    return folders.read(path, CODEC)


def _summarized(name: str | None, what: str) -> tuple[Run, list[Summary]]:
    from bench.analyze.summaries import headlines

    run = _read(name, what)
    return run, headlines(run)
