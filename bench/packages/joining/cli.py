"""The verb `init`: start ranks that inspect themselves before, in and after a process group, and print the changes."""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.catalog.backends import BACKENDS
from bench.cli.show import show
from bench.cli.terminal import say
from bench.machine import host
from bench.model.errors import ConfigError, UnmeasurableError
from bench.packages.joining import launch, report
from bench.packages.joining.analyze import remarks


class InitFormat(StrEnum):
    """Formats of the output."""

    JSON = "json"


def init(
    backend: Annotated[str, typer.Argument(help="gloo, nccl or mpi.", metavar="BACKEND")],
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Start N processes.", metavar="N")] = 2,
    format: Annotated[  # noqa: A002
        InitFormat | None, typer.Option(help="Print only this, for programs: every rank at every stage.")
    ] = None,
) -> None:
    """Cores, threads, open files, memory, variables and signal handlers, from /proc, at five stages of a process.

    The stages: before the group is made, after it, after the first call, after 20 further groups, and after
    destroy_process_group.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"init {backend}: {', '.join(BACKENDS)} is allowed")
    machine = host.machine()
    unsupported = host.unsupported_platform() or machine.backends_missing.get(backend)
    if unsupported or not Path("/proc/self/status").exists():
        raise UnmeasurableError(f"init {backend}", unsupported or "the system has no /proc")
    if BACKENDS[backend].device == "cuda" and machine.gpus < ranks:
        raise UnmeasurableError(f"init {backend}: {ranks} ranks, and {machine.gpus} GPUs are visible")
    observed = launch.observed(backend, ranks)
    if format is InitFormat.JSON:
        say(json.dumps([asdict(rank) for rank in observed], indent=1))
    else:
        show(report.document(observed, backend, remarks(observed)))
