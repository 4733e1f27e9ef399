"""Find limits of this process and its control groups that may be too low for ranks: files, threads, address space.

Out: `Limit` values, for `doctor` and for the reasons of failures. Limits of memory and CPU time are read in `host`.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from bench.machine import environment, host
from bench.model.units import counted, format_bytes

# Open files of the parent per rank (pipes). A rank has half as many: two sockets per other rank, one per process group.
FILES_A_RANK = 4
# Files that each process has open in any case, with a margin.
FILES_ANYWAY = 64
# Processes and threads: of a rank (gloo's threads are most of them), and of all else that a run starts. Counted with
# gloo, torch 2.13 and 1 to 8 ranks.
THREADS_A_RANK, THREADS_ANYWAY = 10, 4
# Address space and data, in bytes, with which one process measures; with half of that it does not. Measured with a CPU
# build of torch 2.13; CUDA needs more.
ADDRESS_SPACE, DATA = 5 * 2**28, 2**29


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit."""

    subject: str
    # The limit, with the command or file that sets it.
    text: str
    # Number of ranks on this host for which it is enough.
    ranks: int
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}: enough for {counted(self.ranks, 'rank')} on this machine"


def limits() -> Iterator[Limit]:
    """Yield the limit of open files, which is raised first, and those other limits that are set."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = environment.raise_file_limit()
    text = f"{files} allowed" if files == soft else f"{soft} allowed, which a run raises to {files}"
    ranks = _enough(files, FILES_ANYWAY, FILES_A_RANK)
    yield Limit("open files", f"{text} (ulimit -n)", ranks, "raise nofile in /etc/security/limits.conf")
    for left, name, remedy in (
        (_processes_left(), "ulimit -u", "raise nproc in /etc/security/limits.conf"),
        (host.free_processes(), "pids.max of a control group", "docker run --pids-limit=-1"),
    ):
        if left is not None:
            ranks = _enough(left, THREADS_ANYWAY, THREADS_A_RANK)
            yield Limit("processes", f"{left} more allowed ({name})", ranks, remedy)
    for option, number, least in (("v", resource.RLIMIT_AS, ADDRESS_SPACE), ("d", resource.RLIMIT_DATA, DATA)):
        nbytes = resource.getrlimit(number)[0]
        if nbytes != resource.RLIM_INFINITY and nbytes < least:
            text = f"{format_bytes(nbytes)} allowed (ulimit -{option})"
            yield Limit("address space", text, 0, f"ulimit -{option} unlimited")


def too_low(ranks: int) -> str:
    """Return the limits that are not enough for this many ranks here, each after a semicolon; empty if none is."""
    low = [limit for limit in limits() if limit.ranks < ranks]
    return "".join(f"; {limit.subject}: {limit}" for limit in low)


def _enough(allowed: int, anyway: int, each: int) -> int:
    return max(0, (allowed - anyway) // each)


def _processes_left() -> int | None:
    """Return how many processes and threads this user may still start; None without a limit, and for root."""
    most, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid()
    if most == resource.RLIM_INFINITY or user == 0:
        return None
    used = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used += process.num_threads() if process.uids().real == user else 0
    return max(0, most - used)
