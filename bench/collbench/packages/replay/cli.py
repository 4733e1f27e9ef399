"""Define the verb `replay`: measure the calls of a recorded job here, or report where its time in calls went."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from collbench.cli.app import PLOTS, Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import ConfigSource, start
from collbench.cli.output import give
from collbench.cli.terminal import say
from collbench.model.conclusions import Analysis, Diagnosis
from collbench.model.errors import ConfigError
from collbench.packages.replay import store as call_file
from collbench.packages.replay.conclusions import ReplayAnalysis
from collbench.packages.replay.replayed_calls import NAME
from collbench.report.plots import DRAW, PICTURES
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

# Fewest ranks if their number was not recorded: one for each core or GPU.
FEWEST_RANKS = 2


def replay(
    context: typer.Context,
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="Recordings: one file per rank, a folder or .tar.gz of them, or a list of calls.",
            metavar="TRACE...",
        ),
    ],
    look: Annotated[
        bool, typer.Option("--look", help="Measure nothing: report where the job's time in calls went.", metavar="")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="With --look: write the calls (.calls.jsonl) or a sweep of sizes (.yaml).",
            metavar="FILE",
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    format: Annotated[  # noqa: A002
        Literal["json"] | None, typer.Option(help="With --look: print only this, for programs; times in seconds.")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.", metavar="")] = True,
) -> int:
    """Read Kineto, PyTorch execution traces, flight recorders, NCCL Inspector, and saved lists of calls.

    With all ranks' files, replay separates moving data from waiting for late ranks, and each rank makes its own calls.
    The backend is nccl if two ranks have a GPU each, otherwise gloo; --set 'backends=[gloo]' chooses.
    """
    if look:
        return _look(traces, save, plots, format)
    for option, value in (("--save", save), ("--format", format)):
        if value is not None:
            raise ConfigError(f"replay: {option} goes with --look")

    def task(coordinator: "Coordinator | None") -> int:
        return start(_configuration(traces, coordinator), sets, plots, coordinator, context.obj)

    return run_task(task, lambda: b"\0".join(map(str.encode, [*map(str, traces), *sets])))


def _look(paths: list[Path], save: Path | None, plots: bool, chosen: str | None) -> int:
    """Print where the time of a recorded job went; write its calls, or a sweep of them, to `save`."""
    from collbench.packages.replay import importers as traces
    from collbench.packages.replay import report
    from collbench.packages.replay.analyze.recorded import recorded_job

    if save is not None and not (call_file.is_call_list(save) or save.suffix == ".yaml"):
        raise ConfigError(f"--save {save}: a list of calls ends in {call_file.SUFFIX}, a sweep in .yaml")
    if save is not None and save.exists():
        raise ConfigError(f"--save {save}: it exists already")
    recorded = traces.read(paths)
    job = recorded_job(recorded)
    if save is not None:
        as_sizes = save.suffix == ".yaml"
        calls = report.calls_config(recorded, paths[0].name) + "\n" if as_sizes else call_file.to_text(recorded)
        folders.write(save, calls)
    if chosen is not None:
        say(json.dumps(report.recorded_json(job), indent=1, ensure_ascii=False))
        return 0

    def draw() -> Path | None:
        if not plots or job.total is None:
            return None
        folder = PLOTS / f"look-{_name_of(paths)}"
        analysis = Analysis((), (), Diagnosis((), ()), of_packages={NAME: ReplayAnalysis(job)})
        (kind,) = (kind for kind in PICTURES if kind.name == "recorded")
        DRAW([folder / page for page in kind.pages], kind.drawn_by, None, analysis)
        return folder / f"{kind.name}.png"

    give([*report.recorded_parts(job), *([str(save)] if save is not None else [])], {}, draw)
    return 0


def _name_of(paths: list[Path]) -> str:
    """Return a name for a run or folder that is made from these files."""
    name = paths[0].resolve().name.split(".")[0]
    return re.sub(r"[^\w.-]+", "-", name)[:50].strip("-._") or "job"


def _configuration(paths: list[Path], coordinator: "Coordinator | None") -> ConfigSource:
    """Return the configuration with which `run` would measure the same replay: with as many ranks as recorded."""
    from collbench.machine import host
    from collbench.packages.replay import importers as traces

    recorded = traces.read(paths)
    machine = host.machine()
    # A replay uses GPUs only if each rank has its own GPU.
    few = coordinator is None and machine.gpus < (recorded.world_size or FEWEST_RANKS)
    chosen = "gloo" if "nccl" in machine.backends_missing or few else "nccl"
    available = max(FEWEST_RANKS, machine.gpus if chosen == "nccl" else machine.cores)
    ranks = recorded.world_size or (available if coordinator is None else coordinator.place.world_size)
    name = f"replay-{_name_of(paths)}"
    lines = [
        f"name: {name}",
        f"backends: [{chosen}]",
        f"world_sizes: [{ranks}]",
        f"replay: {{recording: {json.dumps([str(path) for path in paths])}}}",
        "launches: 5",
    ]
    return ConfigSource("\n".join([*lines, ""]).encode(), str(paths[0]), name)
