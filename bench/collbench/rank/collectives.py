"""Describe each collective: the data that each rank sends and receives, and its call in torch.distributed.

    case ─▶ Transfer ─▶ (tensors: with its buffers) CallArguments ─▶ (BuildCall, of torch or of MPI) Call

In: a case, a rank and the number of ranks. Out: a `Transfer`; and from a transfer with its buffers, a function without
arguments that makes the call. An asynchronous call returns its handle at once. Ranks are numbered within the subgroup.
Lengths and positions are in elements of one buffer. In place, outgoing and incoming data share their elements; out of
place, received data lie behind sent data. This module owns no buffer. To add a collective, add an entry in
`catalog.collectives` and an entry in the table below; if MPI has the collective too, add its call in `mpi`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.catalog import splits
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import COALESCED_PIECES, OPERATIONS, behind, placement
from collbench.catalog.dtypes import PREMULTIPLIER
from collbench.catalog.subgroups import partner
from collbench.model.records import Case
from collbench.rank import torch_names

NOTHING = (0, 0)

# ── the types ────────────────────────────────────────────────────────────────────────────────────
# A call that is ready to be timed; an asynchronous call returns a handle to wait for.
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Subgroup:
    """The ranks that call an operation together: all ranks of the world, or one group of its division."""

    # Rank of this process, and number of ranks, within the subgroup.
    rank: int
    size: int
    # The library's object for the subgroup; None for torch's whole world.
    handle: Any
    # Number of this subgroup, and number of subgroups, if they call one after the other; else 0 and 1.
    number: int = 0
    subgroups: int = 1
    # True if this rank is in none of the groups, so that it rests.
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A range of received elements: after the call, start … start+length contain `rank`'s data from `offset` on."""

    start: int
    length: int
    # None if the elements contain the reduced data.
    rank: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """The data that a call on one rank sends and receives."""

    # Elements of the rank's buffer that are sent and received: (start, stop).
    sends: tuple[int, int]
    receives: tuple[int, int]
    # Expected content of the received elements.
    arrives: tuple[Span, ...]
    # In point-to-point operations, the rank to send to and the rank to receive from.
    to: int | None = None
    source: int | None = None
    # Number of elements to and from each rank, if the numbers differ.
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


