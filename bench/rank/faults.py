"""Plant faults in a rank on purpose, to prove that the suite notices them.

In: the plan's faults, a case, a workload and a barrier. Out: a workload and a barrier that misbehave on the chosen
rank. Without a fault for this rank and case both are returned unchanged, so that a run without faults pays nothing.

    raise  raise an exception        exit  leave with status 0       kill     send SIGKILL to itself
    stop   send SIGSTOP to itself    hang  never enter the call      corrupt  change one element of the result
    late   from `iteration` on, idle for `delay_s` after the barrier     slow  the same, inside the call
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.model.records import Case, Fault
from bench.rank.device import idle
from bench.rank.workload import Workload

Action = Callable[[], None]


def plant(
    faults: Sequence[Fault], case: Case, launch: int, rank: int, workload: Workload, barrier: Action
) -> tuple[Workload, Action]:
    """The workload and the barrier of this rank, with the faults that the plan has for this rank, case and launch."""
    for fault in faults:
        if fault.rank != rank or not _meant_for(fault, case, launch):
            continue
        if fault.do == "late":
            barrier = _Late(fault, barrier)
        else:
            workload = _Faulty(fault, workload)
    return workload, barrier


def _meant_for(fault: Fault, case: Case, launch: int) -> bool:
    wanted = ((fault.world_size, case.world_size), (fault.size_bytes, case.size_bytes), (fault.launch, launch))
    return all(want is None or want == have for want, have in wanted)


class _Late:
    """A barrier after which this rank idles."""

    def __init__(self, fault: Fault, barrier: Action) -> None:
        self._fault, self._barrier, self._count = fault, barrier, 0

    def __call__(self) -> None:
        self._barrier()
        self._count += 1  # the verifying call has no barrier before it: the first measured call is number 1
        if self._count >= self._fault.iteration:
            idle(self._fault.delay_s)


class _Faulty:
    """A workload whose call number `iteration` goes wrong."""

    def __init__(self, fault: Fault, inner: Workload) -> None:
        self._fault, self._inner, self._count = fault, inner, -1

    def prepare(self) -> Callable[[], object]:
        return self._planted(self._inner.prepare())

    def _planted(self, call: Any) -> Callable[[], object]:
        self._count += 1
        if self._fault.do == "slow" and self._count >= self._fault.iteration:
            return lambda: self._slowly(call)
        if self._fault.do == "slow" or self._count != self._fault.iteration:
            return call  # type: ignore[no-any-return]
        if self._fault.do == "corrupt":
            return lambda: self._corrupted(call)
        return _ENDINGS[self._fault.do]

    def _corrupted(self, call: Callable[[], Any]) -> None:
        work = call()
        if hasattr(work, "wait"):
            work.wait()
        self._inner.corrupt()

    def _slowly(self, call: Callable[[], object]) -> object:
        idle(self._fault.delay_s)
        return call()

    def ready(self, most: int) -> list[Callable[[], object]]:
        # As without a fault, for a slowness to be its only difference; others end with a call, or spoil its result.
        return (
            [self._planted(call) for call in self._inner.ready(most)] if self._fault.do == "slow" else [self.prepare()]
        )

    def reserve(self, calls: int) -> None:
        self._inner.reserve(calls)

    def single_rank_call(self) -> Callable[[], object] | None:
        return self._inner.single_rank_call()

    def verify(self) -> str | None:
        return self._inner.verify()

    def corrupt(self) -> bool:
        return self._inner.corrupt()


def _raise() -> None:
    raise RuntimeError("planted fault: this rank was told to raise")


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)


def _hang() -> None:
    while True:
        time.sleep(3600)


_ENDINGS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: os._exit(0),
    "kill": lambda: _signal(signal.SIGKILL),
    "stop": lambda: _signal(signal.SIGSTOP),
    "hang": _hang,
}
