"""A rank with another monotonic clock: it has a time namespace of its own, as on another host."""

import ctypes
import json
import os
from pathlib import Path

from collbench.protocol import rank_context

CLONE_NEWTIME = 0x80


def enter(context: rank_context.RankContext, argument: bytes) -> None:
    """Enter the target; every rank but the first is `ahead_s` ahead. The kernel refuses once a thread exists."""
    ahead_s, target, job = json.loads(argument)
    if context.rank:
        unsupported = move_clock(ahead_s)
        assert unsupported is None, unsupported
    rank_context.enter(target, context, json.dumps(job).encode())


def move_clock(ahead_s: int) -> str | None:
    """Put this process's clock ahead; return the reason if this is not possible, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME):
        return os.strerror(ctypes.get_errno())
    try:
        Path("/proc/self/timens_offsets").write_text(f"monotonic {ahead_s} 0\n")
        namespace = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    except OSError as error:
        return str(error)
    return os.strerror(ctypes.get_errno()) if libc.setns(namespace, CLONE_NEWTIME) else None
