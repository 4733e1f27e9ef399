"""Make of a recorded job the calls that ranks of this machine make again, and say what is not as recorded.

In: a `CallList`, a backend, a number of ranks. Out: a `Replay`, and the `Case` that stands for it. Every rank makes the
calls of one recorded rank, the lowest one, each in its own group, as in data-, tensor- and expert-parallel training.
With fewer ranks than recorded:

    group       of s ranks, S apart: at most all ranks, at the same distance where that divides them
    size        what all ranks of a group hold together stays: a parameter that is gathered, a gradient that is reduced
    all-to-all  a rank sends as much as it did; parts for ranks that are not there go to those that are, in turn
    send, recv  an exchange with the neighbours in a ring, of the same size

What a format does not tell is assumed, never quietly: each assumption is one of `Replay.changes`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

from bench.catalog import operations, subgroups
from bench.catalog.backends import BACKENDS, unsupported_by_backend
from bench.catalog.dtypes import DTYPES, unsupported_reduction
from bench.catalog.operations import OPERATIONS, REPLAY, ranks_together
from bench.model.errors import ForeignError
from bench.model.recorded_calls import CallList, RankRecording, RecordedCall
from bench.model.records import Case, Replay, ReplayedCall
from bench.planning.footprint import buffer_bytes

# Calls of one step beyond which stamps of a launch would not fit (`footprint.MAX_STAMP_PAIRS`).
MOST_CALLS = 20_000
# Hexadecimal digits of the hash of the calls in a key.
DIGITS = 12
# Of which each rank has all parts before or after the call: the size that stays.
_WHOLE_OUT = {"all_gather", "all_gather_list", "gather"}
_ONE_WAY = {"send", "recv"}
# dtype that takes the place of one that the backend lacks, by size in bytes.
_SUBSTITUTES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}


def replay(recorded: CallList, backend: str, world_size: int, gaps: bool = False) -> Replay:
    """The calls of one step. Raises ForeignError if nothing of the recording can be made again."""
    chosen = next(rank for rank in recorded.ranks if rank.calls)
    builder = _ReplayBuilder(recorded, chosen, backend, world_size)
    kept = [(call, case) for call in builder.step if (case := builder.case_of(call)) is not None]
    changes = builder.changes()
    if not kept:
        raise ForeignError(f"{chosen.source}: nothing can be made again: {'; '.join(changes) or 'it has no calls'}")
    if len(kept) > MOST_CALLS:
        raise ForeignError(f"{chosen.source}: {len(kept)} calls a step; at most {MOST_CALLS} can be replayed: cut it")
    counts = Counter(case for _, case in kept)
    numbers = {case: number for number, case in enumerate(counts)}
    first_s = next((start for call, _ in kept if (start := _began(call)) is not None), 0.0)
    calls, previous = [], None
    under_way: dict[int, float] = {}  # asynchronous call → when it ended in the recording
    for place, (call, case) in enumerate(kept):
        ended = {at: end_s for at, end_s in under_way.items() if call.start_s is not None and end_s <= call.start_s}
        pause_s = _pause(previous, call, max(ended.values(), default=None)) if gaps else 0.0
        began = _began(call)
        start_s = None if began is None else began - first_s
        after = tuple(sorted(ended))
        calls.append(ReplayedCall(numbers[case], after, pause_s, start_s, call.duration_s, call.stream or ""))
        under_way = {at: end_s for at, end_s in under_way.items() if at not in ended}
        if case.call == "async" and (end := _ended(call)) is not None:
            under_way[place] = end
        previous = call
    return Replay(
        source=f"{recorded.kind}, {chosen.source}",
        # A buffer for each of the calls between two refills: a job, too, reduces other gradients in each call.
        cases=tuple(replace(case, depth=count) for case, count in counts.items()),
        calls=tuple(calls),
        recorded_world=recorded.world_size,
        rank=chosen.rank,
        gaps=gaps,
        changes=tuple(changes),
    )


def case_of(replayed: Replay, base: Case) -> Case:
    """The case that stands for a replay, of a backend and world size as `base`.

    Its key has a hash of the calls and pauses, not of what was recorded of them.
    """
    order = [(call.case, call.after, round(call.pause_s, 9)) for call in replayed.calls]
    content = json.dumps([[asdict(case) for case in replayed.cases], order], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    held = sum(buffer_bytes(case, 0) for case in replayed.cases)
    recording = f"{digest}:{len(replayed.calls)}"
    return operations.usual(replace(base, op=REPLAY, size_bytes=held, recording=recording))


class _ReplayBuilder:
    """Turns calls of one rank into cases, and counts what had to be changed. step: the calls that are made again."""

    def __init__(self, recorded: CallList, chosen: RankRecording, backend: str, world_size: int) -> None:
        self._recorded, self._chosen, self._backend, self._world_size = recorded, chosen, backend, world_size
        self._changed: Counter[str] = Counter()
        self.step = _last_step(chosen.calls, recorded.steps)
        self._places = {id(call): place for place, call in enumerate(self.step)}
        self._sends = any(call.operation == "send" for call in self.step)

    def changes(self) -> list[str]:
        """What is not as recorded, in sentences."""
        world = self._recorded.world_size
        changes = []
        if world is not None and world != self._world_size:
            changes.append(f"recorded on {world} ranks, made again on {self._world_size}")
        changes += self._recorded.notes
        if len(self.step) < len(self._chosen.calls):
            changes.append(f"of {self._recorded.steps} recorded steps the last one")
        return changes + [f"{count} × {what}" for what, count in self._changed.items()]

    def case_of(self, call: RecordedCall) -> Case | None:
        """The case of a call; None if it cannot be made again."""
        if call.operation in _ONE_WAY:
            if call.operation == "recv" and self._sends:
                self._changed["a receive is the other half of a neighbour's send"] += 1
                return None
            self._changed[f"{call.operation} made an exchange with the neighbours in a ring"] += 1
            call = replace(call, operation="sendrecv_ring", group=None, group_size=None)
        operation = OPERATIONS.get(call.operation)
        if operation is None or operation.recorded or (operation.sized and not operation.typed):
            self._changed[f"{call.operation} left out: it is not known here"] += 1
            return None
        case = self._sized(call)
        if case is None:
            return None
        together = ranks_together(case)
        if OPERATIONS[case.op].reduces and unsupported_reduction(case.dtype, case.reduce_op, together) is not None:
            # A sum is assumed; over so many ranks it could not be verified.
            self._changed[f"{case.op} of {case.dtype} reduced by max: a sum over so many ranks is not exact"] += 1
            case = replace(case, reduce_op="max")
        fewest = OPERATIONS[case.op].fewest_ranks
        reason = f"it needs {fewest} ranks" if together < fewest else unsupported_by_backend(case)
        if reason is not None:
            self._changed[f"{call.operation} left out: {reason}"] += 1
            return None
        return case

    def _sized(self, call: RecordedCall) -> Case | None:
        """The case of a call with its size, parts and root, before what the backend can do is asked."""
        groups, dtype = self._groups(call), self._dtype(call)
        case = operations.usual(
            Case(call.operation, self._backend, self._world_size, dtype, 0, buffers="hot", groups=groups)
        )
        if not OPERATIONS[call.operation].sized:
            return case
        together = ranks_together(case)
        elements = _whole_elements(call, call.group_size or self._recorded.world_size or self._world_size)
        if elements is None:
            self._changed[f"{call.operation} left out: its size was not recorded"] += 1
            return None
        itemsize = DTYPES[dtype].itemsize
        # Without a dtype, elements are bytes.
        nbytes = elements // itemsize * itemsize if call.dtype is None else elements * itemsize
        case = replace(case, size_bytes=nbytes)
        if case.op in {"all_to_all", "all_to_all_list", "all_to_all_uneven"}:
            case = replace(case, op="all_to_all", splits=self._splits(call, together))
        unit = OPERATIONS[case.op].pieces(together) * itemsize
        if case.size_bytes % unit:
            self._changed[f"{call.operation} rounded down to whole shares of {together} ranks"] += 1
            case = replace(case, size_bytes=case.size_bytes // unit * unit)
        if not case.size_bytes:
            self._changed[f"{call.operation} left out: it moved nothing"] += 1
            return None
        if OPERATIONS[case.op].rooted and call.root is not None:
            within = call.group.index(call.root) if call.group and call.root in call.group else call.root
            case = replace(case, root=within % together)
        if "async" in OPERATIONS[case.op].calls and self._asynchronous(call):
            case = replace(case, call="async")
        return case

    def _groups(self, call: RecordedCall) -> str:
        """The division of this world that is like the recorded one."""
        size = len(call.group) if call.group else call.group_size
        if size is None or self._world_size == 1:
            return subgroups.WORLD
        world = self._recorded.world_size or size
        if size >= min(world, self._world_size):
            return subgroups.WORLD
        stride = call.group[1] - call.group[0] if call.group and len(call.group) > 1 else 1
        spread = [f"strided:{size}@{stride}", f"strided:{size}"] if stride > 1 else []
        for text in (*spread, f"contiguous:{size}"):
            if subgroups.unsupported(text, self._world_size) is None:
                if stride > 1 and "@" not in text:
                    self._changed[f"{call.operation} in groups of ranks that lie nearer to each other"] += 1
                return text
        self._changed[f"{call.operation} in the whole world: groups of {size} do not divide it"] += 1
        return subgroups.WORLD

    def _dtype(self, call: RecordedCall) -> str:
        if call.dtype is None:
            if not OPERATIONS[call.operation].typed:
                return "uint8"
            dtype = "float32" if OPERATIONS[call.operation].reduces else "uint8"
            self._changed[f"{call.operation} of an unknown dtype, taken as {dtype}"] += 1
            return dtype
        backend = BACKENDS[self._backend]
        lacking = backend.unsupported_dtypes | (
            backend.unsupported_reduce_dtypes if OPERATIONS[call.operation].reduces else frozenset()
        )
        if call.dtype not in lacking:
            return call.dtype
        other = _SUBSTITUTES[DTYPES[call.dtype].itemsize]
        self._changed[f"{call.dtype} sent as {other}, which {self._backend} has"] += 1
        return other

    def _splits(self, call: RecordedCall, together: int) -> str:
        """The parts from each rank to each rank: as all ranks recorded them, or all alike; "" for equal parts."""
        if call.splits_in is None:
            self._changed["all_to_all with equal parts: its splits were not recorded"] += 1
            return ""
        if len(set(call.splits_in)) <= 1:
            return ""
        rows = self._recorded_rows(call)
        if rows is None or not len(rows) == len(call.splits_in) == together:
            row = [0] * together
            for number, part in enumerate(call.splits_in):
                row[number % together] += part
            self._changed["all_to_all in which every rank sends the parts that this rank sent"] += 1
            rows = [row] * together
        return "rows:" + ";".join(",".join(map(str, row)) for row in rows)

    def _recorded_rows(self, call: RecordedCall) -> list[list[int]] | None:
        """The parts that each recorded rank sent in the same call; None unless all are recorded."""
        place = len(self._chosen.calls) - len(self.step) + self._places[id(call)]
        rows = []
        for rank in self._recorded.ranks:
            other = rank.calls[place] if place < len(rank.calls) else None
            if other is None or other.operation != call.operation or not other.splits_in:
                return None
            rows.append(list(other.splits_in))
        return rows

    def _asynchronous(self, call: RecordedCall) -> bool:
        """As recorded; if that was not told, whether the next call was made before this one ended."""
        if call.asynchronous is not None:
            return call.asynchronous
        ends, place = _ended(call), self._places[id(call)] + 1
        after = self.step[place].start_s if place < len(self.step) else None
        return ends is not None and after is not None and after < ends


def _whole_elements(call: RecordedCall, ranks: int) -> int | None:
    """Elements of what `size` counts (`operations`); None if they were not recorded."""
    into, out = call.elements_in, call.elements_out
    if call.operation in _WHOLE_OUT:
        if call.operation != "gather" and out:
            return out
        return into * ranks if into is not None else out
    if call.operation == "scatter":
        return out * ranks if out is not None else into
    return into if into else out


def _began(call: RecordedCall) -> float | None:
    return call.start_s if call.ran_s is None else call.ran_s


def _ended(call: RecordedCall) -> float | None:
    began = _began(call)
    return None if began is None or call.duration_s is None else began + call.duration_s


def _pause(before: RecordedCall | None, call: RecordedCall, waited_until_s: float | None) -> float:
    """Seconds between the last that the rank waited for, or the return of the call before, and this call.

    A call that ran where it was made returned at its end. waited_until_s: when the last of the asynchronous calls ended
    that are waited for before this one.
    """
    if before is None or before.start_s is None or call.start_s is None:
        return 0.0
    blocking = before.ran_s is None or before.ran_s == before.start_s
    ended = _ended(before) if blocking and not before.asynchronous else None
    known = [at for at in (before.start_s, ended, waited_until_s) if at is not None]
    return max(0.0, call.start_s - max(known))


def _last_step(calls: Sequence[RecordedCall], steps: int) -> Sequence[RecordedCall]:
    """The calls of the last step, if all steps made the same calls; else all of them."""
    if steps < 2 or len(calls) % steps:
        return calls
    size = len(calls) // steps
    kinds = [(call.operation, call.dtype, call.elements_in, call.elements_out) for call in calls]
    same = all(kinds[at : at + size] == kinds[-size:] for at in range(0, len(kinds), size))
    return calls[-size:] if same else calls
