"""The verb `equivalence`: does data-parallel training train the same model as one process?"""

from typing import Annotated

import typer

from bench.cli.app import PLOTS, verb
from bench.errors import StoreError, UnmeasurableError
from bench.training import equivalence as trials
from bench.training.equivalence import Proof, Trial

FOLDER = PLOTS / "equivalence"


@verb
def equivalence(
    world_size: Annotated[int, typer.Option(min=2, max=4, help="K, the number of ranks.", metavar="K")] = 2,
    steps: Annotated[int, typer.Option(min=8, max=10_000, help="Steps of each training.", metavar="N")] = 24,
) -> int:
    """Train a small model on K ranks and in one process in many ways: which must be equal, and are they?"""
    from bench.machine import environment

    obstacle = environment.platform_obstacle() or environment.machine().backends_missing.get("gloo")
    if obstacle:
        raise UnmeasurableError(f"equivalence: {obstacle}")
    proof = _prove(world_size, steps)
    _keep(proof)
    return 0 if proof.holds else 1


def _prove(world_size: int, steps: int) -> Proof:
    from rich.console import Console

    from bench.launch.launcher import Launcher
    from bench.training.launch.equivalence import prove
    from bench.training.launch.sweep import PRELOAD

    chosen: list[Trial] = [*trials.CASES, *trials.READINGS]
    with Launcher(preload=PRELOAD) as launcher, Console(stderr=True).status("starting ranks") as status:
        return prove(chosen, world_size, steps, launcher, begun=lambda index: status.update(chosen[index].name))


def _keep(proof: Proof) -> None:
    from bench.training.report import equivalence as shown

    typer.echo(f"{shown.table(proof)}\n\n{shown.readings(proof)}\n\n{shown.headline(proof)}")
    try:
        picture = shown.draw(proof, FOLDER)
        (FOLDER / shown.DOCUMENT).write_text(shown.document(proof), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{FOLDER}: {(error.strerror or str(error)).lower()}") from None
    typer.echo(f"\n{FOLDER / shown.DOCUMENT}\n{picture}")
