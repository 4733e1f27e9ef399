"""End processes: bind this one to its parent, and end another one without hitting an unrelated process.

In: process numbers. Out: a `ProcessHandle`, which means one process for good: its number may go to another once it
has ended.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import weakref

import psutil

# Of prctl, from <linux/prctl.h>.
PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> bool:
    """Have the kernel kill this process when the thread that started it ends, even a stopped one; False if it cannot.

    Only Linux can. parent: number of the process that started this one, if known. If it has ended before this call,
    this process ends at once.
    """
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        return False
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return True


class ProcessHandle:
    """A process and no other. On Linux it is a pidfd; elsewhere psutil compares the times at which processes began.

    Raises psutil.NoSuchProcess if there is no process of this number.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._descriptor: int | None = None
        if sys.platform == "linux":
            try:
                self._descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                raise psutil.NoSuchProcess(pid) from None
            except OSError:  # a container forbids it
                return
            weakref.finalize(self, os.close, self._descriptor)
            self._ends = select.poll()
            self._ends.register(self._descriptor, select.POLLIN)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process has not ended."""
        try:
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)
            else:
                self._process.send_signal(number)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return

    def ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended, or does so within `seconds`."""
        if self._descriptor is not None:
            return bool(self._ends.poll(1000 * seconds))
        try:
            self._process.wait(seconds)
        except psutil.TimeoutExpired:
            return False
        return True

    def children(self) -> list[psutil.Process]:
        """Those that it started and that have not ended."""
        try:
            return self._process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def work_done(self) -> tuple[float, ...]:
        """CPU seconds and bytes that it has used so far: numbers that grow while it works."""
        with contextlib.suppress(psutil.Error, AttributeError):  # macOS does not count bytes
            cpu, counted = self._process.cpu_times(), self._process.io_counters()
            return cpu.user + cpu.system, counted.read_chars, counted.write_chars
        return ()

    def state(self) -> str:
        """Its state, from the operating system: running, sleeping, stopped, zombie, gone."""
        try:
            return str(self._process.status())
        except psutil.NoSuchProcess:
            return "gone"
