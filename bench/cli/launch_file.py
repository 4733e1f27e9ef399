"""Make the file that starts a run on several hosts, for `plan CONFIG --launcher NAME`."""

import math
from pathlib import Path

from bench.catalog.backends import BACKENDS
from bench.config import models as configuration
from bench.config import shipped
from bench.config.models import Config
from bench.model.capabilities import Machine
from bench.model.errors import BenchError
from bench.planning import plan as planning
from bench.report.launch_files import JobSpec, LauncherName, launch_file

# The hosts are unknown: assume memory for everything, and the last-level cache of a usual server.
PLENTY_BYTES, USUAL_CACHE_BYTES = 2**60, 32 * 2**20


def launch_file_for(config: Path, sets: list[str], launcher: LauncherName, nodes: int, each: int | None) -> str:
    """The text of the file. each: ranks on a host; None for as many as the largest world size needs."""
    if nodes < 1 or (each is not None and each < 1):
        raise BenchError("plan --launcher: --nodes and --ranks-per-node are 1 or more")
    settings, _ = configuration.load(shipped.path_of(config), sets)
    return launch_file(launcher, wanted(settings, config, sets, nodes, each))


def wanted(settings: Config, config: Path, sets: list[str], nodes: int, each: int | None) -> JobSpec:
    """The job that the file has to start, with its estimated time."""
    largest = max(settings.world_sizes)
    each = each or math.ceil(largest / nodes)
    ranks = nodes * each
    machine = Machine(
        "", ranks, PLENTY_BYTES, USUAL_CACHE_BYTES, ranks, backends_missing={}, ranks=ranks, ranks_a_host=each
    )
    return JobSpec(
        name=settings.name,
        config=str(config),
        sets=tuple(sets),
        nodes=nodes,
        each=each,
        gpus=any(BACKENDS[name].device == "cuda" for name in settings.backends),
        largest=largest,
        seconds=planning.estimate_s(planning.expand(settings, machine, seed=0)),
    )
