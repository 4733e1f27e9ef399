"""Define a joined process group: all that measuring needs of one, whichever library communicates.

`process_group` implements it with torch.distributed, `mpi` with mpi4py. Bounds, too, how far the clocks of the ranks
differ.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.catalog.subgroups import WORLD, Subgroups, divide
from bench.machine import host
from bench.model.records import Case
from bench.rank.collectives import LibraryCalls, Subgroup, rest
from bench.rank.device import Device
from bench.store import encoding

CLOCK_ROUNDS = 20
# Most that one rank may send in a gather: the stamps of a block of thousands of iterations have some megabytes.
MOST_GATHERED_CHARACTERS = 2**28


class Group(ABC):
    """A joined process group.

    device: where the buffers of this rank live. calls: how the library calls each operation. world: its object for all
    ranks. joined_ns: start, on the host's clock, and duration of joining.
    barrier: returns on every rank once all have called it. align: enqueues a call for which the devices of all ranks
    wait; does nothing where calls are done when they return. Both are what is called, and no methods around it: Python
    that runs after a barrier makes this rank late.
    """

    barrier: Callable[[], object]
    align: Callable[[], object]

    def __init__(self, rank: int, world_size: int, device: Device, calls: LibraryCalls, world: Any = None) -> None:
        self.rank, self.world_size, self.device, self.calls = rank, world_size, device, calls
        self.align = rest
        self.joined_ns = (0, 0)
        self._world = world
        self._subgroups: dict[str, Subgroup] = {WORLD: Subgroup(rank, world_size, world)}

    def gather(self, value: Any, kind: Any) -> list[Any]:
        """Every rank's value, in order of rank, on every rank.

        kind: its type, such as `list[int]` or a dataclass. A value travels as one string of JSON; raises RuntimeError
        unless each rank's string has that type.
        """
        texts = self._gather_texts(encoding.gathered_to_text(value))
        return [_checked(rank, text, kind) for rank, text in enumerate(texts)]

    def subgroup(self, case: Case) -> Subgroup:
        """The ranks that call a case together. Every rank must ask for the same cases in the same order."""
        if case.groups not in self._subgroups:
            self._subgroups[case.groups] = self.new_subgroup(case, together=True)
        return self._subgroups[case.groups]

    def new_subgroup(self, case: Case, together: bool = False) -> Subgroup:
        """As `subgroup`, in groups that are made by this call. together: all at once, where the library can."""
        division = divide(case.groups, self.world_size)
        number = division.of(self.rank)
        handle = self._connect(division, number, together)
        if number is None:
            return Subgroup(0, len(division.groups[0]), None, idle=True)
        members = division.groups[number]
        turn = (number, len(division.groups)) if division.serial else (0, 1)
        return Subgroup(members.index(self.rank), len(members), handle, *turn)

    def leave(self, subgroup: Subgroup) -> None:
        """End a group that `new_subgroup` made."""
        raise NotImplementedError("groups of this library are not left before the end")

    @abstractmethod
    def single_rank_subgroup(self) -> Subgroup:
        """This rank alone, on the same backend."""

    @abstractmethod
    def send_number(self, rank: int, number: int) -> None:
        """Send a number to a rank."""

    @abstractmethod
    def receive_number(self, rank: int) -> int:
        """Receive a number from a rank."""

    @abstractmethod
    def _gather_texts(self, own: str) -> list[Any]:
        """Every rank's text, in order of rank, on every rank, on no queue of what is timed. Checks nothing."""

    @abstractmethod
    def _connect(self, division: Subgroups, number: int | None, together: bool) -> Any:
        """Make all groups of a division; the library's object for the one with this number, this rank's own."""


def _checked(rank: int, text: Any, kind: Any) -> Any:
    """What a rank has sent, if it is JSON of this type."""
    if not isinstance(text, str) or len(text) > MOST_GATHERED_CHARACTERS:
        raise RuntimeError(f"rank {rank} sent {type(text).__name__} in a gather, which is no text of JSON, or too long")
    try:
        return encoding.gathered_from_text(text, kind)
    except ValueError as error:
        raise RuntimeError(f"rank {rank} sent what does not belong in a gather: {error}") from None


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────
class Bounds(NamedTuple):
    """A rank's clock minus rank 0's is between low and high, in ns, at `at_ns` on rank 0's clock."""

    at_ns: int
    low_ns: int
    high_ns: int


def clock_bounds(group: Group) -> list[Bounds] | None:
    """On rank 0, the bounds of each rank; None on the other ranks, and where all ranks read the same clock.

    Bounds, not estimates. Rank 0 takes a stamp, rank r answers with its own stamp, rank 0 takes a second one. The
    answer was made between the two, so the offset lies between answer − second and answer − first stamp (Cristian
    1989). The bounds of all rounds are intersected.
    """
    if len(set(group.gather(host.clock(), str))) == 1:
        return None
    bounds = [Bounds(time.perf_counter_ns(), 0, 0)]
    for other in range(1, group.world_size):
        if group.rank == other:
            for _ in range(CLOCK_ROUNDS):
                group.receive_number(0)
                group.send_number(0, time.perf_counter_ns())
        elif group.rank == 0:
            low, high, at = -(2**62), 2**62, 0
            for _ in range(CLOCK_ROUNDS):
                first = time.perf_counter_ns()
                group.send_number(other, 0)
                answer = group.receive_number(other)
                second = time.perf_counter_ns()
                low, high, at = max(low, answer - second), min(high, answer - first), second
            bounds.append(Bounds(at, low, high))
    return bounds if group.rank == 0 else None
