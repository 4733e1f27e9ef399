"""The verbs that look at what is there: `report`, `diagnose`, `list`, and `doctor` for the machine.

Each imports what it needs when it is called: `list` loads neither numpy nor a part of torch.
"""

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.catalog.packages import PACKAGES
from bench.cli.app import PLOTS, RESULTS, RunName
from bench.cli.output import analyzed, conclude, show, show_hanging
from bench.cli.terminal import say
from bench.model.deferred import Deferred
from bench.model.errors import BenchError, UnmeasurableError
from bench.model.records import Json
from bench.store import folders

# Formats of a report on stdout, and what writes each.
FORMATS = {
    "markdown": Deferred("report.document:build"),
    "csv": Deferred("report.machine_format:to_csv"),
    "json": Deferred("report.machine_format:to_json"),
    "junit": Deferred("report.machine_format:to_junit"),
    "nccl-tests": Deferred("report.nccl_tests:document"),
    **{name: writer for package in PACKAGES for name, writer in package.formats.items()},
}


# What `list` can list; packages add what writes theirs.
OF_PACKAGES = {name: listing for package in PACKAGES for name, listing in package.lists.items()}
LISTINGS = ("runs", "operations", "backends", "configs", "variables", *OF_PACKAGES)
if TYPE_CHECKING:
    Format = str
    Listing = str
else:  # typer takes the values of an option from an enum
    Format = StrEnum("Format", [(name.upper(), name) for name in FORMATS])
    Listing = StrEnum("Listing", [(name.upper(), name) for name in LISTINGS])
RUNS = Listing("runs")


class Style(StrEnum):
    """What pictures are for."""

    SCREEN = "screen"
    PAPER = "paper"


