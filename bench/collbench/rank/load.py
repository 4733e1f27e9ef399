"""Keep the cores of a launch's ranks busy with background processes, one per core.

In: the kind of load, and this rank's cores of the host. Out: nothing; the processes end with the rank. Linux only.
"""

import os
import time
from collections.abc import Sequence

from collbench.machine import processes

BURST_S = 0.01


def begin(kind: str, cores: Sequence[int]) -> None:
    """Start a process on each of these cores. Call this before the current process has a second thread."""
    parent = os.getpid()
    for core in cores:
        if os.fork() == 0:
            try:
                processes.end_with_parent(parent)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                os.sched_setaffinity(0, {core})
                _compute(kind)
            finally:
                os._exit(1)


def _compute(kind: str) -> None:
    while True:
        until = time.monotonic() + BURST_S
        while time.monotonic() < until:
            pass
        if kind == "bursts":
            time.sleep(BURST_S)
