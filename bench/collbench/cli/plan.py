"""The verb `plan`: print what a run would do, without starting ranks, or the file that starts it on several hosts."""

import math
import secrets
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.analyze.between_run import smallest_changes
from collbench.analyze.comparability import machine_of_sessions
from collbench.catalog.backends import BACKENDS
from collbench.catalog.variables import allowed
from collbench.cli.app import NAME, RESULTS, VERBS, ConfigName, Sets
from collbench.cli.measuring import parsed, source
from collbench.cli.terminal import say, show
from collbench.config import models as configuration
from collbench.config import names
from collbench.config.models import Config
from collbench.machine import environment, host
from collbench.model.errors import UnmeasurableError
from collbench.model.records import Machine
from collbench.planning import plan as planning
from collbench.report import planned
from collbench.report.launch_files import JobSpec, LauncherName, launch_file
from collbench.store import facts, ledger

# Verbs that a job can be started with.
JOBS = {name: verb.job for name, verb in VERBS.items() if verb.job is not None}
if TYPE_CHECKING:
    JobName = str
else:  # typer takes the values of an option from an enum
    JobName = StrEnum("JobName", [(name.upper(), name) for name in JOBS])


def plan(
    config: ConfigName,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    launcher: Annotated[
        LauncherName | None,
        typer.Option(help=f"Print the file of a job: {', '.join(LauncherName)} (default: torchrun).", metavar="NAME"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Print the file of a job on N hosts (default: 2).", metavar="N", min=1)
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            help="Start N ranks per host (default: the largest world size, or 8 with GPUs).", metavar="N", min=1
        ),
    ] = None,
    verb: Annotated[JobName | None, typer.Option(help="Set the command that the job runs (default: run).")] = None,
) -> int:
    """With --launcher, --nodes, --ranks-per-node or --verb it prints the file that starts a job on several hosts."""
    if any(option is not None for option in (launcher, nodes, ranks_per_node, verb)):
        settings, _ = configuration.load(names.path_of(config), sets)
        job = job_of(settings, config, sets, nodes or USUAL_NODES, ranks_per_node, verb or "run")
        say(launch_file(launcher or LauncherName.TORCHRUN, job), nl=False)
        return 0
    config_source = source(config)
    settings = parsed(config_source, sets)
    machine = host.machine()
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    expanded = planning.expand(settings, machine, seed)
    show(planned.plan(expanded))
    if entries := ledger.read(RESULTS):
        this_host = host.facts() | {"variables": allowed(environment.of_ranks().items())}
        here = machine_of_sessions(facts.environment_of([{"host": this_host}]), expanded.settings.sampling)
        changes = smallest_changes(entries, here, expanded.launches, [case.key for case in expanded.cases])
        say(planned.smallest_change(sorted(changes.values()), len(expanded.cases)))
    reason = planning.unmeasurable_reason(expanded)
    if reason is not None:
        raise UnmeasurableError(f"{config_source.name}: nothing can be measured here", reason)
    return 0


# The hosts are unknown: assume memory for everything, and the last-level cache of a typical server.
PLENTY_BYTES, USUAL_CACHE_BYTES = 2**60, 32 * 2**20
# GPUs of a typical server, and hosts of a job without --nodes.
USUAL_GPUS, USUAL_NODES = 8, 2


def job_of(settings: Config, config: Path, sets: list[str], nodes: int, each: int | None, verb: str = "run") -> JobSpec:
    """Return the job that a file starts, with its estimated time. each: ranks per host; None: as the world sizes need.

    Without world sizes, or if the verb takes all ranks, None means one rank per GPU of a typical server, or per host.
    """
    kind = JOBS[verb]
    gpus = any(BACKENDS[name].device == "cuda" for name in settings.backends)
    if settings.world_sizes and kind.estimate is None:
        each = each or math.ceil(max(settings.world_sizes) / nodes)
    else:
        each = each or (USUAL_GPUS if gpus else 1)
    ranks = nodes * each
    machine = Machine(
        "", ranks, PLENTY_BYTES, USUAL_CACHE_BYTES, ranks, backends_missing={}, ranks=ranks, ranks_a_host=each
    )
    if kind.estimate is not None:
        seconds, largest = kind.estimate(settings, config, machine, nodes), ranks
    else:
        seconds = planning.estimate_s(planning.expand(settings, machine, 0))
        largest = max(settings.world_sizes, default=ranks)
    return JobSpec(
        name=settings.name,
        verb=verb,
        kind=kind,
        config=str(config),
        sets=tuple(sets),
        nodes=nodes,
        each=each,
        gpus=gpus,
        largest=largest,
        seconds=seconds,
        programs=_programs(),
    )


def _programs() -> Path | None:
    """Return the folder of this environment's programs, if PATH finds another collbench or none; else None."""
    own = Path(sys.executable).with_name(NAME)
    on_path = shutil.which(NAME)
    return own.parent if own.exists() and (on_path is None or not own.samefile(on_path)) else None
