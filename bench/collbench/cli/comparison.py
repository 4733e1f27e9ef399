"""Compare stored runs, or the two sides of a run, and show the result: for `compare`, `ab`, `run` and `report`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from collbench.analyze import comparability
from collbench.cli import output
from collbench.cli.app import PLOTS, RESULTS
from collbench.cli.terminal import say, show
from collbench.model import units
from collbench.model.comparisons import MIN_CHANGE, ChangeVerdict, Comparison
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.facts import Session
from collbench.model.notices import Kind
from collbench.model.records import Ending, EndReason, Run, Undecided
from collbench.report.blocks import Blocks
from collbench.store import folders, ledger

SLOWER_OR_FAILED, UNDECIDED = 1, 3


IfUndecided = Annotated[
    Undecided, typer.Option("--undecided", help="Set the exit code if nothing is decided: pass 0, fail 1.")
]


def exiting(result: Comparison, undecided: Undecided) -> Comparison:
    """Return the comparison with the exit code that applies if nothing was decided."""
    fatal = (ChangeVerdict.INCONCLUSIVE,) if undecided is Undecided.FAIL else ()
    three = undecided is Undecided.THREE
    return replace(result, fail_on=(ChangeVerdict.SLOWER, *fatal), undecided_exits=three)


class ComparisonFormat(StrEnum):
    """Formats of a comparison on stdout."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    JUNIT = "junit"
    LINE = "line"
    OPENMETRICS = "openmetrics"


