"""Lay out recorded steps as bars and lanes, and write them as a trace for Perfetto and chrome://tracing.

In: scenarios with timelines. Out: bars of computing and lanes of calls, which the picture of timelines draws, too; and
JSON in the trace-event format. In it each rank of each strategy is a process, in the order given, and all strategies
begin at 0. Computing is one thread; calls take as many threads as were ever under way at once, because events of a
thread must not overlap. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.model.records import Json
from bench.model.steps import CallRecord, RankTimeline, Timeline
from bench.model.units import format_rounded_bytes
from bench.report.labels import SEPARATOR
from bench.training.conclusions import ScenarioAnalysis

# The parts of a step that a compute lane shows, in order.
FORWARD, BACKWARD, WAITING, UPDATE = "forward", "backward", "waiting", "update"
# Threads of a process; of communication, the first.
COMPUTE, COMMUNICATION = 1, 2
# Most names of gradients in one event; a bucket may have hundreds.
MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a step, named as above. Seconds, from the beginning of the step on that rank."""

    name: str
    begin_s: float
    end_s: float


def computing(line: RankTimeline) -> list[Bar]:
    """The parts of the step that took any time. Waiting lasts until the last gradient is usable; packing is in it."""
    stamps = (0.0, line.forward_s, line.backward_s, line.usable_s, line.end_s)
    bars = map(Bar, (FORWARD, BACKWARD, WAITING, UPDATE), stamps, stamps[1:])
    return [bar for bar in bars if bar.end_s > bar.begin_s]


def lanes(calls: Sequence[CallRecord]) -> list[list[CallRecord]]:
    """Calls by time of launch, each in the first free lane: as many lanes as calls were ever under way at once."""
    filled: list[list[CallRecord]] = []
    for call in sorted(calls, key=lambda call: (call.launched_s, call.done_s)):
        free = next((lane for lane in filled if lane[-1].done_s <= call.launched_s), None)
        if free is None:
            filled.append([call])
        else:
            free.append(call)
    return filled


def trace(scenarios: Sequence[ScenarioAnalysis]) -> Json:
    """One trace of all timelines, one step of each strategy."""
    metadata: list[Json] = []
    events: list[Json] = []
    process = 0
    timelines = [
        ([scenario.scenario.case.key] * (len(scenarios) > 1) + [result.label], result.timeline)
        for scenario in scenarios
        for result in scenario.results
        if result.timeline is not None
    ]
    for name, timeline in timelines:
        for line in timeline.ranks:
            process += 1
            # Names of the process and its threads in the viewer, and the order in which it shows them.
            metadata += _named(process, 0, "process", SEPARATOR.join([*name, f"rank {line.rank}"]), process)
            metadata += _named(process, COMPUTE, "thread", "compute", COMPUTE)
            for number in range(max(1, len(lanes(line.calls)))):
                thread = "communication" + (f" {number + 1}" if number else "")
                metadata += _named(process, COMMUNICATION + number, "thread", thread, COMMUNICATION + number)
            events += _events(process, timeline, line)
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": metadata + events, "displayTimeUnit": "ms"}


def _named(process: int, thread: int, what: str, name: str, place: int) -> list[Json]:
    return [
        {"ph": "M", "pid": process, "tid": thread, "name": key, "ts": 0, "args": arguments}
        for key, arguments in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place}))
    ]


def _events(process: int, timeline: Timeline, line: RankTimeline) -> list[Json]:
    def event(thread: int, name: str, category: str, at_s: float, **more: object) -> Json:
        ts = _microseconds(line.begin_s + at_s)
        return {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": category, "ts": ts, **more}

    events = [
        event(COMPUTE, bar.name, "compute", bar.begin_s, dur=_microseconds(bar.end_s - bar.begin_s))
        for bar in computing(line)
    ]
    for gradient, ready in zip(timeline.gradients, line.ready_s, strict=False):
        size = {"bytes": gradient.nbytes}
        events.append(event(COMPUTE, f"ready: {gradient.name}", "ready", ready, ph="i", s="t", args=size))
    for number, lane in enumerate(lanes(line.calls)):
        for call in lane:
            names = [timeline.gradients[parameter].name for parameter in call.parameters[:MOST_NAMED]]
            more = len(call.parameters) - len(names)
            arguments = {
                "bytes": call.nbytes,
                "ready_us": _microseconds(call.ready_s),
                "launched after ready by, µs": _microseconds(call.launched_s - call.ready_s),
                "gradients": names + ([f"and {more} more"] if more else []),
            }
            name = f"all-reduce {format_rounded_bytes(call.nbytes)}"
            took = _microseconds(max(0.0, call.done_s - call.launched_s))
            thread = COMMUNICATION + number
            events.append(event(thread, name, "communication", call.launched_s, dur=took, args=arguments))
    return events


def _microseconds(seconds: float) -> float:
    """Microseconds, rounded to the nanosecond, the unit of the stamps."""
    return round(seconds * 1e6, 3)
