"""The types that describe one call on one rank: with which ranks, what is sent, what must arrive. Calls nothing.

    case ─▶ (collectives) Transfer ─▶ (tensors: with its buffers) CallArguments ─▶ (collectives, mpi_calls) Call

Lengths and positions are in elements of one buffer. In place, outgoing and incoming data share their elements; out of
place, received data lie behind sent data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from bench.model.records import Case

# A call that is ready to be timed; an asynchronous one returns a handle that is waited for.
Call = Callable[[], Any]


class Member(Protocol):
    """A rank and the size of its subgroup: all that a transfer depends on besides the case and the turn."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Subgroup:
    """The ranks that call an operation together: all of the world, or one group of its division.

    rank, size: within the subgroup. handle: the library's object for it (None: torch's whole world).
    number, subgroups: this one's number and how many there are, if they call one after the other; else 0 and 1.
    idle: whether this rank is in none of the groups, so that it rests.
    """

    rank: int
    size: int
    handle: Any
    number: int = 0
    subgroups: int = 1
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """After the call, elements start … start+length hold `rank`'s data from `offset` on; None: the reduced data."""

    start: int
    length: int
    rank: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one call on one rank sends and receives. sends, receives: (start, stop) in elements of its buffer.

    arrives: what the received elements must hold. to, source: the rank to send to and the rank to receive from, in
    point-to-point operations. sent, received: elements to and from each rank, where their numbers differ.
    """

    sends: tuple[int, int]
    receives: tuple[int, int]
    arrives: tuple[Span, ...]
    to: int | None = None
    source: int | None = None
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


class CallArguments(NamedTuple):
    """One call on one rank: flat tensors to send from and to receive into, the same elements in place."""

    subgroup: Subgroup
    case: Case
    transfer: Transfer
    outgoing: torch.Tensor
    incoming: torch.Tensor

    @property
    def is_root(self) -> bool:
        return self.subgroup.rank == self.case.root

    def shares(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Views of a buffer that holds the shares of all ranks, one view a rank."""
        return list(buffer.view(self.subgroup.size, -1))


BuildCall = Callable[[CallArguments], Call]
# (subgroup, case, the objects of all ranks, into) → the call; it puts received objects into the list `into`.
BuildObjectCall = Callable[[Subgroup, Case, list[bytes], list[Any]], Call]


class LibraryCalls(NamedTuple):
    """How one library, torch.distributed or mpi4py, calls each operation: on buffers, on objects, and the barrier."""

    on_buffers: Mapping[str, BuildCall]
    on_objects: Mapping[str, BuildObjectCall]
    barrier: Callable[[Subgroup, Case], Call]


def rest() -> None:
    """The call of a rank that takes no part in this iteration: it does nothing."""
