"""One builder a collective: what a rank sends and receives in one call, and what it must hold afterwards.

In: a `Subgroup` (rank, number of ranks) and a case. Out: an `Transfer`, in elements of one buffer; `workload` makes
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
class Transfer:
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
Builder = Callable[[Placed, Case, int, int], Transfer | None]
NOTHING = (0, 0)


def all_reduce(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes all of it and receives all of the result."""
    start = length if placement(case) == "out" else 0
    return Transfer((0, length), (start, start + length), (Block(start, length, None),))


def all_gather(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes a share and receives all of them, in order of rank."""
    share = length // subgroup.size
    start = 0 if placement(case) == "in" else share
    sends = (subgroup.rank * share, (subgroup.rank + 1) * share) if placement(case) == "in" else (0, share)
    return Transfer(sends, (start, start + length), _shares(start, share, subgroup.size))


def reduce_scatter(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes all of it and receives its share of the result.

    In place, torch leaves a share where it belongs, and MPI at the beginning of the buffer.
    """
    share = length // subgroup.size
    in_place = 0 if BACKENDS[case.backend].library == "mpi4py" else subgroup.rank * share
    start = in_place if placement(case) == "in" else length
    return Transfer((0, length), (start, start + share), (Block(start, share, None, subgroup.rank * share),))


def broadcast(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """The root's data, on every rank."""
    sends = (0, length) if subgroup.rank == case.root else NOTHING
    return Transfer(sends, (0, length), (Block(0, length, case.root),))


def reduce(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """The root receives the result."""
    if subgroup.rank != case.root:
        return Transfer((0, length), NOTHING, ())
    return all_reduce(subgroup, case, length, turn)


def gather(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """The root receives each rank's share, in order of rank."""
    share = length // subgroup.size
    if subgroup.rank != case.root:
        return Transfer((0, share), NOTHING, ())
    return Transfer((0, share), (share, share + length), _shares(share, share, subgroup.size))


def scatter(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Each rank receives its share of the root's data."""
    share = length // subgroup.size
    sends = (0, length) if subgroup.rank == case.root else NOTHING
    return Transfer(sends, (length, length + share), (Block(length, share, case.root, subgroup.rank * share),))


def all_to_all(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Each rank receives its share of every rank's data."""
    share = length // subgroup.size
    blocks = tuple(Block(length + r * share, share, r, subgroup.rank * share) for r in range(subgroup.size))
    return Transfer((0, length), (length, 2 * length), blocks)


def all_to_all_uneven(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """Parts of different sizes, one of them empty; part (a + b) mod n goes from a to b, and as much back."""
    parts = uneven_parts(length, subgroup.size)
    sent = tuple(parts[(subgroup.rank + other) % subgroup.size] for other in range(subgroup.size))
    # Where each part begins if they are laid round twice: what a rank sends to those before us is a stretch of it.
    begins = list(accumulate(parts + parts, initial=0))
    blocks, start = [], length
    for other in range(subgroup.size):
        before = begins[other + subgroup.rank] - begins[other]
        blocks.append(Block(start, sent[other], other, before))
        start += sent[other]
    return Transfer((0, length), (length, 2 * length), tuple(blocks), sent=sent, received=sent)


def uneven_parts(length: int, size: int) -> list[int]:
    """`length` in parts in the ratio 0 : 1 : … : size-1, the last with what is left over."""
    whole = size * (size - 1) // 2
    parts = [length * part // whole if whole else 0 for part in range(size)]
    parts[-1] += length - sum(parts)
    return parts


def send_recv(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer | None:
    """An even rank sends to the next, an odd one receives; a last one without a partner rests."""
    other = subgroup.rank ^ 1
    if other >= subgroup.size:
        return None
    if subgroup.rank % 2 == 0:
        return Transfer((0, length), NOTHING, (), to=other)
    return Transfer(NOTHING, (length, 2 * length), (Block(length, length, other),), source=other)


def _sendrecv_pair(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer | None:
    """Neighbours send to each other at the same time; a last one without a partner rests."""
    other = subgroup.rank ^ 1
    return _both_ways(length, other, other) if other < subgroup.size else None


def _sendrecv_ring(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer:
    """To the next, from the one before."""
    return _both_ways(length, (subgroup.rank + 1) % subgroup.size, (subgroup.rank - 1) % subgroup.size)


def pairwise(subgroup: Placed, case: Case, length: int, turn: int) -> Transfer | None:
    """Both ways, with another partner in each turn; of an odd number one rests."""
    other = partner(subgroup.rank, turn, subgroup.size)
    return None if other is None else _both_ways(length, other, other)


def _both_ways(length: int, to: int, source: int) -> Transfer:
    return Transfer((0, length), (length, 2 * length), (Block(length, length, source),), to=to, source=source)


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
    "sendrecv_pair": _sendrecv_pair,
    "sendrecv_ring": _sendrecv_ring,
    "pairwise": pairwise,
}
