"""Replay the calls of a recorded job: one iteration is all calls of a step, each with its own stamps.

In: a case, the settings with its `Replay`, and the place of the rank. Out: the `Workload` of that case. Each rank has
its own calls. Each distinct call is an operation with its own buffers and data, so its results are checked like the
results of any other case. An asynchronous call ends when its work ends. The rank waits for it before the first call
that began after its end in the recording, or at the end of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from collbench.model.records import Case, Settings
from collbench.packages.replay.replayed_calls import DURATION_NS, START_NS, Replay, ReplayedCall, replay_of
from collbench.rank.barrier import BarrierOperation
from collbench.rank.collectives import COLLECTIVES, Call, rest
from collbench.rank.device import Device, Event
from collbench.rank.group import Group
from collbench.rank.stage import RankPlace
from collbench.rank.tensors import Arena, TensorOperation
from collbench.rank.workload import Stamps, Workload


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
        # Calls of one communicator end in order; waits for calls of different communicators need separate streams.
        groups = list(dict.fromkeys(case.groups for case in replay.cases))
        self._lanes = [groups.index(replay.cases[call.case].groups) for call in self._calls]
        self._steps: list[Marks] = []
        self._free: list[Marks] = []  # for reuse, after their stamps have been read: creating events takes time

    def prepare(self) -> Call:
        """Refill buffers, create events, and return a function that makes all calls of the next step."""
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
        spoilt = [work.corrupt() for work in self._inner]  # corrupt all operations: the next step overwrites some
        return any(spoilt)

    def stamps(self) -> list[Stamps]:
        """Return the stamps of all steps since the previous call, with zeros after this rank's last recorded call."""
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
    """Make the calls; before a call, wait for the asynchronous calls in its `after`."""
    pending: dict[int, Any] = {}
    marks.begin()
    for number, (plan, call) in enumerate(zip(planned, calls, strict=True)):
        for earlier in plan.after:
            if earlier in pending:
                marks.over(earlier, pending.pop(earlier))
        marks.start(number)
        work = call()
        if asynchronous[number] and work is not None:
            pending[number] = marks.launched(number, work)
        else:
            marks.stop(number)
    for number, launched in pending.items():
        marks.over(number, launched)


class _HostMarks:
    """Times of one step by the host's clock. An asynchronous call ends when the thread that runs it reports its end.

    `start` is called before a call is made, `stop` after its end. `launched` is called after an asynchronous call was
    made; its result is the argument of `over`, which waits for the end of the call. `stamps` needs an idle device.
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
        except RuntimeError:  # gloo's sends and receives have no future: they end when the rank has waited for them
            return work

    def over(self, number: int, launched: Any) -> None:
        launched.wait()
        if not self._stops[number]:
            self.stop(number)

    def stamps(self) -> tuple[list[int], list[int]]:
        pairs = zip(self._starts, self._stops, strict=True)
        return [start - self._began for start in self._starts], [stop - start for start, stop in pairs]


class _EventMarks:
    """Times of one step as events on the current stream, which waits for asynchronous calls where the host does.

    The end of an asynchronous call is recorded on a separate stream, which waits only for this call: on the current
    stream, the calls in between would count as part of it.
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


# Times of each call of one step.
Marks = _HostMarks | _EventMarks


def marks_on(device: Device, lanes: Sequence[int]) -> Marks:
    """Return marks for calls on a device. lanes: for each call, the number of its communicator."""
    return _EventMarks(device, lanes) if device.enqueues else _HostMarks(len(lanes))


def workloads(case: Case, settings: Settings, launch: int, place: RankPlace) -> Callable[[Case], ReplayOperation]:
    """Return the function that makes the workload of a replay."""
    return lambda each: ReplayOperation(replay_of(settings, each), place.group, place.arena, settings.seed, place.tick)
