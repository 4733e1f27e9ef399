"""What the process of a rank does whatever it measures: end with its parent, print into the run's log."""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import shutil
import signal
import sys
import threading
from multiprocessing.connection import wait

from bench.measure.launcher import Seat

# Any number but 0: "left with status 0 before it was done" is a fault of its own.
STATUS_AFTER_ERROR = 70


def end_with_parent(seat: Seat) -> None:
    """Leave when the measuring parent dies, even by SIGKILL and even inside a collective."""
    parent = mp.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        shutil.rmtree(seat.meeting, ignore_errors=True)  # the parent's work, which it cannot do now
        os._exit(STATUS_AFTER_ERROR)

    threading.Thread(target=watch, daemon=True, name="end with parent").start()


def write_to_log(seat: Seat, log_file: str) -> None:
    """Everything that this process prints goes to the run's log; its stack too, when it is asked for."""
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    # Kept open for the life of the process: faulthandler writes to the descriptor.
    stack = os.open(seat.stack_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)


def one_line(error: BaseException) -> str:
    """What an exception says, in a line that fits anywhere."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]
