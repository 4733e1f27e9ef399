"""One call of an operation on one rank, as data: with whom, what is sent, what must have arrived. Calls nothing.

A collective of `collectives` makes a `Transfer` of a case; `tensors` adds the buffers, which gives `CallArguments`;
a library's call is built from these. Lengths and places are elements of one buffer. In place, outgoing and incoming
data share their elements; out of place, what is received lies behind what is sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from bench.records import Case

# A call that is ready to be timed; an asynchronous one returns a handle that is waited for.
Call = Callable[[], Any]


class Member(Protocol):
    """Which rank of how many: all that a collective's transfer depends on."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Subgroup:
    """The ranks that call an operation together: all of the world, or one group of its division.

    rank, size: within the subgroup. handle: the library's object for it (None: torch's whole world).
    number, subgroups: which subgroup of how many this is, where they call one after the other; else 0 of 1.
    """

    rank: int
    size: int
    handle: Any
    number: int = 0
    subgroups: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """After the call, elements start … start+length hold those of `rank` from `offset` on; None: the reduced ones."""

    start: int
    length: int
    rank: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one call on one rank sends and receives. sends, receives: (start, stop) in elements of its buffer.

    arrives: what the received elements must hold. to, source: the rank to send to and to receive from, where there is
    one of each. sent, received: elements to and from each rank, where they are not all alike.
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
        """One view a rank of a buffer that holds all shares."""
        return list(buffer.view(self.subgroup.size, -1))


BuildCall = Callable[[CallArguments], Call]
# (subgroup, case, the objects of all ranks, into) → the call; what is received is put into the list `into`.
BuildObjectCall = Callable[[Subgroup, Case, list[bytes], list[Any]], Call]


class LibraryCalls(NamedTuple):
    """How one library, torch.distributed or mpi4py, calls each operation: on buffers, on objects, and the barrier."""

    on_buffers: Mapping[str, BuildCall]
    on_objects: Mapping[str, BuildObjectCall]
    barrier: Callable[[Subgroup, Case], Call]


def rest() -> None:
    """The call of a rank that has nothing to do in this iteration."""
