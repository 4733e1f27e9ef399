"""Make the calls of a recorded job again: one iteration is all calls of a step, each with stamps of its own.

In: a case, the settings with its `Replay`, and where it runs. Out: the `Workload` of that case. Each rank has calls of
its own. Each distinct call is an operation with buffers and data of its own, so that its results are checked as those
of any other case. An asynchronous call is over when its work is; the rank waits for it before the call before which it
had ended in the recording, or at the end of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.model.records import Case, Settings
from bench.packages.replay.replayed_calls import DURATION_NS, START_NS, Replay, ReplayedCall, replay_of
from bench.rank.collectives import COLLECTIVES, Call, rest
from bench.rank.device import Device, Event, idle
from bench.rank.group import Group
from bench.rank.objects import BarrierOperation
from bench.rank.parts import RankPart, RankPlace
from bench.rank.tensors import Arena, TensorOperation
from bench.rank.workload import Stamps, Workload


class ReplayOperation(Workload):
    """The calls of a step, in their order."""

    def __init__(self, replay: Replay, group: Group, arena: Arena, seed: int, tick: Callable[[], None] = rest) -> None:
        self._cases, self._calls, self._device = replay.cases, replay.of(group.rank).calls, group.device
        self._most = max(len(made.calls) for made in replay.lists)
        self._inner: list[TensorOperation | BarrierOperation] = [
            TensorOperation(case, group, arena, 0, seed, tick)
            if case.op in COLLECTIVES
            else BarrierOperation(case, group)
            for case in replay.cases
        ]
        self._asynchronous = [replay.cases[call.case].call == "async" for call in self._calls]
        self.waits_on_host = any(work.waits_on_host for work in self._inner)
        self.pauses = any(call.pause_s for made in replay.lists for call in made.calls)
        # Calls of one communicator end in their order; those of others need streams of their own to be waited for.
        groups = list(dict.fromkeys(case.groups for case in replay.cases))
        self._lanes = [groups.index(replay.cases[call.case].groups) for call in self._calls]
        self._steps: list[Marks] = []
        self._free: list[Marks] = []  # of steps whose stamps have been read: events take time to make

    def prepare(self) -> Call:
        """All calls of the next step: buffers are refilled now, not between them, and events are made now."""
        self.reserve(1)
        calls = [self._inner[call.case].prepare() for call in self._calls]
        marks = self._free.pop() if self._free else marks_on(self._device, self._lanes)
        self._steps.append(marks)
        return lambda: make_step(self._calls, calls, self._asynchronous, marks)

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

    def stamps(self) -> list[Stamps]:
        """The stamps of all steps since the last time that they were taken; zeros beyond this rank's last call."""
        self._device.synchronize()
        beyond = [0] * (self._most - len(self._calls))
        stamps: list[Stamps] = [
            {START_NS: starts + beyond, DURATION_NS: took + beyond}
            for starts, took in (marks.stamps() for marks in self._steps)
        ]
        self._free, self._steps = [*self._free, *self._steps], []
        return stamps


def make_step(
    planned: Sequence[ReplayedCall], calls: Sequence[Call], asynchronous: Sequence[bool], marks: Marks
) -> None:
    """Make the calls, with their pauses; wait for asynchronous ones where the recording had them behind it."""
    pending: dict[int, Any] = {}
    marks.begin()
    for number, (plan, call) in enumerate(zip(planned, calls, strict=True)):
        for earlier in plan.after:
            if earlier in pending:
                marks.over(earlier, pending.pop(earlier))
        if plan.pause_s:
            idle(plan.pause_s)
        marks.start(number)
        work = call()
        if asynchronous[number] and work is not None:
            pending[number] = marks.launched(number, work)
        else:
            marks.stop(number)
    for number, launched in pending.items():
        marks.over(number, launched)


class _HostMarks:
    """The instants of one step by the host's clock; an asynchronous call is over when the thread that runs it says so.

    start, stop: a call is about to be made; it is over. launched: an asynchronous call was made; returns what `over`
    takes, which waits until the call is over. stamps: once the device is idle.
    """

    def __init__(self, calls: int) -> None:
        self._began, self._starts, self._stops = 0, [0] * calls, [0] * calls

    def begin(self) -> None:
        self._began = time.perf_counter_ns()

    def start(self, number: int) -> None:
        self._starts[number] = time.perf_counter_ns()

    def stop(self, number: int) -> None:
        self._stops[number] = time.perf_counter_ns()

    def launched(self, number: int, work: Any) -> Any:
        self._stops[number] = 0
        try:
            return work.get_future().then(lambda _: self.stop(number))
        except RuntimeError:  # gloo's sends and receives have none: they are over when the rank has waited for them
            return work

    def over(self, number: int, launched: Any) -> None:
        launched.wait()
        if not self._stops[number]:
            self.stop(number)

    def stamps(self) -> tuple[list[int], list[int]]:
        pairs = zip(self._starts, self._stops, strict=True)
        return [start - self._began for start in self._starts], [stop - start for start, stop in pairs]


class _EventMarks:
    """The instants as events on the device's current stream, which waits for asynchronous calls where the host does.

    An asynchronous call is over when a stream beside it says so, which waits for this call and does nothing else: on
    the current stream, the calls between would count as part of it.
    """

    def __init__(self, device: Device, lanes: Sequence[int]) -> None:
        self._device, self._lanes = device, lanes
        self._began = device.event()
        self._starts: list[Event] = [device.event() for _ in lanes]
        self._stops: list[Event] = [device.event() for _ in lanes]

    def begin(self) -> None:
        self._began.record()

    def start(self, number: int) -> None:
        self._starts[number].record()

    def stop(self, number: int) -> None:
        self._stops[number].record()

    def launched(self, number: int, work: Any) -> Any:
        with self._device.aside(self._lanes[number]):
            work.wait()
            self.stop(number)
        return work

    def over(self, number: int, launched: Any) -> None:
        launched.wait()

    def stamps(self) -> tuple[list[int], list[int]]:
        pairs = zip(self._starts, self._stops, strict=True)
        return [start.ns_since(self._began) for start in self._starts], [b.ns_since(a) for a, b in pairs]


# Where the instants of one step are kept, call by call.
Marks = _HostMarks | _EventMarks


def marks_on(device: Device, lanes: Sequence[int]) -> Marks:
    """Marks for calls on a device. lanes: for each call, the number of its communicator."""
    return _EventMarks(device, lanes) if device.enqueues else _HostMarks(len(lanes))


class ReplayStage:
    """What the replays of a launch share on this rank."""

    def __init__(self, case: Case, settings: Settings, launch: int, place: RankPlace) -> None:
        self._settings, self._place = settings, place

    def workload(self, case: Case) -> ReplayOperation:
        """The calls of the case's recording."""
        replay, place = replay_of(self._settings, case), self._place
        return ReplayOperation(replay, place.group, place.arena, self._settings.seed, place.tick)


RANK_PART = RankPart(ReplayStage)
