"""The verbs `run` and `replay`: measure a configuration, a recorded job, or what is missing in a run."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.app import PLOTS, RESULTS, Quiet, Sets
from bench.cli.comparison import conclude_sides, exit_code
from bench.cli.job import run_task
from bench.cli.measuring import ConfigSource, measured, source, start
from bench.cli.output import show
from bench.cli.sides import check_in_job, measure_sides
from bench.cli.terminal import say
from bench.cli.trust import LeaveLoopback, Trust, check_resumed, check_variables
from bench.model.conclusions import Analysis, Diagnosis
from bench.model.errors import BenchError, ConfigError
from bench.planning import plan as planning
from bench.report import plots as catalogue
from bench.store import call_file, encoding, folders

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, or the name of one that comes along: gloo.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    output: Annotated[
        Path | None, typer.Option(help="A new folder for this run and its pictures.", metavar="DIR")
    ] = None,
    resume: Annotated[str | None, typer.Option(help="Measure what is missing in this run.", metavar="RUN")] = None,
    trust: Trust = False,
    leave_loopback: LeaveLoopback = False,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
    quiet: Quiet = False,
) -> int:
    """Under torchrun, srun or mpirun all ranks measure together."""
    if resume is not None:
        if config is not None:
            raise BenchError("run: give a configuration or --resume RUN, not both")
        if sets:
            raise BenchError("run --resume: goes on with the settings of the run, so --set is not possible")
        if output is not None:
            raise BenchError("run --resume: goes on in the folder of the run, so --output is not possible")
        name = resume
        return run_task(
            lambda coordinator: _resume(name, trust, leave_loopback, plots, quiet, coordinator),
            lambda: f"resume {name} {trust}".encode(),
            trust,
        )
    if config is None:
        raise BenchError("run: give a configuration (run gloo) or --resume RUN")
    if trust:
        raise BenchError("run --trust: it goes with --resume")

    def task(coordinator: "Coordinator | None") -> int:
        return start(source(config), sets, plots, coordinator, context.obj, leave_loopback, output=output, quiet=quiet)

    return run_task(task, lambda: b"\0".join([source(config).raw, *map(str.encode, sets)]))


def _resume(
    name: str, trust: bool, leave_loopback: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None"
) -> int:
    path = folders.find(RESULTS, name)
    sides = folders.read_sides(path) if folders.has_sides(path) else {}
    plans = folders.read_plans(path) if sides else [folders.read(path).plan]
    if coordinator is not None:
        check_in_job(sides)
    check_resumed(path, plans, sides, trust)
    for variables in (*map(encoding.variables_of, plans), *(side.variables.items() for side in sides.values())):
        check_variables(variables, coordinator, leave_loopback)
    if sides:
        measure_sides(path, coordinator, quiet)
        return exit_code(conclude_sides(path, plots, quiet))
    if coordinator is not None:
        machine = coordinator.machine(planning.demands(plans[0]))
        largest = max(case.world_size for case in plans[0].cases)
        if largest > (machine.ranks or 0):
            raise BenchError(f"{path}: has world sizes up to {largest}, and this job has {machine.ranks} ranks only")
    return measured(path, plots, coordinator, quiet=quiet)


# Ranks on a machine whose number of ranks nobody chose: as many as have a core or GPU of their own.
FEWEST_RANKS = 2


def replay(
    context: typer.Context,
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="What the job recorded: a file of each rank, a folder or .tar.gz of them, or a list of calls.",
            metavar="TRACE...",
        ),
    ],
    world_size: Annotated[
        int | None, typer.Option(help="Ranks; as recorded if each has a core or a GPU.", metavar="N", min=1)
    ] = None,
    look: Annotated[
        bool, typer.Option("--look", help="Measure nothing: say where the job's time in calls went.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="With --look: write this new file: the calls (.calls.jsonl), or a sweep of their sizes (.yaml).",
            metavar="FILE",
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    leave_loopback: LeaveLoopback = False,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
) -> int:
    """Reads Kineto, PyTorch execution traces, flight recorders, NCCL Inspector, and saved lists of calls.

    With all ranks' files it tells moving data from waiting for late ranks, and each rank makes its own calls. The
    backend is nccl where two ranks have a GPU each, else gloo; --set backends=[gloo] chooses, and --set gaps=recorded
    lets ranks pause between calls as the job did.
    """
    if look:
        return _look(traces, save, plots)
    if save is not None:
        raise ConfigError("replay: --save goes with --look")

    def task(coordinator: "Coordinator | None") -> int:
        asked = _configuration(traces, world_size, coordinator)
        return start(asked, sets, plots, coordinator, context.obj, leave_loopback)

    given = [*map(str, traces), *sets, str(world_size)]
    return run_task(task, lambda: b"\0".join(map(str.encode, given)))


def _look(paths: list[Path], save: Path | None, plots: bool) -> int:
    """Print where the time of a recorded job went; write its calls, or a sweep of them, to `save`."""
    from bench.analyze.recorded import recorded_job
    from bench.importers import traces
    from bench.report import findings, listings

    if save is not None and not (call_file.is_call_list(save) or save.suffix == ".yaml"):
        raise ConfigError(f"--save {save}: a list of calls ends in {call_file.SUFFIX}, a sweep in .yaml")
    if save is not None and save.exists():
        raise ConfigError(f"--save {save}: it exists already")
    recorded = traces.read(paths)
    if save is not None and save.suffix == ".yaml":
        folders.write(save, listings.calls_config(recorded, paths[0].name) + "\n")
    elif save is not None:
        folders.write(save, call_file.to_text(recorded))
    written = [str(save)] if save is not None else []
    job = recorded_job(recorded)
    show(findings.recorded_parts(job))
    if plots and job.total is not None:
        analysis = Analysis((), (), Diagnosis((), ()), recorded=job)
        written.append(str(catalogue.draw_recorded(analysis, PLOTS / f"look-{_name_of(paths)}")))
    if written:
        say("\n" + "\n".join(written))
    return 0


def _name_of(paths: list[Path]) -> str:
    """A name for what is made of these files."""
    name = paths[0].resolve().name.split(".")[0]
    return re.sub(r"[^\w.-]+", "-", name)[:50].strip("-._") or "job"


def _configuration(paths: list[Path], world_size: int | None, coordinator: "Coordinator | None") -> ConfigSource:
    """The configuration that `run` would take for the same."""
    from bench.importers import traces
    from bench.machine import host

    recorded = traces.read(paths)
    machine = host.machine()
    # A replay needs several ranks, so it takes GPUs only where each rank has one.
    few = coordinator is None and machine.gpus < max(FEWEST_RANKS, world_size or 0)
    chosen = "gloo" if "nccl" in machine.backends_missing or few else "nccl"
    here = (
        (machine.gpus if chosen == "nccl" else machine.cores) if coordinator is None else coordinator.place.world_size
    )
    ranks = world_size or max(FEWEST_RANKS, min(recorded.world_size or here, here))
    name = f"replay-{_name_of(paths)}"
    lines = [
        f"name: {name}",
        f"backends: [{chosen}]",
        f"world_sizes: [{ranks}]",
        "operations: [replay]",
        f"recording: {json.dumps([str(path) for path in paths])}",
        "launches: 5",
    ]
    return ConfigSource("\n".join([*lines, ""]).encode(), str(paths[0]), name)
