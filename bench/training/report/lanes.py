"""Lay out one rank's step: its computing as bars, and its calls in as few lanes as keep them from overlapping.

In: a `RankTimeline`. Out: bars with begin and end in seconds from the beginning of the step, and lanes of calls. The
picture of timelines and the trace use them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.training.records import CallRecord, RankTimeline

# The parts of a step that a compute lane shows, in order.
FORWARD, BACKWARD, WAITING, UPDATE = "forward", "backward", "waiting", "update"


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a step, named as above. Seconds, from the beginning of the step on that rank."""

    name: str
    begin_s: float
    end_s: float


def computing(line: RankTimeline) -> list[Bar]:
    """The parts of the step that took any time. Waiting lasts until the last gradient is usable; packing is in it."""
    stamps = (0.0, line.forward_s, line.backward_s, line.usable_s, line.end_s)
    bars = [
        Bar(name, begin, end)
        for name, begin, end in zip((FORWARD, BACKWARD, WAITING, UPDATE), stamps, stamps[1:], strict=False)
    ]
    return [bar for bar in bars if bar.end_s > bar.begin_s]


def lanes(calls: Sequence[CallRecord]) -> list[list[CallRecord]]:
    """Calls by time of launch, each in the first free lane: as many lanes as calls were ever under way at once."""
    found: list[list[CallRecord]] = []
    for call in sorted(calls, key=lambda f: (f.launched_s, f.done_s)):
        for lane in found:
            if lane[-1].done_s <= call.launched_s:
                lane.append(call)
                break
        else:
            found.append([call])
    return found
