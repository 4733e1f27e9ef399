"""What a collective must hand to torch, by the table of operations: bytes, lists, ranks. The yardstick of `simulate`.

In: a case, who one is, and what was handed over. Out: None, or a sentence on the first thing that does not fit. Told
here a second time and in bytes, apart from `collectives` and `calls`, so that a mistake in them is seen.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench import operations
from bench.dtypes import DTYPES
from bench.operations import COALESCED_PIECES, OPERATIONS, partner
from bench.rank.recorder import Handed
from bench.rank.subgroup import Team
from bench.records import Case
from bench.units import format_bytes


class Wanted(NamedTuple):
    """One call of torch's operators. sent, received: bytes of each tensor. peer: None where nobody is named."""

    name: str
    sent: list[int]
    received: list[int]
    peer: int | None = None


class Me(NamedTuple):
    """size, share: bytes of the case, and of one rank's part of it. n, rank: of the group; root is one of them."""

    size: int
    share: int
    n: int
    rank: int
    root: int

    @property
    def at_root(self) -> bool:
        return self.rank == self.root


def _each(name: str) -> Callable[[Me, int], list[Wanted]]:
    """One tensor that is sent and received in place."""
    return lambda me, turn: [Wanted(name, [me.size], [me.size])]


def _rooted(name: str) -> Callable[[Me, int], list[Wanted]]:
    return lambda me, turn: [Wanted(name, [me.size], [me.size], me.root)]


def _both_ways(me: Me, to: int, source: int) -> list[Wanted]:
    return [Wanted("send", [me.size], [], to), Wanted("recv_", [], [me.size], source)]


