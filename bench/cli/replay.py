"""The verb `replay`: make the calls of a recorded job here, and compare their times with the recorded ones."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.app import Sets
from bench.cli.job import run_task
from bench.cli.nccl_tests_options import ConfigSource
from bench.cli.start import start
from bench.importers.traces import reading
from bench.machine import host

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

# Ranks on a machine whose number of ranks nobody chose: as many as have a core or GPU of their own.
FEWEST_RANKS = 2


def replay(
    context: typer.Context,
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="What the job recorded: one file a rank, a tar of them, or a list of calls.", metavar="TRACE..."
        ),
    ],
    backend: Annotated[str | None, typer.Option(help="nccl where it can be used, else gloo.", metavar="NAME")] = None,
    world_size: Annotated[
        int | None, typer.Option(help="Ranks; as recorded if each has a core or a GPU.", metavar="N", min=1)
    ] = None,
    gaps: Annotated[bool, typer.Option("--gaps", help="Pause between calls as the job did.")] = False,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
) -> int:
    """Reads Kineto, PyTorch execution traces, flight recorders, NCCL Inspector, and saved lists of calls."""

    def task(coordinator: "Coordinator | None") -> int:
        asked = _configuration(traces, backend, world_size, gaps, coordinator)
        return start(asked, sets, plots, coordinator, context.obj)

    given = [*map(str, traces), *sets, f"{backend} {world_size} {gaps}"]
    return run_task(task, lambda: b"\0".join(map(str.encode, given)))


def _configuration(
    traces: list[Path], backend: str | None, world_size: int | None, gaps: bool, coordinator: "Coordinator | None"
) -> ConfigSource:
    """The configuration that `run` would take for the same."""
    recorded = reading.read(traces)
    machine = host.machine()
    chosen = backend or ("gloo" if "nccl" in machine.backends_missing else "nccl")
    here = (
        (machine.gpus if chosen == "nccl" else machine.cores) if coordinator is None else coordinator.place.world_size
    )
    ranks = world_size or max(FEWEST_RANKS, min(recorded.world_size or here, here))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"replay-{traces[0].name.split('.')[0]}")[:60].strip("-._")
    lines = [
        f"name: {name}",
        f"backends: [{chosen}]",
        f"world_sizes: [{ranks}]",
        "operations: [replay]",
        f"recording: {json.dumps([str(path) for path in traces])}",
        f"gaps: {'recorded' if gaps else 'none'}",
        "launches: 5",
    ]
    return ConfigSource("\n".join([*lines, ""]).encode(), str(traces[0]), name)
