"""The verb `equivalence`: test whether data-parallel training trains the same model as one process.

It starts real ranks and receives their results; `training/rank/equivalence.py` trains.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collbench.cli.app import PLOTS
from collbench.cli.output import give
from collbench.cli.terminal import show
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import Starter
from collbench.launch.supervisor import ask
from collbench.machine import host
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.packages.training.catalog.equivalence import TIMEOUT_S, TRIALS, Proof, Trial, TrialResult
from collbench.packages.training.report import equivalence as report
from collbench.report.plots.figures import draw_pages
from collbench.store import encoding

RANK = "collbench.packages.training.rank.equivalence:main"  # what ranks run


def equivalence(
    world_size: Annotated[int, typer.Option(min=2, max=4, help="Train with K ranks.", metavar="K")] = 2,
    steps: Annotated[int, typer.Option(min=8, max=10_000, help="Train for N steps.", metavar="N")] = 24,
    examples: Annotated[
        int | None,
        typer.Option(help="Train nothing: print which of N examples each rank reads.", metavar="N"),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="With --examples: set the examples per rank and step.", metavar="B")
    ] = 3,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="With --examples: read no example twice; leave some out.", metavar="")
    ] = False,
) -> int:
    """Train a small model in many ways, on K ranks and in one process: are the results equal where they must be?"""
    if examples is not None:
        if examples < world_size:
            raise ConfigError(f"--examples {examples}: fewer than {world_size} ranks")
        show(report.sampler(examples, world_size, batch, drop_last))
        return 0
    unsupported = host.unsupported_platform() or host.machine().backends_missing.get("gloo")
    if unsupported:
        raise UnmeasurableError("equivalence", unsupported)
    with Launcher() as launcher, Console(stderr=True).status("starting ranks") as status:
        proof = prove(TRIALS, world_size, steps, launcher, lambda index: status.update(TRIALS[index].name))
    folder = PLOTS / "equivalence"

    def draw() -> Path:
        draw_pages([(folder / report.PICTURE).with_suffix("")], report.losses, proof)
        return folder / report.PICTURE

    give([*report.tables(proof), report.headline(proof)], {folder / report.DOCUMENT: report.document(proof)}, draw)
    return 0 if proof.holds else 1


def prove(
    trials: Sequence[Trial],
    world_size: int,
    steps: int,
    launcher: Starter,
    begun: Callable[[int], None] = lambda _: None,
) -> Proof:
    """Run the trials on new ranks. Trials after one in which a rank raises, dies or hangs have no result.

    begun: receives a trial's number.
    """
    lines, failure = ask(launcher, world_size, RANK, (tuple(trials), steps), TIMEOUT_S, begun)
    results = [encoding.decoded(line, TrialResult) for line in lines]
    return Proof(world_size, steps, (*results, *map(TrialResult, trials[len(results) :])), failure)
