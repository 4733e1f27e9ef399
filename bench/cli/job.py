"""Run a task alone, or together with the other processes of a job that torchrun, srun or mpirun started.

In: a task, and the configuration that this process was given. Out: an exit code. In a job, rank 0 runs the task; the
other processes start ranks for it, print nothing and exit with rank 0's status, so that the launcher sees it.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from bench.cli.app import RESULTS

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


def run_task(
    task: "Callable[[Coordinator | None], int]",
    asked: Callable[[], bytes],
    sides: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> int:
    """Run `task` and return its exit code. It gets the `Coordinator` of the job; None if this process is in no job.

    asked: returns the configuration and whatever else must be the same in all processes, as bytes. sides: variables of
    the ranks of each side, in a run that has sides; rank 0 tells the others, which check what they do not know.
    """
    from bench.launch import job
    from bench.launch.job import JobSecret
    from bench.machine import environment

    place = job.detect(environment.job_variables(), environment.starter())
    if place is None:
        _answer(signal.SIGTERM)
        return task(None)
    _answer(signal.SIGTERM, signal.SIGINT)
    secret = JobSecret(place, environment.secret(), RESULTS)
    if place.rank:
        from bench.launch.agent import run_agent

        return run_agent(place, secret, asked, sides)
    from bench.launch.coordinator import coordinating

    # Launchers end the rest of a job as soon as one process exits with an error: before that,
    # rank 0 starts to ignore SIGTERM, so that it still exits in order.
    with coordinating(place, secret, asked, sides, before_leaving=lambda: _ignore(signal.SIGTERM)) as coordinator:
        coordinator.code = task(coordinator)
    return coordinator.code


def _answer(*signals: signal.Signals) -> None:
    """Treat these signals as Ctrl-C. Launchers send several, one after the other: only the first one counts."""

    def interrupt(*_: object) -> None:
        if len(signals) > 1:
            _ignore(*signals)
        raise KeyboardInterrupt

    _handle(interrupt, signals)


def _ignore(*signals: signal.Signals) -> None:
    _handle(signal.SIG_IGN, signals)


def _handle(handler: "Callable[..., None] | signal.Handlers", signals: tuple[signal.Signals, ...]) -> None:
    # Only the main thread may set handlers. Ray calls us in another thread, and ends its workers by itself.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, handler)
