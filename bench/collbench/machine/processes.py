"""End processes: this process with its parent, and another process without hitting an unrelated one.

In: process numbers. Out: a `ProcessHandle`, which always means the same process: the number of a process may go to
another process once it has ended.
"""

import contextlib
import ctypes
import os
import select
import signal
import weakref

import psutil

# Option of prctl, from <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process, even if stopped, when the thread that started it ends.

    If the parent has ended before this call, this process ends at once. parent: number of the process that started
    this process, if known.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class ProcessHandle:
    """Exactly one process. The handle is a pidfd; in containers that forbid it, psutil compares start times.

    Raises psutil.NoSuchProcess if there is no process of this number.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._descriptor: int | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise psutil.NoSuchProcess(pid) from None
        except OSError:
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
        """Return whether the process has ended, or ends within `seconds`."""
        if self._descriptor is not None:
            return bool(self._ends.poll(1000 * seconds))
        try:
            self._process.wait(seconds)
        except psutil.TimeoutExpired:
            return False
        return True

    def exit_code(self) -> int | None:
        """Return how a child of this process ended, negative for a signal; None if unknown. The child is not reaped."""
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return None if ended is None else ended.si_status * (1 if ended.si_code == os.CLD_EXITED else -1)
        return None

    def children(self) -> list[psutil.Process]:
        """Return the descendants of the process that have not ended."""
        try:
            return self._process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def work_done(self) -> tuple[float, ...]:
        """Return CPU seconds and bytes read and written by the process so far: numbers that grow while it works."""
        with contextlib.suppress(psutil.Error):
            cpu, counted = self._process.cpu_times(), self._process.io_counters()
            return cpu.user + cpu.system, counted.read_chars, counted.write_chars
        return ()

    def state(self) -> str:
        """Return the state of the process: running, sleeping, stopped, zombie, gone."""
        try:
            return str(self._process.status())
        except psutil.NoSuchProcess:
            return "gone"
