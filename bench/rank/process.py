"""What every rank's process does, whatever it measures: join the others, say so, work, and end.

In: a `RankContext`, the run's log, and the work. Out: a joined `Group`, the same for every library; and to the parent
the messages `ready`, before the rank is told to begin, then `done` or `error`. The process ends with its parent and
prints into the log. Knows nothing of what is measured.
"""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import ModuleType

from bench.backends import BACKENDS
from bench.protocol import barrier
from bench.protocol.rank_context import RankContext
from bench.rank import mpi, mpi_calls, process_group, timing
from bench.rank.process_group import Group
from bench.records import Json

# Any number but 0: "left with status 0 before it was done" is a fault of its own.
STATUS_AFTER_ERROR = 70
# By the library that a backend belongs to.
JOINED = {"torch": process_group.joined, "mpi4py": mpi.joined}


def run_rank(context: RankContext, log_file: str, work: Callable[[], Json]) -> None:
    """Do a rank's work. Never returns: it leaves by `os._exit`, so no teardown can block it.

    work: all that the rank does; returns what its last message tells.
    """
    _end_with_parent(context)
    _write_to_log(context, log_file)
    status = 0
    try:
        context.send({"kind": "done", **work()})
    except BaseException as error:
        traceback.print_exc()
        context.send({"kind": "error", "text": one_line(error)})
        status = STATUS_AFTER_ERROR
    finally:
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def joined(
    context: RankContext, backend: str, timeout_s: float, sync: str = "barrier", ctas: int = 0
) -> Iterator[Group]:
    """Join the other ranks; leave the group at the end of the context if nothing was raised in it."""
    with JOINED[BACKENDS[backend].library](context, backend, timeout_s, sync, ctas) as group:
        yield group


def facts(group: Group, backend: str) -> Json:
    """What only a rank can say of itself."""
    loaded = {"mpi": mpi.version()} if BACKENDS[backend].library == "mpi4py" else {}
    return process_group.facts(group, backend) | loaded


def wait_to_begin(
    context: RankContext, group: Group, facts: Callable[[], Json], waits_in: Sequence[ModuleType] = ()
) -> None:
    """Tell the parent that this rank can communicate, and what it alone knows of itself; then wait for its word.

    waits_in: modules, besides those of torch, in which this rank waits for the others. A rank that hangs elsewhere
    holds them up.
    """
    group.gather(group.rank)  # a first collective: what cannot communicate is not ready
    files = [str(module.__file__) for module in (barrier, mpi, mpi_calls, timing, *waits_in)]
    context.send({"kind": "ready", "facts": facts(), "waits_in": files})
    context.wait_for_word()


def _end_with_parent(context: RankContext) -> None:
    """Leave when the measuring parent dies, even by SIGKILL and even inside a collective."""
    parent = mp.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        shutil.rmtree(context.shared_folder, ignore_errors=True)  # the parent's work, which it cannot do now
        os._exit(STATUS_AFTER_ERROR)

    threading.Thread(target=watch, daemon=True, name="end with parent").start()


def _write_to_log(context: RankContext, log_file: str) -> None:
    """Everything that this process prints goes to the run's log; its stack too, when it is asked for."""
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    # Kept open for the life of the process: faulthandler writes to the descriptor.
    stack = os.open(context.stack_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)


def one_line(error: BaseException) -> str:
    """What an exception says, in a line that fits anywhere."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]
