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
from collbench.rank.device import Device
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
        marks = self._free.pop() if self._free else Marks(self._device, self._lanes)
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


class _HostEvent:
    """A moment of the host's clock. None until it is recorded."""

    at_ns: int | None = None

    def record(self) -> None:
        self.at_ns = time.perf_counter_ns()

    def ns_since(self, earlier: _HostEvent) -> int:
        return (self.at_ns or 0) - (earlier.at_ns or 0)


class Marks:
    """Times of each call of one step: by the host's clock, or as events on the current stream.

    `start` is called before a call is made, `stop` after its end. `launched` is called after an asynchronous call was
    made; its result is the argument of `over`, which waits for the end of the call. `stamps` needs an idle device.
    lanes: for each call, the number of its communicator.
    """

    def __init__(self, device: Device, lanes: Sequence[int]) -> None:
        event: Callable[[], Any] = device.event if device.enqueues else _HostEvent
        self._device, self._lanes, self._began = device, lanes, event()
        self._starts, self._stops = ([event() for _ in lanes] for _ in range(2))

    def begin(self) -> None:
        self._began.record()

    def start(self, number: int) -> None:
        self._starts[number].record()

    def stop(self, number: int) -> None:
        self._stops[number].record()

    def launched(self, number: int, work: Any) -> Any:
        if self._device.enqueues:
            # On a separate stream, which waits only for this call: on the current stream, the calls in between would
            # count as part of it. The current stream waits where the host does.
            with self._device.aside(self._lanes[number]):
                work.wait()
                self.stop(number)
            return work
        self._stops[number] = _HostEvent()  # the thread that runs the call records it
        try:
            return work.get_future().then(lambda _: self.stop(number))
        except RuntimeError:  # gloo's sends and receives have no future: they end when the rank has waited for them
            return work

    def over(self, number: int, launched: Any) -> None:
        launched.wait()
        if not self._device.enqueues and self._stops[number].at_ns is None:
            self.stop(number)

    def stamps(self) -> tuple[list[int], list[int]]:
        pairs = zip(self._starts, self._stops, strict=True)
        return [start.ns_since(self._began) for start in self._starts], [b.ns_since(a) for a, b in pairs]


def workloads(case: Case, settings: Settings, launch: int, place: RankPlace) -> Callable[[Case], ReplayOperation]:
    """Return the function that makes the workload of a replay."""
    return lambda each: ReplayOperation(replay_of(settings, each), place.group, place.arena, settings.seed, place.tick)
