"""Instants within a step: of the host on a CPU, of the device's stream on a GPU.

A mark is made where the step goes on; what lies between two of them is asked for once the step is over.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Marks of one rank's steps. packed: pairs of marks around packing since `clear`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.on_host = not self._cuda
        self.packed: list[tuple[Any, Any]] = []

    def mark(self) -> Any:
        """Now."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def packing(self) -> Iterator[None]:
        """What is done inside is packing, not waiting."""
        begin = self.mark()
        yield
        self.packed.append((begin, self.mark()))

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds; on a GPU both marks must have passed."""
        return int(begin.elapsed_time(end) * 1e6) if self._cuda else end - begin

    def clear(self) -> list[tuple[Any, Any]]:
        """The packing so far, forgotten with this."""
        packed, self.packed = self.packed, []
        return packed
