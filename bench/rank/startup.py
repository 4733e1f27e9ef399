"""Run what a job does once: join the process group, make further groups, and make the first call in a new one.

In: a case, a joined `Group`. Out: the `Workload` of that case. Each iteration makes a group of its own and leaves it
before the next one, outside the timing.
"""

from bench.catalog.operations import ranks_together
from bench.model.records import Case
from bench.rank.process_group import Group
from bench.rank.tensors import TensorOperation
from bench.rank.transfer import Call, Subgroup, rest


class Joining:
    """`init_process_group`, which a launch makes once: when the ranks joined; calling it again does nothing.

    Its one iteration is that call of this launch, of which `process_group` kept the start and the duration.
    """

    def __init__(self, case: Case, group: Group) -> None: ...

    def prepare(self) -> Call:
        return rest

    def ready(self, most: int) -> list[Call]:
        return [rest]

    def reserve(self, calls: int) -> None:
        """There is no buffer."""

    def verify(self) -> str | None:
        return None

    def corrupt(self) -> bool:
        return False

    def single_rank_call(self) -> Call | None:
        return None


class NewGroup:
    """`new_group` of all ranks, or of the groups of a division."""

    def __init__(self, case: Case, group: Group) -> None:
        self._case, self._group = case, group
        self._made: Subgroup | None = None

    def prepare(self) -> Call:
        self._leave()
        return self._make

    def ready(self, most: int) -> list[Call]:
        return [self.prepare()]

    def reserve(self, calls: int) -> None:
        """There is no buffer."""

    def verify(self) -> str | None:
        wanted = ranks_together(self._case)
        size = self._made.size if self._made is not None else wanted
        return None if size == wanted else f"a group of {size} ranks was made, not of {wanted}"

    def corrupt(self) -> bool:
        return False

    def single_rank_call(self) -> Call | None:
        """A group of one rank connects nobody."""
        return None

    def _make(self) -> None:
        self._made = self._group.new_subgroup(self._case)

    def _leave(self) -> None:
        if self._made is not None:
            self._group.leave(self._made)
            self._made = None


class FirstCall:
    """An operation on buffers, each time in a group that has not been used before."""

    def __init__(self, case: Case, group: Group, inner: TensorOperation) -> None:
        self._case, self._group = case, group
        self._made: Subgroup | None = None
        self._inner = inner
        self.verify, self.corrupt, self.reserve = self._inner.verify, self._inner.corrupt, self._inner.reserve

    def prepare(self) -> Call:
        if self._made is not None:
            self._group.leave(self._made)
        self._made = self._group.new_subgroup(self._case)
        self._inner.move_to(self._made)
        return self._inner.prepare()

    def ready(self, most: int) -> list[Call]:
        return [self.prepare()]

    def single_rank_call(self) -> Call | None:
        """What dispatching a later call costs says nothing of a first one."""
        return None
