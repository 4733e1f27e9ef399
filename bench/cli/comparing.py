"""Verbs that lay runs side by side: `compare`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench import store, units
from bench.cli.app import PLOTS, RESULTS, verb
from bench.errors import ConfigError, UnmeasurableError

if TYPE_CHECKING:
    from bench.conclusions import Comparison, Summary
    from bench.records import Run
    from bench.training.conclusions import TrainingComparison

SLOWER_OR_FAILED = 1
MIN_CHANGE = "5%"


class ComparisonFormat(StrEnum):
    """Formats of a comparison on stdout."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    JUNIT = "junit"


@verb
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Two runs, or more, or one with --against or --across.", metavar="BEFORE AFTER"),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="A table of expected bandwidths (YAML) to hold one run against.", metavar="FILE")
    ] = None,
    min_change: Annotated[
        str, typer.Option(help="Smallest change of time that matters.", metavar="SHARE")
    ] = MIN_CHANGE,
    noise_floor: Annotated[
        str | None,
        typer.Option(
            help="Where launches are too few: by how much two measurements of one thing differ at most, as you know.",
            metavar="SHARE",
        ),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(
            help="Compare across this: backend, world_size, ...; or backend=gloo,nccl, within one run too.",
            metavar="AXIS",
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        ComparisonFormat | None, typer.Option(help="Only this, to stdout; no picture.")
    ] = None,
) -> int:
    """Did it change? Two runs: a verdict on each case. More: since when. One --against a table: does it reach it?

    Two runs of the gradient benchmark: did the step of each strategy, and its exposed communication?

    One run --across backend=gloo,mpi: which of the two is faster (the newest run if none is named).

    Exit code 1 if a case is slower, failed after it had been measured before, or misses its table; within one run a
    slower case is no fault. 3 if nothing is comparable.
    """
    runs = runs or []
    smallest = _share("--min-change", min_change)
    floor = _share("--noise-floor", noise_floor) if noise_floor is not None else None
    pairwise = [name for name, value in (("--noise-floor", noise_floor), ("--across", across)) if value is not None]
    if against is not None:
        _refuse(["--min-change"] * (min_change != MIN_CHANGE) + pairwise, "compares two runs, not one with a table")
        if len(runs) != 1:
            raise ConfigError(f"--against takes one run, but {len(runs)} were named: {', '.join(runs)}")
        return _check(runs[0], against, format)
    if len(runs) < 2 and across is not None:
        return _within(runs[0] if runs else None, format, smallest, floor, across)
    if not runs:
        raise ConfigError("compare what? Name BEFORE and AFTER, or one run with --across backend=gloo,mpi")
    if len(runs) == 1:
        raise ConfigError(f"compare {runs[0]} with what? Name BEFORE and AFTER, or a table: --against FILE")
    if len(runs) == 2:
        return compare_and_show(runs[0], runs[1], format, smallest, floor, across)
    _refuse(pairwise, f"is for two runs, but {len(runs)} were named")
    return _trend(runs, format, smallest)


