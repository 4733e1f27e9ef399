"""Write timelines as a trace that Perfetto and chrome://tracing open (trace-event format, JSON).

In: timelines. Out: JSON. Each rank of each strategy is a process, in the order given, and all strategies begin at 0.
Computing is one thread; calls take as many threads as were ever under way at once, because events of a thread must not
overlap. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterator, Sequence

from bench.model.records import Json
from bench.model.units import format_rounded_bytes
from bench.training.records import CallRecord, RankTimeline, Timeline
from bench.training.report.lanes import computing, lanes

COMPUTE, COMMUNICATION = 1, 2
# Most names of gradients in one event; a bucket may have hundreds.
MOST_NAMED = 50


def trace(timelines: Sequence[Timeline]) -> Json:
    """All timelines in one trace, one step each."""
    scenarios, launches = {t.scenario for t in timelines}, {t.launch for t in timelines}
    metadata: list[Json] = []
    events: list[Json] = []
    process = 0
    for timeline in timelines:
        where = f"{timeline.scenario} · " if len(scenarios) > 1 else ""
        where += f"launch {timeline.launch} · " if len(launches) > 1 else ""
        for line in timeline.ranks:
            process += 1
            metadata += _names(process, f"{where}{timeline.strategy} · rank {line.rank}", line)
            events += _events(process, timeline, line)
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": metadata + events, "displayTimeUnit": "ms"}


def _names(process: int, name: str, line: RankTimeline) -> Iterator[Json]:
    """Names of a process and its threads in the viewer, and the order in which it shows them."""
    threads = [(COMPUTE, "compute")]
    for number in range(max(1, len(lanes(line.calls)))):
        threads.append((COMMUNICATION + number, "communication" + (f" {number + 1}" if number else "")))
    yield _metadata(process, 0, "process_name", {"name": name})
    yield _metadata(process, 0, "process_sort_index", {"sort_index": process})
    for thread, thread_name in threads:
        yield _metadata(process, thread, "thread_name", {"name": thread_name})
        yield _metadata(process, thread, "thread_sort_index", {"sort_index": thread})


def _metadata(process: int, thread: int, name: str, arguments: Json) -> Json:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "ts": 0, "args": arguments}


def _events(process: int, timeline: Timeline, line: RankTimeline) -> Iterator[Json]:
    def place(thread: int, name: str, kind: str, begin_s: float) -> Json:
        return {
            "ph": "X", "pid": process, "tid": thread, "name": name, "cat": kind,
            "ts": _microseconds(line.begin_s + begin_s),
        }  # fmt: skip

    for bar in computing(line):
        yield place(COMPUTE, bar.name, "compute", bar.begin_s) | {"dur": _microseconds(bar.end_s - bar.begin_s)}
    for gradient, ready in zip(timeline.gradients, line.ready_s, strict=False):
        yield place(COMPUTE, f"ready: {gradient.name}", "ready", ready) | {
            "ph": "i", "s": "t", "args": {"bytes": gradient.nbytes},
        }  # fmt: skip
    for number, lane in enumerate(lanes(line.calls)):
        for call in lane:
            name = f"all-reduce {format_rounded_bytes(call.nbytes)}"
            took = max(0.0, call.done_s - call.launched_s)
            yield place(COMMUNICATION + number, name, "communication", call.launched_s) | {
                "dur": _microseconds(took), "args": _arguments(call, timeline),
            }  # fmt: skip


def _arguments(call: CallRecord, timeline: Timeline) -> Json:
    named = [timeline.gradients[number].name for number in call.parameters[:MOST_NAMED]]
    more = len(call.parameters) - len(named)
    return {
        "bytes": call.nbytes,
        "ready_us": _microseconds(call.ready_s),
        "launched after ready by, µs": _microseconds(call.launched_s - call.ready_s),
        "gradients": named + ([f"and {more} more"] if more else []),
    }


def _microseconds(seconds: float) -> float:
    """Microseconds, rounded to the nanosecond, the unit of the stamps."""
    return round(seconds * 1e6, 3)
