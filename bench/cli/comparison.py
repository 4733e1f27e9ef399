"""Compare two runs of one benchmark and show the comparison, for the verbs `compare` and `ab`."""

import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from bench.cli import benchmarks, output
from bench.cli.app import PLOTS, RESULTS
from bench.cli.benchmarks import Benchmark
from bench.model import units
from bench.model.errors import ConfigError
from bench.store import folders, ledger

MIN_CHANGE = 0.05


class FailOn(StrEnum):
    """What makes a comparison exit with 1, besides cases that failed."""

    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The verdicts that are failures."""
        return ("SLOWER",) if self is FailOn.SLOWER else ("SLOWER", "INCONCLUSIVE")


class ComparisonFormat(StrEnum):
    """Formats of a comparison on stdout."""

    MARKDOWN = benchmarks.MARKDOWN
    CSV = benchmarks.CSV
    JSON = benchmarks.JSON
    JUNIT = benchmarks.JUNIT


def share(option: str, text: str) -> float:
    """The value of an option, such as `5%`. Raises ConfigError."""
    try:
        return units.parse_share(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def compare_runs(
    before: str,
    after: str,
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
) -> tuple[Benchmark, Any, Path]:
    """The benchmark of the two runs, their comparison, and the folder for its picture."""
    paths = [folders.find(RESULTS, name) for name in (before, after)]
    if across is not None:
        benchmarks.collectives_only(paths, "--across")
    kinds = [benchmarks.of_run(path) for path in paths]
    if kinds[0] is not kinds[1]:
        named = [f"{path.name} is of the {kind.name} benchmark" for path, kind in zip(paths, kinds, strict=True)]
        raise ConfigError(f"{' and '.join(named)}: name two runs of one benchmark")
    old, new = (kinds[0].read(path) for path in paths)
    result = kinds[0].compare(old, new, min_change, noise_floor, across, ledger.read(RESULTS))
    return kinds[0], result, PLOTS / f"{old.name}-vs-{new.name}"


def print_comparison(benchmark: Benchmark, result: Any, folder: Path, format: ComparisonFormat | None) -> None:  # noqa: A002
    """Print a comparison; without a format also draw it."""
    writers = benchmark.comparison_formats
    print_as(format, {name: functools.partial(writer, result) for name, writer in writers.items()})
    if format is None:
        picture = benchmark.draw_comparison(result, folder)
        if picture is not None:
            typer.echo(f"\n{picture}")


def print_as(format: ComparisonFormat | None, writers: Mapping[str, Callable[[], str]]) -> None:  # noqa: A002
    """Print a comparison in this format; None is Markdown, fitted to the terminal. writers: format → its text."""
    text = writers[(format or ComparisonFormat.MARKDOWN).value]().rstrip("\n")
    if format is None:
        output.show(text)
    else:
        typer.echo(text)