def report(
    runs: Annotated[
        list[str] | None, typer.Argument(help="A run: its folder or name; the newest if left out.", metavar="RUN")
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Print only this, for programs.")] = None,  # noqa: A002
    output: Annotated[
        Path | None, typer.Option(help="Folder for the report, in place of the run's own.", metavar="FOLDER")
    ] = None,
    plots: Annotated[
        bool | None, typer.Option("--plots/--no-plots", help="Draw the pictures (default), below plots/.")
    ] = None,
    curves: Annotated[bool, typer.Option("--curves", help="Only draw several runs together: RUN RUN...")] = False,
    style: Annotated[
        Style, typer.Option(help="paper: pictures also as PDF, as wide as a column, without titles.")
    ] = Style.SCREEN,
) -> None:
    """Without --format it also writes summary.csv, report.md and report.html.

    They are written into the run's folder if that lies in results/ here, else beside its pictures in plots/.
    """
    if format is not None and output is not None:
        raise BenchError("report: --format prints, --output writes files: give one of them")
    if format is not None and (plots or curves or style is Style.PAPER):
        raise BenchError("report: --format prints, --plots, --curves and --style draw: give one of them")
    if style is Style.PAPER and plots is False:
        raise BenchError("report: --style paper draws, --no-plots does not: give one of them")
    names = runs or []
    if curves:
        if len(names) < 2 or plots is False or output is not None:
            raise BenchError("report --curves: name two runs or more, without --no-plots and --output")
        _draw_curves(names, style is Style.PAPER)
        return
    if len(names) > 1:
        raise BenchError(f"report takes one run, but {len(names)} were named; one picture of several: --curves")
    path = folders.find(RESULTS, names[0] if names else None)
    if folders.has_sides(path):
        from bench.cli.comparison import ComparisonFormat, compare_sides, conclude_sides, print_comparison

        if format is None:
            if style is Style.PAPER:
                raise BenchError(f"report --style paper: of two sides, name one of them: {path.name}:a")
            conclude_sides(path, plots is not False)
        elif format in {*ComparisonFormat}:
            print_comparison(compare_sides(path), path, ComparisonFormat(format))
        else:
            raise BenchError(f"report --format {format}: of two sides, name one of them: {path.name}:a")
        return
    result = folders.read(path)
    analysis = analyzed(result)
    if format is None:
        conclude(result, analysis, plots is not False, output, paper=style is Style.PAPER)
    else:
        say(FORMATS[format](result, analysis).rstrip("\n"))


def _draw_curves(names: list[str], paper: bool) -> None:
    """Draw times and bandwidths of several runs together, and print the paths of the pictures."""
    from bench.report import plots

    paths = [folders.find(RESULTS, name) for name in names]
    for path in paths:
        if folders.has_sides(path):
            raise BenchError(f"report --curves: {path.name} has two sides: name one of them, {path.name}:a")
    analyses = {run.name: analyzed(run) for run in map(folders.read, paths)}
    if len(analyses) < len(names):
        raise BenchError(f"report --curves: two of these runs have one name: {', '.join(names)}")
    ends = [name.replace(":", "-") for name in analyses]
    pictures = plots.draw_curves(analyses, PLOTS / f"{ends[0]}-to-{ends[-1]}", paper)
    if not pictures:
        raise UnmeasurableError("nothing to draw: these runs have no time of an operation with a size")
    show("\n".join(map(str, pictures)))


class DiagnosisFormat(StrEnum):
    """Formats of a diagnosis."""

    TEXT = "text"
    JSON = "json"


def diagnose(
    run: RunName = None,
    format: Annotated[  # noqa: A002
        DiagnosisFormat, typer.Option(help="text, or json for programs.")
    ] = DiagnosisFormat.TEXT,
) -> None:
    """A rank is late if it arrives last more often than by chance. Links are judged by the operation pairwise."""
    from bench.analyze import analysis
    from bench.report import findings

    path = folders.find(RESULTS, run)
    result = folders.read(path)
    diagnosis = analysis.diagnose(result)
    if format is DiagnosisFormat.JSON:
        say(json.dumps(dataclasses.asdict(diagnosis), indent=1, ensure_ascii=False))
    else:
        show(f"{result.name}\n\n{findings.diagnosis(diagnosis)}")


NO_REPORT = ("-", "no report yet")
NO_RUNS = f"no runs in {RESULTS} yet; make one: collbench run gloo"


def list_(what: Annotated[Listing, typer.Argument(help="What to list.")] = RUNS) -> None:
    """Models are those that a configuration can name; variables those that `env` may set."""
    from bench.config import names
    from bench.report import listings

    match what:
        case "runs":
            rows: list[tuple[str, Json, tuple[str, str]]] = []
            notes = [f"{path}: {folders.incomplete(path)}" for path in folders.strays(RESULTS)]
            for path in folders.runs(RESULTS):
                try:
                    manifest, summary = folders.read_manifest(path), folders.read_summary(path)
                    headline = NO_REPORT
                    if summary and folders.has_sides(path):
                        headline = str(len(summary)), folders.first_line(path)
                    elif summary:
                        headline = listings.headline(summary)
                    rows.append((path.name, manifest, headline))
                except BenchError as error:
                    notes.append(str(error))
            notes = [f"damaged: {text}" for text in notes]
            show("\n\n".join([listings.runs(rows), *notes]) if rows else "\n".join([*notes, NO_RUNS]))
        case "operations":
            show(listings.operations())
        case "backends":
            from bench.machine import host

            show(listings.backends(host.machine().backends_missing))
        case "variables":
            show(listings.variables())
        case "configs":
            show(listings.configs([*names.files()]))
        case _:
            show(OF_PACKAGES[what]())


SIGNS = {"ok": "ok  ", "note": "note", "missing": "NO  "}


def doctor() -> int:
    """It ends with a trial: two ranks join and sum a tensor. Exit code 1 if that fails, 3 if gloo cannot be used."""
    from bench.launch import doctor as examination
    from bench.machine import host

    def print_finding(finding: examination.DoctorFinding) -> None:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        show_hanging(f"{SIGNS[finding.level]}  {finding.subject:<14} ", f"{finding.text}{remedy}")

    machine = host.machine()
    for finding in examination.examine(machine):
        print_finding(finding)
    if "gloo" in machine.backends_missing:
        return UnmeasurableError.exit_code
    trial = examination.trial()
    print_finding(trial)
    return 0 if trial.level == "ok" else 1
