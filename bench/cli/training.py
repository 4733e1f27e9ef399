"""What `run`, `plan`, `report` and `plots` do with the gradient benchmark."""

import json
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bench import __version__, store
from bench.cli.app import PLOTS, RESULTS, Format
from bench.cli.flags import Source
from bench.cli.keeping import kept_session, load_all
from bench.errors import BenchError, UnmeasurableError
from bench.training.conclusions import TrainingAnalysis
from bench.training.records import Round, TrainingPlan, TrainingRun

if TYPE_CHECKING:
    from bench.launch.coordinator import Lead

TRACE = "trace.json"
# What the end of a run needs; loaded while the fork server loads torch.
LOADED_MEANWHILE = ("bench.training.analyze.analysis", "bench.training.report.plots.catalogue")


def asks_for_training(asked: Source) -> bool:
    """Whether a configuration is one of the gradient benchmark."""
    return asked.raw.lstrip().startswith(b"benchmark:") or b"\nbenchmark:" in asked.raw


def planned_training(asked: Source, sets: list[str]) -> TrainingPlan:
    """The plan that a configuration asks for here."""
    from bench.machine import environment
    from bench.training import config as configuration
    from bench.training import plan as planning

    obstacle = environment.platform_obstacle()
    if obstacle:
        raise UnmeasurableError(obstacle)
    settings = configuration.parse(asked.raw, asked.name, sets, asked.default_name)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    plan = planning.expand(settings, environment.machine(), seed)
    if not plan.total:
        reasons = list(dict.fromkeys(one.reason for one in plan.left))
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {'; '.join(reasons)}")
    return plan


def plan_of_training(asked: Source, sets: list[str]) -> str:
    """What `plan` prints."""
    from bench.machine import environment
    from bench.training.notes import notes
    from bench.training.report.listing import listing

    plan = planned_training(asked, sets)
    return listing(plan, notes(plan, environment.usable_cores()))


def run_training(asked: Source, sets: list[str], plots: bool, lead: "Lead | None", argv: list[str]) -> int:
    """Measure a new run; the exit code."""
    if lead is not None:
        raise UnmeasurableError("the gradient benchmark starts its ranks on one host: run it without a launcher")
    plan = planned_training(asked, sets)
    facts = {"argv": argv, "overrides": sets, "collbench": __version__}
    return _measured(store.create(RESULTS, plan, asked.raw, facts), plots)


def resume_training(path: Path, plots: bool, lead: "Lead | None") -> int:
    """Make the rounds that are missing in a run; the exit code."""
    if lead is not None:
        raise UnmeasurableError("the gradient benchmark starts its ranks on one host: run it without a launcher")
    return _measured(path, plots)


def _measured(path: Path, plots: bool) -> int:
    measure(path)
    return _conclude(path, plots)


def measure(path: Path) -> None:
    """Make the rounds of a run's plan that are not made yet, with a progress bar."""
    from rich.console import Console

    from bench.launch.launcher import Launcher
    from bench.training.launch.sweep import PRELOAD, campaign
    from bench.training.report.progress import Rounds

    with store.Journal(path) as journal:
        before = store.read_training(path)
        plan = before.plan
        done = sum(isinstance(fact, Round) for fact in before.facts)
        with kept_session(path, before.environment) as launches, Launcher(preload=PRELOAD) as launcher:
            loading = threading.Thread(target=load_all, args=(LOADED_MEANWHILE,), daemon=True)
            loading.start()
            with Rounds(Console(stderr=True), plan.total, done) as bar:
                campaign(
                    plan, before.facts, launcher, journal.append, path / store.LOG, launches.append, bar, loading.join
                )


def _conclude(path: Path, plots: bool) -> int:
    from bench.training.analyze.analysis import analyse
    from bench.training.report import document

    result = store.read_training(path)
    analysis = analyse(result)
    typer.echo(document.summary_tables(analysis))
    for warning in analysis.warnings:
        typer.echo(f"note: {warning}")
    typer.echo("\n" + "\n".join(str(file) for file in write(result, analysis, plots)))
    wrong = [f"{o.label}: {o.refused}" for c in analysis.comparisons for o in c.outcomes if o.refused]
    wrong += [f"{check.invariant}: {check.text}" for check in analysis.checks if check.ok is False]
    wrong += [one.failure.text for one in analysis.broken]
    for text in dict.fromkeys(wrong):
        typer.echo(f"failed: {text}", err=True)
    return 1 if wrong else 0


def write(result: TrainingRun, analysis: TrainingAnalysis, plots: bool) -> list[Path]:
    """summary.csv, report.md, report.html and trace.json; pictures where they are drawn now or exist already."""
    from bench.report import document as pages
    from bench.training.report import document, tables, trace

    folder = PLOTS / result.path.resolve().name
    if plots:
        from bench.training.report.plots import catalogue as pictures

        drawn = pictures.draw(analysis, folder)
    else:
        drawn = document.pictures_in(folder)
    address = os.path.relpath(folder, result.path)
    text = document.build(result, analysis, drawn, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in drawn}
    timelines = [one for comparison in analysis.comparisons for one in comparison.timelines]
    written = {
        "summary.csv": tables.to_csv(analysis, result.plan),
        "report.md": text,
        "report.html": pages.page(text, result.name, files),
        TRACE: json.dumps(trace.trace(timelines)),
    }
    for name, content in written.items():
        store.write(result.path / name, content)
    return [*(result.path / name for name in written), *([folder] if drawn else [])]


def report_training(path: Path, format_: Format | None) -> None:
    """Rebuild a run's report, or print it in one format."""
    from bench.training.analyze.analysis import analyse
    from bench.training.report import document as reports
    from bench.training.report import tables

    result = store.read_training(path)
    analysis = analyse(result)
    match format_:
        case None:
            typer.echo(reports.summary_tables(analysis))
            typer.echo("\n" + "\n".join(str(file) for file in write(result, analysis, plots=False)))
        case Format.CSV:
            typer.echo(tables.to_csv(analysis, result.plan), nl=False)
        case Format.JSON:
            typer.echo(tables.to_json(analysis, result.plan))
        case Format.MARKDOWN:
            typer.echo(reports.build(result, analysis, [], ""), nl=False)
        case _:
            raise BenchError(
                f"report --format {format_.value}: of the gradient benchmark there are markdown, csv, json"
            )


def draw_training(path: Path) -> None:
    """Draw a run's pictures."""
    from bench.training.analyze.analysis import analyse

    result = store.read_training(path)
    typer.echo("\n".join(str(file) for file in write(result, analyse(result), plots=True)))
