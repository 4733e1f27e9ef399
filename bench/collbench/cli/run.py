"""The verbs `run` and `resume`: measure a configuration, or what is missing in a run."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.cli.app import RESULTS, VERBS, ConfigName, Quiet, RunName, Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import measured, source, start
from collbench.cli.trust import Trust, check_resumed
from collbench.machine import host
from collbench.model.errors import BenchError, ConfigError, UnmeasurableError
from collbench.planning import plan as planning
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator


def run(
    context: typer.Context,
    config: ConfigName,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    output: Annotated[
        Path | None, typer.Option(help="Write this run and its pictures into a new folder.", metavar="DIR")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.", metavar="")] = True,
    quiet: Quiet = False,
) -> int:
    """Under torchrun, srun or mpirun all ranks measure together."""
    read = functools.cache(lambda: source(config))  # an error of another process of a job is for rank 0 to print

    def task(coordinator: "Coordinator | None") -> int:
        return start(read(), sets, plots, coordinator, context.obj, output=output, quiet=quiet)

    return run_task(task, lambda: b"\0".join([read().raw, *map(str.encode, sets)]))


def resume(
    run: RunName = None,
    trust: Trust = False,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.", metavar="")] = True,
    quiet: Quiet = False,
) -> int:
    """Continue a run after an interrupt, a crash or a failure, in its folder and with its settings."""
    return run_task(
        lambda coordinator: _resume(run, trust, plots, quiet, coordinator),
        lambda: f"resume {run} {trust}".encode(),
        trust,
        resumes=True,
    )


def _resume(name: str | None, trust: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None") -> int:
    path = folders.find(RESULTS, name)
    manifest = folders.read_manifest(path)
    verb = VERBS.get("ab" if manifest.get("sides") else str(manifest.get("verb", "run")))
    if verb is None or verb.resumes is None:
        raise ConfigError(f"{path}: this version of CollBench has no verb that resumes it")
    return int(verb.resumes(path, trust, plots, quiet, coordinator))


def resume_sides(path: Path, trust: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None") -> int:
    """Resume a run of two sides; return the exit code."""
    from collbench.cli.comparison import conclude_sides, exit_code  # deferred import: `run` starts ranks sooner
    from collbench.cli.sides import check_in_job, measure_sides

    folder = folders.RunFolder(path)
    if coordinator is not None:
        check_in_job(folder.sides)
    check_resumed(path, [*folder.plans.values()], folder.sides, trust)
    measure_sides(path, coordinator, quiet)
    return exit_code(conclude_sides(path, plots, quiet))


def resume_run(path: Path, trust: bool, plots: bool, quiet: bool, coordinator: "Coordinator | None") -> int:
    """Resume a run; return the exit code."""
    (plan,) = folders.RunFolder(path).plans.values()
    check_resumed(path, [plan], {}, trust)
    if coordinator is None:
        if reason := planning.too_large(plan, host.machine()):
            raise UnmeasurableError(str(path), reason)
    else:
        machine = coordinator.machine(planning.demands(plan))
        largest = max(case.world_size for case in plan.cases)
        if largest > (machine.ranks or 0):
            raise BenchError(f"{path}: has world sizes up to {largest}, and this job has {machine.ranks} ranks only")
    return measured(path, plots, coordinator, quiet=quiet)
