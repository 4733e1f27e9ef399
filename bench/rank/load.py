"""Keep the cores of a launch's ranks busy: other processes, one on each of their cores.

In: what they do, and this rank's share of the host's cores. Out: nothing; the processes end with the rank. Linux only.
"""

import os
import time
from collections.abc import Sequence

from bench.machine import processes

BURST_S = 0.01


def begin(kind: str, cores: Sequence[int]) -> None:
    """Start a process on each of these cores. To be called before this process has a second thread."""
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
