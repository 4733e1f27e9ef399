"""Build the workload of a case: its buffers, calls and data, to be called repeatedly and checked.

In: a `Case`, the joined `Group`, the `Arena` of this rank. Out: a `Workload`. `tensors` has the operations on buffers,
`objects` those on Python objects, and the barrier, `replay` the calls of a recorded job.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from bench.catalog.metrics import makes_groups
from bench.catalog.operations import OPERATIONS
from bench.model.records import Case, Replay
from bench.planning.footprint import scratch_bytes
from bench.rank.collectives import COLLECTIVES
from bench.rank.objects import BarrierOperation, ObjectOperation
from bench.rank.process_group import Group
from bench.rank.replay import ReplayOperation
from bench.rank.startup import FirstCall, Joining, NewGroup
from bench.rank.tensors import Arena, TensorOperation
from bench.rank.transfer import Call, rest

STARTUP: dict[str, Callable[[Case, Group], "Workload"]] = {"init_process_group": Joining, "new_group": NewGroup}


class Workload(Protocol):
    """An operation that can be called repeatedly, and whose results can be checked."""

    def prepare(self) -> Call:
        """The next call, ready to be timed; refills buffers where the data needs it. Untimed."""

    def ready(self, most: int) -> list[Call]:
        """The next calls, 1 to `most` of them, that need nothing between them; as `prepare` otherwise. Untimed."""

    def reserve(self, calls: int) -> None:
        """Fill what the next `calls` calls use. If the pool is large enough, they need no refill between. Untimed."""

    def verify(self) -> str | None:
        """None if all results since the last check are right, else a sentence on the first wrong one."""

    def corrupt(self) -> bool:
        """Change one element of what was received last, as a fault would; False where nothing was received."""

    def single_rank_call(self) -> Call | None:
        """The same call in a group of this rank alone: what dispatching costs. None if the call needs more ranks."""


def build(
    case: Case,
    group: Group,
    arena: Arena,
    pool_bytes: int,
    flush_bytes: int,
    seed: int,
    tick: Callable[[], None] = rest,
    replays: Mapping[str, Replay] | None = None,
) -> Workload:
    """The workload of a case, ready to be called.

    tick: called now and then while buffers are filled and checked. replays: the calls of cases that are replays.
    """
    workload: Workload
    if case.recording:
        workload = ReplayOperation((replays or {})[case.recording], group, arena, seed, tick)
    elif case.op in COLLECTIVES:
        workload = TensorOperation(case, group, arena, pool_bytes, seed, tick)
        if makes_groups(case):
            workload = FirstCall(case, group, workload)
    elif case.op in STARTUP:
        workload = STARTUP[case.op](case, group)
    elif OPERATIONS[case.op].sized:
        workload = ObjectOperation(case, group, seed)
    else:
        workload = BarrierOperation(case, group)
    nbytes = scratch_bytes(case, flush_bytes)
    return Flushed(workload, arena.scratch(nbytes)) if nbytes else workload


class Flushed:
    """A workload that fills the caches with other data before each call."""

    def __init__(self, inner: Workload, scratch: torch.Tensor) -> None:
        self._inner, self._scratch = inner, scratch
        self.reserve, self.verify, self.corrupt, self.single_rank_call = (
            inner.reserve,
            inner.verify,
            inner.corrupt,
            inner.single_rank_call,
        )

    def prepare(self) -> Call:
        call = self._inner.prepare()
        self._scratch.add_(1)
        return call

    def ready(self, most: int) -> list[Call]:
        return [self.prepare()]
