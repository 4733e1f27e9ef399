"""Define the interface of a workload: an operation that can be called repeatedly and whose results can be checked.

`tensors` has the operations on buffers, `barrier` the operations without, and packages have their own (`rank.stage`);
`rounds` builds the workload of a case. This module also has wrappers for any workload: one flushes the caches before
each call, others plant faults on purpose, to prove that the suite detects them. Without a fault for this rank and case
there is no wrapper, so that a run without faults has no extra cost.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

from collbench.model.records import Case, Fault, InvariantCheck, OwnDetail
from collbench.rank.collectives import Call
from collbench.rank.device import Action, idle

# Name → nanoseconds, for the parts of one iteration (`Timings.inner_ns`).
Stamps = dict[str, int | list[int]]


class BlockUse(TypedDict):
    """CPU seconds that a block used, as plain data, which ranks gather."""

    host: str
    cores: int
    # CPU seconds of all processes of the host; None if the kernel does not report them.
    busy_s: float | None
    # CPU seconds of this rank's process.
    own_s: float


class Workload(ABC):
    """An operation to call repeatedly; only its calls are timed. By default it has no buffers and no results."""

    # True if the calls wait on the host until the device has done something, so that nothing can be enqueued behind
    # them, and only the host's clock can time them.
    waits_on_host = False

    @abstractmethod
    def prepare(self) -> Call:
        """Return the next call, ready to be timed; refill buffers if the data need it."""

    def ready(self, most: int) -> list[Call]:
        """Return the next 1 to `most` calls, with nothing to do between them; otherwise the same as `prepare`."""
        return [self.prepare()]

    def reserve(self, calls: int) -> None:  # noqa: B027 - nothing to fill
        """Fill the buffers of the next `calls` calls. With a large enough pool, the calls need no refill in between."""

    def verify(self) -> str | None:
        """Return None if all results since the last check are right, else a sentence on the first wrong result."""
        return None

    def renew(self) -> None:  # noqa: B027 - nothing to fill
        """Fill buffers again, so that the result of the next call can be checked, whatever was called before."""

    def corrupt(self) -> bool:
        """Change one element of the data received last, as a fault would; return False if nothing was received.

        The next `verify` must detect the change, even if further calls come before it.
        """
        return False

    def single_rank_call(self) -> Call | None:
        """Return the same call in a group of this rank alone, to time its dispatch; None if that has no meaning."""
        return None

    def stamps(self) -> list[Stamps] | None:
        """Return the inner stamps of all iterations since the last call of `stamps`; None if the operation has none."""
        return None

    def checks(self) -> tuple[InvariantCheck, ...]:
        """Return the invariants that were checked, in addition to results."""
        return ()

    def detail(self) -> OwnDetail | None:
        """Return the details that one launch keeps in addition to times; called after the last block, by all ranks."""
        return None


# Methods that a wrapped workload passes on: not `ready`, because something is done around each single call.
PASSED_ON = [name for name in vars(Workload) if not name.startswith("_") and name not in {"prepare", "ready"}]


class Wrapped(Workload):
    """Another workload, with something done around its calls. A subclass prepares the calls."""

    def __init__(self, inner: Workload) -> None:
        self._inner = inner
        for name in PASSED_ON:
            if getattr(type(self), name) is getattr(Workload, name):  # the subclass has none of its own
                setattr(self, name, getattr(inner, name))


class Flushed(Wrapped):
    """A workload that fills the caches with other data before each call."""

    def __init__(self, inner: Workload, scratch: torch.Tensor) -> None:
        super().__init__(inner)
        self._scratch = scratch

    def prepare(self) -> Call:
        call = self._inner.prepare()
        self._scratch.add_(1)
        return call


# ── faults ───────────────────────────────────────────────────────────────────────────────────────
def plant(
    faults: Sequence[Fault], case: Case, launch: int, rank: int, workload: Workload, barrier: Action
) -> tuple[Workload, Action]:
    """Return the workload and barrier of this rank, with the faults that are planned for this rank, case and launch.

    raise  raise an exception        exit  leave with status 0       kill     send SIGKILL to itself
    stop   send SIGSTOP to itself    hang  never enter the call      corrupt  change one element of the result
    late   from `iteration` on, idle for `delay_s` after the barrier
    slow   from `iteration` on, keep the core busy after the call for `share` of the time that it took
    """
    for fault in faults:
        wanted = ((fault.world_size, case.world_size), (fault.size_bytes, case.size_bytes), (fault.launch, launch))
        if fault.rank != rank or any(want is not None and want != have for want, have in wanted):
            continue
        if fault.do == "late":
            barrier = _late(fault, barrier)
        else:
            workload = _Faulty(fault, workload)
    return workload, barrier


def _late(fault: Fault, barrier: Action) -> Action:
    """Return a barrier after which this rank idles."""
    numbers = itertools.count(1)  # the verifying call has no barrier before it: the first measured call is number 1

    def late() -> None:
        barrier()
        if next(numbers) >= fault.iteration:
            idle(fault.delay_s)

    return late


class _Faulty(Wrapped):
    """A workload whose call number `iteration` goes wrong."""

    def __init__(self, fault: Fault, inner: Workload) -> None:
        super().__init__(inner)
        self._fault, self._count = fault, -1

    def prepare(self) -> Call:
        return self._planted(self._inner.prepare())

    def ready(self, most: int) -> list[Call]:
        # As without a fault, so that slowness is the only difference; other faults stop the rank or corrupt one result.
        slow = self._fault.do == "slow"
        return [self._planted(call) for call in self._inner.ready(most)] if slow else [self.prepare()]

    def _planted(self, call: Call) -> Call:
        self._count += 1
        if self._fault.do == "slow":
            return call if self._count < self._fault.iteration else lambda: self._slowly(call)
        if self._count != self._fault.iteration:
            return call
        if self._fault.do == "corrupt":
            return lambda: self._corrupted(call)
        return _ENDINGS[self._fault.do]

    def _corrupted(self, call: Call) -> None:
        _finish(call())
        self._inner.corrupt()

    def _slowly(self, call: Call) -> None:
        """Make the call, then keep the core busy for `share` of the time that it took.

        A wait before the call would be hidden if the other ranks are later. Sleeping would take too long in a
        process that wakes late.
        """
        clock = time.perf_counter_ns
        began = clock()
        _finish(call())
        ends = began + (1 + self._fault.share) * (clock() - began)
        while clock() < ends:
            pass


def _finish(work: Any) -> None:
    """Wait for the handle of an asynchronous call; other results need no wait."""
    if hasattr(work, "wait"):
        work.wait()


def _raise() -> None:
    raise RuntimeError("planted fault: this rank raises")


def _hang() -> None:
    while True:
        time.sleep(3600)


_ENDINGS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
}
