"""The verb `equivalence`: test whether data-parallel training trains the same model as one process."""

from typing import Annotated

import typer
from rich.console import Console

from bench.cli.app import PLOTS
from bench.cli.output import show
from bench.cli.terminal import say
from bench.launch.launcher import Launcher
from bench.machine import host
from bench.model.errors import StoreError, UnmeasurableError
from bench.report import markdown
from bench.training.catalog.equivalence import SAMPLER_TRIALS, TRIALS, Proof, Trial, verdict
from bench.training.launch import run_trials
from bench.training.report import equivalence as report

FOLDER = PLOTS / "equivalence"


def equivalence(
    world_size: Annotated[int, typer.Option(min=2, max=4, help="K, the number of ranks.", metavar="K")] = 2,
    steps: Annotated[int, typer.Option(min=8, max=10_000, help="Steps of each training.", metavar="N")] = 24,
) -> int:
    """Train a small model in many ways, on K ranks and in one process: are the results equal where they must be?"""
    unsupported = host.unsupported_platform() or host.machine().backends_missing.get("gloo")
    if unsupported:
        raise UnmeasurableError(f"equivalence: {unsupported}")
    trials: list[Trial] = [*TRIALS, *SAMPLER_TRIALS]
    with Launcher() as launcher, Console(stderr=True).status("starting ranks") as status:
        results, failure = run_trials(
            trials, world_size, steps, launcher, begun=lambda index: status.update(trials[index].name)
        )
    proof = Proof(world_size, steps, tuple(map(verdict, results)), failure)
    show([*report.tables(proof), report.headline(proof)])
    try:
        picture = report.draw(proof, FOLDER)
        (FOLDER / report.DOCUMENT).write_text(markdown.written(report.document(proof)), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{FOLDER}: {(error.strerror or str(error)).lower()}") from None
    say(f"\n{FOLDER / report.DOCUMENT}\n{picture}")
    return 0 if proof.holds else 1
