"""Mark instants within a step: by the host's clock on a CPU, by events of the device's stream on a GPU.

In: a device. Out: marks, and the nanoseconds between two of them. Marking does not wait for the device; the time
between marks is asked for once the step is over.
"""

import time
from typing import Any

import torch


class Stopwatch:
    """Marks of one rank's steps.

    packing: around copying and dividing, which is not waiting. exchanging: around calls that a sharded optimizer makes
    within forward and backward; on the host only.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.on_host = not self._cuda
        self.packing = Stretches(self)
        self.exchanging = Stretches(self)

    def mark(self) -> Any:
        """Mark this instant."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds between two marks; on a GPU the stream must have passed both."""
        return int(begin.elapsed_time(end) * 1e6) if self._cuda else end - begin

    def clear(self) -> None:
        """Forget all stretches."""
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
