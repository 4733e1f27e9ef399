"""The calls of torch that each collective must make: operator, bytes of each tensor, group, root. For `test_simulate`.

In: a case, which rank of its group, and the calls that a dry run recorded. Out: None, or a sentence on the first
difference. Written a second time and in bytes, apart from `rank/collectives`, so that a mistake there is seen.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench.catalog import operations
from bench.catalog.dtypes import DTYPES
from bench.catalog.operations import COALESCED_PIECES, OPERATIONS
from bench.catalog.pairing import partner
from bench.model.records import Case
from bench.model.units import format_bytes
from bench.rank import dry_run
from bench.rank.dry_run import PaperCall
from bench.rank.transfer import Subgroup


class ExpectedCall(NamedTuple):
    """One call of torch's operators. sent, received: bytes of each tensor. peer: None where nobody is named."""

    name: str
    sent: list[int]
    received: list[int]
    peer: int | None = None


class Member(NamedTuple):
    """size, share: bytes of the case, and of one rank's part of it. n, rank: of the group; root is one of them."""

    size: int
    share: int
    n: int
    rank: int
    root: int

    @property
    def at_root(self) -> bool:
        return self.rank == self.root


def _each(name: str) -> Callable[[Member, int], list[ExpectedCall]]:
    """One tensor that is sent and received in place."""
    return lambda m, turn: [ExpectedCall(name, [m.size], [m.size])]


def _rooted(name: str) -> Callable[[Member, int], list[ExpectedCall]]:
    return lambda m, turn: [ExpectedCall(name, [m.size], [m.size], m.root)]


def _both_ways(m: Member, to: int, source: int) -> list[ExpectedCall]:
    return [ExpectedCall("send", [m.size], [], to), ExpectedCall("recv_", [], [m.size], source)]