class CallArguments(NamedTuple):
    """Arguments of one call on one rank."""

    subgroup: Subgroup
    case: Case
    transfer: Transfer
    # Flat tensors to send from and to receive into; in place, they have the same elements.
    outgoing: torch.Tensor
    incoming: torch.Tensor

    @property
    def is_root(self) -> bool:
        return self.subgroup.rank == self.case.root

    def shares(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a buffer that contains the shares of all ranks, one view per rank."""
        return list(buffer.view(self.subgroup.size, -1))


BuildCall = Callable[[CallArguments], Call]


class LibraryCalls(NamedTuple):
    """The calls of one library, torch.distributed or mpi4py: on buffers, and the barrier."""

    # Operation → the function that builds its call.
    on_buffers: Mapping[str, BuildCall]
    barrier: Callable[[Subgroup, Case], Call]


def built(calls: LibraryCalls, s: CallArguments) -> Call:
    """Build a call of a library; if the placement of the case is "copied", the call includes the copy."""
    build, copied = calls.on_buffers[s.case.op], OPERATIONS[s.case.op].copied
    if placement(s.case) != "copied":
        return build(s)
    case, outgoing, incoming = replace(s.case, placement="usual"), s.outgoing, s.incoming
    if copied == "in":
        call = build(s._replace(case=case))

        def copied_back() -> None:
            call()
            outgoing.copy_(incoming)

        return copied_back
    in_place = build(s._replace(case=case, outgoing=incoming))
    if not outgoing.numel():  # this rank only receives
        return in_place

    def copied_first() -> Any:
        incoming.copy_(outgoing)
        return in_place()

    return copied_first


def rest() -> None:
    """Do nothing: the call of a rank that takes no part in this iteration."""


class Collective(NamedTuple):
    """One operation on buffers."""

    # (subgroup, case, elements in `size_bytes`, turn) → the rank's transfer in this turn; None if it rests.
    transfer: Callable[[Subgroup, Case, int, int], Transfer | None]
    # Builds torch's call.
    call: BuildCall


# ── transfers: the data sent and received ────────────────────────────────────────────────────────
def _all_reduce(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes all its data and receives the whole result."""
    start = 0 if placement(case) == "in" else behind(case, length)
    return Transfer((0, length), (start, start + length), (Span(start, length, None),))


def _all_gather(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes a share and receives all shares, in order of rank."""
    share = length // member.size
    start = 0 if placement(case) == "in" else behind(case, share)
    sends = (member.rank * share, (member.rank + 1) * share) if placement(case) == "in" else (0, share)
    return Transfer(sends, (start, start + length), _shares(start, share, member.size))


def _reduce_scatter(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank contributes all its data and receives its share of the result.

    In place, torch puts the share at its own position in the buffer, MPI at the beginning of the buffer.
    """
    share = length // member.size
    in_place = 0 if BACKENDS[case.backend].library == "mpi4py" else member.rank * share
    start = in_place if placement(case) == "in" else behind(case, length)
    return Transfer((0, length), (start, start + share), (Span(start, share, None, member.rank * share),))


def _broadcast(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Every rank receives the root's data."""
    sends, start = (
        (0, length) if member.rank == case.root else NOTHING,
        0 if placement(case) == "in" else behind(case, length),
    )
    return Transfer(sends, (start, start + length), (Span(start, length, case.root),))


def _reduce(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Return the transfer of a reduce: the root receives the result."""
    transfer = _all_reduce(member, case, length, turn)
    if member.rank == case.root:
        return transfer
    # The call in place may use the tensor of a rank that receives nothing.
    return replace(transfer, receives=transfer.receives if placement(case) == "copied" else NOTHING, arrives=())


def _gather(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Return the transfer of a gather: the root receives each rank's share, in order of rank."""
    share = length // member.size
    if member.rank != case.root:
        return Transfer((0, share), NOTHING, ())
    if placement(case) == "in":
        own = member.rank * share
        return Transfer((own, own + share), (0, length), _shares(0, share, member.size))
    start = behind(case, share)
    return Transfer((0, share), (start, start + length), _shares(start, share, member.size))


def _scatter(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank receives its share of the root's data."""
    share = length // member.size
    sends = (0, length) if member.rank == case.root else NOTHING
    in_place = member.rank * share if member.rank == case.root else 0
    start = in_place if placement(case) == "in" else behind(case, length)
    return Transfer(sends, (start, start + share), (Span(start, share, case.root, member.rank * share),))


def _all_to_all(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank receives its share of every rank's data: an equal share, or the share that `splits` gives."""
    if case.splits:
        return _divided(member, case, splits.matrix(case.splits, member.size, length))
    share = length // member.size
    start = behind(case, length)
    ends = 0 if placement(case) == "copied" else start
    spans = tuple(Span(ends + r * share, share, r, member.rank * share) for r in range(member.size))
    return Transfer((0, length), (start, start + length), spans)


def _all_to_all_uneven(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Rank a sends part (a + b) mod n to rank b; parts are in the ratio 0 : 1 : … : n-1, the last has the remainder."""
    size = member.size
    total = size * (size - 1) // 2
    parts = [length * part // total if total else 0 for part in range(size)]
    parts[-1] += length - sum(parts)
    return _divided(member, case, [parts[rank:] + parts[:rank] for rank in range(size)])


def _divided(member: Subgroup, case: Case, rows: Sequence[Sequence[int]]) -> Transfer:
    """Return the transfer of elements from each rank (row) to each rank (column), received in order of rank."""
    sent, received = tuple(rows[member.rank]), tuple(row[member.rank] for row in rows)
    first = behind(case, max(map(sum, rows)))
    spans, start = [], first
    for other, count in enumerate(received):
        spans.append(Span(start, count, other, sum(rows[other][: member.rank])))
        start += count
    return Transfer((0, sum(sent)), (first, start), tuple(spans), sent=sent, received=received)


def _send_recv(member: Subgroup, case: Case, length: int, turn: int) -> Transfer | None:
    """Ranks 2k and 2k+1 are a pair; the rank with the parity of the root sends. A last rank without a partner rests."""
    other = member.rank ^ 1
    if other >= member.size:
        return None
    if member.rank % 2 == case.root % 2:
        return Transfer((0, length), NOTHING, (), to=other)
    start = behind(case, length)
    return Transfer(NOTHING, (start, start + length), (Span(start, length, other),), source=other)


def _sendrecv_pair(member: Subgroup, case: Case, length: int, turn: int) -> Transfer | None:
    """Neighbours send to each other at the same time; a last rank without a partner rests."""
    other = member.rank ^ 1
    return _to_and_from(case, length, other, other) if other < member.size else None


def _sendrecv_ring(member: Subgroup, case: Case, length: int, turn: int) -> Transfer:
    """Each rank sends to the next rank and receives from the previous rank."""
    return _to_and_from(case, length, (member.rank + 1) % member.size, (member.rank - 1) % member.size)


def _pairwise(member: Subgroup, case: Case, length: int, turn: int) -> Transfer | None:
    """Each rank exchanges data with a different partner in each turn; with an odd number of ranks, one rank rests."""
    other = partner(member.rank, turn, member.size)
    return None if other is None else _to_and_from(case, length, other, other)


def _to_and_from(case: Case, length: int, to: int, source: int) -> Transfer:
    start = behind(case, length)
    ends = 0 if placement(case) == "copied" else start
    return Transfer((0, length), (start, start + length), (Span(ends, length, source),), to=to, source=source)


def _shares(start: int, share: int, size: int) -> tuple[Span, ...]:
    return tuple(Span(start + rank * share, share, rank) for rank in range(size))


# ── the calls ────────────────────────────────────────────────────────────────────────────────────
ALL_GATHER = torch_names.newest(dist, "all_gather_single", "all_gather_into_tensor")
REDUCE_SCATTER = torch_names.newest(dist, "reduce_scatter_single", "reduce_scatter_tensor")


def _args(s: CallArguments) -> dict[str, Any]:
    """Return the arguments that every collective takes."""
    return {"group": s.subgroup.handle, "async_op": s.case.call == "async"}


def _reduction(case: Case) -> Any:
    """Return torch's object for the case's reduce op."""
    if case.reduce_op == "premul_sum":
        return torch_names.private("torch.distributed", "_make_nccl_premul_sum")(float(PREMULTIPLIER))
    return getattr(dist.ReduceOp, case.reduce_op.upper())


def _call_all_reduce_coalesced(s: CallArguments) -> Call:
    coalescing = torch_names.private("torch.distributed.distributed_c10d", "_coalescing_manager")
    pieces, op, group = list(s.incoming.chunk(COALESCED_PIECES)), _reduction(s.case), s.subgroup.handle
    asynchronous = s.case.call == "async"

    def call() -> Any:
        # No device is given: with a device, torch's watchdog and flight recorder do not see the calls.
        with coalescing(group=group, async_ops=asynchronous) as together:
            for piece in pieces:
                dist.all_reduce(piece, op=op, group=group)
        return together

    return call


def _call_all_to_all(s: CallArguments) -> Call:
    uneven = s.case.splits or s.case.op == "all_to_all_uneven"
    parts = [list(s.transfer.received), list(s.transfer.sent)] if uneven else []
    return partial(dist.all_to_all_single, s.incoming, s.outgoing, *parts, **_args(s))


def _call_send_recv(s: CallArguments) -> Call:
    if s.transfer.to is not None:
        send = dist.isend if s.case.call == "async" else dist.send
        return partial(send, s.outgoing, group=s.subgroup.handle, group_dst=s.transfer.to)
    receive = dist.irecv if s.case.call == "async" else dist.recv
    return partial(receive, s.incoming, group=s.subgroup.handle, group_src=s.transfer.source)


def _call_both_ways(s: CallArguments) -> Call:
    group, to, source = s.subgroup.handle, s.transfer.to, s.transfer.source

    def call() -> None:
        operations = [
            dist.P2POp(dist.isend, s.outgoing, group=group, group_peer=to),
            dist.P2POp(dist.irecv, s.incoming, group=group, group_peer=source),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return call


def barrier_of(subgroup: Subgroup, case: Case) -> Call:
    """Return the barrier call of the subgroup."""
    return partial(dist.barrier, group=subgroup.handle, async_op=case.call == "async")


COLLECTIVES: dict[str, Collective] = {
    # Arguments by position: arguments by name would add 0.1 µs to a call.
    "all_reduce": Collective(
        _all_reduce, lambda s: partial(dist.all_reduce, s.incoming, _reduction(s.case), *_args(s).values())
    ),
    "all_reduce_coalesced": Collective(_all_reduce, _call_all_reduce_coalesced),
    "all_gather": Collective(_all_gather, lambda s: partial(ALL_GATHER, s.incoming, s.outgoing, **_args(s))),
    "all_gather_list": Collective(
        _all_gather, lambda s: partial(dist.all_gather, s.shares(s.incoming), s.outgoing, **_args(s))
    ),
    "reduce_scatter": Collective(
        _reduce_scatter, lambda s: partial(REDUCE_SCATTER, s.incoming, s.outgoing, op=_reduction(s.case), **_args(s))
    ),
    "reduce_scatter_list": Collective(
        _reduce_scatter,
        lambda s: partial(dist.reduce_scatter, s.incoming, s.shares(s.outgoing), op=_reduction(s.case), **_args(s)),
    ),
    "broadcast": Collective(
        _broadcast, lambda s: partial(dist.broadcast, s.incoming, group_src=s.case.root, **_args(s))
    ),
    "reduce": Collective(
        _reduce,
        lambda s: partial(dist.reduce, s.outgoing, group_dst=s.case.root, op=_reduction(s.case), **_args(s)),
    ),
    "gather": Collective(
        _gather,
        lambda s: partial(
            dist.gather, s.outgoing, s.shares(s.incoming) if s.is_root else None, group_dst=s.case.root, **_args(s)
        ),
    ),
    "scatter": Collective(
        _scatter,
        lambda s: partial(
            dist.scatter, s.incoming, s.shares(s.outgoing) if s.is_root else None, group_src=s.case.root, **_args(s)
        ),
    ),
    "all_to_all": Collective(_all_to_all, _call_all_to_all),
    "all_to_all_list": Collective(
        _all_to_all, lambda s: partial(dist.all_to_all, s.shares(s.incoming), s.shares(s.outgoing), **_args(s))
    ),
    "all_to_all_uneven": Collective(_all_to_all_uneven, _call_all_to_all),
    "send_recv": Collective(_send_recv, _call_send_recv),
    "sendrecv_pair": Collective(_sendrecv_pair, _call_both_ways),
    "sendrecv_ring": Collective(_sendrecv_ring, _call_both_ways),
    "pairwise": Collective(_pairwise, _call_both_ways),
}
