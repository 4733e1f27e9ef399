"""Define the interface of a joined process group, which is the same for every communication library.

`process_group` implements it with torch.distributed, `mpi` with mpi4py. This module also computes bounds of the clock
offsets between ranks.
"""

import io
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from collbench.catalog.subgroups import Subgroups, divide
from collbench.machine import host
from collbench.model.divisions import WORLD, Division
from collbench.model.records import Case
from collbench.rank.collectives import LibraryCalls, Subgroup, rest
from collbench.rank.device import Device

CLOCK_ROUNDS = 20

T = TypeVar("T")


class PlainUnpickler(pickle.Unpickler):
    """An unpickler of numbers, text, bytes and containers of them; it refuses pickles that name a function or class."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"an object of another rank names {module}.{name}, and plain data need no class")


def pickled(value: object) -> bytes:
    """Pickle a value for `unpickled`."""
    return pickle.dumps(value)


def unpickled(data: bytes | bytearray) -> Any:
    """Unpickle plain data that `pickled` encoded (`PlainUnpickler`); raise UnpicklingError for anything else."""
    return PlainUnpickler(io.BytesIO(data)).load()


class Group(ABC):
    """A joined process group.

    The buffers of this rank are on `device`. `calls` contains the library's call for each operation. `world` is the
    library's object for all ranks. `barrier` and `align` are called directly, without methods around them: Python code
    that runs after a barrier makes this rank late.
    """

    # Returns on every rank once all ranks have called it.
    barrier: Callable[[], object]
    # Enqueues a call in which the devices of all ranks wait for each other; does nothing if calls are synchronous.
    align: Callable[[], object]

    def __init__(self, rank: int, world_size: int, device: Device, calls: LibraryCalls, world: Any = None) -> None:
        self.rank, self.world_size, self.device, self.calls = rank, world_size, device, calls
        self.align = rest
        self.joined_ns = (0, 0)  # start, on the host's clock, and duration of joining
        self._world = world
        self._subgroups: dict[Division, Subgroup] = {WORLD: Subgroup(rank, world_size, world)}

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in order of rank, on every rank; share no queue with timed calls.

        value: plain data (`PlainUnpickler`). Every rank passes a value of the same type: the ranks are processes of one
        launch, which run the same code and have proved that they know the launch's key.
        """

    def subgroup(self, case: Case) -> Subgroup:
        """Return the ranks that call a case together. Every rank must ask for the same cases in the same order."""
        if case.groups not in self._subgroups:
            self._subgroups[case.groups] = self.new_subgroup(case, together=True)
        return self._subgroups[case.groups]

    def new_subgroup(self, case: Case, together: bool = False) -> Subgroup:
        """Return a subgroup as `subgroup` does, but in new groups. together: make all at once, if the library can."""
        division = divide(case.groups, self.world_size)
        number = division.of(self.rank)
        handle = self._connect(division, number, together)
        if number is None:
            return Subgroup(0, len(division.groups[0]), None, idle=True)
        members = division.groups[number]
        turn = (number, len(division.groups)) if division.serial else (0, 1)
        return Subgroup(members.index(self.rank), len(members), handle, *turn)

    def leave(self, subgroup: Subgroup) -> None:
        """End a group of `new_subgroup`; every rank calls this. Raises NotImplementedError if the library cannot."""
        raise NotImplementedError("groups of this library are not left before the end")

    @abstractmethod
    def single_rank_subgroup(self) -> Subgroup:
        """Return a subgroup of this rank alone, on the same backend."""

    @abstractmethod
    def send_number(self, rank: int, number: int) -> None:
        """Send a number to a rank."""

    @abstractmethod
    def receive_number(self, rank: int) -> int:
        """Receive a number from a rank."""

    @abstractmethod
    def _connect(self, division: Subgroups, number: int | None, together: bool) -> Any:
        """Make all groups of a division. Return the library's object for group `number`, which is this rank's own."""


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────
class Bounds(NamedTuple):
    """Lower and upper bound, in ns, of a rank's clock minus rank 0's clock, at `at_ns` on rank 0's clock."""

    at_ns: int
    low_ns: int
    high_ns: int


def clock_bounds(group: Group) -> list[Bounds] | None:
    """Return the clock bounds of each rank on rank 0; None on other ranks, or if all ranks read the same clock.

    These are bounds, not estimates. Rank 0 takes a timestamp, rank r answers with its own timestamp, rank 0 takes a
    second timestamp. The answer was made between the two, so the clock offset lies between answer − second and
    answer − first timestamp (Cristian 1989). The bounds of all rounds are intersected.
    """
    if len(set(group.gather(host.clock()))) == 1:
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
