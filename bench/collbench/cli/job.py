"""Run a task alone, or together with the other processes of a job that torchrun, srun or mpirun started.

In: a task, and the configuration that this process was given. Out: an exit code. In a job, rank 0 runs the task; the
other processes start ranks for it, print nothing and exit with rank 0's status, so that the launcher sees it.
"""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from collbench.cli.app import RESULTS
from collbench.cli.terminal import say
from collbench.model.errors import JobError
from collbench.report import wording

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator


def run_task(
    task: "Callable[[Coordinator | None], int]",
    request: Callable[[], bytes],
    trusted: bool = False,
    partial: bool = False,
    resumes: bool = False,
) -> int:
    """Run `task` and return its exit code. The task gets the `Coordinator` of the job, or None outside a job.

    request: returns the configuration and all else that must be the same in all processes, as bytes. trusted: ranks may
    import modules that rank 0 names and `request` does not. partial: whether the task can run without processes that do
    not join. resumes: whether the task measures only what is missing in a run, so that torchrun may start it again.
    """
    from collbench.launch import job
    from collbench.launch.secret import JobSecret
    from collbench.machine import environment, interrupts

    variables = environment.job_variables()
    place = job.detect(variables, environment.starter())
    if place is None:
        if unused := job.unused_allocation(variables):
            say(f"note: {wording.unused_allocation(*unused)}", err=True)
        interrupts.answer(*interrupts.asked_to_end())
        return task(None)
    # A launcher sends SIGINT also to processes that ignored it when they started.
    interrupts.answer(*{*interrupts.asked_to_end(), signal.SIGINT}, once=True)
    if place.attempt and not resumes:  # one message is enough: rank 0 prints it
        if place.rank:
            return JobError.exit_code
        again = f"torchrun started this job again (attempt {place.attempt + 1})"
        kept = "measured cases are kept; go on with torchrun … collbench resume, and use --max-restarts=0"
        raise JobError(f"{again}, which would measure the whole configuration again: {kept}")
    if place.launcher == job.BY_HAND:  # a shell may have kept the variables, and then nobody joins
        numbers = f"RANK={place.rank} and WORLD_SIZE={place.world_size}"
        say(f"note: {numbers} are set: unset them to measure on this machine alone", err=True)
    secret = JobSecret(place, environment.secret(), environment.runtime_folder(), RESULTS)
    if place.rank:
        from collbench.launch.agent import run_agent

        return run_agent(place, secret, request, trusted)
    from collbench.launch.coordinator import coordinating

    # Launchers end the rest of a job as soon as one process exits with an error. Before the other processes leave,
    # rank 0 therefore starts to ignore SIGTERM, so that it still exits in order.
    with coordinating(
        place, secret, request, before_leaving=lambda: interrupts.ignore(signal.SIGTERM), partial=partial
    ) as coordinator:
        coordinator.code = task(coordinator)
    return coordinator.code
