"""Run the process of a rank, whatever it measures: join the other ranks, report this, do the work, and end.

In: a `RankContext` and the work. Out: a joined `Group`, of the same type for every library; and to the
parent the messages `ready`, before the parent sends `go`, then `done` or `error`. The process ends when its parent
ends, and prints into the log. This module does not depend on the measured operations.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable

import torch

from collbench.catalog.backends import BACKENDS
from collbench.machine import environment, host, own_process, processes
from collbench.model.records import Json
from collbench.protocol.rank_context import RankContext
from collbench.rank import mpi, process_group, server
from collbench.rank.group import Group

# Any number except 0: ending with status 0 before the work is done is a different kind of failure.
STATUS_AFTER_ERROR = 70
# State of this process before it joined the other ranks.
_SEEN: Json = {}
# Library that a backend belongs to → the function with which a rank joins the other ranks.
JOINED = {"torch": process_group.joined, "mpi4py": mpi.joined}


def run_rank(context: RankContext, work: Callable[[], Json]) -> None:
    """Do a rank's work. Never returns: it leaves by `os._exit`, so no teardown can block it.

    work: all that the rank does; returns the content of the message `done`.
    """
    # Even by SIGKILL, or inside a collective: the fork server ends with the measuring process, ranks with the server.
    processes.end_with_parent(server.PID if os.getpid() != server.PID else None)
    _write_to_log(context)
    _SEEN["before"] = looked()
    status = 0
    try:
        context.send({"kind": "done", **work(), "left": looked()})
    except BaseException as error:
        traceback.print_exc()
        context.send({"kind": "error", "text": one_line(error)})
        status = STATUS_AFTER_ERROR
    finally:
        sys.stderr.flush()
        os._exit(status)


def looked() -> Json:
    """Return the state of this process now, which `analyze.joining` compares before, during and after a group."""
    return {"joining": own_process.look()}


def joined(
    context: RankContext, backend: str, timeout_s: float, scheduling: str = "normal"
) -> contextlib.AbstractContextManager[Group]:
    """Join the other ranks; leave the group at the end of the context if nothing was raised in it."""
    return JOINED[BACKENDS[backend].library](context, backend, timeout_s, scheduling)


def facts(group: Group, backend: str) -> Json:
    """Return the facts that only the rank itself knows."""
    handle = group.device.handle
    facts = {
        "rank": group.rank,
        "hostname": host.hostname(),
        "pid": os.getpid(),
        "device": str(handle),
        "device_name": torch.cuda.get_device_name(handle) if handle.type == "cuda" else "CPU",
        "device_uuid": process_group.gpu_uuid(handle) if handle.type == "cuda" else None,
        "seen": {**_SEEN, "joined": looked()},
        "torch": torch.__version__,
        "nccl": process_group.nccl_version() if backend == "nccl" else None,
        "threads": torch.get_num_threads(),
        "clock": host.clock(),
        "variables": environment.variables(),
    }
    return facts | ({"mpi": mpi.version()} if BACKENDS[backend].library == "mpi4py" else {})


def wait_to_begin(context: RankContext, group: Group, facts: Callable[[], Json]) -> None:
    """Report to the parent that this rank can communicate, with its facts; then wait for the parent's `go`.

    A module in which a rank waits for other ranks states WAITS_FOR_RANKS. If a rank hangs in any other module, except
    torch's, it is taken to be the rank that blocks the others.
    """
    group.gather(group.rank)  # a first collective: a rank that cannot communicate is not ready
    files = [str(module.__file__) for module in [*sys.modules.values()] if getattr(module, "WAITS_FOR_RANKS", False)]
    context.send({"kind": "ready", "facts": facts(), "waits_in": files})
    context.wait_for_go()


def _write_to_log(context: RankContext) -> None:
    """Redirect this process's output to the context's log, and its stack, on SIGUSR1, to the context's stack file."""
    # O_NOFOLLOW: the folder may belong to another user, and its log may be a link to a file of this user.
    log = os.open(context.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    # Kept open for the life of the process: faulthandler writes to the descriptor.
    stack = os.open(context.stack_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # the fork server blocks it


def one_line(error: BaseException) -> str:
    """Return type and first line of an exception, in at most 300 characters; for NCCL also the lines with the cause."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("NCCL error"):  # then "ncclSystemError: …", "Last error:", and the error itself
        where, _, version = lines[0].rpartition("NCCL version")
        cause = " ".join(line.strip() for line in lines[1:4])
        lines[0] = f"NCCL {version.strip()}: {cause}" if where and cause else lines[0]
    return f"{type(error).__name__}: {lines[0]}"[:300]
