"""The verb `plots`: draw the pictures of a run, or compare several runs with the first."""

from typing import Annotated

import typer

from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.comparison import compare_runs, print_comparison
from bench.cli.run_files import write_report
from bench.cli.screen import show
from bench.cli.sides import draw_sides
from bench.store import folders


def plots(runs: Annotated[list[str] | None, typer.Argument(help="One run, or several to compare.")] = None) -> None:
    """Write PNG and SVG files into a folder of the run's name below plots/."""
    if runs and len(runs) > 1:
        for other in runs[1:]:
            print_comparison(*compare_runs(runs[0], other), format=None)
        return
    path = folders.find(RESULTS, runs[0] if runs else None)
    benchmark = benchmarks.of_run(path)
    if folders.has_sides(path):
        typer.echo(draw_sides(path))
        return
    result = benchmark.read(path)
    written = write_report(benchmark, result, benchmark.analyze(result), plots=True)
    show("\n".join(written))
