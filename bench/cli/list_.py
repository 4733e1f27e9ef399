"""The verb `list`: print the runs, operations, backends, configurations or models that there are."""

from enum import StrEnum
from typing import Annotated

import typer

from bench import shipped, store
from bench.cli import benchmarks
from bench.cli.app import RESULTS
from bench.cli.screen import show
from bench.report import listings


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
    rows = []
    for path in store.runs(RESULTS):
        manifest, summary = store.read_manifest(path), store.read_summary(path)
        best = ("-", "no report yet")
        if store.has_sides(path):
            best = (str(len({row["case"] for row in summary})), store.first_line(path)) if summary else best
        elif summary:
            best = benchmarks.of_run(path).headline(summary)
        rows.append((path.name, manifest, best))
    return listings.runs(rows) if rows else f"no runs in {RESULTS} yet; make one: run gloo"
