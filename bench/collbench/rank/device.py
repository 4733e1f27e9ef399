"""Define the devices that run calls: a CPU with the host's clock, or a GPU with its stream, events and graphs.

In: a torch device. Out: a `Device`. Timing reaches a GPU only through it, so a test can replace it by a simulated
device, whose time advances by rule (`tests/simulated_device.py`).
"""

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from collbench.rank import torch_names

Action = Callable[[], object]
# Calibration of a GPU's cycles to time: cycles of one wait, about 5 ms; least total time, because an idle GPU has a
# fifth of its clock at first; relative difference within which two waits in a row agree, the last counts; most waits.
CALIBRATION_CYCLES, RISING_S, AGREEING, MOST_CALIBRATIONS = 10**7, 0.1, 0.02, 100
# The kernel wakes a sleeping process at most this much too late (60 to 250 µs were seen).
OVERSLEEP_S = 3e-4


class Event(Protocol):
    """An instant on the device's current stream."""

    def record(self) -> None:
        """Mark the instant at which all work that is enqueued so far is done."""

    def passed(self) -> bool:
        """Return whether the marked instant has passed; do not wait for it."""

    def ns_since(self, earlier: Any) -> int:
        """Return the nanoseconds since an earlier event; both must have passed."""


class Graph(Protocol):
    """A graph of captured calls."""

    def replay(self) -> None:
        """Enqueue all captured calls again, in one operation."""

    def reset(self) -> None:
        """Release the captured calls: a communicator cannot be destroyed while a graph contains its calls."""


class Device:
    """A device on which the buffers of a rank live and its calls run; by default without a stream."""

    # Torch's name for the device.
    handle: torch.device
    # True if a call returns before it is done, so that only events can time it.
    enqueues: bool

    # Returns the time of the host's monotonic clock.
    clock_ns: Callable[[], int] = staticmethod(time.perf_counter_ns)

    def synchronize(self) -> None:
        """Wait until all enqueued work is done."""

    def event(self) -> Event:
        """Return a new event, recorded once: the device creates an event when it is recorded, which takes time."""
        raise NotImplementedError

    def occupy(self, nanoseconds: int) -> None:
        """Keep the stream busy for about this time, so that calls can be enqueued behind it."""
        raise NotImplementedError

    def captured(self, calls: Action, connected: bool = False) -> Graph:
        """Return the calls as a graph. Execute them once beforehand, unless `connected`; capturing does not execute."""
        raise NotImplementedError

    def aside(self, lane: int) -> AbstractContextManager[object]:
        """Return a context in which the further stream with number `lane` is the current stream."""
        raise NotImplementedError


class Host(Device):
    """A CPU: a call is done when it returns."""

    enqueues = False

    def __init__(self, handle: torch.device | None = None) -> None:
        self.handle = torch.device("cpu") if handle is None else handle


class Gpu(Device):
    """A CUDA device, used through its current stream."""

    enqueues = True

    def __init__(self, handle: torch.device) -> None:
        self.handle = handle
        self._sleep = torch_names.private("torch.cuda", "_sleep")
        self._lanes: dict[int, torch.cuda.Stream] = {}
        # Calibrated now, not within the first timed iteration.
        self._cycles_a_ns = cycles_a_ns(self, self._sleep)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.handle)

    def event(self) -> Event:
        event = _GpuEvent()
        event.record()
        return event

    def occupy(self, nanoseconds: int) -> None:
        self._sleep(int(nanoseconds * self._cycles_a_ns))

    def aside(self, lane: int) -> AbstractContextManager[object]:
        if lane not in self._lanes:
            self._lanes[lane] = torch.cuda.Stream(self.handle)
        other: AbstractContextManager[object] = torch.cuda.stream(self._lanes[lane])
        return other

    def captured(self, calls: Action, connected: bool = False) -> Graph:
        if not connected:
            calls()  # NCCL connects in the first call of a kind, which cannot be captured
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread, such as NCCL's proxy, may allocate meanwhile; only this thread's calls are captured.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            calls()
        return graph  # type: ignore[no-any-return]


def cycles_a_ns(device: Device, sleep: Callable[[int], object]) -> float:
    """Measure the cycles per nanosecond of a GPU under load. sleep: keeps the stream busy for this many cycles.

    If the clock rises later, the stream is occupied for too short a time, which is detected; if it falls, for too long.
    """
    before, after = device.event(), device.event()
    began, last = device.clock_ns(), 0.0
    for _ in range(MOST_CALIBRATIONS):
        before.record()
        sleep(CALIBRATION_CYCLES)
        after.record()
        device.synchronize()
        rate = CALIBRATION_CYCLES / max(1, after.ns_since(before))
        if abs(rate - last) <= AGREEING * rate and device.clock_ns() - began >= RISING_S * 1e9:
            return rate
        last = rate
    return last


class _GpuEvent:
    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event(enable_timing=True)
        self.record = self._event.record
        self.passed = self._event.query

    def ns_since(self, earlier: "_GpuEvent") -> int:
        # elapsed_time is in milliseconds, with a resolution of about 0.5 µs
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return round(milliseconds * 1e6)


@functools.cache  # calibrating a GPU takes 0.1 s
def device_of(handle: torch.device) -> Device:
    """Return the `Device` for a device of torch."""
    return Gpu(handle) if handle.type == "cuda" else Host(handle)


def idle(seconds: float) -> None:
    """Wait for this many seconds: sleep for most of them, then poll the clock to end on time.

    A short wait only polls: even a sleep of 0 s gives the core away, and a call of 0.5 ms then took 1.3 times as long.
    """
    ends = time.perf_counter() + seconds
    if seconds > OVERSLEEP_S:
        time.sleep(seconds - OVERSLEEP_S)
    while time.perf_counter() < ends:
        pass
