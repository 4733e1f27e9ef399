"""Time a number of calls on this rank: one stamp before, one after, everything else outside.

In: a workload and a count. Out: an `Own` with integer nanoseconds of this rank. Does not decide how many
and does not talk of results: `sampling` and `worker` do. Order of one iteration:

    prepare (buffers, refill) → device idle → barrier → stamp → call, or calls [→ device idle] → stamp
"""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.measure.collectives import Call, Workload

Action = Callable[[], None]
Prepare = Callable[[], Call]


@dataclass(slots=True)
class Own:
    """What one rank measured in one block of calls; lists of integer nanoseconds.

    start_ns: absolute, on the monotonic clock. host_ns: on GPUs, until the device was idle again.
    elapsed_ns: the whole block with everything around the calls.
    """

    start_ns: list[int]
    duration_ns: list[int]
    host_ns: list[int] | None
    elapsed_ns: int


def measure(workload: Workload, count: int, depth: int, barrier: Action, tick: Action, device: torch.device) -> Own:
    """`count` iterations of `depth` calls back to back, each after a barrier; `tick` is called after each one."""
    began = time.perf_counter_ns()
    timed = _on_cuda if device.type == "cuda" else _on_cpu
    prepare = workload.prepare if depth == 1 else functools.partial(_prepare_several, workload, depth)
    starts, durations, hosts = timed(prepare, count, barrier, tick)
    return Own(starts, durations, hosts, time.perf_counter_ns() - began)


def _prepare_several(workload: Workload, depth: int) -> Action:
    workload.reserve(depth)
    calls = [workload.prepare() for _ in range(depth)]

    def all_of_them() -> None:
        for call in calls:
            call()

    return all_of_them


def _on_cpu(prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int], None]:
    clock = time.perf_counter_ns
    starts, durations = [0] * count, [0] * count
    for i in range(count):
        call = prepare()
        barrier()
        start = clock()
        call()
        stop = clock()
        starts[i], durations[i] = start, stop - start
        tick()
    return starts, durations, None


def _on_cuda(prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int], list[int]]:
    """Event time on the current stream, which the collective runs on or is waited for by, and host time."""
    clock, idle = time.perf_counter_ns, torch.cuda.synchronize
    starts, hosts = [0] * count, [0] * count
    before = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    after = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for i in range(count):
        call = prepare()
        # Before the barrier, not behind it: what a rank does after the barrier makes it late.
        idle()
        barrier()
        start = clock()
        before[i].record()
        call()
        after[i].record()
        idle()
        stop = clock()
        starts[i], hosts[i] = start, stop - start
        tick()
    # elapsed_time is in milliseconds with a resolution of about 0.5 µs
    durations = [round(a.elapsed_time(b) * 1e6) for a, b in zip(before, after, strict=True)]
    return starts, durations, hosts


def floor_ns(call: Call, device: torch.device, repeats: int = 21) -> float:
    """Median host time of a call that needs no other rank: what dispatching it costs."""
    clock, took = time.perf_counter_ns, []
    for _ in range(repeats):
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(clock() - start)
    return statistics.median(took)


def stamp_cost_ns(repeats: int = 201) -> float:
    """Median distance of two stamps with nothing between them: what a reading of the clock costs."""
    clock = time.perf_counter_ns
    distances = []
    for _ in range(repeats):
        start = clock()
        stop = clock()
        distances.append(stop - start)
    return statistics.median(distances)
