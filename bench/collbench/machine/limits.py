"""Find limits of this process and its control groups that may be too low for ranks: files, threads, address space.

Out: `Limit` values, for `doctor` and for the reasons of failures. Limits of memory and CPU time are read in `host`.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from collbench.machine import environment, host
from collbench.model.units import counted, format_bytes

# Open files of the parent per rank (pipes), and in any case, with a margin. A rank has half as many: two sockets per
# other rank, one per process group.
FILES_A_RANK, FILES_ANYWAY = 4, 64
# Processes and threads of a rank, and of all else that a run starts. Counted with gloo and 1 to 8 ranks.
THREADS_A_RANK, THREADS_ANYWAY = 10, 4
# Address space in bytes with which one process measures; with 1 GB it does not. CUDA needs more.
ADDRESS_SPACE = 5 * 2**28


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and the number of ranks on this host for which it is enough."""

    subject: str
    text: str
    ranks: int
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}: enough for {counted(max(0, self.ranks), 'rank')} on this machine"


def limits() -> Iterator[Limit]:
    """Yield the limit of open files, which is raised first, and those other limits that are set."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = environment.raise_file_limit()
    text = f"{files} allowed" if files == soft else f"{soft} allowed, which a run raises to {files}"
    ranks, remedy = (files - FILES_ANYWAY) // FILES_A_RANK, "raise nofile in /etc/security/limits.conf"
    yield Limit("open files", f"{text} (ulimit -n)", ranks, remedy)
    for left, name in ((_processes_left(), "ulimit -u"), (host.free_processes(), "pids.max of a control group")):
        if left is not None:
            ranks = (left - THREADS_ANYWAY) // THREADS_A_RANK
            yield Limit("processes", f"{left} more allowed ({name})", ranks, "raise it (docker run --pids-limit=-1)")
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < ADDRESS_SPACE:
        yield Limit("address space", f"{format_bytes(space)} allowed (ulimit -v)", 0, "ulimit -v unlimited")


def too_low(ranks: int) -> str:
    """Return the limits that are not enough for this many ranks here, each after a semicolon; empty if none is."""
    return "".join(f"; {limit.subject}: {limit}" for limit in limits() if limit.ranks < ranks)


def _processes_left() -> int | None:
    """Return how many processes and threads this user may still start; None without a limit, and for root."""
    most, used = resource.getrlimit(resource.RLIMIT_NPROC)[0], 0
    if most == resource.RLIM_INFINITY or os.getuid() == 0:
        return None
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used += process.num_threads() if process.uids().real == os.getuid() else 0
    return max(0, most - used)
