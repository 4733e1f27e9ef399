"""Make the calls of a recorded job again: one iteration is all calls of a step, each with stamps of its own.

In: a `Replay`, a joined `Group`, the rank's `Arena`. Out: the `Workload` of that case. Each distinct call is an
operation with buffers and data of its own, so that its results are checked as those of any other case. An asynchronous
call is over when its work is; the rank waits for it before the call before which it had ended in the recording, or at
the end of the step.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.rank.collectives import COLLECTIVES
from bench.rank.device import Device, Event
from bench.rank.objects import BarrierOperation
from bench.rank.process_group import Group
from bench.rank.tensors import Arena, TensorOperation
from bench.rank.transfer import Call, rest
from bench.records import Replay

# A rank sleeps through a pause but for the last part of it: the kernel wakes it up to so much too late.
OVERSLEEP_S = 3e-4
# Starts and durations of the calls of one step, in ns; starts since the step began.
Stamps = tuple[list[int], list[int]]


class ReplayOperation:
    """The calls of a step, in their order."""

    def __init__(self, replay: Replay, group: Group, arena: Arena, seed: int, tick: Callable[[], None] = rest) -> None:
        self._cases, self._calls = replay.cases, replay.calls
        self._inner: list[TensorOperation | BarrierOperation] = [
            TensorOperation(case, group, arena, 0, seed, tick)
            if case.op in COLLECTIVES
            else BarrierOperation(case, group)
            for case in replay.cases
        ]
        self._asynchronous = [replay.cases[call.case].call == "async" for call in replay.calls]
        self._pauses_s = [call.pause_s for call in replay.calls]
        self._after = [call.after for call in replay.calls]
        self._stamps: list[Stamps] = []
        self._make = _EnqueuedStep(group.device) if group.device.enqueues else _HostStep()

    def prepare(self) -> Call:
        """All calls of the next step: buffers are refilled now, not between them."""
        self.reserve(1)
        calls = [self._inner[call.case].prepare() for call in self._calls]
        return lambda: self._stamps.append(self._make(calls, self._asynchronous, self._after, self._pauses_s))

    def ready(self, most: int) -> list[Call]:
        return [self.prepare()]

    def reserve(self, calls: int) -> None:
        for case, work in zip(self._cases, self._inner, strict=True):
            work.reserve(case.depth)

    def verify(self) -> str | None:
        for case, work in zip(self._cases, self._inner, strict=True):
            if (wrong := work.verify()) is not None:
                return f"{case.op} of {case.size_bytes} B: {wrong}"
        return None

    def corrupt(self) -> bool:
        spoilt = [work.corrupt() for work in self._inner]  # all of them: some are overwritten by the next step
        return any(spoilt)

    def single_rank_call(self) -> Call | None:
        """A step has no meaning for one rank."""
        return None

    def stamps(self) -> list[Stamps]:
        """Those of all steps since they were asked for last."""
        found, self._stamps = self._stamps, []
        return self._make.resolved(found)


class _HostStep:
    """Stamps by the host's clock; an asynchronous call is over when the thread that runs it says so."""

    def __call__(
        self,
        calls: Sequence[Call],
        asynchronous: Sequence[bool],
        after: Sequence[Sequence[int]],
        pauses_s: Sequence[float],
    ) -> Stamps:
        clock = time.perf_counter_ns
        starts, stops = [0] * len(calls), [0] * len(calls)
        pending: dict[int, Any] = {}
        began = clock()
        for number, call in enumerate(calls):
            for earlier in after[number]:
                if earlier in pending:
                    pending.pop(earlier).wait()
            if pauses_s[number]:
                _pause(pauses_s[number])
            starts[number] = clock()
            work = call()
            if asynchronous[number] and work is not None:
                pending[number] = work.get_future().then(_stopping(stops, number))
            else:
                stops[number] = clock()
        for future in pending.values():
            future.wait()
        durations = [stop - start for start, stop in zip(starts, stops, strict=True)]
        return [start - began for start in starts], durations

    def resolved(self, found: list[Stamps]) -> list[Stamps]:
        return found


def _stopping(stops: list[int], number: int) -> Callable[[Any], None]:
    def note(_: Any) -> None:
        stops[number] = time.perf_counter_ns()

    return note


def _pause(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    if seconds > 2 * OVERSLEEP_S:
        time.sleep(seconds - OVERSLEEP_S)
    while time.perf_counter() < ends:
        pass


class _EnqueuedStep:
    """Stamps by events on the device's current stream, which waits for asynchronous calls where the host does."""

    def __init__(self, device: Device) -> None:
        self._device, self._free = device, list[Event]()

    def __call__(
        self,
        calls: Sequence[Call],
        asynchronous: Sequence[bool],
        after: Sequence[Sequence[int]],
        pauses_s: Sequence[float],
    ) -> Any:
        events = [self._event() for _ in range(2 * len(calls) + 1)]
        began, pending = events[-1], dict[int, Any]()
        began.record()
        for number, call in enumerate(calls):
            for earlier in after[number]:
                if earlier in pending:
                    pending.pop(earlier).wait()
                    events[2 * earlier + 1].record()
            if pauses_s[number]:
                _pause(pauses_s[number])
            events[2 * number].record()
            work = call()
            if asynchronous[number] and work is not None:
                pending[number] = work
            else:
                events[2 * number + 1].record()
        for number, work in pending.items():
            work.wait()
            events[2 * number + 1].record()
        return events

    def resolved(self, found: list[Any]) -> list[Stamps]:
        self._device.synchronize()
        stamps = []
        for events in found:
            *pairs, began = events
            before, behind = pairs[::2], pairs[1::2]
            starts = [one.ns_since(began) for one in before]
            stamps.append((starts, [b.ns_since(a) for a, b in zip(before, behind, strict=True)]))
            self._free += events
        return stamps

    def _event(self) -> Event:
        return self._free.pop() if self._free else self._device.event()