def _coalesced(m: Member, turn: int) -> list[ExpectedCall]:
    pieces = [m.size // COALESCED_PIECES] * COALESCED_PIECES
    return [ExpectedCall("allreduce_coalesced_", pieces, pieces)]


def _send_recv(m: Member, turn: int) -> list[ExpectedCall]:
    if (m.rank ^ 1) >= m.n:
        return []
    return _both_ways(m, m.rank ^ 1, m.rank ^ 1)[m.rank % 2 :][:1]


def _sendrecv_pair(m: Member, turn: int) -> list[ExpectedCall]:
    return _both_ways(m, m.rank ^ 1, m.rank ^ 1) if (m.rank ^ 1) < m.n else []


def _pairwise(m: Member, turn: int) -> list[ExpectedCall]:
    other = partner(m.rank, turn, m.n)
    return [] if other is None else _both_ways(m, other, other)


# (who I am, turn) → the calls of torch's operators, in their order; none: this rank rests.
EXPECTED_CALLS: dict[str, Callable[[Member, int], list[ExpectedCall]]] = {
    "all_reduce": _each("allreduce_"),
    "all_reduce_coalesced": _coalesced,
    "all_gather": lambda m, turn: [ExpectedCall("_allgather_base_", [m.share], [m.size])],
    "all_gather_list": lambda m, turn: [ExpectedCall("allgather_", [m.share], [m.share] * m.n)],
    "reduce_scatter": lambda m, turn: [ExpectedCall("_reduce_scatter_base_", [m.size], [m.share])],
    "reduce_scatter_list": lambda m, turn: [ExpectedCall("reduce_scatter_", [m.share] * m.n, [m.share])],
    "broadcast": _rooted("broadcast_"),
    "reduce": _rooted("reduce_"),
    "gather": lambda m, turn: [ExpectedCall("gather_", [m.share], [m.share] * m.n * m.at_root, m.root)],
    "scatter": lambda m, turn: [ExpectedCall("scatter_", [m.share] * m.n * m.at_root, [m.share], m.root)],
    "all_to_all": lambda m, turn: [ExpectedCall("alltoall_base_", [m.size], [m.size])],
    "all_to_all_list": lambda m, turn: [ExpectedCall("alltoall_", [m.share] * m.n, [m.share] * m.n)],
    "all_to_all_uneven": lambda m, turn: [ExpectedCall("alltoall_base_", [m.size], [m.size])],
    "send_recv": _send_recv,
    "sendrecv_pair": _sendrecv_pair,
    "sendrecv_ring": lambda m, turn: _both_ways(m, (m.rank + 1) % m.n, (m.rank - 1) % m.n),
    "pairwise": _pairwise,
    "barrier": lambda m, turn: [ExpectedCall("barrier", [], [])],
}


def mismatch(case: Case, subgroup: Subgroup, turn: int, calls: Sequence[PaperCall]) -> str | None:
    """What is not as it must be in the calls of one turn."""
    m = _member(case, subgroup)
    resting = subgroup.subgroups > 1 and turn != subgroup.number
    if case.op in _OBJECTS:
        return _mismatch_of_objects(case, m, resting, calls)
    wanted = [] if resting else EXPECTED_CALLS[case.op](m, turn)
    if [one.name for one in calls] != [one.name for one in wanted]:
        return f"torch is called with {_names(calls)}, not with {_names(wanted)}"
    for want, got in zip(wanted, calls, strict=True):
        problem = _mismatch_of_a_call(want, got, m) or _mismatch_of_parts(case, got, m)
        if problem is not None:
            return f"{want.name}: {problem}"
    return dry_run.mismatch(case, subgroup, turn, calls)


def _member(case: Case, subgroup: Subgroup) -> Member:
    return Member(
        case.size_bytes, case.size_bytes // subgroup.size, operations.ranks_together(case), subgroup.rank, case.root
    )


def _mismatch_of_a_call(want: ExpectedCall, got: PaperCall, m: Member) -> str | None:
    if got.ranks != m.n:
        return f"goes to a group of {got.ranks} ranks, not of {m.n}"
    if got.peer != want.peer:
        return f"names rank {got.peer}, not {want.peer}"
    for what, spans, sizes in (("sends", got.sent, want.sent), ("receives", got.received, want.received)):
        found = [stop - start for start, stop in spans]
        if found != sizes:
            return f"{what} {_sizes(found)}, not {_sizes(sizes)}"
    return None


def _mismatch_of_parts(case: Case, got: PaperCall, m: Member) -> str | None:
    """Uneven parts: one a rank, an empty one among them, as much to a rank as from it, all of the buffer."""
    if case.op != "all_to_all_uneven":
        return "parts of different sizes where all are alike" if got.sent_parts or got.received_parts else None
    if got.sent_parts != got.received_parts or len(got.sent_parts) != m.n:
        return f"{len(got.sent_parts)} parts to send and {len(got.received_parts)} to receive for {m.n} ranks"
    total = sum(got.sent_parts) * DTYPES[case.dtype].itemsize
    if total != m.size or (m.n > 1 and min(got.sent_parts) != 0):
        return f"parts from {min(got.sent_parts)} elements on that add up to {total} B, not to {m.size} B"
    return None


# ── Python objects ───────────────────────────────────────────────────────────────────────────────
# (who I am, positional arguments) → (the list that receives, what is sent), None where this rank has none.
_Arguments = tuple[list[Any] | None, list[Any] | None]
_OBJECTS: dict[str, Callable[[Member, Sequence[Any]], _Arguments]] = {
    "all_gather_object": lambda m, given: (given[0], [given[1]]),
    "gather_object": lambda m, given: (given[1], [given[0]]),
    "broadcast_object": lambda m, given: (given[0], given[0] if m.at_root else None),
    "scatter_object": lambda m, given: (given[0], given[1]),
}


def _mismatch_of_objects(case: Case, m: Member, resting: bool, calls: Sequence[PaperCall]) -> str | None:
    """The same of a call on Python objects, from its arguments: nothing of it reaches torch's operators whole."""
    if resting or len(calls) != 1:
        return None if resting and not calls else f"{len(calls)} calls"
    (call,) = calls
    into, sent = _OBJECTS[case.op](m, call.arguments)
    gathers = "gather" in case.op
    room = (m.n if gathers else 1) if not case.op.startswith("gather") or m.at_root else None
    if (None if into is None else len(into)) != room:
        return f"room for {0 if into is None else len(into)} objects, not for {room}"
    each = m.size if case.op == "broadcast_object" else m.share
    count = 1 if gathers or case.op == "broadcast_object" else m.n
    sizes = [each] * count if m.at_root or gathers else []
    if list(map(len, sent or [])) != sizes:
        return f"sends {_sizes(list(map(len, sent or [])))}, not {_sizes(sizes)}"
    wanted = m.root if OPERATIONS[case.op].rooted else None
    return None if call.peer == wanted else f"names rank {call.peer}, not {wanted}"


def _names(calls: Sequence[PaperCall] | Sequence[ExpectedCall]) -> str:
    return ", ".join(one.name for one in calls) or "nothing"


def _sizes(sizes: Sequence[int]) -> str:
    """Such as `8 × 4 KiB`."""
    if not sizes:
        return "nothing"
    alike = len(set(sizes)) == 1
    return f"{len(sizes)} × {format_bytes(sizes[0])}" if alike else f"{len(sizes)} tensors of {sum(sizes)} B"
