"""Mark instants within a step: by the host's clock on a CPU, by events of the device's stream on a GPU.

In: a device. Out: marks, and the nanoseconds between two of them. Marking does not wait for the device; the time
between marks is asked for once the step is over.
"""

import time
from contextlib import AbstractContextManager
from typing import Any

import torch


class Stopwatch:
    """Marks of one rank's steps. packed: pairs of marks around packing since `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.on_host = not self._cuda
        self.packed: list[tuple[Any, Any]] = []
        self._packing = _Packing(self)

    def mark(self) -> Any:
        """Mark this instant."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def packing(self) -> AbstractContextManager[None]:
        """Context whose time counts as packing, not as waiting; it must not be nested."""
        return self._packing

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds between two marks; on a GPU the stream must have passed both."""
        return int(begin.elapsed_time(end) * 1e6) if self._cuda else end - begin

    def clear(self) -> list[tuple[Any, Any]]:
        """Return the marks of packing so far, and forget them."""
        packed, self.packed = self.packed, []
        return packed


class _Packing:
    """One object for all packing: a generator's context takes four times as long, and naive packs once a parameter."""

    __slots__ = ("_begin", "_watch")

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._begin = self._watch.mark()

    def __exit__(self, *_: object) -> None:
        self._watch.packed.append((self._begin, self._watch.mark()))