def _share(option: str, text: str) -> float:
    try:
        return units.parse_share(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _refuse(options: list[str], why: str) -> None:
    if options:
        raise ConfigError(f"{options[0]} {why}")


def compare_and_show(
    before: str,
    after: str,
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float = 0.05,
    noise_floor: float | None = None,
    across: str | None = None,
) -> int:
    """Lay two runs side by side and print it; without a format also draw it. Returns the exit code."""
    if across is not None:
        _refuse_training([before, after], "--across")
    of_training = [name for name in (before, after) if _is_training(name)]
    if len(of_training) == 2:
        return _compare_training(before, after, format, min_change, noise_floor)
    if of_training:
        (other,) = {before, after} - set(of_training)
        raise ConfigError(
            f"{of_training[0]} is a run of the gradient benchmark and {other} one of collectives: name two of one kind"
        )
    from bench.analyze.compare import compare as laid_side_by_side

    (old, olds), (new, news) = _summarized(before), _summarized(after)
    result = laid_side_by_side(old, new, olds, news, min_change, noise_floor, across)
    _show(result, format, PLOTS / f"{old.name}-vs-{new.name}")
    return SLOWER_OR_FAILED if result.verdict == "SLOWER" or result.broken else 0


def _is_training(name: str | None) -> bool:
    return store.is_training(store.read_manifest(store.find(RESULTS, name)))


def _refuse_training(names: Sequence[str | None], what: str) -> None:
    for name in names:
        if _is_training(name):
            run = store.find(RESULTS, name).name
            raise ConfigError(f"{what} is for runs of collectives, and {run} is one of the gradient benchmark")


def _compare_training(
    before: str,
    after: str,
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float,
    noise_floor: float | None,
) -> int:
    from bench.training.analyze.comparison import compare as laid_side_by_side

    old, new = (store.read_training(store.find(RESULTS, name)) for name in (before, after))
    result = laid_side_by_side(old, new, min_change, noise_floor)
    _show_training(result, format, PLOTS / f"{old.name}-vs-{new.name}")
    return SLOWER_OR_FAILED if result.verdict == "SLOWER" or result.broken else 0


def _show_training(
    result: "TrainingComparison",
    format: ComparisonFormat | None,  # noqa: A002
    folder: Path,
) -> None:
    """Print it; without a format also draw it, if anything can be drawn."""
    from bench.training.report import comparison

    _print(
        format,
        markdown=lambda: comparison.document(result),
        csv=lambda: comparison.to_csv(result),
        json=lambda: comparison.to_json(result),
        junit=lambda: comparison.to_junit(result),
    )
    if format is None and result.changes:
        from bench.training.report.plots import comparison as plots

        typer.echo(f"\n{plots.draw_changed(result, folder)}")


def _within(
    name: str | None,
    format: ComparisonFormat | None,  # noqa: A002
    min_change: float,
    noise_floor: float | None,
    across: str,
) -> int:
    """Two sides of one run, such as two backends. Neither came first, so that a slower one is no fault."""
    from bench.analyze.compare import compare as laid_side_by_side

    _refuse_training([name], "--across")
    field, _, values = across.partition("=")
    sides = values.split(",")
    if len(sides) != 2:
        raise ConfigError(f"--across {across}: within one run, say which two: --across {field}=ONE,OTHER")
    run, summaries = _summarized(name)
    result = laid_side_by_side(run, run, summaries, summaries, min_change, noise_floor, across)
    result = replace(result, before=f"{run.name}: {sides[0]}", after=f"{run.name}: {sides[1]}")
    _show(result, format, PLOTS / f"{run.name}-{'-vs-'.join(sides)}")
    return SLOWER_OR_FAILED if result.broken else 0


def _show(result: "Comparison", format: ComparisonFormat | None, folder: Path) -> None:  # noqa: A002
    """Print it; without a format also draw it."""
    from bench.report import comparison, junit

    _print(
        format,
        markdown=lambda: comparison.document(result),
        csv=lambda: comparison.to_csv(result),
        json=lambda: comparison.to_json(result),
        junit=lambda: junit.of_comparison(result),
    )
    if format is None:
        from bench.report.plots import comparison as plots

        typer.echo(f"\n{plots.draw_comparison(result, folder)}")


def _trend(runs: list[str], format: ComparisonFormat | None, min_change: float) -> int:  # noqa: A002
    from bench.analyze import trend
    from bench.report import comparison

    if format is ComparisonFormat.JUNIT:
        raise ConfigError("--format junit is for two runs or for --against: a trend has no verdict")
    _refuse_training(runs, "comparing more than two runs")
    measured = trend.in_order([_summarized(name) for name in runs])
    names = [run.name for run, _ in measured]
    if len(set(names)) < len(names):
        raise ConfigError(f"a run was named twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    trends = trend.trend(measured, min_change)
    if not trends:
        raise UnmeasurableError(f"no case was measured in {trend.FEWEST_RUNS} of these {len(runs)} runs")
    _print(
        format,
        markdown=lambda: comparison.trend_document(trends, names),
        csv=lambda: comparison.trend_csv(trends),
        json=lambda: comparison.trend_json(trends, names),
    )
    if format is None:
        from bench.report.plots import comparison as plots

        typer.echo(f"\n{plots.draw_trend(trends, names, PLOTS / f'{names[0]}-to-{names[-1]}')}")
    return 0


def _check(name: str, table: Path, format: ComparisonFormat | None) -> int:  # noqa: A002
    from bench import expected

    _refuse_training([name], "--against")
    expectations = expected.load(table)
    from bench.analyze import expect
    from bench.report import comparison, junit

    run, summaries = _summarized(name)
    checks = expect.check(expectations, summaries)
    if all(check.measured is None for check in checks):
        raise UnmeasurableError(f"{run.name} has measured nothing of what {table} expects")
    _print(
        format,
        markdown=lambda: comparison.checks_document(checks, run.name),
        csv=lambda: comparison.checks_csv(checks),
        json=lambda: comparison.checks_json(checks, run.name),
        junit=lambda: junit.of_checks(checks, run.name),
    )
    # A gate that was not passed must not be green: INCONCLUSIVE and MISSING count like FAIL.
    return 0 if all(check.verdict == expect.PASS for check in checks) else SLOWER_OR_FAILED


def _summarized(name: str | None) -> "tuple[Run, list[Summary]]":
    from bench.analyze import stats

    run = store.read(store.find(RESULTS, name))
    return run, stats.headlines(run)


def _print(format: ComparisonFormat | None, **writers: Callable[[], str]) -> None:  # noqa: A002
    typer.echo(writers[format or ComparisonFormat.MARKDOWN]().rstrip("\n"))
