"""The verbs that inspect runs and the machine: `report`, `diagnose`, `list` and `doctor`.

Each verb imports its modules when it is called: `list` loads neither numpy nor any part of torch.
"""

import contextlib
import re
import textwrap
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from collbench.catalog.registry import PACKAGES
from collbench.cli.app import RESULTS, RunName
from collbench.cli.terminal import say, show, show_hanging
from collbench.model.deferred import Deferred
from collbench.model.errors import BenchError, ConfigError, UnmeasurableError
from collbench.model.notices import Notice
from collbench.store import folders

# Format of a report on stdout → the function that writes it.
FORMATS = {
    "markdown": Deferred("report.document:as_markdown"),
    "csv": Deferred("report.machine_format:to_csv"),
    "json": Deferred("report.machine_format:to_json"),
    "junit": Deferred("report.junit:to_junit"),
    **{name: writer for package in PACKAGES for name, writer in package.formats.items()},
}


# Listings that packages add (name → the function that writes it), and the names of all listings of `list`.
OF_PACKAGES = {name: listing for package in PACKAGES for name, listing in package.lists.items()}
LISTINGS = ("runs", "operations", "backends", "configs", "variables", "notices", *OF_PACKAGES)
if TYPE_CHECKING:
    from collbench.model.records import Json

    Format = str
    Listing = str
else:  # typer takes the values of an option from an enum
    Format = StrEnum("Format", [(name.upper(), name) for name in FORMATS])
    Listing = StrEnum("Listing", [(name.upper(), name) for name in LISTINGS])
RUNS = Listing("runs")


