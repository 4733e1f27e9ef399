"""The verb `report`: build the report of a run again from its samples."""

from enum import StrEnum
from typing import Annotated

import typer

from bench import store
from bench.cli import benchmarks
from bench.cli.app import RESULTS, RunName
from bench.cli.run_files import write_report
from bench.cli.screen import show
from bench.cli.sides import conclude_sides
from bench.errors import BenchError


class Format(StrEnum):
    """Formats of a report on stdout."""

    MARKDOWN = benchmarks.MARKDOWN
    CSV = benchmarks.CSV
    JSON = benchmarks.JSON
    NCCL_TESTS = benchmarks.NCCL_TESTS
    COVERAGE = benchmarks.COVERAGE
    CS336 = benchmarks.CS336


def report(
    run: RunName = None,
    format: Annotated[Format | None, typer.Option(help="Write this to stdout instead of files.")] = None,  # noqa: A002
) -> None:
    """Without --format it also writes summary.csv, report.md and report.html into the run's folder."""
    path = store.find(RESULTS, run)
    benchmark = benchmarks.of_run(path)
    if store.has_sides(path):
        if format is not None:
            raise BenchError(f"report --format: {path.name} has two sides; name one of them: {path.name}:a")
        conclude_sides(path, plots=False)
        return
    if format is not None and format.value not in benchmark.formats:
        allowed = ", ".join(benchmark.formats)
        raise BenchError(f"report --format {format.value}: the {benchmark.name} benchmark has {allowed}")
    result = benchmark.read(path)
    analysis = benchmark.analyze(result)
    if format is None:
        show(benchmark.tables(result, analysis))
        typer.echo("\n" + "\n".join(map(str, write_report(benchmark, result, analysis, plots=False))))
    else:
        typer.echo(benchmark.formats[format.value](result, analysis).rstrip("\n"))
