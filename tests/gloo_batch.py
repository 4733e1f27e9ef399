"""Run gloo's loop threads under SCHED_BATCH: the tests' fork server loads this module before it forks ranks.

On shared cores, gloo's loop thread preempts the thread that holds the lock it wants, and then tries in vain until its
time slice ends; under SCHED_BATCH it waits for its turn, and a small call costs a quarter. Only tests do this, and
only for ranks of the fork server that tests share: the suite itself measures plain gloo.
"""

import functools
import os

import torch.distributed as dist

from collbench.catalog.backends import BACKENDS
from collbench.machine import host


def batched(make):
    """Wrap `make`: the loop threads of each group that it makes then wait for their turn."""

    @functools.wraps(make)
    def made(*arguments, **options):
        group = make(*arguments, **options)
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not if a case requests real time
            host.use_batch(BACKENDS["gloo"].loop_thread, set(), 0)
        return group

    return made


dist.init_process_group = batched(dist.init_process_group)
dist.new_group = batched(dist.new_group)
