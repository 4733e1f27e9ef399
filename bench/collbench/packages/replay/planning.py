"""Turn a recorded job into calls that as many ranks of this machine replay, and list what is not as recorded.

In: a `CallList`, a backend, the number of ranks. Out: a `Replay`, and the `Case` that represents it.

    all ranks recorded    each rank makes its own calls, in the groups and to the peers of the recording
    otherwise             every rank makes the calls of the lowest recorded rank

If recorded ranks made different calls, the first sentence of the report states whose calls are made. If every rank
makes the calls of one:

    group       the division of the world that contains the recorded group, else contiguous groups of its size
    all-to-all  every rank sends the parts that this rank sent
    send, recv  an exchange of the same size with the neighbours in a ring

If a format lacks a fact, the fact is assumed, and each assumption is listed in `Replay.changes`. The times at which
calls ran come only from a timeline of the device or of gloo's threads, never from enqueue times.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from collbench.catalog import collectives, subgroups
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, ranks_together
from collbench.catalog.dtypes import BYTES, DTYPES
from collbench.catalog.metrics import ONE_BY_ONE
from collbench.catalog.rules import BACKEND, FEWEST_RANKS, GROUPS, SPLITS, Facts
from collbench.config.models import Config
from collbench.model.divisions import WORLD, Division, Splits
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice, first, with_counts
from collbench.model.projection import grouped
from collbench.model.records import Case, Machine
from collbench.model.units import first_few
from collbench.packages.replay.recorded_calls import ALL_TO_ALL, ONE_WAY, CallList, RecordedCall
from collbench.packages.replay.replayed_calls import (
    NAME,
    Recording,
    Replay,
    ReplayedCall,
    ReplayedList,
    ReplayOptions,
    ReplaySettings,
    recording_in,
)
from collbench.planning.asked import Asked
from collbench.planning.cases import option_values, oversubscribed, worlds
from collbench.planning.footprint import buffer_bytes

# Most calls of one step: the stamps of a launch with more calls would not fit (`footprint.MAX_STAMP_PAIRS`).
MOST_CALLS = 20_000
# Hexadecimal digits of the hash of the calls in a key.
DIGITS = 12
# Operations whose `size` counts the shares of all ranks, not the share of one rank.
_WHOLE_OUT = {"all_gather", "all_gather_list", "gather"}
# Size of a dtype in bytes → dtype that replaces it if the backend lacks it.
_SUBSTITUTES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}


class _Step(NamedTuple):
    """The calls of one rank in one step."""

    # Position of the recorded rank that made these calls.
    recorded: int
    # World rank that makes the calls. None if the recording does not name it.
    rank: int | None
    # Position of each call among all calls of the rank, and the call.
    calls: Sequence[tuple[int, RecordedCall]]


def asked(config: Config, machine: Machine, recording: CallList) -> Asked:
    """Return the replays of a recording: a case for each backend, world size and combination of options."""
    operation = OPERATIONS[NAME]
    replays: dict[str, Replay] = {}
    cases: dict[str, Case] = {}
    for backend, n in worlds(config, machine):
        replayed = replay(recording, backend, n)
        shared = oversubscribed(config, machine, backend, n)
        for options in option_values(config, operation, n, ONE_BY_ONE):
            case = case_of(replayed, Case(NAME, backend, n, BYTES.name, 0, oversubscribed=shared, **options))
            cases[case.key], replays[str(recording_in(case))] = case, replayed
    notices = dict.fromkeys(change for replayed in replays.values() for change in replayed.changes)
    return Asked([*cases.values()], (), [*notices], ReplaySettings(replays=replays))


def replay(recorded: CallList, backend: str, world_size: int) -> Replay:
    """Return the replay of one step. Raises ForeignError for another number of ranks, or if no call can be replayed."""
    source = f"{recorded.kind}, {first_few([rank.source for rank in recorded.ranks], 1)}"
    if recorded.world_size not in {None, world_size}:
        ranks = recorded.world_size
        raise ForeignError(f"{source}: recorded on {ranks} ranks, not on {world_size}: give world_sizes: [{ranks}]")
    steps, step_notices = _last_step(recorded)
    builder = _Builder(recorded, steps, backend, world_size)
    lists, stand_in = builder.lists()
    changes = (*with_counts(builder.changed), *step_notices)
    most = max((len(made) for _, made in lists), default=0)
    if not most:
        raise ForeignError(f"{source}: no call can be replayed", *(changes or ["it has no calls"]))
    if most > MOST_CALLS:
        raise ForeignError(f"{source}: {most} calls per step; at most {MOST_CALLS} can be replayed: cut it")
    # One buffer per call between two refills: in a job, too, each call reduces different gradients.
    depths: Counter[Case] = Counter()
    for _, made in lists:
        depths |= Counter(case for _, _, case in made)
    cases, number_of = _divided(depths, world_size)
    return Replay(
        source=source,
        cases=cases,
        lists=tuple(ReplayedList(number, _in_turn(made, number_of)) for number, made in lists),
        stand_in=stand_in,
        changes=changes,
    )


def case_of(replayed: Replay, base: Case) -> Case:
    """Return the case that represents a replay, with the backend and world size of `base`.

    Its key contains a hash of the calls, not of other facts in the recording.
    """
    order = [[(call.case, call.after) for call in made.calls] for made in replayed.lists]
    cases = [asdict(case) for case in replayed.cases]
    for fields in cases:
        del fields["asked_bytes"]  # it does not distinguish cases
    content = json.dumps([cases, order], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    nbytes = sum(buffer_bytes(case, 0) for case in replayed.cases)
    recording = Recording(digest, max(len(made.calls) for made in replayed.lists))
    return collectives.usual(replace(base, op=NAME, size_bytes=nbytes, own=ReplayOptions(recording=recording)))


# ── choice of the step ───────────────────────────────────────────────────────────────────────────
STEPS_AS_ONE = Kind("steps-as-one", "all {steps} recorded steps as one: they did not make the same calls")
LAST_STEP = Kind("last-step", "of {steps} recorded steps the last one")


def _last_step(recorded: CallList) -> tuple[list[_Step], list[Notice]]:
    """Return each rank's calls of the last step if all steps of each rank made the same calls; else all calls.

    Also returns a notice on this choice if several steps were recorded.
    """
    by_rank = [grouped(enumerate(rank.calls), lambda placed: placed[1].step) for rank in recorded.ranks]
    for by_step in by_rank:
        by_step.pop(None, None)
    last = max((step for by_step in by_rank for step in by_step if step is not None), default=None)
    alike = all(
        last in by_step and len({tuple(_kind(call) for _, call in placed) for placed in by_step.values()}) == 1
        for by_step in by_rank
    )
    steps = [
        _Step(number, rank.rank, by_step[last] if alike else [*enumerate(rank.calls)])
        for number, (rank, by_step) in enumerate(zip(recorded.ranks, by_rank, strict=True))
    ]
    kind = LAST_STEP if alike else STEPS_AS_ONE
    return steps, [kind(steps=recorded.steps)] if recorded.steps > 1 else []


def _kind(call: RecordedCall) -> tuple[object, ...]:
    return call.operation, call.dtype, call.elements_in, call.elements_out, call.group, call.peer


# ── choice of the calls, and their cases ─────────────────────────────────────────────────────────
# Calls that a rank replays, each as (position among the rank's recorded calls, call, case).
Made = list[tuple[int, RecordedCall, Case]]


_LEFT_OUT = "{count} × {operation} left out: "
OTHER_HALF = Kind("other-half", "{count} × a receive is the other half of a neighbour's send")
RING = Kind("ring", "{count} × {operation} made an exchange with the neighbours in a ring")
UNKNOWN_OPERATION = Kind("unknown-operation", f"{_LEFT_OUT}CollBench does not know it")
CALLS_LEFT_OUT = Kind("calls-left-out", f"{_LEFT_OUT}{{why}}")
CALL_WITHOUT_SIZE = Kind("call-without-size", f"{_LEFT_OUT}its size was not recorded")
EMPTY_CALL = Kind("empty-call", f"{_LEFT_OUT}it moved nothing")
ROUNDED_TO_SHARES = Kind("rounded-to-shares", "{count} × {operation} rounded down to whole shares of {ranks} ranks")
NEARER_RANKS = Kind("nearer-ranks", "{count} × {operation} in groups of ranks that lie nearer to each other")
DTYPE_ASSUMED = Kind("dtype-assumed", "{count} × {operation} of an unknown dtype, taken as {dtype}")
DTYPE_REPLACED = Kind("dtype-replaced", "{count} × {dtype} sent as {other}, which {backend} has")
EQUAL_PARTS = Kind("equal-parts", "{count} × all_to_all with equal parts: its splits were not recorded")
PARTS_OF_ONE_RANK = Kind(
    "parts-of-one-rank", "{count} × all_to_all in which every rank sends the parts that this rank sent"
)


class _Builder:
    """Turns calls of ranks into cases, and counts in `changed` the differences from the recording."""

    def __init__(self, recorded: CallList, steps: Sequence[_Step], backend: str, world_size: int) -> None:
        self._recorded, self._backend, self._world_size = recorded, backend, world_size
        self._steps = [step for step in steps if step.calls]
        self.changed: Counter[Notice] = Counter()
        self._own = False  # True if calls are made in exactly the recorded groups
        # World rank → group → all-to-alls of the rank in the group, in order.
        self._exchanged = {
            rank.rank: grouped((call for call in rank.calls if call.operation in ALL_TO_ALL), lambda call: call.group)
            for rank in recorded.ranks
        }

    def lists(self) -> tuple[list[tuple[int, Made]], str]:
        """Return (position of the recorded rank, its calls) per rank of this world, or one such pair for all ranks.

        Also returns a sentence that states whose calls are made, if ranks do not make their own calls; else "".
        """
        if not self._steps:
            return [], ""
        by_rank = {step.rank: step for step in self._steps}
        reason = self._why_one_list() if self._recorded.world_size else ""
        self._own = bool(self._recorded.world_size) and not reason
        for together in (True, False) if self._own else ():
            steps = [by_rank[rank] for rank in range(self._world_size)]
            lists = [(step.recorded, self._made(_exchanges(step) if together else step)) for step in steps]
            if not (reason := _contradiction([made for _, made in lists])):
                return lists, ""
            self.changed.clear()
        self._own = False
        return [(self._steps[0].recorded, self._made(self._steps[0]))], self._stand_in(reason)

    def _stand_in(self, reason: str) -> str:
        """Return whose calls every rank makes; "" if all recorded ranks made the same calls, none of them one-way."""
        lists = {tuple(_shape(call) for _, call in step.calls) for step in self._steps}
        staged = any(call.operation in ONE_WAY for step in self._steps for _, call in step.calls)
        if len(lists) == 1 and not staged:
            return ""
        detail = f"the recorded ranks made {len(lists)} different lists" if len(lists) > 1 else "stages send to stages"
        first_rank = self._steps[0].rank or 0
        text = f"every rank makes the calls of rank {first_rank}, though {detail}: other calls are not measured"
        return f"{text} ({reason})" if reason else text

    def _why_one_list(self) -> str:
        """Return why ranks cannot make their own calls; "" if they can."""
        ranks = {step.rank for step in self._steps}
        if None in ranks:
            return "the files do not name their ranks"
        if any(
            (call.group is None and call.group_size not in {None, self._world_size})
            or (call.operation in ONE_WAY and call.peer is None)
            for step in self._steps
            for _, call in step.calls
        ):
            return "the ranks of groups, or whom sends go to, were not recorded"
        missing = {*range(self._world_size)} - ranks
        return f"{len(missing)} of {self._world_size} ranks were not recorded" if missing else ""

    def _made(self, step: _Step) -> Made:
        cases = ((place, call, self._case_of(step, call)) for place, call in step.calls)
        return [(place, call, case) for place, call, case in cases if case is not None]

    def _case_of(self, step: _Step, call: RecordedCall) -> Case | None:
        """Return the case of a call; None if the call cannot be replayed."""
        if self._own and call.peer is not None and step.rank is not None:
            pair = (min(step.rank, call.peer), max(step.rank, call.peer))
            sender = call.peer if call.operation == "recv" else step.rank
            name = "send_recv" if call.operation in ONE_WAY else call.operation
            call = replace(call, operation=name, group=pair, group_size=2, root=sender, asynchronous=True)
        elif call.operation in ONE_WAY:
            if call.operation == "recv" and any(other.operation == "send" for _, other in step.calls):
                self.changed[OTHER_HALF()] += 1
                return None
            self.changed[RING(operation=call.operation)] += 1
            call = replace(call, operation="sendrecv_ring", group=None, group_size=None)
        operation = OPERATIONS.get(call.operation)
        if operation is None or operation.rank is not None or (operation.sized and not operation.typed):
            self.changed[UNKNOWN_OPERATION(operation=call.operation)] += 1
            return None
        case = self._sized(step, call)
        if case is None:
            return None
        reason = first((FEWEST_RANKS, *GROUPS, *BACKEND, *SPLITS), Facts(case))
        if reason is not None:
            self.changed[CALLS_LEFT_OUT(operation=call.operation, why=(reason,))] += 1
            return None
        return case

    def _sized(self, step: _Step, call: RecordedCall) -> Case | None:
        """Return the case of a call with its size, parts and root; None without a size. Backend limits are ignored."""
        groups, dtype, op = self._groups(call), self._dtype(call), call.operation
        case = collectives.usual(Case(op, self._backend, self._world_size, dtype, 0, buffers="hot", groups=groups))
        if not OPERATIONS[op].sized:
            return case
        together, itemsize, splits, root = ranks_together(case), DTYPES[dtype].itemsize, None, 0
        elements = _whole_elements(call, call.group_size or self._world_size)
        if elements is None:
            self.changed[CALL_WITHOUT_SIZE(operation=op)] += 1
            return None
        # Without a dtype, elements are bytes.
        nbytes = elements // itemsize * itemsize if call.dtype is None else elements * itemsize
        if op in ALL_TO_ALL:
            op, splits = "all_to_all", self._splits(step, call, together)
        operation = OPERATIONS[op]
        if remainder := nbytes % (operation.pieces(together) * itemsize):
            self.changed[ROUNDED_TO_SHARES(operation=call.operation, ranks=together)] += 1
            nbytes -= remainder
        if not nbytes:
            self.changed[EMPTY_CALL(operation=call.operation)] += 1
            return None
        if operation.rooted and call.root is not None:
            root = call.group.index(call.root) if call.group and call.root in call.group else call.root
        mode = "async" if call.asynchronous and "async" in operation.calls else case.call
        return replace(case, op=op, size_bytes=nbytes, splits=splits, root=root % together, call=mode)

    def _groups(self, call: RecordedCall) -> Division:
        """Return the group of a call, or the division of this world that contains it, else one of groups of its size.

        This number of ranks may not be divisible into groups of this size.
        """
        size = len(call.group) if call.group else call.group_size
        if size in {None, self._world_size} or self._world_size == 1 or (self._own and call.group is None):
            return WORLD
        if self._own:
            return subgroups.of_sets([call.group or ()])
        if call.group is not None:
            for division, groups in _divisions_like(call.group, self._world_size):
                if call.group in groups:
                    return division
            self.changed[NEARER_RANKS(operation=call.operation)] += 1
        return Division("contiguous", size or 1)

    def _dtype(self, call: RecordedCall) -> str:
        if call.dtype is None:
            if not OPERATIONS[call.operation].typed:
                return "uint8"
            dtype = "float32" if OPERATIONS[call.operation].reduces else "uint8"
            self.changed[DTYPE_ASSUMED(operation=call.operation, dtype=dtype)] += 1
            return dtype
        backend = BACKENDS[self._backend]
        lacking = backend.unsupported_dtypes | (
            backend.unsupported_reduce_dtypes if OPERATIONS[call.operation].reduces else frozenset()
        )
        if call.dtype not in lacking:
            return call.dtype
        other = _SUBSTITUTES[DTYPES[call.dtype].itemsize]
        self.changed[DTYPE_REPLACED(dtype=call.dtype, other=other, backend=self._backend)] += 1
        return other

    def _splits(self, step: _Step, call: RecordedCall, together: int) -> Splits | None:
        """Return the parts from each rank to each rank, as recorded or with one rank's parts for all; None if equal."""
        if call.splits_in is None:
            self.changed[EQUAL_PARTS()] += 1
            return None
        rows = self._recorded_rows(step, call)
        if rows is None or not len(rows) == len(rows[0]) == together:
            if len(set(call.splits_in)) <= 1:
                return None
            self.changed[PARTS_OF_ONE_RANK()] += 1
            rows = [list(call.splits_in)] * len(call.splits_in)
        if len({part for row in rows for part in row}) <= 1:
            return None
        return Splits("rows", rows=tuple(map(tuple, rows)))

    def _recorded_rows(self, step: _Step, call: RecordedCall) -> list[list[int]] | None:
        """Return the parts that each rank of the group sent in the same call; None if they are not all recorded.

        Calls of ranks are matched by their position among the all-to-alls of the group, if sequence numbers agree.
        """
        members = call.group or range(self._recorded.world_size or 0)
        own = self._exchanged[step.rank].get(call.group, [])
        nth = next((n for n, other in enumerate(own) if other is call), len(own))
        lists = [self._exchanged.get(member, {}).get(call.group, [])[nth : nth + 1] for member in members]
        rows = [list(other.splits_in or ()) for same in lists for other in same if other.sequence == call.sequence]
        return rows if len(rows) == len(members) and all(rows) else None


