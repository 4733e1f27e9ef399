"""Name what on this host may have made a launch fail: limits, room in /dev/shm, a file system without locks, variables.

In: the launch that failed. Out: text that follows the message of its failure, which is not read.
"""

import os
import shutil
import tempfile
from pathlib import Path

from collbench.catalog.variables import READ_BY
from collbench.launch import job
from collbench.launch.mpirun import MEMORY
from collbench.machine import environment, limits
from collbench.model.records import Launch
from collbench.model.units import format_rounded_bytes
from collbench.store import locks

# Free bytes of /dev/shm for MPI: two ranks of Open MPI 5.0.11 start with 64 MiB, and not with 1 MiB.
SHARED_MEMORY_OF_MPI = 2**25


def text(launch: Launch, joined: bool) -> str:
    """Return possible causes, each after a semicolon; empty if none is found. joined: whether all ranks had joined."""
    alone = job.detect(environment.job_variables(), environment.starter()) is None
    found = limits.too_low(launch.world_size if alone else 1)
    if joined:
        return found
    place = MEMORY if launch.backend == "mpi" else Path(tempfile.gettempdir())
    if place == MEMORY and MEMORY.is_dir():
        free = shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
        lacking = f"; {MEMORY} has {format_rounded_bytes(free)} for Open MPI, too little: docker run --shm-size=1g"
        found += lacking if free < SHARED_MEMORY_OF_MPI else ""
    elif not locks.supported(place):
        found += f"; {place}: its file system has no locks, by which ranks find each other: set TMPDIR to another"
    return found + environment.chosen(("TORCH_", *READ_BY[launch.backend]))
