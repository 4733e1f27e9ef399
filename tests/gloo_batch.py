"""Loaded by the tests' fork server before it forks ranks: gloo's loop threads run under SCHED_BATCH.

On cores that are shared, gloo's loop thread preempts the thread that holds the lock it wants, and then asks in vain
until its slice is over; under SCHED_BATCH it waits for its turn, and a small call costs a quarter. Only tests do this,
and only where the ranks come from the fork server that tests share: what the suite itself measures is plain gloo.
"""

import functools
import os

import torch.distributed as dist

from bench.catalog.backends import BACKENDS
from bench.machine import host


def batched(make):
    """`make`, after which the loop threads of the group that it made wait for their turn."""

    @functools.wraps(make)
    def made(*arguments, **options):
        group = make(*arguments, **options)
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not where a case asks for real time
            host.use_batch(BACKENDS["gloo"].loop_thread, set(), 0)
        return group

    return made


dist.init_process_group = batched(dist.init_process_group)
dist.new_group = batched(dist.new_group)