def _shape(call: RecordedCall) -> tuple[object, ...]:
    """Return the fields that are equal if ranks make the same call, each in its own group."""
    size = len(call.group) if call.group else call.group_size
    return call.operation, call.dtype, call.elements_in, size


def _exchanges(step: _Step) -> _Step:
    """Merge each send with an adjacent receive of the same size, dtype and peer into one exchange.

    A job makes both at once (`batch_isend_irecv`). Made one after the other, both ranks would wait for each other.
    """
    calls = list[tuple[int, RecordedCall]]()
    for place, call in step.calls:
        earlier, before = calls[-1] if calls else (place, call)
        sent, received = ((each.peer, each.dtype, each.elements_in or each.elements_out) for each in (before, call))
        if {before.operation, call.operation} == ONE_WAY and sent == received:
            calls[-1] = earlier, replace(before, operation="sendrecv_pair")
        else:
            calls.append((place, call))
    return step._replace(calls=calls)


def _contradiction(lists: Sequence[Made]) -> str:
    """Return why the calls of ranks do not match; "" if all members of each group make the same calls in it."""
    cases_by_group: dict[tuple[int, ...], dict[int, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for rank, made in enumerate(lists):
        for _, _, case in made:
            if rank not in _members(case):
                return f"rank {rank} calls in a group that it is not in"
            cases_by_group[_members(case)][rank].append(case)
    for members, by_rank in cases_by_group.items():
        first = by_rank[members[0]]
        for member in members:
            calls = by_rank[member]
            one_way = any(case.op == "send_recv" for case in (*calls, *first))
            if calls != first and not (one_way and Counter(calls) == Counter(first)):
                return f"ranks {members[0]} and {member} did not make the same calls in their group"
    return ""


def _members(case: Case) -> tuple[int, ...]:
    """Return the ranks of a case that has one group."""
    return subgroups.divide(case.groups, case.world_size).groups[0]


def _divided(depths: Mapping[Case, int], world_size: int) -> tuple[tuple[Case, ...], dict[Case, int]]:
    """Merge cases that differ only in their group into one case of all these groups, so that a rank has one buffer set.

    Returns the merged cases with their depths, and for each given case the position of its merged case.
    """
    cases, number_of = list[Case](), dict[Case, int]()
    for alike in grouped(depths, lambda case: replace(case, groups=WORLD) if case.groups.sets else case).values():
        rows = list[list[Case]]()
        for case in alike:
            free = (row for row in rows if not any(set(_members(case)) & set(_members(other)) for other in row))
            if (row := next(free, None)) is None:
                rows.append(row := [])
            row.append(case)
        for row in rows:
            number_of |= dict.fromkeys(row, len(cases))
            groups = row[0].groups
            if groups.sets:
                sets = sorted(map(_members, row))
                regular = _divisions_like(sets[0], world_size)
                groups = next((known for known, inside in regular if sorted(inside) == sets), subgroups.of_sets(sets))
            cases.append(replace(row[0], groups=groups, depth=max(depths[case] for case in row)))
    return tuple(cases), number_of


def _divisions_like(group: Sequence[int], world_size: int) -> Iterator[tuple[Division, Sequence[tuple[int, ...]]]]:
    """Yield the divisions of the world into groups of this size and at equal distances, and the groups of each."""
    size, stride = len(group), group[-1] - group[-2] if len(group) > 1 else 1
    for division in (Division("contiguous", size), Division("strided", size), Division("strided", size, stride)):
        if subgroups.divisible(division, world_size):
            yield division, subgroups.divide(division, world_size).groups


def _whole_elements(call: RecordedCall, ranks: int) -> int | None:
    """Return the number of elements that `size` counts (see `operations`); None if it was not recorded."""
    into, out = call.elements_in, call.elements_out
    if call.operation in _WHOLE_OUT:
        if call.operation != "gather" and out:
            return out
        return into * ranks if into is not None else out
    if call.operation == "scatter":
        return out * ranks if out is not None else into
    return into if into else out


# ── order of the calls ──────────────────────────────────────────────────────────────────────────
def _in_turn(made: Made, number_of: Mapping[Case, int]) -> tuple[ReplayedCall, ...]:
    """Return the calls of a rank. Before a call, the rank waits for asynchronous calls that ended before it began."""
    calls, under_way = [], dict[int, float]()
    for at, (place, call, case) in enumerate(made):
        began = call.ran_s
        ended = {earlier: end for earlier, end in under_way.items() if began is not None and end <= began}
        calls.append(ReplayedCall(number_of[case], place, tuple(sorted(ended))))
        under_way = {earlier: end for earlier, end in under_way.items() if earlier not in ended}
        if began is not None and call.duration_s is not None and case.call == "async":
            under_way[at] = began + call.duration_s
    return tuple(calls)
