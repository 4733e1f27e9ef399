"""Count the bytes that torch's allocator gives to one strategy on a rank; not what the whole process takes.

In: a function that builds and trains the strategy, and makes notes on its way. Out: for each note, the most bytes that
were allocated at once until then. On a GPU the counters of torch's allocator are read. On a CPU torch's profiler writes
down each allocation and release of this thread, in steps that are not timed; what other threads release, as gloo's do,
it does not see. So the function runs twice: the sums of the profiler are held against what malloc had in use without
it, and not told where they differ. Not counted is what does not come from torch's allocator: buffers of gloo and NCCL,
workspaces, the process itself.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.rank import torch_names

Note = Callable[[str], None]
MARK = "collbench: "
# Of the peak: by so much the sums may differ from what is in use, which has half a megabyte of other objects in it.
ALLOWED = 0.03


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def peaks(device: torch.device, work: Callable[[Note], None]) -> dict[str, int] | None:
    """Run `work`. Returns for each of its notes the most bytes that it had allocated at once until then.

    work: keeps nothing, and does the same each time. None where the bytes are not known. What was there at the
    beginning is not in them.
    """
    gc.collect()  # else what others left is released meanwhile
    return _on_gpu(device, work) if device.type == "cuda" else _on_host(work)


def _on_gpu(device: torch.device, work: Callable[[Note], None]) -> dict[str, int]:
    noted: dict[str, int] = {}
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)

    def note(name: str) -> None:
        noted[name] = torch.cuda.max_memory_allocated(device) - before

    work(note)
    return noted


def _on_host(work: Callable[[Note], None]) -> dict[str, int] | None:
    try:
        before = _in_use()
    except AttributeError:  # another C library
        return None
    in_use: dict[str, int] = {}
    work(lambda name: in_use.update({name: _in_use() - before}))
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work(_mark)
    noted: dict[str, int] = {}
    apart = now = most = 0
    results: Any = recorded.profiler.kineto_results if recorded.profiler else None
    for event in sorted(torch_names.newest(results, "events")(), key=lambda event: event.start_ns()):
        name = event.name()
        if name == "[memory]":
            now += event.nbytes()
            most = max(most, now)
        elif name.startswith(MARK):
            name = name.removeprefix(MARK)
            noted[name], apart = most, max(apart, abs(in_use[name] - now))
    return noted if apart <= ALLOWED * most else None


def _mark(name: str) -> None:
    with record_function(MARK + name):
        pass


def _in_use() -> int:
    """Bytes that malloc has given out in this process. Raises AttributeError where the C library does not tell."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