def number(option: str, text: str, parse: Callable[[str], float] = units.parse_share) -> float:
    """Parse the value of an option, such as `5%`. Raises ConfigError."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def compare_runs(
    before: Sequence[Path],
    after: Sequence[Path],
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: str | None = None,
) -> Comparison:
    """Compare runs, one or several on each side. Both sides may be the same folder."""
    from collbench.analyze import compare  # deferred import: loads numpy and scipy

    old = [folders.read(path) for path in before]
    new = old if after == before else [folders.read(path) for path in after]
    for run in (*old, *new):
        if not run.samples:
            raise UnmeasurableError(
                f"{run.name}: interrupted before its first sample: collbench resume {run.path} measures it"
            )
    for side in (old, new):
        _check_one_machine(side)
    return compare.compare_runs(old, new, min_change, noise_floor, across, ledger.read(RESULTS))


def _check_one_machine(side: Sequence[Run]) -> None:
    """Raise ConfigError if runs of one side come from different machines: their launches cannot be one sample."""
    first = side[0]
    for run in side[1:]:
        if run.imported is None and first.imported is None and first.environment and run.environment:
            backends = {case.backend for case in run.plan.cases}
            sessions: list[Session] = [{**member.environment[0], "side": ""} for member in (first, run)]
            different = comparability.session_differences(sessions[:1], sessions[1], backends)
            if blocking := [difference for difference in different if difference.blocking]:
                both = "; ".join(f"{d.fact}: {d.recorded} and {d.here}" for d in blocking)
                names = f"{first.name} and {run.name}"
                raise ConfigError(f"{names} cannot be one side of a comparison ({both}): compare them with each other")


def run_of_sides(paths: Sequence[Path]) -> Path | None:
    """Return the folder of a run of two sides if it is named, alone or by both sides; None otherwise."""
    places = {path.resolve() for path in paths}
    path = paths[0].resolve() if len(paths) == 1 else paths[0].resolve().parent
    named = places in ({path}, {path / side for side in folders.SIDES})
    known = len(paths) == 1 or (path / folders.MANIFEST).is_file()  # not of two folders named a and b
    return path if named and known and folders.RunFolder(path).has_sides else None


SHORT_BUDGET = Kind("short-budget", "{pairs} of {fewest} pairs fitted into the budget", "try --budget {minutes}min")


def compare_sides(path: Path) -> Comparison:
    """Compare the two sides of a run, as far as they have been measured."""
    from collbench.analyze import pairs  # deferred import: loads numpy and scipy

    folder = folders.RunFolder(path)
    a, b = folder.runs.values()
    state, sides = folder.ab, folder.sides
    names = f"A: {sides['a'].text}", f"B: {sides['b'].text}"
    made = max((samples.launch for samples in b.samples), default=0)
    ended = state.ended or Ending(EndReason.INTERRUPTED, made)
    result = pairs.compare_sides(a, b, names, state.min_change, ended, state.looks, state.each)
    turns, fewest = result.in_turns, pairs.FEWEST_PAIRS
    assert turns is not None  # noqa: S101 - the sides took turns
    if ended.reason is EndReason.BUDGET and turns.pairs < fewest and not result.broken:
        minutes = math.ceil(1.2 * state.spent_s * fewest / max(turns.pairs, 1) / 60)
        short = SHORT_BUDGET(pairs=turns.pairs, fewest=fewest, minutes=minutes)
        result = replace(result, remarks=(*result.remarks, short))
    turns = replace(turns, alternate=state.alternate, budget_s=state.budget_s)
    return exiting(replace(result, in_turns=turns), state.undecided)


def conclude_sides(path: Path, plots: bool, quiet: bool = False) -> Comparison:
    """Print the comparison of two sides, write it into a folder, and draw it. quiet: print the verdict only."""
    from collbench.report import comparison, machine_format

    result, name = compare_sides(path), path.resolve().name
    folder, document = output.documents_at(path, name), comparison.document(result)
    files = {folder / folders.REPORT: document, folder / folders.SUMMARY: machine_format.comparison_csv(result)}
    blocks = document if quiet else comparison.terminal(result)
    with output.optional("report", remedy=""):
        output.give(blocks, files, lambda: _draw(result, name, plots), quiet)
    return result


def print_comparison(
    result: Comparison,
    name: str,
    format: ComparisonFormat | None,  # noqa: A002
) -> int:
    """Print a comparison; without a format also draw it. Returns the exit code. name: of the picture's folder."""
    from collbench.report import comparison, junit, machine_format

    writers = {
        ComparisonFormat.CSV: lambda: machine_format.comparison_csv(result),
        ComparisonFormat.JSON: lambda: machine_format.comparison_json(result),
        ComparisonFormat.JUNIT: lambda: junit.comparison_junit(result),
        ComparisonFormat.OPENMETRICS: lambda: machine_format.comparison_openmetrics(result),
    }
    document, terminal = (partial(blocks, result) for blocks in (comparison.document, comparison.terminal))
    print_as(format, document, writers, lambda: _draw(result, name), terminal)
    return exit_code(result)


def exit_code(result: Comparison) -> int:
    """Return 1 if a verdict or a case is a failure; 3 if cases or a required decision are missing; else 0."""
    return SLOWER_OR_FAILED if result.failed else UNDECIDED if result.undecided or result.lost else 0


def print_as(
    format: ComparisonFormat | None,  # noqa: A002
    document: Callable[[], Blocks],
    writers: Mapping[ComparisonFormat, Callable[[], str]],
    draw: Callable[[], Path | None] = lambda: None,
    terminal: Callable[[], Blocks] | None = None,
) -> None:
    """Print a document in this format; None is for a terminal, with the picture. writers: other format → its writer.

    terminal: returns the blocks for a terminal, if they are not those of the document.
    """
    match format:
        case None:
            output.give((terminal or document)(), {}, draw)
        case ComparisonFormat.LINE:
            show(document(), quiet=True)
        case ComparisonFormat.MARKDOWN:
            from collbench.report import markdown  # deferred import: loads tabulate

            say(markdown.written(document()).rstrip("\n"))
        case _:
            say(writers[format]().rstrip("\n"))


def _draw(result: Comparison, name: str, plots: bool = True) -> Path | None:
    """Draw a comparison, if it has a case. Returns the path of the picture, if there is one."""
    from collbench.report.plots import comparison as pictures  # deferred import: loads matplotlib

    return pictures.draw_comparison(result, PLOTS / output.folder_name(name)) if plots else None