def report(
    run: RunName = None,
    format: Annotated[  # noqa: A002
        Format | None, typer.Option(help=f"Print only this, for programs: {', '.join(FORMATS)}.", metavar="FORMAT")
    ] = None,
    plots: Annotated[
        bool, typer.Option(help="Draw the pictures, below plots/. Never drawn with --format.", metavar="")
    ] = True,
    plot_style: Annotated[
        Literal["report", "paper"], typer.Option(help="Draw for a report, or for a column of a paper.")
    ] = "report",
    operation: Annotated[
        str | None, typer.Option(help="With --format: print only this operation.", metavar="NAME")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Print only this backend.", metavar="NAME")] = None,
    ranks: Annotated[int | None, typer.Option(help="Print only this number of ranks.", metavar="N")] = None,
    dtype: Annotated[str | None, typer.Option(help="Print only this dtype.", metavar="NAME")] = None,
    metric: Annotated[str | None, typer.Option(help="Print only this metric.", metavar="NAME")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Begin the names of metrics with this word, for openmetrics.", metavar="WORD")
    ] = None,
) -> None:
    """Print the answer and the tables of a run; without --format also write summary.csv, report.md and report.html.

    The files go to the run's folder if it lies in results/ here, otherwise to the folder of its pictures in plots/.
    """
    options = {"op": operation, "backend": backend, "world_size": ranks, "dtype": dtype, "metric": metric}
    filters = {name: value for name, value in options.items() if value is not None}
    if filters and format is None:
        raise ConfigError("report: --operation, --backend, --ranks, --dtype and --metric choose what --format prints")
    if prefix is not None and (format != "openmetrics" or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", prefix)):
        raise ConfigError(f"--prefix {prefix}: a word for the names of --format openmetrics, such as nccl")
    path = folders.find(RESULTS, run)
    if folders.RunFolder(path).has_sides:
        from collbench.cli.comparison import ComparisonFormat, compare_sides, conclude_sides, print_comparison

        if format is None:
            conclude_sides(path, plots)
        elif format in {*ComparisonFormat}:
            print_comparison(compare_sides(path), path.name, ComparisonFormat(format))
        else:
            raise BenchError(f"report --format {format}: the run has two sides; name one of them: {path.name}:a")
        return
    from collbench.cli.output import analyzed, conclude

    result = folders.read(path)
    analysis = analyzed(result)
    if format is None:
        conclude(result, analysis, plots, paper=plot_style == "paper")
    else:
        from collbench.report.view import View

        view = View(result, analysis)
        more = {"prefix": prefix} if prefix is not None else {}
        say(FORMATS[format](view.only(filters) if filters else view, **more).rstrip("\n"))


def diagnose(
    run: RunName = None,
    format: Annotated[  # noqa: A002
        Literal["json"] | None, typer.Option(help="Print only this, for programs.")
    ] = None,
) -> None:
    """Name ranks that arrive last more often than by chance, and links that the operation pairwise finds slow."""
    from collbench.analyze import analysis
    from collbench.report import findings, machine_format, rows

    path = folders.find(RESULTS, run)
    result = folders.read(path)
    diagnosis = analysis.diagnose(result)
    if format == "json":
        say(machine_format.json_text(rows.row(diagnosis)))
    else:
        show([result.name, *findings.diagnosis(diagnosis)])


# Characters of a result that fit on a line of 80 beside a name and a status.
RESULT_WIDTH = 44
NO_RUNS = f"no runs in {RESULTS} yet; make one: collbench run gloo"


def list_(what: Annotated[Listing, typer.Argument(help="What to list.", metavar="WHAT")] = RUNS) -> None:
    """Models are those that a configuration can name; variables those that `env` may set."""
    from collbench.config import names
    from collbench.report import listings

    match what:
        case "runs":
            rows: list[tuple[str, Json, str]] = []
            notes = [f"{path}: {folders.incomplete(path)}" for path in folders.strays(RESULTS)]
            for path in folders.runs(RESULTS):
                try:
                    folder, summary = folders.RunFolder(path), folders.read_summary(path)
                    headline = "no report yet"
                    if summary and folder.has_sides:
                        headline = textwrap.shorten(folders.first_line(path), RESULT_WIDTH, placeholder=" …")
                    elif summary:
                        with contextlib.suppress(ValueError, KeyError):  # foreign or incomplete summary
                            headline = listings.headline(summary)
                    rows.append((path.name, folder.manifest, headline))
                except BenchError as error:
                    notes.append(str(error))
            notes = [f"damaged: {text}" for text in notes]
            show([*listings.runs(rows), *notes] if rows else ["\n".join([*notes, NO_RUNS])])
        case "operations":
            show(listings.operations())
        case "backends":
            from collbench.machine import host

            show(listings.backends(host.machine().backends_missing))
        case "variables":
            show(listings.variables())
        case "notices":
            show(listings.notices())
        case "configs":
            show(listings.configs([*names.files()]))
        case _:
            show(OF_PACKAGES[what]())


SIGNS = {"ok": "ok  ", "note": "note", "missing": "no  "}


def doctor() -> int:
    """Check this machine, then try each backend: ranks join and sum a tensor.

    Exit code 1 if gloo or nccl fails, 3 without gloo. In a job, the first process of each host answers for it.
    """
    from collbench.catalog.backends import BACKENDS
    from collbench.launch import doctor as examination
    from collbench.launch import job
    from collbench.machine import environment, host, network
    from collbench.report.notices import sentence

    def print_finding(finding: examination.DoctorFinding) -> None:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        text = sentence(finding.text) if isinstance(finding.text, Notice) else finding.text
        show_hanging(f"{where}{SIGNS[finding.level]}  {finding.subject:<14} ", f"{text}{remedy}")

    place = job.detect(environment.job_variables(), environment.starter())
    where = "" if place is None else f"{host.hostname()}: "  # the lines of several hosts mix
    if place is not None and place.local_rank:
        return 0  # the first process of each host reports on the host
    if reason := host.unsupported_platform():  # without /proc, nothing else can be examined
        raise UnmeasurableError("", reason)
    machine = host.machine()
    if place is not None:
        machine.backends_missing.update(place.missing_backends() | machine.backends_missing)
    for finding in examination.examine(machine):
        print_finding(finding)
    if reason := network.unusable_loopback():
        raise UnmeasurableError("", reason)
    if "gloo" in machine.backends_missing:
        return UnmeasurableError.exit_code
    trials = {}
    for backend, trial in examination.trials(machine):
        print_finding(trial)
        trials[backend] = trial.level
    ready = ", ".join(name for name in BACKENDS if trials.get(name) == "ok")
    good = "missing" not in trials.values()
    verdict = f"Ready: {ready}. {examination.advice(machine.cores)}" if good else "Not ready: a trial failed."
    say(f"\n{where}{verdict}")
    return 0 if good else 1