def _coalesced(me: Me, turn: int) -> list[Wanted]:
    pieces = [me.size // COALESCED_PIECES] * COALESCED_PIECES
    return [Wanted("allreduce_coalesced_", pieces, pieces)]


def _send_recv(me: Me, turn: int) -> list[Wanted]:
    if (me.rank ^ 1) >= me.n:
        return []
    return _both_ways(me, me.rank ^ 1, me.rank ^ 1)[me.rank % 2 :][:1]


def _exchange(me: Me, turn: int) -> list[Wanted]:
    return _both_ways(me, me.rank ^ 1, me.rank ^ 1) if (me.rank ^ 1) < me.n else []


def _pairwise(me: Me, turn: int) -> list[Wanted]:
    other = partner(me.rank, turn, me.n)
    return [] if other is None else _both_ways(me, other, other)


# (who I am, turn) → the calls of torch's operators, in their order; none: this rank rests.
WANTED: dict[str, Callable[[Me, int], list[Wanted]]] = {
    "all_reduce": _each("allreduce_"),
    "all_reduce_coalesced": _coalesced,
    "all_gather": lambda me, turn: [Wanted("_allgather_base_", [me.share], [me.size])],
    "all_gather_list": lambda me, turn: [Wanted("allgather_", [me.share], [me.share] * me.n)],
    "reduce_scatter": lambda me, turn: [Wanted("_reduce_scatter_base_", [me.size], [me.share])],
    "reduce_scatter_list": lambda me, turn: [Wanted("reduce_scatter_", [me.share] * me.n, [me.share])],
    "broadcast": _rooted("broadcast_"),
    "reduce": _rooted("reduce_"),
    "gather": lambda me, turn: [Wanted("gather_", [me.share], [me.share] * me.n * me.at_root, me.root)],
    "scatter": lambda me, turn: [Wanted("scatter_", [me.share] * me.n * me.at_root, [me.share], me.root)],
    "all_to_all": lambda me, turn: [Wanted("alltoall_base_", [me.size], [me.size])],
    "all_to_all_list": lambda me, turn: [Wanted("alltoall_", [me.share] * me.n, [me.share] * me.n)],
    "all_to_all_uneven": lambda me, turn: [Wanted("alltoall_base_", [me.size], [me.size])],
    "send_recv": _send_recv,
    "exchange": _exchange,
    "ring": lambda me, turn: _both_ways(me, (me.rank + 1) % me.n, (me.rank - 1) % me.n),
    "pairwise": _pairwise,
    "barrier": lambda me, turn: [Wanted("barrier", [], [])],
}


def misfit(case: Case, team: Team, turn: int, handed: Sequence[Handed]) -> str | None:
    """What is not as it must be in the calls of one turn."""
    me = _me(case, team)
    resting = team.teams > 1 and turn != team.number
    wanted = [] if resting else WANTED[case.op](me, turn)
    if [one.name for one in handed] != [one.name for one in wanted]:
        return f"torch is called with {_names(handed)}, not with {_names(wanted)}"
    for want, got in zip(wanted, handed, strict=True):
        problem = _misfit_of_a_call(want, got, me) or _misfit_of_parts(case, got, me)
        if problem is not None:
            return f"{want.name}: {problem}"
    return _misfit_of_buffers(case, me, handed) if handed and OPERATIONS[case.op].typed else None


def _me(case: Case, team: Team) -> Me:
    return Me(case.size_bytes, case.size_bytes // team.size, operations.ranks_together(case), team.rank, case.root)


def _misfit_of_a_call(want: Wanted, got: Handed, me: Me) -> str | None:
    if got.ranks != me.n:
        return f"goes to a group of {got.ranks} ranks, not of {me.n}"
    if got.peer != want.peer:
        return f"names rank {got.peer}, not {want.peer}"
    for what, spans, sizes in (("sends", got.sent, want.sent), ("receives", got.received, want.received)):
        found = [stop - start for start, stop in spans]
        if found != sizes:
            return f"{what} {_sizes(found)}, not {_sizes(sizes)}"
    return None


def _misfit_of_parts(case: Case, got: Handed, me: Me) -> str | None:
    """Uneven parts: one a rank, an empty one among them, as much to a rank as from it, all of the buffer."""
    if case.op != "all_to_all_uneven":
        return "parts of different sizes where all are alike" if got.sent_parts or got.received_parts else None
    if got.sent_parts != got.received_parts or len(got.sent_parts) != me.n:
        return f"{len(got.sent_parts)} parts to send and {len(got.received_parts)} to receive for {me.n} ranks"
    total = sum(got.sent_parts) * DTYPES[case.dtype].itemsize
    if total != me.size or (me.n > 1 and min(got.sent_parts) != 0):
        return f"parts from {min(got.sent_parts)} elements on that add up to {total} B, not to {me.size} B"
    return None


def _misfit_of_buffers(case: Case, me: Me, handed: Sequence[Handed]) -> str | None:
    """Do the tensors together take what `operations.buffer_bytes` plans memory by?"""
    planned = operations.buffer_bytes(case)
    held = _covered([span for one in handed for span in (*one.sent, *one.received)])
    # Who only sends, or is no root, holds a part of it.
    partly = case.op == "send_recv" or (OPERATIONS[case.op].rooted and not me.at_root)
    if held > planned or (held < planned and not partly):
        return f"the call's tensors take {held} B, and {planned} B are planned"
    return None


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Bytes that lie in one of the spans or more."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


# ── Python objects ───────────────────────────────────────────────────────────────────────────────
# (who I am, positional arguments) → (the list that receives, what is sent), None where this rank has none.
_Arguments = tuple[list[Any] | None, list[Any] | None]
_OBJECTS: dict[str, Callable[[Me, Sequence[Any]], _Arguments]] = {
    "all_gather_object": lambda me, given: (given[0], [given[1]]),
    "gather_object": lambda me, given: (given[1], [given[0]]),
    "broadcast_object": lambda me, given: (given[0], given[0] if me.at_root else None),
    "scatter_object": lambda me, given: (given[0], given[1]),
}


def misfit_of_objects(case: Case, team: Team, arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
    """The same of a call on Python objects, from its arguments; nothing of it reaches torch's operators whole."""
    me = _me(case, team)
    into, sent = _OBJECTS[case.op](me, arguments)
    gathers = "gather" in case.op
    room = (me.n if gathers else 1) if not case.op.startswith("gather") or me.at_root else None
    if (None if into is None else len(into)) != room:
        return f"room for {0 if into is None else len(into)} objects, not for {room}"
    each = me.size if case.op == "broadcast_object" else me.share
    count = 1 if gathers or case.op == "broadcast_object" else me.n
    sizes = [each] * count if me.at_root or gathers else []
    if list(map(len, sent or [])) != sizes:
        return f"sends {_sizes(list(map(len, sent or [])))}, not {_sizes(sizes)}"
    root = next((named[key] for key in ("group_src", "group_dst") if key in named), None)
    wanted = me.root if OPERATIONS[case.op].rooted else None
    return None if root == wanted else f"names rank {root}, not {wanted}"


def _names(calls: Sequence[Handed] | Sequence[Wanted]) -> str:
    return ", ".join(one.name for one in calls) or "nothing"


def _sizes(sizes: Sequence[int]) -> str:
    """Such as `8 × 4 KiB`."""
    if not sizes:
        return "nothing"
    alike = len(set(sizes)) == 1
    return f"{len(sizes)} × {format_bytes(sizes[0])}" if alike else f"{len(sizes)} tensors of {sum(sizes)} B"
