"""The verb `list`: print the runs, operations, backends, configurations or models that there are."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench import shipped, store
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.screen import show
from bench.errors import BenchError
from bench.records import Json
from bench.report import listings

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
    rows, damaged = [], [f"{path}: not a run folder (it has no {store.MANIFEST})" for path in store.strays(RESULTS)]
    for path in store.runs(RESULTS):
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
    manifest, summary = store.read_manifest(path), store.read_summary(path)
    if store.has_sides(path):
        counted = str(len({row["case"] for row in summary}))
        return path.name, manifest, (counted, store.first_line(path)) if summary else NO_REPORT
    return path.name, manifest, benchmarks.of_run(path).headline(summary) if summary else NO_REPORT
