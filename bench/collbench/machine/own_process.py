"""Inspect this process: cores, threads, open files and memory, from /proc/self."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from collbench.model.records import Json

POLICIES = {os.SCHED_OTHER: "normal", os.SCHED_BATCH: "batch", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}


def look() -> Json:
    """Return the state of this process now; empty if the system has no /proc.

    Counts are by name of a thread, by scheduling policy of a thread, and by kind of an open file.
    """
    if not Path("/proc/self/status").exists():
        return {}
    threads, policies, files = Counter[str](), Counter[str](), Counter[str]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            threads[(task / "comm").read_text().strip()] += 1
            policies[POLICIES.get(os.sched_getscheduler(int(task.name)), "other")] += 1
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder that is being listed
            files[_kind(str(entry.readlink()))] += 1
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return {
        "affinity": sorted(os.sched_getaffinity(0)),
        "threads": dict(threads),
        "files": dict(files),
        "policies": dict(policies),
        "memory_bytes": 1024 * int(resident.split()[1]),
    }


def _kind(target: str) -> str:
    """Return the kind of an open file: socket, pipe, eventpoll, or file."""
    kind, _, rest = target.partition(":")
    return rest.strip("[]") if kind == "anon_inode" else kind if rest else "file"
