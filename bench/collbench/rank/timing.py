"""Time iterations on this rank: one timestamp before the calls, one after, everything else outside.

In: a workload, then counts. Out: a `RankTimings` with integer nanoseconds of this rank for each block. `sampling`
decides how many iterations are made, `rounds` verifies the results, and `main` sends them. Order on a CPU:

    prepare (buffers, refill) → barrier → stamp → call, or calls [→ waits] → stamp

On a GPU a call returns before it is done, and two times are measured, one after the other. Host time, for all
iterations of a block: as above, with the device idle before the barrier and before the last stamp. Device time:

    prepare → device idle → barrier → stamp of the start → event → occupy the stream → align the ranks on the device
    → event → call, or calls [→ waits] → event → device idle

Operations that wait on the host are timed by the host only: nothing can be enqueued behind them.

Everything from `occupy` on is enqueued while the device is busy, so that the time between the last two events includes
neither dispatching nor waiting for a rank that left the barrier late (a straggler). The time between the first two
events is the wait of this rank's device until all devices began: the rank that waits least came last. The wait includes
the time for which the rank's own stream is occupied, which does not affect differences between ranks, because the first
event comes before.

Calls are prepared several at a time, if nothing has to be done between them: Python code that runs between two calls
makes the second call slower, by 1 to 3 % at 4 KiB. Asynchronous calls are all made before the first is waited for.
"""

import statistics
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from collbench.model.records import Case
from collbench.rank.collectives import Call
from collbench.rank.device import Action, Device, Event, Graph
from collbench.rank.workload import BlockUse, Stamps, Workload

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True

# The stream is occupied for SPARE times the recent enqueueing time (the median of RECENT iterations), between
# LEAST_BACKLOG_NS and MOST_BACKLOG_NS. If that was too short, a boost doubles it, up to MOST_BOOST; it decays by FADE.
LEAST_BACKLOG_NS, SPARE, RECENT, MOST_BACKLOG_NS, FADE, MOST_BOOST = 200_000, 2, 9, 20_000_000, 0.9, 64
# Number of empty pairs of events that show the cost of an event.
EMPTY_PAIRS = 21
# Prepares the next iterations, from 1 to the given number: returns one action for each iteration.
Prepare = Callable[[int], Sequence[Action]]


class RankTimings(TypedDict):
    """The times of one block of calls on one rank, as plain data, which ranks gather; in integer nanoseconds."""

    # Absolute start of each iteration, on the monotonic clock.
    start_ns: list[int]
    duration_ns: list[int]
    # Time of the whole block, with everything around the calls except filling buffers.
    elapsed_ns: int
    # On GPUs, host time until the device was idle again. Not every device and operation has this and the later fields.
    host_ns: NotRequired[list[int]]
    # For each iteration, True if the stream was idle before all was enqueued, so that its time includes dispatching.
    dispatch_bound: NotRequired[list[bool]]
    # Time from when this rank's device is ready until the devices of all ranks are ready, when the calls begin.
    wait_ns: NotRequired[list[int]]
    # Stamps within each iteration.
    inner: NotRequired[list[Stamps]]
    use: NotRequired[BlockUse]


