"""One builder a collective: what a rank sends and receives in one call, and what it must hold afterwards.

In: a `Team` (rank, number of ranks) and a case. Out: an `Exchange`, in elements of one buffer; `workload` makes
buffers and calls of it. A new collective is one entry in `bench/operations.py`, one builder here, and one call for
each library (`calls.py`, `mpi_calls.py`); a test ties them. Knows of no buffer and calls nothing.

In place, outgoing and incoming data share their elements; out of place, what is received lies behind what is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from bench.backends import BACKENDS
from bench.operations import partner, placement
from bench.records import Case


class Placed(Protocol):
    """Who am I among how many: all that a builder asks of a team."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Block:
    """After the call, elements start … start+length hold those of `rank` from `offset` on; None: the reduced ones."""

    start: int
    length: int
    rank: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call on one rank. sends, receives: (start, stop) in elements of its buffer.

    to, source: the rank to send to and to receive from, where there is one of each; sent, received: elements to and
    from each rank, where they are not all alike.
    """

    sends: tuple[int, int]
    receives: tuple[int, int]
    blocks: tuple[Block, ...]
    to: int | None = None
    source: int | None = None
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


# (team, case, elements of the size, turn) → what this rank does then; None: it rests.
Builder = Callable[[Placed, Case, int, int], Exchange | None]
NOTHING = (0, 0)


def all_reduce(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Each rank contributes all of it and receives all of the result."""
    start = length if placement(case) == "out" else 0
    return Exchange((0, length), (start, start + length), (Block(start, length, None),))


def all_gather(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Each rank contributes a share and receives all of them, in order of rank."""
    share = length // team.size
    start = 0 if placement(case) == "in" else share
    sends = (team.rank * share, (team.rank + 1) * share) if placement(case) == "in" else (0, share)
    return Exchange(sends, (start, start + length), _shares(start, share, team.size))


def reduce_scatter(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Each rank contributes all of it and receives its share of the result.

    In place, torch leaves a share where it belongs, and MPI at the beginning of the buffer.
    """
    share = length // team.size
    in_place = 0 if BACKENDS[case.backend].library == "mpi4py" else team.rank * share
    start = in_place if placement(case) == "in" else length
    return Exchange((0, length), (start, start + share), (Block(start, share, None, team.rank * share),))


def broadcast(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """The root's data, on every rank."""
    sends = (0, length) if team.rank == case.root else NOTHING
    return Exchange(sends, (0, length), (Block(0, length, case.root),))


def reduce(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """The root receives the result."""
    if team.rank != case.root:
        return Exchange((0, length), NOTHING, ())
    return all_reduce(team, case, length, turn)


def gather(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """The root receives each rank's share, in order of rank."""
    share = length // team.size
    if team.rank != case.root:
        return Exchange((0, share), NOTHING, ())
    return Exchange((0, share), (share, share + length), _shares(share, share, team.size))


def scatter(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Each rank receives its share of the root's data."""
    share = length // team.size
    sends = (0, length) if team.rank == case.root else NOTHING
    return Exchange(sends, (length, length + share), (Block(length, share, case.root, team.rank * share),))


def all_to_all(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Each rank receives its share of every rank's data."""
    share = length // team.size
    blocks = tuple(Block(length + r * share, share, r, team.rank * share) for r in range(team.size))
    return Exchange((0, length), (length, 2 * length), blocks)


def all_to_all_uneven(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """Parts of different sizes, one of them empty; part (a + b) mod n goes from a to b, and as much back."""
    parts = uneven_parts(length, team.size)
    sent = tuple(parts[(team.rank + other) % team.size] for other in range(team.size))
    # Where each part begins if they are laid round twice: what a rank sends to those before us is a stretch of it.
    begins = list(accumulate(parts + parts, initial=0))
    blocks, start = [], length
    for other in range(team.size):
        before = begins[other + team.rank] - begins[other]
        blocks.append(Block(start, sent[other], other, before))
        start += sent[other]
    return Exchange((0, length), (length, 2 * length), tuple(blocks), sent=sent, received=sent)


def uneven_parts(length: int, size: int) -> list[int]:
    """`length` in parts in the ratio 0 : 1 : … : size-1, the last with what is left over."""
    whole = size * (size - 1) // 2
    parts = [length * part // whole if whole else 0 for part in range(size)]
    parts[-1] += length - sum(parts)
    return parts


def send_recv(team: Placed, case: Case, length: int, turn: int) -> Exchange | None:
    """An even rank sends to the next, an odd one receives; a last one without a partner rests."""
    other = team.rank ^ 1
    if other >= team.size:
        return None
    if team.rank % 2 == 0:
        return Exchange((0, length), NOTHING, (), to=other)
    return Exchange(NOTHING, (length, 2 * length), (Block(length, length, other),), source=other)


def exchange(team: Placed, case: Case, length: int, turn: int) -> Exchange | None:
    """Neighbours send to each other at the same time; a last one without a partner rests."""
    other = team.rank ^ 1
    return _both_ways(length, other, other) if other < team.size else None


def ring(team: Placed, case: Case, length: int, turn: int) -> Exchange:
    """To the next, from the one before."""
    return _both_ways(length, (team.rank + 1) % team.size, (team.rank - 1) % team.size)


def pairwise(team: Placed, case: Case, length: int, turn: int) -> Exchange | None:
    """Both ways, with another partner in each turn; of an odd number one rests."""
    other = partner(team.rank, turn, team.size)
    return None if other is None else _both_ways(length, other, other)


def _both_ways(length: int, to: int, source: int) -> Exchange:
    return Exchange((0, length), (length, 2 * length), (Block(length, length, source),), to=to, source=source)


def _shares(start: int, share: int, size: int) -> tuple[Block, ...]:
    return tuple(Block(start + rank * share, share, rank) for rank in range(size))


# Operations on buffers; those on Python objects and on nothing are in `workload`.
BUILDERS: dict[str, Builder] = {
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce,
    "all_gather": all_gather,
    "all_gather_list": all_gather,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_list": reduce_scatter,
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "all_to_all_list": all_to_all,
    "all_to_all_uneven": all_to_all_uneven,
    "send_recv": send_recv,
    "exchange": exchange,
    "ring": ring,
    "pairwise": pairwise,
}
