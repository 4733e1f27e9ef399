"""Run the operations on pickled Python objects, the barrier, and operations that a job does once, such as joining.

In: a case, a joined `Group`, and for objects a seed. Out: the `Workload` of that case.
"""

import dataclasses
import functools
from collections import deque
from typing import Any

import numpy as np

from bench.catalog.collectives import OPERATIONS, ranks_together
from bench.model.divisions import WORLD
from bench.model.records import Case
from bench.rank.collectives import OBJECT_COLLECTIVES, Call, Subgroup, rest
from bench.rank.group import Group
from bench.rank.tensors import MOST_READY, SINGLE_RANK_BYTES, TensorOperation
from bench.rank.workload import Workload, Wrapped

# The last received objects are kept for the check after the timed calls: at most this many bytes, or one call.
MOST_KEPT_BYTES = 64 * 2**20


class ObjectOperation(Workload):
    """An operation on pickled Python objects: byte strings, different on each rank."""

    waits_on_host = True

    def __init__(self, case: Case, group: Group, seed: int) -> None:
        self._case, self._group = case, group
        self._subgroup = group.subgroup(case)
        shared = OPERATIONS[case.op].pieces(2) == 2
        only = None if shared else case.root  # n whole objects on every rank would take n times the size
        self._objects = _objects(
            seed, self._subgroup.size, case.size_bytes // (self._subgroup.size if shared else 1), only
        )
        kept = max(1, min(MOST_READY, MOST_KEPT_BYTES // max(1, case.size_bytes)))
        self._received: deque[list[Any]] = deque(maxlen=kept)
        self._turn = 0

    def prepare(self) -> Call:
        turn, self._turn = self._turn, (self._turn + 1) % self._subgroup.subgroups
        if turn != self._subgroup.number:
            return rest
        into: list[Any] = []
        self._received.append(into)
        make = self._group.calls.on_objects[self._case.op]
        return make(self._subgroup, self._case, self._objects, into)

    def verify(self) -> str | None:
        want = OBJECT_COLLECTIVES[self._case.op].arrives(self._subgroup, self._case, self._objects)
        for got in self._received:
            for position, (arrived, sent) in enumerate(zip(got, want, strict=True)):
                if arrived != sent:
                    return f"object {position} is not the one that was sent"
        self._received.clear()
        return None

    def corrupt(self) -> bool:
        if not self._received or not self._received[-1]:
            return False
        self._received[-1][0] = b"spoilt"
        return True

    def single_rank_call(self) -> Call | None:
        make = self._group.calls.on_objects[self._case.op]
        case = dataclasses.replace(self._case, world_size=1, groups=WORLD, root=0)
        call: Call = make(
            self._group.single_rank_subgroup(), case, [self._objects[self._case.root][:SINGLE_RANK_BYTES]], []
        )
        return call


@functools.lru_cache(maxsize=1)
def _objects(seed: int, ranks: int, nbytes: int, only: int | None) -> list[bytes]:
    """Make one object per rank; with `only`, the objects of all other ranks are empty."""
    dice = np.random.default_rng([seed, nbytes])
    return [dice.bytes(nbytes) if only in {None, rank} else b"" for rank in range(ranks)]


class BarrierOperation(Workload):
    """A barrier. It has no result that shows whether a rank left before all had arrived, so nothing is verified."""

    waits_on_host = True

    def __init__(self, case: Case, group: Group) -> None:
        self._subgroup, self._group = group.subgroup(case), group
        self._call: Call = group.calls.barrier(self._subgroup, case)
        self._case, self._turn = case, 0

    def prepare(self) -> Call:
        turn, self._turn = self._turn, (self._turn + 1) % self._subgroup.subgroups
        return self._call if turn == self._subgroup.number else rest

    def single_rank_call(self) -> Call | None:
        case = dataclasses.replace(self._case, call="sync")
        return self._group.calls.barrier(self._group.single_rank_subgroup(), case)


# ── operations that a job does once ──────────────────────────────────────────────────────────────
# Each iteration makes its own group and leaves it before the next iteration, outside the timing.
class Joining(Workload):
    """`init_process_group`, which a launch calls once, when the ranks join; the call of this workload does nothing.

    The only iteration is that call when joining, whose start and duration the group recorded.
    """

    waits_on_host = True

    def prepare(self) -> Call:
        return rest


class NewGroup(Workload):
    """`new_group` of all ranks, or of the groups of a division."""

    waits_on_host = True

    def __init__(self, case: Case, group: Group) -> None:
        self._case, self._group = case, group
        self._made: Subgroup | None = None

    def prepare(self) -> Call:
        if self._made is not None:
            self._group.leave(self._made)
            self._made = None
        return self._make

    def verify(self) -> str | None:
        wanted = ranks_together(self._case)
        size = self._made.size if self._made is not None else wanted
        return None if size == wanted else f"a group of {size} ranks was made, not of {wanted}"

    def _make(self) -> None:
        self._made = self._group.new_subgroup(self._case)


class FirstCall(Wrapped):
    """An operation on buffers, each time in a group that has not been used before."""

    _inner: TensorOperation

    def __init__(self, case: Case, group: Group, inner: TensorOperation) -> None:
        super().__init__(inner)
        self.waits_on_host = True
        self._case, self._group = case, group
        self._made: Subgroup | None = None

    def prepare(self) -> Call:
        if self._made is not None:
            self._group.leave(self._made)
        self._made = self._group.new_subgroup(self._case)
        self._inner.move_to(self._made)
        return self._inner.prepare()

    def single_rank_call(self) -> Call | None:
        """Return None: the dispatch cost of a later call does not represent a first call."""
        return None