class CaseTimer:
    """Times blocks of iterations of one case, each iteration after a barrier: one call, or `depth` calls back to back.

    `tick` is called after each iteration. `align` enqueues a call in which all ranks' devices wait, if they enqueue.
    """

    def __init__(
        self, workload: Workload, case: Case, barrier: Action, tick: Action, device: Device, align: Action
    ) -> None:
        self._workload, self._case, self._barrier, self._tick = workload, case, barrier, tick
        self._device, self._stream = device, _Stream(device, align) if device.enqueues else None
        self._prepare: Prepare | None = None
        self._graph: Graph | None = None

    def measure(self, count: int) -> RankTimings:
        """Time `count` iterations."""
        # Before the first call: filling buffers between two calls would let the ranks idle.
        self._workload.reserve(count * self._case.depth)
        clock = self._device.clock_ns
        if self._stream is not None:
            self._stream.make_events(count)
        began = clock()
        if self._prepare is None:  # not when the timer is made: capturing a graph makes calls
            self._prepare, self._graph = PREPARE[self._case.metric](self._workload, self._case, self._device)
        if self._stream is None:
            starts, durations = _on_host(self._prepare, count, self._barrier, self._tick)
            return {"start_ns": starts, "duration_ns": durations, "elapsed_ns": clock() - began}
        starts, hosts = self._stream.host_times(self._prepare, count, self._barrier, self._tick)
        elapsed = clock() - began
        if self._workload.waits_on_host:
            return {"start_ns": starts, "duration_ns": hosts, "elapsed_ns": elapsed}
        self._workload.reserve(count * self._case.depth)
        began = clock()
        timed = self._stream.timed(self._prepare, count, self._barrier, self._tick)
        return {
            "start_ns": timed.starts,
            "duration_ns": timed.durations,
            "elapsed_ns": elapsed + clock() - began,
            "host_ns": hosts,
            "wait_ns": timed.waits,
            "dispatch_bound": timed.late,
        }

    def cost_ns(self) -> float:
        """Return the median time in ns measured without a call: the cost of reading the clock, or the events."""
        if self._stream is None or self._workload.waits_on_host:
            return stamp_cost_ns()
        return self._stream.empty_pair_ns()

    def close(self) -> None:
        """Release the captured graph: a process group cannot be left while a graph contains its calls."""
        if self._graph is not None:
            self._device.synchronize()
            self._graph.reset()
            self._graph = self._prepare = None


def call_once(workload: Workload, case: Case, capturing: Device | None = None) -> None:
    """Make one call and wait for it, without a barrier before it. capturing: device on which to make it as a graph."""
    call = _one_awaited(workload) if case.call == "async" else workload.prepare()
    if capturing is None:
        call()
    else:
        graph = capturing.captured(call, connected=True)
        graph.replay()
        capturing.synchronize()
        graph.reset()


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


def _isolated(workload: Workload, case: Case, device: Device) -> tuple[Prepare, None]:
    if case.call == "async":
        return lambda _: [_one_awaited(workload)], None
    return workload.ready, None


def _pipelined(workload: Workload, case: Case, device: Device) -> tuple[Prepare, None]:
    depth, asynchronous = case.depth, case.call == "async"

    def prepare(most: int) -> list[Action]:
        workload.reserve(depth)
        calls = [workload.prepare() for _ in range(depth)]
        return [_several(calls, asynchronous)]

    return prepare, None


def _graphed(workload: Workload, case: Case, device: Device) -> tuple[Prepare, Graph]:
    """Capture `depth` calls as a graph, on successive buffers of the pool; asynchronous calls are awaited within it."""
    workload.reserve(case.depth)
    graph = device.captured(_several([workload.prepare() for _ in range(case.depth)], case.call == "async"))

    def prepare(most: int) -> list[Action]:
        # The replay is always the same; calls are prepared only to count them, and to refill buffers if needed.
        workload.reserve(case.depth)
        for _ in range(case.depth):
            workload.prepare()
        return [graph.replay]

    return prepare, graph


# Metric → a function that returns the function that prepares iterations, and the graph if it captures one.
PREPARE: dict[str, Callable[[Workload, Case, Device], tuple[Prepare, Graph | None]]] = {
    "isolated": _isolated,
    "first": _isolated,
    "pipelined": _pipelined,
    "graph": _graphed,
}


def _on_host(prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int]]:
    """Return starts and durations of calls that are done when they return."""
    clock = time.perf_counter_ns
    # Lists would keep two new objects per iteration, whose memory evicts other data from the caches (2 % of 3 µs).
    starts, stops = array("q", bytes(8 * count)), array("q", bytes(8 * count))
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
    return starts.tolist(), [stop - start for start, stop in zip(starts, stops, strict=True)]


