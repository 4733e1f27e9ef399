"""Is this process one of a job that torchrun, srun or mpirun started? Then they measure together.

In: what is to be done, and what this process was asked to do. Rank 0 does it, with the others at its service; the
others print nothing and leave with rank 0's status, so that the launcher sees how it ended.
"""

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


def in_job(task: "Callable[[Coordinator | None], int]", asked: Callable[[], bytes]) -> int:
    """The exit code of `task`, which gets the job that it is to use; None where this process stands alone.

    asked: the configuration and whatever else must be the same in all processes, as bytes.
    """
    from bench.launch import job
    from bench.machine import environment

    place = job.detect(environment.job_variables(), environment.starter())
    if place is None:
        _answer(signal.SIGTERM)
        return task(None)
    _answer(signal.SIGTERM, signal.SIGINT)
    if place.rank:
        from bench.launch.agent import run_agent

        return run_agent(place, environment.secret(), asked)
    from bench.launch.coordinator import coordinating

    # Launchers end the rest of a job as soon as one process leaves with a fault: that must not cut rank 0 short.
    with coordinating(
        place, environment.secret(), asked, before_leaving=lambda: _ignore(signal.SIGTERM)
    ) as coordinator:
        coordinator.code = task(coordinator)
    return coordinator.code


def _answer(*signals: signal.Signals) -> None:
    """Take these as Ctrl-C. Launchers send several, one after the other: the first one counts."""

    def interrupt(*_: object) -> None:
        if len(signals) > 1:
            _ignore(*signals)
        raise KeyboardInterrupt

    _handle(interrupt, signals)


def _ignore(*signals: signal.Signals) -> None:
    _handle(signal.SIG_IGN, signals)


def _handle(handler: "Callable[..., None] | signal.Handlers", signals: tuple[signal.Signals, ...]) -> None:
    # Only the main thread may; Ray calls us in another one, and ends its workers by itself.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, handler)
