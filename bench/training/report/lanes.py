"""One rank's step as bars: what it computes, and its calls in as few lanes as keep them from lying over each other.

In: a `RankLine`. Out: bars with begin and end in seconds from the beginning of the step. For the picture and the trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.training.records import Flight, RankLine

# The parts of a step that a compute lane shows, in order.
FORWARD, BACKWARD, WAITING, UPDATE = "forward", "backward", "waiting", "update"


@dataclass(frozen=True, slots=True)
class Bar:
    """name: one of the parts. Seconds, from the beginning of the step on that rank."""

    name: str
    begin_s: float
    end_s: float


def computing(line: RankLine) -> list[Bar]:
    """The parts of the step that took any time. waiting: until the last gradient was usable, packing included."""
    stamps = (0.0, line.forward_s, line.backward_s, line.usable_s, line.end_s)
    bars = [
        Bar(name, begin, end)
        for name, begin, end in zip((FORWARD, BACKWARD, WAITING, UPDATE), stamps, stamps[1:], strict=False)
    ]
    return [bar for bar in bars if bar.end_s > bar.begin_s]


def lanes(flights: Sequence[Flight]) -> list[list[Flight]]:
    """Flights by launch, each in the first lane that is free: as many lanes as were ever under way at once."""
    found: list[list[Flight]] = []
    for flight in sorted(flights, key=lambda f: (f.launched_s, f.done_s)):
        for lane in found:
            if lane[-1].done_s <= flight.launched_s:
                lane.append(flight)
                break
        else:
            found.append([flight])
    return found
