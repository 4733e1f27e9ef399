"""Loaded by the tests' fork server before it forks ranks: gloo's loop threads run under SCHED_BATCH.

On cores that are shared, gloo's loop thread preempts the thread that holds the lock it wants, and then asks in vain
until its slice is over; under SCHED_BATCH it waits for its turn, and a small call costs a quarter. Only tests do this,
and only where the ranks come from the fork server that tests share: what the suite itself measures is plain gloo.
"""

import contextlib
import functools
import os
from pathlib import Path

import torch.distributed as dist

LOOP_THREAD = "gloo_tcp_loop"


def loop_threads() -> list[int]:
    """The ids of gloo's loop threads in this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ends meanwhile
            if (task / "comm").read_text().strip() == LOOP_THREAD:
                found.append(int(task.name))
    return found


def batched(make):
    """`make`, after which the loop threads of the group that it made wait for their turn."""

    @functools.wraps(make)
    def made(*arguments, **options):
        group = make(*arguments, **options)
        for thread in loop_threads():
            with contextlib.suppress(OSError):
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                    os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        return group

    return made


dist.init_process_group = batched(dist.init_process_group)
dist.new_group = batched(dist.new_group)
