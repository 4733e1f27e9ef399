"""Count the bytes that torch's allocator gives to one strategy on a rank; not the memory of the whole process.

In: a function that builds and trains the strategy, and makes notes on its way. Out: for each note, the peak of
allocated bytes until then. On a GPU the counters of torch's allocator are read. On a CPU torch's profiler records each
allocation and release of this thread, in steps that are not timed; it does not see releases by other threads, such as
gloo's. So the function runs twice: the sums of the profiler are compared with the bytes that malloc had in use without
the profiler, and discarded if they differ. Memory that does not come from torch's allocator is not counted: buffers of
gloo and NCCL, workspaces, the process itself.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from collbench.rank import torch_names

Note = Callable[[str], None]
MARK = "collbench: "
# Largest difference between the sums and the bytes in use, as a share of the peak; half a megabyte is other objects.
ALLOWED = 0.03


# Positions in `struct mallinfo2`: bytes in blocks that are mapped one by one, and bytes given out of the heap.
HBLKHD, UORDBLKS = 4, 7


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]


def peaks(device: torch.device, work: Callable[[Note], None]) -> dict[str, int] | None:
    """Run `work`. Returns for each of its notes the peak of the bytes that it had allocated until then.

    None if the bytes are not known. Memory allocated before the call is not counted. work: keeps nothing, and does the
    same each time.
    """
    gc.collect()  # else garbage from before would be released meanwhile
    return _on_gpu(device, work) if device.type == "cuda" else _on_host(work)


def _on_gpu(device: torch.device, work: Callable[[Note], None]) -> dict[str, int]:
    noted: dict[str, int] = {}
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work(lambda name: noted.update({name: torch.cuda.max_memory_allocated(device) - before}))
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
    """Return the bytes that malloc has given out in this process. Raises AttributeError without `mallinfo2` (glibc)."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    counts = mallinfo().counts
    return int(counts[UORDBLKS] + counts[HBLKHD])
