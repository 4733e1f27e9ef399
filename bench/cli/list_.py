"""The verb `list`: print the runs, operations, backends, configurations or models that there are."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.screen import show
from bench.config import shipped
from bench.model.errors import BenchError
from bench.model.records import Json
from bench.report import listings
from bench.store import folders

NO_REPORT = ("-", "no report yet")


class Listing(StrEnum):
    """What `list` can list."""

    RUNS = "runs"
    OPERATIONS = "operations"
    BACKENDS = "backends"
    CONFIGS = "configs"
    MODELS = "models"


def list_(what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.RUNS) -> None:
    """Models are those of the training benchmark."""
    match what:
        case Listing.RUNS:
            show(_runs())
        case Listing.OPERATIONS:
            show(listings.operations())
        case Listing.BACKENDS:
            from bench.machine import host

            show(listings.backends(host.machine().backends_missing))
        case Listing.MODELS:
            from bench.training.report import listing

            show(listing.models())
        case Listing.CONFIGS:
            show(listings.configs([*shipped.files()]))


def _runs() -> str:
    rows, damaged = [], [f"{path}: not a run folder (it has no {folders.MANIFEST})" for path in folders.strays(RESULTS)]
    for path in folders.runs(RESULTS):
        try:
            rows.append(_row(path))
        except BenchError as error:
            damaged.append(str(error))
    notes = [f"damaged: {text}; the other runs are not touched by it" for text in damaged]
    if not rows:
        return "\n".join([*notes, f"no runs in {RESULTS} yet; make one: run gloo"])
    return "\n\n".join([listings.runs(rows), *notes])


def _row(path: Path) -> tuple[str, Json, tuple[str, str]]:
    """Name, manifest, and (number of cases, best result) of a run."""
    manifest, summary = folders.read_manifest(path), folders.read_summary(path)
    if folders.has_sides(path):
        counted = str(len({row["case"] for row in summary}))
        return path.name, manifest, (counted, folders.first_line(path)) if summary else NO_REPORT
    return path.name, manifest, benchmarks.of_run(path).headline(summary) if summary else NO_REPORT
