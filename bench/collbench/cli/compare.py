"""The verb `compare`: compare two runs, two sides of one run, or many runs over time."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from collbench.cli.app import PLOTS, RESULTS
from collbench.cli.comparison import (
    ComparisonFormat,
    IfUndecided,
    compare_runs,
    compare_sides,
    exiting,
    number,
    print_as,
    print_comparison,
    run_of_sides,
)
from collbench.cli.output import folder_name
from collbench.model.comparisons import MIN_CHANGE
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import Undecided
from collbench.model.units import format_share
from collbench.store import folders

DEFAULT_MIN_CHANGE = format_share(MIN_CHANGE)


MinChange = Annotated[str, typer.Option(help="Set the smallest change of time that matters.", metavar="SHARE")]
NoiseFloor = Annotated[
    str | None,
    typer.Option(help="With one launch per side: set by how much equal measurements may differ.", metavar="SHARE"),
]
Across = Annotated[
    str | None,
    typer.Option(
        help="Compare along a field, or two of its values: backend=gloo,nccl.",
        metavar="AXIS",
    ),
]


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Two runs (or A1,A2 B1,B2), more, one of ab, one with --across.", metavar="BEFORE AFTER"),
    ] = None,
    min_change: MinChange = DEFAULT_MIN_CHANGE,
    noise_floor: NoiseFloor = None,
    across: Across = None,
    undecided: IfUndecided = Undecided.THREE,
    format: Annotated[  # noqa: A002
        ComparisonFormat | None,
        typer.Option(help=f"Print only this, draw nothing: {', '.join(ComparisonFormat)}.", metavar="FORMAT"),
    ] = None,
) -> int:
    """Give a verdict on each case of two runs; on exposed communication, too, if the case also computes.

    Several runs on a side, separated by commas, show the between-run variance.

    A run of `ab`, alone or by its sides RUN:a RUN:b: in pairs, as `ab` and `report` do.

    Three runs or more: find the run since which each case has taken another time.

    One run --across backend=gloo,mpi: find the faster of the two (in the newest run if none is named).

    Exit code 1 if the whole or a case is slower, or a case failed that did not fail before; within one run a slower
    case is not a fault. 3 if nothing is comparable or decided.
    """
    runs = runs or []
    smallest = number("--min-change", min_change)
    floor = number("--noise-floor", noise_floor) if noise_floor is not None else None
    pairwise = [name for name, value in (("--noise-floor", noise_floor), ("--across", across)) if value is not None]
    if len(runs) < 2 and across is not None:
        return _within(runs[0] if runs else None, format, smallest, floor, across)
    if not runs:
        raise ConfigError("name the two runs BEFORE and AFTER, or one run with --across backend=gloo,mpi")
    if len(runs) > 2:
        if pairwise:
            raise ConfigError(f"{pairwise[0]} is for two runs, but {len(runs)} were named")
        return _trend(runs, format, smallest)
    sides = [[folders.find(RESULTS, name) for name in side.split(",")] for side in runs]
    if (path := run_of_sides([path for side in sides for path in side])) is not None:
        swapped = len(runs) == 2 and sides[0][0].name == folders.SIDES[1]
        refused = pairwise + ["--min-change"] * (min_change != DEFAULT_MIN_CHANGE) + [runs[0]] * swapped
        if refused:
            raise ConfigError(f"{refused[0]}: sides of {path.name} are compared as ab was asked to: B with A, in pairs")
        return print_comparison(exiting(compare_sides(path), undecided), path.name, format)
    if len(runs) == 1:
        raise ConfigError(
            f"compare {runs[0]} has nothing to be compared with: name BEFORE and AFTER "
            "(a table: collbench check TABLE RUN)"
        )
    before, after = sides
    if len({*before, *after}) < len(before) + len(after) > 2:
        raise ConfigError(f"compare {' '.join(runs)}: a run was named twice; further runs must be other ones")
    result = exiting(compare_runs(before, after, smallest, floor, across), undecided)
    return print_comparison(result, f"{result.before}-vs-{result.after}", format)


def _within(
    name: str | None,
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float,
    noise_floor: float | None,
    across: str,
) -> int:
    """Compare two sides of one run, such as two backends. Neither side is older, so a slower side is not a failure."""
    from collbench.analyze.matching import axis_of

    axis, path = axis_of(across), folders.find(RESULTS, name)
    sides = [value for value in axis.values if value is not None]
    if not sides:
        raise ConfigError(
            f"--across {across}: to compare within one run, name the two values: --across {across}=ONE,OTHER"
        )
    result = compare_runs([path], [path], min_change, noise_floor, across)
    before, after = (f"{result.before}: {value}" for value in sides)
    return print_comparison(
        replace(result, before=before, after=after, values=(sides[0], sides[1]), fail_on=(), undecided_exits=False),
        f"{result.before}-{'-vs-'.join(sides)}",
        format,
    )


def _trend(
    runs: list[str],
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float,
) -> int:
    from collbench.analyze import trend
    from collbench.analyze.summaries import headlines
    from collbench.report import comparison, machine_format

    if format in {ComparisonFormat.JUNIT, ComparisonFormat.OPENMETRICS}:
        raise ConfigError(f"--format {format} is for two runs: a trend has no verdict")
    kept = [folders.read(folders.find(RESULTS, name)) for name in runs]
    measured = trend.in_order([(run, headlines(run)) for run in kept])
    names = [run.name for run, _ in measured]
    if len(set(names)) < len(names):
        raise ConfigError(f"a run was named twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    trends = trend.trend(measured, min_change)
    if not trends:
        raise UnmeasurableError(f"no case was measured in {trend.FEWEST_RUNS} of these {len(runs)} runs")
    writers = {
        ComparisonFormat.CSV: lambda: machine_format.trend_csv(trends),
        ComparisonFormat.JSON: lambda: machine_format.trend_json(trends, names),
    }

    def draw() -> Path:
        from collbench.report.plots import comparison as pictures  # deferred import: loads matplotlib

        return pictures.draw_trend(trends, names, PLOTS / folder_name(f"{names[0]}-to-{names[-1]}"))

    print_as(format, lambda: comparison.trend_document(trends, names), writers, draw)
    return 0