class _Backlog:
    """The time for which the stream is occupied before each iteration, so that everything is enqueued meanwhile.

    A stall of the host makes one iteration late; its effect is limited by the median, and by the decay of the boost.
    """

    def __init__(self) -> None:
        self._took: deque[int] = deque(maxlen=RECENT)
        self._boost = 1.0

    @property
    def ns(self) -> int:
        lately = statistics.median(self._took) if self._took else 0
        return min(MOST_BACKLOG_NS, max(LEAST_BACKLOG_NS, round(self._boost * SPARE * lately)))

    def learn(self, enqueued_ns: int, late: bool) -> None:
        """Record how long enqueueing took, and whether the stream was idle before enqueueing ended."""
        self._took.append(enqueued_ns)
        self._boost = min(MOST_BOOST, 2 * self._boost) if late else max(1.0, FADE * self._boost)


@dataclass(slots=True)
class _Timed:
    """The times of each iteration: starts by the host's clock, durations between events."""

    starts: list[int]
    durations: list[int]
    # Wait for the other ranks.
    waits: list[int]
    # True if the iteration is dispatch-bound.
    late: list[bool]


class _Stream:
    """Times calls by events on the device's current stream, which runs the calls or waits for them."""

    def __init__(self, device: Device, align: Action) -> None:
        self._device, self._align = device, align
        self._events: list[tuple[Event, Event, Event]] = []
        self._backlog = _Backlog()

    def make_events(self, count: int) -> None:
        """Make events for this many iterations beforehand, because making an event takes time."""
        event = self._device.event
        while len(self._events) < count:
            self._events.append((event(), event(), event()))

    def host_times(self, prepare: Prepare, count: int, barrier: Action, tick: Action) -> tuple[list[int], list[int]]:
        """Return starts and durations by the host's clock, until the device is idle again."""
        device, clock = self._device, self._device.clock_ns
        starts, durations = [0] * count, [0] * count
        for i in range(count):
            (call,) = prepare(1)
            # Before the barrier, not after it: anything that a rank does after the barrier makes it late.
            device.synchronize()
            barrier()
            start = clock()
            call()
            device.synchronize()
            starts[i], durations[i] = start, clock() - start
            tick()
        return starts, durations

    def timed(self, prepare: Prepare, count: int, barrier: Action, tick: Action) -> _Timed:
        """Time iterations by events, with calls enqueued behind other work."""
        device, clock = self._device, self._device.clock_ns
        starts, late = [0] * count, [False] * count
        for i in range(count):
            (call,) = prepare(1)
            aligning, before, after = self._events[i]
            device.synchronize()
            barrier()
            start = clock()
            aligning.record()
            device.occupy(self._backlog.ns)
            self._align()
            before.record()
            call()
            after.record()
            idle = before.passed()
            enqueued_ns = clock() - start
            device.synchronize()
            starts[i], late[i] = start, idle
            self._backlog.learn(enqueued_ns, idle)
            tick()
        events = self._events[:count]
        durations = [after.ns_since(before) for _, before, after in events]
        return _Timed(starts, durations, [before.ns_since(aligning) for aligning, before, _ in events], late)

    def empty_pair_ns(self) -> float:
        """Return the median ns between two events behind other work, with nothing between them."""
        self.make_events(EMPTY_PAIRS)
        pairs = [(before, after) for _, before, after in self._events[:EMPTY_PAIRS]]
        for before, after in pairs:
            self._device.occupy(self._backlog.ns)
            before.record()
            after.record()
            self._device.synchronize()
        return statistics.median(after.ns_since(before) for before, after in pairs)


def floor_ns(call: Call, device: Device, repeats: int = 21) -> float:
    """Return the median host time in ns of a call that needs no other rank: the cost of dispatching it."""
    clock, took = device.clock_ns, []
    for _ in range(repeats):
        start = clock()
        call()
        device.synchronize()
        took.append(clock() - start)
    return statistics.median(took)


def stamp_cost_ns(repeats: int = 201) -> float:
    """Return the median time in ns between two timestamps with nothing between them: the cost of reading the clock."""
    clock = time.perf_counter_ns
    distances = []
    for _ in range(repeats):
        start = clock()
        stop = clock()
        distances.append(stop - start)
    return statistics.median(distances)
