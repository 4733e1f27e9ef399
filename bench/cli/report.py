"""The verb `report`: build the report of a run again from its samples."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import benchmarks
from bench.cli.app import RESULTS, RunName
from bench.cli.run_files import write_report
from bench.cli.screen import show
from bench.cli.sides import conclude_sides
from bench.model.errors import BenchError
from bench.store import folders


class Format(StrEnum):
    """Formats of a report on stdout."""

    MARKDOWN = benchmarks.MARKDOWN
    CSV = benchmarks.CSV
    JSON = benchmarks.JSON
    NCCL_TESTS = benchmarks.NCCL_TESTS
    CS336 = benchmarks.CS336


def report(
    run: RunName = None,
    format: Annotated[Format | None, typer.Option(help="Print only this, for programs.")] = None,  # noqa: A002
    output: Annotated[
        Path | None, typer.Option(help="Folder for the report, in place of the run's own.", metavar="FOLDER")
    ] = None,
) -> None:
    """Without --format it also writes summary.csv, report.md and report.html.

    They are written into the run's folder if that lies in results/ here, or into the folder of --output.
    """
    if format is not None and output is not None:
        raise BenchError("report: --format prints, --output writes files: give one of them")
    path = folders.find(RESULTS, run)
    benchmark = benchmarks.of_run(path)
    if folders.has_sides(path):
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
        if output is not None:
            folders.make_folder(output)
        show("\n" + "\n".join(write_report(benchmark, result, analysis, plots=False, output=output)))
    else:
        typer.echo(benchmark.formats[format.value](result, analysis).rstrip("\n"))
