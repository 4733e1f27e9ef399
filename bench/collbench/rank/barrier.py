"""Run the barrier, and operations that a job does once, such as joining.

In: a case, a joined `Group`. Out: the `Workload` of that case.
"""

import dataclasses

from collbench.catalog.collectives import ranks_together
from collbench.model.records import Case
from collbench.rank.collectives import Call, Subgroup, rest
from collbench.rank.group import Group
from collbench.rank.tensors import TensorOperation
from collbench.rank.workload import Workload, Wrapped


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
