"""Mark instants within a step: by the host's clock on a CPU, by events of the device's stream on a GPU.

In: a device. Out: marks, and the nanoseconds between two of them. Marking does not wait for the device; the time
between marks is asked for once the step is over. Events are made while warming up, and used again in each step.
"""

import time
from typing import Any

from bench.rank.device import Device, Event


class Stopwatch:
    """Marks of one rank's steps.

    packing: around copying and dividing, which is not waiting. exchanging: around calls that a sharded optimizer makes
    within forward and backward; on the host only.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._events, self._used = device, list[Event](), 0
        self.on_host = not device.enqueues
        self.packing = Stretches(self)
        self.exchanging = Stretches(self)

    def mark(self) -> Any:
        """Mark this instant."""
        if self.on_host:
            return time.perf_counter_ns()
        if self._used == len(self._events):
            self._events.append(self._device.event())
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds between two marks; on a GPU the stream must have passed both."""
        return int(end - begin if self.on_host else end.ns_since(begin))

    def clear(self) -> None:
        """Forget all stretches and marks."""
        self._used = 0
        self.packing.taken()
        self.exchanging.taken()


class Stretches:
    """Context whose time is kept apart; it must not be nested.

    One object for all: a generator's context takes four times as long, and naive packs once a parameter.
    """

    __slots__ = ("_begin", "_found", "_watch")

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._found: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        self._begin = self._watch.mark()

    def __exit__(self, *_: object) -> None:
        self._found.append((self._begin, self._watch.mark()))

    def taken(self) -> list[tuple[Any, Any]]:
        """Marks around each stretch since the last time; they are forgotten."""
        found, self._found = self._found, []
        return found
