"""Run a task alone, or together with the other processes of a job that torchrun, srun or mpirun started.

In: a task, and the configuration that this process was given. Out: an exit code. In a job, rank 0 runs the task; the
other processes start ranks for it, print nothing and exit with rank 0's status, so that the launcher sees it.
"""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.cli.app import RESULTS
from bench.cli.terminal import say
from bench.model.errors import JobError
from bench.report import wording

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


def run_task(
    task: "Callable[[Coordinator | None], int]",
    asked: Callable[[], bytes],
    trusted: bool = False,
    partial: bool = False,
    resumes: bool = False,
) -> int:
    """Run `task` and return its exit code. It gets the `Coordinator` of the job; None if this process is in no job.

    asked: returns the configuration and whatever else must be the same in all processes, as bytes. trusted: ranks may
    import what rank 0 names, even where `asked` does not name it. partial: whether the task can do without processes
    that do not come. resumes: whether the task only measures what a run lacks, so that torchrun may start it again.
    """
    from bench.launch import job
    from bench.launch.secret import JobSecret
    from bench.machine import environment, interrupts

    variables = environment.job_variables()
    place = job.detect(variables, environment.starter())
    if place is None:
        if unused := job.unused_allocation(variables):
            say(f"note: {wording.unused_allocation(*unused)}", err=True)
        interrupts.answer(*interrupts.asked_to_end())
        return task(None)
    # A launcher sends SIGINT to processes that ignored it when they began, too.
    interrupts.answer(*{*interrupts.asked_to_end(), signal.SIGINT}, once=True)
    if place.attempt and not resumes:  # one line is enough: that of rank 0
        if place.rank:
            return JobError.exit_code
        raise JobError(wording.started_again(place.attempt))
    secret = JobSecret(place, environment.secret(), environment.runtime_folder(), RESULTS)
    if place.rank:
        from bench.launch.agent import run_agent

        return run_agent(place, secret, asked, trusted)
    from bench.launch.coordinator import coordinating

    # Launchers end the rest of a job as soon as one process exits with an error: before that,
    # rank 0 starts to ignore SIGTERM, so that it still exits in order.
    with coordinating(
        place, secret, asked, before_leaving=lambda: interrupts.ignore(signal.SIGTERM), partial=partial
    ) as coordinator:
        coordinator.code = task(coordinator)
    return coordinator.code
