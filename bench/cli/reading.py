"""Verbs that look at what was measured: `report`, `plots`, `list`."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench import store
from bench.cli.app import CONFIGS, PLOTS, RESULTS, Format, RunName, verb
from bench.cli.training import draw_training, report_training
from bench.conclusions import Analysis
from bench.records import Run


class Listing(StrEnum):
    """What `list` can list."""

    RUNS = "runs"
    OPERATIONS = "operations"
    BACKENDS = "backends"
    CONFIGS = "configs"
    MODELS = "models"


@verb
def report(
    run: RunName = None,
    format: Annotated[Format | None, typer.Option(help="Write this to stdout instead of files.")] = None,  # noqa: A002
) -> None:
    """Rebuild a run's report from its samples, and print its tables."""
    from bench.analyze.analyze_run import conclude
    from bench.report import document as reports
    from bench.report import tables

    path = store.find(RESULTS, run)
    if store.is_training(store.read_manifest(path)):
        report_training(path, format)
        return
    result = store.read(path)
    if format is Format.COVERAGE:
        from bench.report import coverage

        typer.echo(coverage.document(result), nl=False)
        return
    analysis = conclude(result)
    match format:
        case Format.CSV:
            typer.echo(tables.to_csv(analysis.summaries), nl=False)
        case Format.JSON:
            typer.echo(tables.to_json(analysis.summaries))
        case Format.NCCL_TESTS:
            from bench.report import nccl_tests

            typer.echo(nccl_tests.document(result, analysis.summaries), nl=False)
        case Format.MARKDOWN:
            typer.echo(reports.build(result, analysis, [], ""), nl=False)
        case None:
            typer.echo(reports.summary_tables(analysis.summaries))
            typer.echo("\n" + "\n".join(str(file) for file in write_report(result, analysis, plots=False)))


@verb
def plots(runs: Annotated[list[str] | None, typer.Argument(help="One run, or several to compare.")] = None) -> None:
    """Draw a run's plots; with several runs, compare each with the first."""
    from bench.analyze.analyze_run import conclude

    if runs and len(runs) > 1:
        from bench.cli.comparing import compare_and_show

        for other in runs[1:]:
            compare_and_show(runs[0], other, None)
        return
    path = store.find(RESULTS, runs[0] if runs else None)
    if store.is_training(store.read_manifest(path)):
        draw_training(path)
        return
    result = store.read(path)
    typer.echo("\n".join(str(file) for file in write_report(result, conclude(result), plots=True)))


def write_report(result: Run, analysis: Analysis, plots: bool) -> list[Path]:
    """summary.csv, report.md and report.html, with pictures where they are drawn now or exist already."""
    from bench.report import document, tables

    folder = PLOTS / result.path.resolve().name
    if plots:
        from bench.report.plots import catalogue as pictures

        drawn = pictures.draw(result, analysis, folder)
    else:
        drawn = document.pictures_in(folder)
    address = os.path.relpath(folder, result.path)
    text = document.build(result, analysis, drawn, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in drawn}
    written = {
        "summary.csv": tables.to_csv(analysis.summaries),
        "report.md": text,
        "report.html": document.page(text, result.name, files),
    }
    for name, content in written.items():
        store.write(result.path / name, content)
    return [*(result.path / name for name in written), *([folder] if drawn else [])]


@verb
def list_(what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.RUNS) -> None:
    """List runs, operations, backends, configurations, or models of the gradient benchmark."""
    from bench.report import listings

    match what:
        case Listing.RUNS:
            found = [(path, store.read_manifest(path)) for path in store.runs(RESULTS)]
            typer.echo(listings.runs(found) if found else f"no runs in {RESULTS} yet; make one: run configs/gloo.yaml")
        case Listing.OPERATIONS:
            typer.echo(listings.operations())
        case Listing.BACKENDS:
            from bench.machine import environment

            typer.echo(listings.backends(environment.machine().backends_missing))
        case Listing.MODELS:
            from bench.training.report import listing

            typer.echo(listing.models())
        case Listing.CONFIGS:
            typer.echo(listings.configs(sorted(CONFIGS.glob("*.yaml"))))
