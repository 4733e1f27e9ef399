"""The verb `run`: measure a configuration, or what is missing in a run, and write the report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.catalog.variables import unsettable
from bench.cli import benchmarks
from bench.cli.app import RESULTS, Sets
from bench.cli.job import run_task
from bench.cli.nccl_tests_options import NO_FLAGS, Given, fingerprint, source, with_flags
from bench.cli.sides import conclude_sides, measure_sides
from bench.cli.start import measured, start
from bench.model.errors import BenchError, StoreError
from bench.store import folders

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


@with_flags
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, or the name of one that comes along: gloo.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    resume: Annotated[str | None, typer.Option(help="Measure what is missing in this run.", metavar="RUN")] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
    given: Given = NO_FLAGS,
) -> int:
    """Under torchrun, srun or mpirun all ranks measure together. Flags of nccl-tests can stand in place of a CONFIG."""
    if (config is None and not given) == (resume is None):
        raise BenchError(
            "run: give a configuration (run gloo), or nccl-tests' flags (run -b 8 -e 128M -f 2 -g 2), "
            "or --resume RUN, not both"
        )
    if resume is not None:
        if sets:
            raise BenchError("run --resume: goes on with the settings of the run, so --set is not possible")
        name = resume
        return run_task(lambda coordinator: _resume(name, plots, coordinator), lambda: f"resume {name}".encode())
    return run_task(
        lambda coordinator: start(source("run", config, given, coordinator), sets, plots, coordinator, context.obj),
        lambda: b"\0".join([fingerprint(config, given), *map(str.encode, sets)]),
    )


def _resume(name: str, plots: bool, coordinator: "Coordinator | None") -> int:
    path = folders.find(RESULTS, name)
    benchmark = benchmarks.of_run(path)
    codec = benchmark.codec.value
    plans = folders.read_plans(path, codec) if folders.has_sides(path) else [benchmark.read(path).plan]
    for name, value in (pair for plan in plans for pair in benchmark.variables(plan)):
        if reason := unsettable(name, value):  # it may have come from somebody else
            raise StoreError(f"{path}: its plan sets {name}={value}: {reason}")
    if folders.has_sides(path):
        measure_sides(path, coordinator)
        return 1 if conclude_sides(path, plots).failed else 0
    if coordinator is not None:
        demands = benchmark.demands(benchmark.read(path).plan)
        machine = coordinator.machine(demands)
        if demands.ranks > (machine.ranks or 0):
            raise BenchError(
                f"{path}: has world sizes up to {demands.ranks}, and this job has {machine.ranks} ranks only"
            )
    return measured(benchmark, path, plots, coordinator)
