"""The verb `equivalence`: test whether data-parallel training trains the same model as one process."""

from typing import Annotated

import typer
from rich.console import Console

from bench.catalog import equivalence as trials
from bench.cli.app import PLOTS
from bench.cli.output import show
from bench.launch.equivalence import prove
from bench.machine import host
from bench.model.errors import StoreError, UnmeasurableError
from bench.report import equivalence as report
from bench.training.launch.sweep import launcher

FOLDER = PLOTS / "equivalence"


def equivalence(
    world_size: Annotated[int, typer.Option(min=2, max=4, help="K, the number of ranks.", metavar="K")] = 2,
    steps: Annotated[int, typer.Option(min=8, max=10_000, help="Steps of each training.", metavar="N")] = 24,
) -> int:
    """Train a small model in many ways, on K ranks and in one process: are the results equal where they must be?"""
    unsupported = host.unsupported_platform() or host.machine().backends_missing.get("gloo")
    if unsupported:
        raise UnmeasurableError(f"equivalence: {unsupported}")
    chosen: list[trials.Trial] = [*trials.TRIALS, *trials.SAMPLER_TRIALS]
    with launcher() as entered, Console(stderr=True).status("starting ranks") as status:
        proof = prove(chosen, world_size, steps, entered, begun=lambda index: status.update(chosen[index].name))
    show(f"{report.table(proof)}\n\n{report.readings(proof)}\n\n{report.headline(proof)}")
    try:
        picture = report.draw(proof, FOLDER)
        (FOLDER / report.DOCUMENT).write_text(report.document(proof), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{FOLDER}: {(error.strerror or str(error)).lower()}") from None
    typer.echo(f"\n{FOLDER / report.DOCUMENT}\n{picture}")
    return 0 if proof.holds else 1
