"""One call of torch.distributed a collective.

In: a `CallArguments`, the buffers of one call on one rank. Out: a function without arguments that makes the call; one
that is asynchronous returns its handle at once. Ranks are those of the team's group, so that a part of the world works
too. torch 2.13 renames two functions; older ones have only the old names.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bench.dtypes import PREMULTIPLIER
from bench.operations import COALESCED_PIECES
from bench.rank.collectives import Transfer
from bench.rank.subgroup import Subgroup
from bench.records import Case

Call = Callable[[], Any]

# So many calls are made once and kept: making twenty before each pipelined stretch lets the ranks idle long enough
# to be seen in it (2 % at 4 KiB). More would be memory for nothing.
MOST_READY = 64
# The call in a group of one shows what dispatching costs, whatever the size: a small one will do.
ALONE_BYTES = 64 * 2**10


def rest() -> None:
    """What a rank calls that has nothing to do in this iteration."""


class CallArguments(NamedTuple):
    """One call on one rank: flat tensors to send from and to receive into, the same elements in place."""

    subgroup: Subgroup
    case: Case
    transfer: Transfer
    outgoing: torch.Tensor
    incoming: torch.Tensor

    @property
    def how(self) -> dict[str, Any]:
        """Arguments that every collective takes."""
        return {"group": self.subgroup.handle, "async_op": self.case.call == "async"}

    @property
    def is_root(self) -> bool:
        return self.subgroup.rank == self.case.root

    def shares(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """One view a rank of a buffer that holds all shares."""
        return list(buffer.view(self.subgroup.size, -1))


ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduction(case: Case) -> Any:
    """torch's name for the case's reduce op."""
    if case.reduce_op == "premul_sum":
        return dist._make_nccl_premul_sum(float(PREMULTIPLIER))
    return getattr(dist.ReduceOp, case.reduce_op.upper())


def _all_reduce(s: CallArguments) -> Call:
    return functools.partial(dist.all_reduce, s.incoming, op=reduction(s.case), **s.how)


def _all_reduce_coalesced(s: CallArguments) -> Call:
    from torch.distributed.distributed_c10d import _coalescing_manager

    pieces, op, group = list(s.incoming.chunk(COALESCED_PIECES)), reduction(s.case), s.subgroup.handle
    # The device makes NCCL start one group of calls; gloo knows no such thing.
    device = s.incoming.device if s.incoming.is_cuda else None
    asynchronous = s.case.call == "async"

    def call() -> Any:
        with _coalescing_manager(group=group, device=device, async_ops=asynchronous) as together:
            for piece in pieces:
                dist.all_reduce(piece, op=op, group=group)
        return together

    return call


def _all_gather(s: CallArguments) -> Call:
    return functools.partial(ALL_GATHER, s.incoming, s.outgoing, **s.how)


def _all_gather_list(s: CallArguments) -> Call:
    return functools.partial(dist.all_gather, s.shares(s.incoming), s.outgoing, **s.how)


def _reduce_scatter(s: CallArguments) -> Call:
    return functools.partial(REDUCE_SCATTER, s.incoming, s.outgoing, op=reduction(s.case), **s.how)


def _reduce_scatter_list(s: CallArguments) -> Call:
    shares = s.shares(s.outgoing)
    return functools.partial(dist.reduce_scatter, s.incoming, shares, op=reduction(s.case), **s.how)


def _broadcast(s: CallArguments) -> Call:
    return functools.partial(dist.broadcast, s.incoming, group_src=s.case.root, **s.how)


def _reduce(s: CallArguments) -> Call:
    return functools.partial(dist.reduce, s.outgoing, group_dst=s.case.root, op=reduction(s.case), **s.how)


def _gather(s: CallArguments) -> Call:
    into = s.shares(s.incoming) if s.is_root else None
    return functools.partial(dist.gather, s.outgoing, into, group_dst=s.case.root, **s.how)


def _scatter(s: CallArguments) -> Call:
    parts = s.shares(s.outgoing) if s.is_root else None
    return functools.partial(dist.scatter, s.incoming, parts, group_src=s.case.root, **s.how)


def _all_to_all(s: CallArguments) -> Call:
    return functools.partial(dist.all_to_all_single, s.incoming, s.outgoing, **s.how)


def _all_to_all_list(s: CallArguments) -> Call:
    return functools.partial(dist.all_to_all, s.shares(s.incoming), s.shares(s.outgoing), **s.how)


def _all_to_all_uneven(s: CallArguments) -> Call:
    received, sent = list(s.transfer.received), list(s.transfer.sent)
    return functools.partial(dist.all_to_all_single, s.incoming, s.outgoing, received, sent, **s.how)


def _send_recv(s: CallArguments) -> Call:
    if s.transfer.to is not None:
        send = dist.isend if s.case.call == "async" else dist.send
        return functools.partial(send, s.outgoing, group=s.subgroup.handle, group_dst=s.transfer.to)
    receive = dist.irecv if s.case.call == "async" else dist.recv
    return functools.partial(receive, s.incoming, group=s.subgroup.handle, group_src=s.transfer.source)


def _both_ways(s: CallArguments) -> Call:
    group, to, source = s.subgroup.handle, s.transfer.to, s.transfer.source

    def call() -> None:
        operations = [
            dist.P2POp(dist.isend, s.outgoing, group=group, group_peer=to),
            dist.P2POp(dist.irecv, s.incoming, group=group, group_peer=source),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return call


CALLS: dict[str, Callable[[CallArguments], Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_gather": _all_gather,
    "all_gather_list": _all_gather_list,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_list": _reduce_scatter_list,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_list": _all_to_all_list,
    "all_to_all_uneven": _all_to_all_uneven,
    "send_recv": _send_recv,
    "sendrecv_pair": _both_ways,
    "sendrecv_ring": _both_ways,
    "pairwise": _both_ways,
}


# ── on Python objects, and on nothing ────────────────────────────────────────────────────────────
# (team, case, this rank's object, into) → the call; what is received is put into the list.
ObjectCall = Callable[[Subgroup, Case, list[bytes], list[Any]], Call]


def _all_gather_object(subgroup: Subgroup, case: Case, own: list[bytes], into: list[Any]) -> Call:
    into.extend([None] * subgroup.size)
    return functools.partial(dist.all_gather_object, into, own[subgroup.rank], group=subgroup.handle)


def _gather_object(subgroup: Subgroup, case: Case, own: list[bytes], into: list[Any]) -> Call:
    if subgroup.rank == case.root:
        into.extend([None] * subgroup.size)
    target = into if subgroup.rank == case.root else None
    return functools.partial(dist.gather_object, own[subgroup.rank], target, group=subgroup.handle, group_dst=case.root)


def _broadcast_object(subgroup: Subgroup, case: Case, own: list[bytes], into: list[Any]) -> Call:
    into.append(own[case.root] if subgroup.rank == case.root else None)
    return functools.partial(dist.broadcast_object_list, into, group=subgroup.handle, group_src=case.root)


def _scatter_object(subgroup: Subgroup, case: Case, own: list[bytes], into: list[Any]) -> Call:
    into.append(None)
    parts = own if subgroup.rank == case.root else None
    return functools.partial(dist.scatter_object_list, into, parts, group=subgroup.handle, group_src=case.root)


OBJECT_CALLS: dict[str, ObjectCall] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object": _broadcast_object,
    "scatter_object": _scatter_object,
}


def barrier(subgroup: Subgroup, case: Case) -> Call:
    """All come together."""
    return functools.partial(dist.barrier, group=subgroup.handle, async_op=case.call == "async")
