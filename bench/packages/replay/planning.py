"""Turn a recorded job into calls that ranks of this machine make again, and list what differs from the recording.

In: a `CallList`, a backend, a number of ranks. Out: a `Replay`, and the `Case` that stands for it.

    as many ranks, all recorded    each rank makes its own calls, in the groups and to the peers of the recording
    otherwise                      every rank makes the calls of one rank, the lowest recorded one, scaled as below

The latter is said in the first sentence wherever ranks made different calls. With fewer ranks than recorded:

    group       of s ranks, S apart: at most all ranks, at the same distance where that divides them
    size        what all ranks of a group hold together stays: a parameter that is gathered, a gradient that is reduced
    all-to-all  a rank sends as much as it did; parts for ranks that are not there go to those that are, in turn
    send, recv  an exchange with the neighbours in a ring, of the same size

What a format does not tell is assumed, never quietly: each assumption is one of `Replay.changes`. When calls ran is
taken from a timeline of the device only, never from when they were enqueued.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.catalog import collectives, subgroups
from bench.catalog.backends import BACKENDS, unsupported_by_backend
from bench.catalog.collectives import OPERATIONS, ranks_together
from bench.catalog.dtypes import BYTES, DTYPES
from bench.catalog.metrics import ONE_BY_ONE
from bench.config.models import Config
from bench.model.divisions import WORLD, Division, Splits
from bench.model.errors import ForeignError
from bench.model.notices import Notice, SkipNotice, notice, with_counts
from bench.model.projection import grouped
from bench.model.records import Case, Machine, Plan
from bench.model.units import first_few
from bench.packages.replay.config import ReplaySection
from bench.packages.replay.recorded_calls import ALL_TO_ALL, ONE_WAY, CallList, RecordedCall
from bench.packages.replay.replayed_calls import (
    NAME,
    ChangeNotice,
    Recording,
    Replay,
    ReplayedCall,
    ReplayedList,
    ReplayOptions,
    ReplaySettings,
    recording_in,
)
from bench.planning.cases import option_values, oversubscribed, worlds
from bench.planning.footprint import buffer_bytes
from bench.planning.parts import Expansion, PlanningPart

# Calls of one step beyond which stamps of a launch would not fit (`footprint.MAX_STAMP_PAIRS`).
MOST_CALLS = 20_000
# Hexadecimal digits of the hash of the calls in a key.
DIGITS = 12
# Operations whose `size` counts all shares, not one rank's.
_WHOLE_OUT = {"all_gather", "all_gather_list", "gather"}
# dtype that takes the place of one that the backend lacks, by size in bytes.
_SUBSTITUTES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}


@dataclass(frozen=True, slots=True)
class _Step:
    """The calls of one rank in one step."""

    # Position of the recorded rank whose calls they are.
    recorded: int
    # World rank that makes the calls. None if the recording does not name it.
    rank: int | None
    # Positions of the calls among those of the rank.
    places: tuple[int, ...]
    calls: tuple[RecordedCall, ...]


def expand(config: Config, machine: Machine, kept: Mapping[str, CallList]) -> Expansion:
    """The replays of the section, a case for each backend, world size and combination of options."""
    section, operation = config.section(ReplaySection), OPERATIONS[NAME]
    if section is None:
        return Expansion()
    replays: dict[str, Replay] = {}
    cases: dict[str, Case] = {}
    for backend, n in worlds(config, machine):
        replayed = replay(kept[NAME], backend, n, section.gaps == "recorded")
        shared = oversubscribed(config, machine, backend, n)
        for options in option_values(config, operation, n):
            options["metric"] = ONE_BY_ONE
            case = case_of(replayed, Case(NAME, backend, n, BYTES.name, 0, oversubscribed=shared, **options))
            cases[case.key], replays[str(recording_in(case))] = case, replayed

    def complete(plan: Plan) -> Plan:
        own = ReplaySettings(replays=replays).needed_by([case for case in plan.cases if case.op == NAME])
        return replace(plan, settings=replace(plan.settings, own={**plan.settings.own, NAME: own}))

    return Expansion(unchecked=list(cases.values()), complete=complete)


def replay(recorded: CallList, backend: str, world_size: int, gaps: bool = False) -> Replay:
    """The calls of one step. Raises ForeignError if none of them can be made again, or if no gaps are known."""
    calls = [call for rank in recorded.ranks for call in rank.calls]
    if gaps and not any(call.ran_s is not None for call in calls):
        raise ForeignError(
            f"{recorded.ranks[0].source}: gaps: recorded: the file does not say when calls ran; only a timeline of the "
            f"device or of gloo's threads does (Kineto), and a {recorded.kind} has none; allowed: none"
        )
    steps, of_step = _last_step(recorded)
    builder = _Builder(recorded, steps, backend, world_size)
    lists, stand_in = builder.lists()
    kept = [case for made in lists for _, _, case in made[1]]
    changes = (*builder.changes(), *of_step)
    source = f"{recorded.kind}, {_sources(recorded)}"
    if not kept:
        raise ForeignError(f"{source}: nothing can be made again", *(changes or ["it has no calls"]))
    if (most := max(len(made) for _, made in lists)) > MOST_CALLS:
        raise ForeignError(f"{source}: {most} calls a step; at most {MOST_CALLS} can be replayed: cut it")
    # A buffer for each of the calls between two refills: a job, too, reduces other gradients in each call.
    depths: Counter[Case] = Counter()
    for _, made in lists:
        depths |= Counter(case for _, _, case in made)
    cases, number_of = _divided(list(depths.items()), world_size)
    return Replay(
        source=source,
        cases=cases,
        lists=tuple(ReplayedList(number, _in_turn(made, number_of, gaps)) for number, made in lists),
        recorded_world=recorded.world_size,
        stand_in=stand_in,
        gaps=gaps,
        changes=changes,
    )


def case_of(replayed: Replay, base: Case) -> Case:
    """The case that stands for a replay, of a backend and world size as `base`.

    Its key has a hash of the calls and pauses, not of what was recorded of them.
    """
    order = [[(call.case, call.after, round(call.pause_s, 9)) for call in made.calls] for made in replayed.lists]
    cases = [asdict(replace(case, asked_bytes=0)) for case in replayed.cases]
    for fields in cases:
        del fields["asked_bytes"]  # it tells no cases apart
    content = json.dumps([cases, order], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    held = sum(buffer_bytes(case, 0) for case in replayed.cases)
    recording = Recording(digest, max(len(made.calls) for made in replayed.lists))
    return collectives.usual(replace(base, op=NAME, size_bytes=held, own=ReplayOptions(recording=recording)))


def _sources(recorded: CallList) -> str:
    return first_few([rank.source for rank in recorded.ranks], 1)


# ── which step ───────────────────────────────────────────────────────────────────────────────────
def _last_step(recorded: CallList) -> tuple[list[_Step], list[Notice]]:
    """Each rank's calls of the last step, if on each rank all steps made the same calls; else all calls.

    With what is to be said of it.
    """
    last = max((call.step for rank in recorded.ranks for call in rank.calls if call.step is not None), default=None)
    steps = []
    for number, rank in enumerate(recorded.ranks):
        by_step = grouped(enumerate(rank.calls), lambda placed: placed[1].step)
        by_step.pop(None, None)
        kinds = {tuple(_kind(call) for _, call in placed) for placed in by_step.values()}
        if last is None or len(kinds) != 1 or last not in by_step:
            last = None
            break
        places, calls = zip(*by_step[last], strict=True)
        steps.append(_Step(number, rank.rank, places, calls))
    if last is None:
        whole = [
            _Step(number, rank.rank, tuple(range(len(rank.calls))), rank.calls)
            for number, rank in enumerate(recorded.ranks)
        ]
        return whole, [notice(ChangeNotice.STEPS_AS_ONE, steps=recorded.steps)] if recorded.steps > 1 else []
    return steps, [notice(ChangeNotice.LAST_STEP, steps=recorded.steps)] if recorded.steps > 1 else []


def _kind(call: RecordedCall) -> tuple[object, ...]:
    return call.operation, call.dtype, call.elements_in, call.elements_out, call.group, call.peer


# ── whose calls, as which cases ──────────────────────────────────────────────────────────────────
# The calls that a rank makes again: position among the rank's calls, the call, its case.
Made = list[tuple[int, RecordedCall, Case]]


class _Builder:
    """Turns calls of ranks into cases, and counts what had to be changed."""

    def __init__(self, recorded: CallList, steps: Sequence[_Step], backend: str, world_size: int) -> None:
        self._recorded, self._backend, self._world_size = recorded, backend, world_size
        self._steps = [step for step in steps if step.calls]
        self._changed: Counter[Notice] = Counter()
        self._own = False  # whether calls are made in the very groups of the recording

    def changes(self) -> list[Notice]:
        """What differs from the recording."""
        world = self._recorded.world_size
        others = world is not None and world != self._world_size
        changes = [notice(ChangeNotice.OTHER_WORLD, recorded=world, ranks=self._world_size)] if others else []
        return changes + with_counts(self._changed)

    def lists(self) -> tuple[list[tuple[int, Made]], str]:
        """(position of the recorded rank, its calls) for each rank of this world, or once for all of them.

        Also returns the sentence on whose calls are made, if ranks make other calls than in the job.
        """
        reason = ""
        if self._recorded.world_size == self._world_size:
            steps, reason = self._steps_of_ranks()
            for together in (True, False) if steps else ():
                self._own = True
                lists = [(step.recorded, self._made(_exchanges(step) if together else step)) for step in steps]
                if not (reason := _contradiction([made for _, made in lists], self._world_size)):
                    return lists, ""
                self._changed.clear()
        self._own = False
        return [(self._steps[0].recorded, self._made(self._steps[0]))], self._stand_in(reason)

    def _stand_in(self, reason: str) -> str:
        """Whose calls every rank makes, if ranks made different calls, or may have."""
        who = self._steps[0].rank
        lists = {tuple(_shape(call) for call in step.calls) for step in self._steps}
        staged = any(call.operation in ONE_WAY for step in self._steps for call in step.calls)
        if len(lists) == 1 and not staged:
            return ""
        others = f"the recorded ranks made {len(lists)} different lists" if len(lists) > 1 else "stages send to stages"
        text = (
            f"every rank makes the calls of rank {who or 0}, though {others}: what others did is not in these numbers"
        )
        return f"{text} ({reason})" if reason else text

    def _steps_of_ranks(self) -> tuple[list[_Step], str]:
        """The calls of each rank of the world; or none, and why there are none."""
        by_rank = {step.rank: step for step in self._steps}
        if None in by_rank:
            return [], "the files do not name their ranks"
        if any(
            (call.group is None and call.group_size not in {None, self._world_size})
            or (call.operation in ONE_WAY and call.peer is None)
            for step in self._steps
            for call in step.calls
        ):
            return [], "the ranks of groups, or whom sends go to, were not recorded"
        missing = [rank for rank in range(self._world_size) if rank not in by_rank]
        if missing:
            return [], f"{len(missing)} of {self._world_size} ranks were not recorded"
        return [by_rank[rank] for rank in range(self._world_size)], ""

    def _made(self, step: _Step) -> Made:
        kept = zip(step.places, step.calls, strict=True)
        return [(place, call, case) for place, call in kept if (case := self._case_of(step, place, call)) is not None]

    def _case_of(self, step: _Step, place: int, call: RecordedCall) -> Case | None:
        """The case of a call; None if it cannot be made again."""
        if self._own and call.peer is not None and step.rank is not None:
            pair = (min(step.rank, call.peer), max(step.rank, call.peer))
            sender = call.peer if call.operation == "recv" else step.rank
            name = "send_recv" if call.operation in ONE_WAY else call.operation
            call = replace(call, operation=name, group=pair, group_size=2, root=sender, asynchronous=True)
        elif call.operation in ONE_WAY:
            if call.operation == "recv" and any(other.operation == "send" for other in step.calls):
                self._changed[notice(ChangeNotice.OTHER_HALF)] += 1
                return None
            self._changed[notice(ChangeNotice.RING, operation=call.operation)] += 1
            call = replace(call, operation="sendrecv_ring", group=None, group_size=None)
        operation = OPERATIONS.get(call.operation)
        if operation is None or operation.rank is not None or (operation.sized and not operation.typed):
            self._changed[notice(ChangeNotice.UNKNOWN_OPERATION, operation=call.operation)] += 1
            return None
        case = self._sized(step, place, call)
        if case is None:
            return None
        fewest = OPERATIONS[case.op].fewest_ranks
        reason = unsupported_by_backend(case)
        if ranks_together(case) < fewest:
            reason = notice(SkipNotice.FEWEST_RANKS, op=case.op, fewest=fewest)
        if reason is not None:
            self._changed[notice(ChangeNotice.LEFT_OUT, operation=call.operation, why=(reason,))] += 1
            return None
        return case

    def _sized(self, step: _Step, place: int, call: RecordedCall) -> Case | None:
        """The case of a call with its size, parts and root, before what the backend can do is asked."""
        groups, dtype = self._groups(call), self._dtype(call)
        case = collectives.usual(
            Case(call.operation, self._backend, self._world_size, dtype, 0, buffers="hot", groups=groups)
        )
        if not OPERATIONS[call.operation].sized:
            return case
        together = ranks_together(case)
        elements = _whole_elements(call, call.group_size or self._recorded.world_size or self._world_size)
        if elements is None:
            self._changed[notice(ChangeNotice.NO_SIZE, operation=call.operation)] += 1
            return None
        itemsize = DTYPES[dtype].itemsize
        # Without a dtype, elements are bytes.
        nbytes = elements // itemsize * itemsize if call.dtype is None else elements * itemsize
        case = replace(case, size_bytes=nbytes)
        if case.op in ALL_TO_ALL:
            case = replace(case, op="all_to_all", splits=self._splits(step, place, call, together))
        unit = OPERATIONS[case.op].pieces(together) * itemsize
        if case.size_bytes % unit:
            self._changed[notice(ChangeNotice.ROUNDED, operation=call.operation, ranks=together)] += 1
            case = replace(case, size_bytes=case.size_bytes // unit * unit)
        if not case.size_bytes:
            self._changed[notice(ChangeNotice.EMPTY, operation=call.operation)] += 1
            return None
        if OPERATIONS[case.op].rooted and call.root is not None:
            within = call.group.index(call.root) if call.group and call.root in call.group else call.root
            case = replace(case, root=within % together)
        if "async" in OPERATIONS[case.op].calls and call.asynchronous:
            case = replace(case, call="async")
        return case

    def _groups(self, call: RecordedCall) -> Division:
        """The group of a call, or the division of this world that is like the recorded one."""
        size = len(call.group) if call.group else call.group_size
        if size is None or self._world_size == 1:
            return WORLD
        if self._own:
            whole = call.group is None or size == self._world_size
            return WORLD if whole else subgroups.of_sets([call.group or ()])
        world = self._recorded.world_size or size
        if size >= min(world, self._world_size):
            return WORLD
        stride = call.group[1] - call.group[0] if call.group and len(call.group) > 1 else 1
        spread = [Division("strided", size, stride), Division("strided", size)] if stride > 1 else []
        for division in (*spread, Division("contiguous", size)):
            if subgroups.unsupported(division, self._world_size) is None:
                if stride > 1 and not division.stride:
                    self._changed[notice(ChangeNotice.NEARER_RANKS, operation=call.operation)] += 1
                return division
        self._changed[notice(ChangeNotice.WHOLE_WORLD, operation=call.operation, group=size)] += 1
        return WORLD

    def _dtype(self, call: RecordedCall) -> str:
        if call.dtype is None:
            if not OPERATIONS[call.operation].typed:
                return "uint8"
            dtype = "float32" if OPERATIONS[call.operation].reduces else "uint8"
            self._changed[notice(ChangeNotice.DTYPE_ASSUMED, operation=call.operation, dtype=dtype)] += 1
            return dtype
        backend = BACKENDS[self._backend]
        lacking = backend.unsupported_dtypes | (
            backend.unsupported_reduce_dtypes if OPERATIONS[call.operation].reduces else frozenset()
        )
        if call.dtype not in lacking:
            return call.dtype
        other = _SUBSTITUTES[DTYPES[call.dtype].itemsize]
        self._changed[notice(ChangeNotice.DTYPE_REPLACED, dtype=call.dtype, other=other, backend=self._backend)] += 1
        return other

    def _splits(self, step: _Step, place: int, call: RecordedCall, together: int) -> Splits | None:
        """The parts from each rank to each rank: as all ranks recorded them, or all alike; None for equal parts."""
        if call.splits_in is None:
            self._changed[notice(ChangeNotice.EQUAL_PARTS)] += 1
            return None
        rows = self._recorded_rows(step, place, call)
        if rows is None or not len(rows) == len(rows[0]) == together:
            if len(set(call.splits_in)) <= 1:
                return None
            row = [0] * together
            for number, part in enumerate(call.splits_in):
                row[number % together] += part
            self._changed[notice(ChangeNotice.PARTS_OF_ONE)] += 1
            rows = [row] * together
        if len({part for row in rows for part in row}) <= 1:
            return None
        return Splits("rows", rows=tuple(map(tuple, rows)))

    def _recorded_rows(self, step: _Step, place: int, call: RecordedCall) -> list[list[int]] | None:
        """The parts that each rank of the group sent in the same call; None unless all of them are recorded.

        The calls of ranks belong together by their place among the calls of the group, if sequence numbers agree.
        """
        members = call.group or range(self._recorded.world_size or 0)
        ranks = {rank.rank: rank for rank in self._recorded.ranks}

        def group_all_to_alls(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
            return [other for other in calls if other.operation in ALL_TO_ALL and other.group == call.group]

        own = self._recorded.ranks[step.recorded].calls
        nth = len(group_all_to_alls(own[:place]))
        rows = []
        for member in members:
            others = group_all_to_alls(ranks[member].calls) if member in ranks else []
            other = others[nth] if nth < len(others) else None
            if other is None or not other.splits_in or other.sequence != call.sequence:
                return None
            rows.append(list(other.splits_in))
        return rows or None


def _shape(call: RecordedCall) -> tuple[object, ...]:
    """In what the calls of ranks agree that do the same in groups of their own."""
    size = len(call.group) if call.group else call.group_size
    return call.operation, call.dtype, call.elements_in, size


def _exchanges(step: _Step) -> _Step:
    """The calls of a rank, in which a send and a receive of as much with the same peer, one behind the other, are one.

    A job makes them together (`batch_isend_irecv`); one after the other, both ranks would wait for each other.
    """
    places, calls = list[int](), list[RecordedCall]()
    for place, call in zip(step.places, step.calls, strict=True):
        before = calls[-1] if calls else None
        if (
            before is not None
            and {before.operation, call.operation} == ONE_WAY
            and (before.peer, before.dtype, _sent(before)) == (call.peer, call.dtype, _sent(call))
        ):
            calls[-1] = replace(before, operation="sendrecv_pair")
            continue
        places.append(place)
        calls.append(call)
    return replace(step, places=tuple(places), calls=tuple(calls))


def _sent(call: RecordedCall) -> int | None:
    return call.elements_in or call.elements_out


def _contradiction(lists: Sequence[Made], world_size: int) -> str:
    """Why these calls of all ranks do not fit together; "" if they do: each group's members make its calls alike."""
    if any(not 0 <= member < world_size for made in lists for _, _, case in made for member in _members(case)):
        return "groups reach beyond the ranks"
    for rank, made in enumerate(lists):
        for _, _, case in made:
            if rank not in _members(case):
                return f"rank {rank} calls in a group that it is not in"
    group_all_to_alls: dict[tuple[int, ...], dict[int, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for rank, made in enumerate(lists):
        for _, _, case in made:
            group_all_to_alls[_members(case)][rank].append(case)
    for members, by_rank in group_all_to_alls.items():
        first = by_rank[members[0]]
        for member in members:
            calls = by_rank[member]
            one_way = any(case.op == "send_recv" for case in (*calls, *first))
            if calls != first and not (one_way and Counter(calls) == Counter(first)):
                return f"ranks {members[0]} and {member} did not make the same calls in their group"
    return ""


def _members(case: Case) -> tuple[int, ...]:
    """The ranks of a case that is made in one group."""
    return subgroups.divide(case.groups, case.world_size).groups[0]


def _divided(depths: Sequence[tuple[Case, int]], world_size: int) -> tuple[tuple[Case, ...], dict[Case, int]]:
    """Cases that differ in their group alone, as one case of all these groups: a rank then holds its buffers once.

    Out: the cases with their depths, and the number of the case that each given one became.
    """
    alike: dict[Case, list[list[Case]]] = {}
    for case, _ in depths:
        if not case.groups.sets:
            alike[case] = [[case]]
            continue
        rows = alike.setdefault(replace(case, groups=WORLD), [])
        taken = (row for row in rows if not any(set(_members(case)) & set(_members(other)) for other in row))
        row = next(taken, None)
        if row is None:
            rows.append([case])
        else:
            row.append(case)
    depth_of = dict(depths)
    cases, number_of = list[Case](), dict[Case, int]()
    for rows in alike.values():
        for row in rows:
            for case in row:
                number_of[case] = len(cases)
            cases.append(replace(row[0], groups=_division(row, world_size), depth=max(depth_of[case] for case in row)))
    return tuple(cases), number_of


def _division(row: Sequence[Case], world_size: int) -> Division:
    """The groups of cases as one division, in few words where it has them."""
    if not row[0].groups.sets:
        return row[0].groups
    groups = sorted(_members(case) for case in row)
    size, stride = len(groups[0]), groups[0][-1] - groups[0][-2] if len(groups[0]) > 1 else 1
    for division in (Division("contiguous", size), Division("strided", size), Division("strided", size, stride)):
        if subgroups.unsupported(division, world_size) is None and (
            sorted(subgroups.divide(division, world_size).groups) == groups
        ):
            return division
    return subgroups.of_sets(groups)


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


# ── in which order, with which pauses ────────────────────────────────────────────────────────────
def _in_turn(made: Made, number_of: Mapping[Case, int], gaps: bool) -> tuple[ReplayedCall, ...]:
    """The calls of a rank. An asynchronous one is waited for before the call that began to run after it had ended.

    A pause is the time in which none of the rank's calls ran, up to this one, or which passed since the last one began
    if that is still under way.
    """
    calls, under_way = [], dict[int, float]()
    latest: float | None = None  # when the rank was free to make the next call, by the recording's clock
    for at, (place, call, case) in enumerate(made):
        began = call.ran_s
        ended = {earlier: end for earlier, end in under_way.items() if began is not None and end <= began}
        pause_s = 0.0
        if began is not None:
            latest = max([*([] if latest is None else [latest]), *ended.values()], default=None)
            if gaps and latest is not None:
                pause_s = max(0.0, began - latest)
            latest = began
        calls.append(ReplayedCall(number_of[case], place, tuple(sorted(ended)), pause_s))
        under_way = {earlier: end for earlier, end in under_way.items() if earlier not in ended}
        if began is not None and call.duration_s is not None:
            if case.call == "async":
                under_way[at] = began + call.duration_s
            else:
                latest = began + call.duration_s
    return tuple(calls)


PLANNING = PlanningPart(expand)
