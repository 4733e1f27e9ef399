"""Time iterations on this rank: one clock stamp before the calls, one after, everything else outside.

In: a workload, then counts. Out: a `RankTimings` with integer nanoseconds of this rank for each block. `sampling`
decides how many iterations are made, and `main` verifies and sends the results. Order of one iteration:

    prepare (buffers, refill) → device idle → barrier → stamp → call, or calls [→ waits] [→ device idle] → stamp

Calls are prepared several at a time, where nothing has to be done between them: Python that runs between two calls
makes the second one slower, by 1 to 3 % at 4 KiB. Asynchronous calls are all made before the first is waited for.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bench.rank.transfer import Call
from bench.rank.workload import Workload
from bench.records import Case

Action = Callable[[], None]
# Prepares the next iterations, 1 to so many: what to do in each of them.
Prepare = Callable[[int], Sequence[Callable[[], object]]]


@dataclass(slots=True)
class RankTimings:
    """What one rank measured in one block of calls; lists of integer nanoseconds.

    start_ns: absolute, on the monotonic clock. host_ns: on GPUs, host time until the device was idle again; else None.
    elapsed_ns: of the whole block, with everything around the calls but filling buffers.
    """

    start_ns: list[int]
    duration_ns: list[int]
    host_ns: list[int] | None
    elapsed_ns: int


class CaseTimer:
    """Times blocks of iterations of one case, each iteration after a barrier: one call, or `depth` back to back.

    tick: called after each iteration.
    """

    def __init__(self, workload: Workload, case: Case, barrier: Action, tick: Action, device: torch.device) -> None:
        self._workload, self._case, self._barrier, self._tick = workload, case, barrier, tick
        self._timed = _on_cuda if device.type == "cuda" else _on_cpu
        self._prepare: Prepare | None = None

    def measure(self, count: int) -> RankTimings:
        """Time `count` iterations."""
        # Before the first call: filling buffers between two calls would let the ranks idle.
        self._workload.reserve(count * self._case.depth)
        began = time.perf_counter_ns()
        if self._prepare is None:  # not made before: capturing a graph makes calls
            self._prepare = PREPARE[self._case.metric](self._workload, self._case)
        starts, durations, hosts = self._timed(self._prepare, count, self._barrier, self._tick)
        return RankTimings(starts, durations, hosts, time.perf_counter_ns() - began)


def call_once(workload: Workload, case: Case) -> None:
    """Make one call and wait for it, without a barrier before it."""
    (_one_awaited(workload) if case.call == "async" else workload.prepare())()


def _one_awaited(workload: Workload) -> Action:
    call = workload.prepare()

    def call_and_wait() -> None:
        work = call()
        if work is not None:  # a rank that rests has nothing to wait for
            work.wait()

    return call_and_wait


def _several(calls: Sequence[Call], asynchronous: bool) -> Action:
    def all_of_them() -> None:
        for call in calls:
            call()

    def all_awaited() -> None:
        for work in [call() for call in calls]:
            if work is not None:
                work.wait()

    return all_awaited if asynchronous else all_of_them


def _captured(workload: Workload, depth: int) -> Action:
    """The replay of a CUDA graph of `depth` calls, one on each buffer of the pool; capturing does not execute them."""
    workload.reserve(depth)
    calls = [workload.prepare() for _ in range(depth)]
    for call in calls:  # executed once, because NCCL connects in the first call of a kind
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    replay: Action = graph.replay
    return replay


def _replayed(workload: Workload, depth: int, replay: Action) -> list[Action]:
    """The same replay; its calls are prepared only to count them, and to refill buffers where the data needs it."""
    workload.reserve(depth)
    for _ in range(depth):
        workload.prepare()
    return [replay]


def _isolated(workload: Workload, case: Case) -> Prepare:
    if case.call == "async":
        return lambda _: [_one_awaited(workload)]
    return workload.ready


def _pipelined(workload: Workload, case: Case) -> Prepare:
    depth, asynchronous = case.depth, case.call == "async"

    def prepare(most: int) -> list[Action]:
        workload.reserve(depth)
        calls = [workload.prepare() for _ in range(depth)]
        return [_several(calls, asynchronous)]

    return prepare


def _graph(workload: Workload, case: Case) -> Prepare:
    replay = _captured(workload, case.depth)
    return lambda _: _replayed(workload, case.depth, replay)


# Metric → a function that returns the function that prepares iterations.
PREPARE: dict[str, Callable[[Workload, Case], Prepare]] = {
    "isolated": _isolated,
    "pipelined": _pipelined,
    "graph": _graph,
}


def _on_cpu(prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int], None]:
    clock = time.perf_counter_ns
    starts, stops = [0] * count, [0] * count
    done = 0
    while done < count:
        for i, call in enumerate(prepare(count - done), done):
            barrier()
            start = clock()
            call()
            stop = clock()
            starts[i], stops[i] = start, stop
            tick()
        done = i + 1
    return starts, [stop - start for start, stop in zip(starts, stops, strict=True)], None


def _on_cuda(prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int], list[int]]:
    """Starts, durations by events on the current stream, which runs the collective or waits for it, and host times."""
    clock, idle = time.perf_counter_ns, torch.cuda.synchronize
    starts, hosts = [0] * count, [0] * count
    before = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    after = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for i in range(count):
        (call,) = prepare(1)
        # Before the barrier and not after it: whatever a rank does after the barrier makes it late.
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
    """Median host time in ns of a call that needs no other rank: what dispatching it costs."""
    clock, took = time.perf_counter_ns, []
    for _ in range(repeats):
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(clock() - start)
    return statistics.median(took)


def stamp_cost_ns(repeats: int = 201) -> float:
    """Median time in ns between two stamps with nothing between them: what reading the clock costs."""
    clock = time.perf_counter_ns
    distances = []
    for _ in range(repeats):
        start = clock()
        stop = clock()
        distances.append(stop - start)
    return statistics.median(distances)
