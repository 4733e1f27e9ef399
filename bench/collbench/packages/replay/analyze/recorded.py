"""Divide the time of a recorded job in calls into moving data and waiting for late ranks (stragglers); needs no replay.

In: a `CallList` of one or all ranks. Out: a `RecordedJob`. Calls of the ranks of a group are matched by their number
within the group. If the format has no numbers, the n-th calls are matched if their operations and sizes agree.

A call moves data from the moment at which the last rank begins it. By durations, the last rank is the rank with the
shortest call. If all ranks ran on one host, and by their clocks no call ends before its last rank began it, the begin
times decide; then a rank that ends its calls late is reported, too. Overlapping calls each have their own piece of
time, at their end; data moved at the end of this piece. For naming a straggler, see `named`.

This holds for calls that end on no rank before all ranks have begun them. A root can finish its part before the other
ranks begin, and gloo's sender does: such calls are not divided. Calls are divided only if every rank of the group was
recorded, because a missing rank may have been the last. Each withheld conclusion is reported with its reason.
"""

import functools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.model.notices import Kind, Notice
from collbench.model.projection import grouped
from collbench.model.units import NS
from collbench.packages.replay.conclusions import RecordedJob, RecordedKind, RecordedTime, together
from collbench.packages.replay.recorded_calls import (
    ALL_TO_ALL,
    MISSING_CALLS,
    NAMED_RATE,
    ONE_WAY,
    UNCLAIMED_KERNELS,
    CallList,
    Fact,
    RecordedCall,
    whole_ns,
)
from collbench.packages.replay.spans import attributed

# Permutations of the test for a straggler; most cells and fewest rows of the matrix that is permuted.
PERMUTATIONS, MOST_CELLS, FEWEST_ROWS = 199, 20_000, 10

# Largest difference between the clocks of processes on one host.
CLOCKS_AGREE_NS = 100_000
# Share of the time in calls above which a rank that begins or ends its calls late is reported.
LEAST_REPORTED = 0.01

# Calls that end on no rank before all ranks of the group have begun them.
TOGETHER = {
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_list", "reduce_scatter", "reduce_scatter_list",
    "barrier", *ALL_TO_ALL,
}  # fmt: skip
# Most reasons that are listed; further reasons are only counted.
MOST_REASONS = 4
# Operations whose recorded elements equal, on every rank, the size that `list operations` defines.
SIZED = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", *ONE_WAY,
}  # fmt: skip
# Formats that record sizes in bytes, so that an element is a byte.
COUNTED_IN_BYTES = {"NCCL Inspector"}
# Position of the recorded rank, and of the call among its calls.
Place = tuple[int, int]


class _Together(NamedTuple):
    """The key by which calls of different ranks can be the same call."""

    group: object
    # Name of the communicator, if calls have numbers: groups of the same ranks number their calls separately.
    communicator: str | None = None
    # Sender and receiver of a one-way call; None for a call of a whole group.
    way: tuple[int, int] | None = None


# Operation, dtype, elements, ranks of the group.
CallKind = tuple[str, str | None, int | None, int | None]
# Identity of a group: its ranks, or its name.
GroupKey = tuple[int, ...] | str


def recorded_job(recorded: CallList) -> RecordedJob:
    """Return the account of where the time of a recorded job went."""
    times, steps = _Times(recorded), recorded.steps
    groups: dict[str, _Sum] = defaultdict(_Sum)
    kinds: dict[CallKind, _Sum] = defaultdict(_Sum)
    total = _Sum()
    for place, call in _places(recorded):
        if steps > 1 and call.step is None:
            continue  # `_Times` counts these calls
        for sums in (total, kinds[kind_of(call)], groups[_name(_group_key(call, recorded))]):
            sums.add(times, place, _group_key(call, recorded))
            sums.batched = sums.batched or call.batched
    world = f"{'at least ' * recorded.world_is_least}{recorded.world_size or 'an unknown number of'}"
    source = f"{recorded.kind}, {len(recorded.ranks)} of {world} ranks"
    share = 1 / sum(rank.steps for rank in recorded.ranks)
    unclaimed_s = sum(rank.unclaimed_s for rank in recorded.ranks) * share
    rows = [_kind_row(kind, sums, sums.mean(share, times), recorded) for kind, sums in kinds.items()]
    by_group = ((name, sums.mean(share, times)) for name, sums in groups.items())
    late = _late(total.by_unit.values(), times, total.in_calls_ns)
    ends = _late(times.ended.values(), times, total.in_calls_ns / len(recorded.ranks))
    return RecordedJob(
        source,
        recorded.backend,
        None if recorded.world_is_least else recorded.world_size,
        times.numbers,
        steps,
        total.mean(share, times) if times.own_ns and recorded.gaps is None else None,
        tuple(sorted(rows, key=lambda row: -(row.time.in_calls_s or 0.0))),
        tuple(sorted(by_group, key=lambda row: -(row[1].in_calls_s or 0.0))),
        (*_proven(recorded, unclaimed_s), *times.withheld(), *_unknown(recorded)),
        unclaimed_s=unclaimed_s,
        named=late[0] if late is not None else None,
        marked=recorded.marked,
        files=() if times.known else tuple(rank.source for rank in recorded.ranks),
        ends_late=(ends[0], ends[1] * NS / steps) if ends is not None else None,
    )


def _proven(recorded: CallList, unclaimed_s: float) -> Iterator[Notice]:
    """Yield notices on calls that are missing, as the files themselves prove."""
    if recorded.gaps is not None:
        gaps = recorded.gaps
        yield MISSING_CALLS(recorded=gaps.recorded, made=gaps.made, first=gaps.first, last=gaps.last)
    if kernels := sum(rank.unclaimed for rank in recorded.ranks):
        yield UNCLAIMED_KERNELS(kernels=kernels, seconds=unclaimed_s)


def _kind_row(kind: CallKind, sums: "_Sum", time: RecordedTime, recorded: CallList) -> RecordedKind:
    """Return a kind of calls with its size and bus bandwidth; calls that share a kernel have no bandwidth."""
    name, dtype, elements, ranks = kind
    itemsize = DTYPES[dtype].itemsize if dtype is not None else 1 if recorded.kind in COUNTED_IN_BYTES else None
    size = None if elements is None or itemsize is None or name not in SIZED else elements * itemsize
    operation = OPERATIONS.get(name)
    factor = (lambda n: 1.0) if name in ONE_WAY else operation.bus_factor if operation is not None else None
    timed, rate = sums.calls - sums.untimed, None
    if size and factor is not None and sums.carried_ns and not sums.batched and (name in ONE_WAY or (ranks or 0) > 1):
        rate = size * factor(ranks or 2) * timed / (sums.carried_ns * NS)
    return RecordedKind(*kind, len(sums.groups), time, size, rate)


def _late(units: Collection[Mapping[int, float]], times: "_Times", in_calls_ns: float) -> tuple[int, float] | None:
    """Return the rank that is `named`, and its ns; None below LEAST_REPORTED of the time in calls."""
    rank = named(list(units), times.numbers)
    late_ns = sum(unit.get(rank, 0.0) for unit in units) if rank is not None else 0.0
    return (rank, late_ns) if rank is not None and late_ns > LEAST_REPORTED * in_calls_ns else None


def named(units: Sequence[Mapping[int, float]], ranks: Sequence[int]) -> int | None:
    """Return the straggler, the rank that others waited for longer than chance allows; None if there is none.

    This is a permutation test with false-alarm rate NAMED_RATE: if ranks are equal, all their orders in a step are
    equally likely. units: time waited for each rank, per step, because the calls of a step are correlated.
    """
    rows = min(len(units), max(FEWEST_ROWS, MOST_CELLS // len(ranks)))
    waited, column = np.zeros((rows, len(ranks))), {rank: number for number, rank in enumerate(ranks)}
    for number, unit in enumerate(units):  # neighbouring steps share a row if there are very many
        for rank, rank_waited in unit.items():
            waited[number * rows // len(units), column[rank]] += rank_waited
    if not waited.any():
        return None
    most, count = float(waited.sum(axis=0).max()), 0
    rng = np.random.default_rng(0)
    for _ in range(PERMUTATIONS):
        count += rng.permuted(waited, axis=1).sum(axis=0).max() >= most * (1 - 1e-9)
    return ranks[int(waited.sum(axis=0).argmax())] if (1 + count) / (1 + PERMUTATIONS) <= NAMED_RATE else None


def kind_of(call: RecordedCall) -> CallKind:
    """Return operation, dtype, elements of the larger side (all-to-all: elements sent), and ranks of the group."""
    sizes = [size for size in (call.elements_in, call.elements_out) if size is not None]
    elements = sizes[0] if sizes and call.operation in ALL_TO_ALL else max(sizes, default=None)
    return call.operation, call.dtype, elements, call.group_size


def time_of_kinds(job: RecordedJob, kinds: Set[CallKind]) -> RecordedTime | None:
    """Return the total time of several kinds of calls; None if no durations were recorded."""
    if job.total is None:
        return None
    return together([row.time for row in job.kinds if (row.operation, row.dtype, row.elements, row.ranks) in kinds])


@dataclass(slots=True)
class _Sum:
    """Sums over calls and ranks, in whole nanoseconds."""

    calls: int = 0
    untimed: int = 0
    # True if any of the calls ran in one kernel with other calls.
    batched: bool = False
    # Time in which data moved if it is known, else the duration of calls. Overlapping calls count in full.
    carried_ns: float = 0.0
    in_calls_ns: float = 0.0
    moved_ns: float = 0.0
    waited_ns: float = 0.0
    exposed_ns: float = 0.0
    waited_for: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    by_unit: dict[object, dict[int, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    groups: set[GroupKey] = field(default_factory=set)

    def add(self, times: "_Times", place: Place, group: GroupKey) -> None:
        self.calls += 1
        self.groups.add(group)
        own_ns = times.own_ns.get(place)
        if own_ns is None:
            self.untimed += 1
            return
        self.in_calls_ns += own_ns
        self.exposed_ns += times.exposed_ns.get(place, 0.0)
        split = times.split.get(place)
        self.carried_ns += times.lasted_ns[place] if split is None else min(times.lasted_ns[place], split[0])
        if split is not None:
            most_ns, last, unit = split
            moved_ns = min(own_ns, most_ns)
            self.moved_ns += moved_ns
            self.waited_ns += own_ns - moved_ns
            if last is not None:
                self.waited_for[last] += own_ns - moved_ns
                self.by_unit[unit][last] += own_ns - moved_ns

    def mean(self, share: float, times: "_Times") -> RecordedTime:
        """Return the sums per step, as the mean over ranks. share: 1 / (number of ranks × steps)."""
        share_s, exposed = share * NS, len(times.exposed_ns) == len(times.own_ns)
        return RecordedTime(
            self.calls * share,
            self.in_calls_ns * share_s if self.calls > self.untimed else None,
            self.moved_ns * share_s,
            self.waited_ns * share_s,
            (self.in_calls_ns - self.moved_ns - self.waited_ns) * share_s,
            {rank: waited_ns * share_s for rank, waited_ns in self.waited_for.items()},
            self.exposed_ns * share_s if exposed and self.calls > self.untimed else None,
            self.untimed * share,
        )


NUMBERED_BY_FILES = Kind("numbered-by-files", "ranks are numbered in the order of their files, which name no ranks")
UNEQUAL_STEPS = Kind("unequal-steps", "ranks recorded different numbers of steps: a step is the mean of all of them")
ONE_STEP = Kind("one-step", "which rank was late: this needs several steps, and marks between them in the recording")
_CALLS = "{calls:of calls}"
OUTSIDE_STEPS = Kind("outside-steps", f"calls outside the recorded steps{_CALLS}")
NO_DURATION = Kind("no-duration", f"the time of calls whose duration was not recorded{_CALLS}")
NO_STARTS = Kind(
    "no-starts", f"whether calls overlapped: their start times were not recorded, so durations are summed{_CALLS}"
)
ONE_RANK = Kind(
    "one-rank", "waiting: one rank's recording cannot separate it from moving", "give the files of all ranks"
)
ONE_SIDED = Kind("one-sided", f"waiting in {{operation}}: a rank can be done with it before others begin{_CALLS}")
UNKNOWN_GROUPS = Kind("unknown-groups", f"waiting in groups of unknown ranks{_CALLS}")
PART_OF_GROUPS = Kind("part-of-groups", f"waiting in groups in which not every rank was recorded{_CALLS}")
UNEQUAL_CALLS = Kind("unequal-calls", f"waiting in groups whose ranks recorded different numbers of calls{_CALLS}")
DIFFERENT_CALLS = Kind("different-calls", f"waiting in groups whose ranks recorded different calls{_CALLS}")
BATCHED_CALLS = Kind(
    "batched-calls",
    f"waiting in calls that ran in one kernel with others, whose time is divided equally among them{_CALLS}",
)
PART_OF_CALLS = Kind("part-of-calls", f"waiting in calls that not every rank of the group recorded{_CALLS}")
FURTHER_REASONS = Kind("further-reasons", "and {count} further reasons")


class _Times:
    """The time of each call on each rank, and its division into moving and waiting."""

    def __init__(self, recorded: CallList) -> None:
        self._recorded, self._reasons = recorded, Counter[Kind]()
        self._one_sided = Counter[str]()
        self.known = known = all(rank.rank is not None for rank in recorded.ranks)
        # World rank of each recorded rank.
        self.numbers = tuple(
            rank.rank if known and rank.rank is not None else number for number, rank in enumerate(recorded.ranks)
        )
        if not known and len(recorded.ranks) > 1:
            self._reasons[NUMBERED_BY_FILES] = 0
        if len({rank.steps for rank in recorded.ranks}) > 1:
            self._reasons[UNEQUAL_STEPS] = 0
        if recorded.steps == 1 and len(recorded.ranks) > 1:
            self._reasons[ONE_STEP] = 0
        if recorded.steps > 1 and (outside := sum(call.step is None for _, call in _places(recorded))):
            self._reasons[OUTSIDE_STEPS] += outside
        # Time in ns in which a call was, among the calls in progress, the call that ended first.
        self.own_ns: dict[Place, float] = {}
        # Time in ns of a call from its begin to its end.
        self.lasted_ns: dict[Place, float] = {}
        self.exposed_ns: dict[Place, float] = {}
        # Call that can be divided → most ns in which data moved, world rank that came last (None if it is the rank
        # of the call), and the unit that is assumed to be independent: the step.
        self.split: dict[Place, tuple[float, int | None, object]] = {}
        # Unit (step) → world rank → ns by which it ended calls after the first rank. Empty without common clock.
        self.ended: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._own()
        if self.own_ns:
            self._divide()

    def withheld(self) -> tuple[Notice, ...]:
        """Return notices on withheld conclusions: first on the whole recording, then by number of calls, descending."""
        reasons = [(count, kind(calls=count or None)) for kind, count in self._reasons.items()]
        reasons += [(count, ONE_SIDED(operation=name, calls=count)) for name, count in self._one_sided.items()]
        reasons.sort(key=lambda reason: -(reason[0] or math.inf))
        more = len(reasons) - MOST_REASONS
        further = [FURTHER_REASONS(count=more)] if more > 0 else []
        return (*(reason for _, reason in reasons[:MOST_REASONS]), *further)

    def _own(self) -> None:
        for number, rank in enumerate(self._recorded.ranks):
            durations = [call.duration_s for call in rank.calls]
            timed = [place for place, duration in enumerate(durations) if duration is not None]
            without = len(rank.calls) - len(timed)
            if without:
                self._reasons[NO_DURATION] += without
            runs = [rank.calls[place] for place in timed]
            starts = [whole_ns(call.ran_s) for call in runs if call.ran_s is not None]
            lengths = [whole_ns(call.duration_s) for call in runs]
            own: list[float] = [*lengths]
            if len(starts) == len(runs):
                own = attributed(starts, [*map(operator.add, starts, lengths)]).tolist()
            elif runs:
                self._reasons[NO_STARTS] += len(runs)
            for place, own_ns, length in zip(timed, own, lengths, strict=True):
                self.own_ns[number, place], self.lasted_ns[number, place] = own_ns, length
                if (exposed_s := rank.calls[place].exposed_s) is not None:
                    self.exposed_ns[number, place] = whole_ns(exposed_s)

    def _divide(self) -> None:
        """Match the calls of all ranks, and divide the calls that every rank of the group recorded."""
        if len(self._recorded.ranks) < 2:
            self._reasons[ONE_RANK] = 0
            return
        joined = list[tuple[object, dict[Place, tuple[float, float]]]]()
        for key, lists in self._by_group().items():
            for places in self._joined(key, lists):
                if all(self._call(place).duration_s is not None for place in places):
                    step = self._call(places[0]).step
                    joined.append((step, {place: self._span(place) for place in places}))
        instants = all(
            max(begin for begin, _ in spans.values()) < min(map(sum, spans.values())) + CLOCKS_AGREE_NS
            for _, spans in joined
        )
        for unit, spans in joined:
            last = max(spans, key=lambda place: spans[place]) if instants else min(spans, key=lambda p: spans[p][1])
            late, first_ns = self.numbers[last[0]], min(map(sum, spans.values()))
            for place, span in spans.items():
                moved_ns = max(0.0, sum(span) - spans[last][0]) if instants else spans[last][1]
                self.split[place] = (moved_ns, None if place == last else late, unit)
                if instants:
                    self.ended[unit][self.numbers[place[0]]] += sum(span) - first_ns

    def _span(self, place: Place) -> tuple[float, float]:
        """Return the begin of a call by a common clock of all ranks (infinite if there is none), and its duration."""
        call, offset_s = self._call(place), self._recorded.ranks[place[0]].offset_s
        begin_ns = math.inf if offset_s is None or call.ran_s is None else whole_ns(offset_s) + whole_ns(call.ran_s)
        return begin_ns, whole_ns(call.duration_s)

    def _by_group(self) -> dict[_Together, dict[int, list[Place]]]:
        """Return key → recorded rank → its calls with this key, in order; only calls that can be divided."""
        lists: dict[_Together, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
        for (number, place), call in _places(self._recorded):
            group = _group_key(call, self._recorded)
            if call.batched:
                self._reasons[BATCHED_CALLS] += 1
            elif call.operation in TOGETHER:
                by_name = call.communicator if call.sequence is not None else None
                lists[_Together(group, by_name)][number].append((number, place))
            elif call.operation in ONE_WAY and call.peer is not None and self._recorded.backend != "gloo":
                own = self.numbers[number]
                way = (own, call.peer) if call.operation == "send" else (call.peer, own)
                lists[_Together(group, way=way)][number].append((number, place))
            else:
                self._one_sided[call.operation] += 1
        return lists

    def _joined(self, key: _Together, lists: dict[int, list[Place]]) -> Iterator[list[Place]]:
        """Yield the places of each call that all ranks of a group made; if this is uncertain, record only a reason."""
        group = key.group
        count = sum(map(len, lists.values()))
        first = self._call(next(iter(lists.values()))[0])
        group_size = first.group_size or (len(group) if isinstance(group, tuple) else None)
        wanted = group_size if key.way is None else len(key.way)
        if key.way is None and group == "":
            self._reasons[UNKNOWN_GROUPS] += count
            return
        if wanted is None or len(lists) < wanted:
            self._reasons[PART_OF_GROUPS] += count
            return
        if wanted == 1:
            yield from ([place] for places in lists.values() for place in places)
            return
        # Calls with one key, the number in the group or else the step, are matched by their places among these calls,
        # only if every rank recorded as many.
        by_rank = [grouped(places, lambda place: self._match_key(place, key)) for places in lists.values()]
        common = sorted(set.intersection(*map(set, by_rank)), key=str)
        common = [number for number in common if len({len(calls[number]) for calls in by_rank}) == 1]
        joined = [[*places] for number in common for places in zip(*(calls[number] for calls in by_rank), strict=True)]
        left = count - sum(map(len, joined))
        if left and any((None, None) in calls for calls in by_rank):
            self._reasons[UNEQUAL_CALLS] += count
            return
        if any(len({self._kind(place) for place in places}) > 1 for places in joined):
            self._reasons[DIFFERENT_CALLS] += count
            return
        if left:
            self._reasons[PART_OF_CALLS] += left
        yield from joined

    def _match_key(self, place: Place, key: _Together) -> tuple[int | None, int | None]:
        """Return number and step of a call. torch and NCCL number sends and receives by group, not by pair."""
        call = self._call(place)
        return (call.sequence, None) if key.way is None and call.sequence is not None else (None, call.step)

    def _call(self, place: Place) -> RecordedCall:
        return self._recorded.ranks[place[0]].calls[place[1]]

    def _kind(self, place: Place) -> tuple[object, ...]:
        """Return the fields that must be equal on all ranks of a group for their calls to match."""
        call = self._call(place)
        if call.operation in ONE_WAY:
            return ("one way", call.elements_in if call.elements_in is not None else call.elements_out)
        return ("all_to_all",) if call.operation in ALL_TO_ALL else kind_of(call)[:3]


def _places(recorded: CallList) -> Iterator[tuple[Place, RecordedCall]]:
    for number, rank in enumerate(recorded.ranks):
        for place, call in enumerate(rank.calls):
            yield (number, place), call


def _group_key(call: RecordedCall, recorded: CallList) -> GroupKey:
    """Return the ranks of a call's group, or the group's name; "" if neither is known."""
    if call.group:
        return call.group
    if call.communicator:
        return f"group {call.communicator}"
    is_world = not recorded.world_is_least and call.group_size in {None, recorded.world_size}
    return _all_ranks(recorded.world_size) if is_world and recorded.world_size else ""


@functools.cache
def _all_ranks(world_size: int) -> tuple[int, ...]:
    return tuple(range(world_size))


def _name(group: GroupKey) -> str:
    """Format as `ranks 0–7` or `ranks 0, 4`."""
    if isinstance(group, str):
        return group or "unknown ranks"
    steps = {after - before for before, after in pairwise(group)}
    if len(group) > 2 and len(steps) == 1:
        by = f" by {steps.pop()}" if steps != {1} else ""
        return f"ranks {group[0]}–{group[-1]}{by}"
    return f"ranks {', '.join(map(str, group[:8]))}{', …' if len(group) > 8 else ''}"


GROUPS_BY_NAME = Kind(
    "groups-by-name",
    "which ranks call together (in {count} of {calls} calls): groups are ranks with one name, otherwise all ranks",
)
UNTOLD = Kind("untold", "{what} (of {count} of {calls} calls)")


def _unknown(recorded: CallList) -> Iterator[Notice]:
    """Yield notices on facts that the recording lacks, and the importer's notices."""
    total = sum(len(rank.calls) for rank in recorded.ranks)
    for fact, count in recorded.unknown.items():
        if fact is Fact.GROUP:
            yield GROUPS_BY_NAME(count=count, calls=total)
        elif fact is not Fact.DURATION:
            yield UNTOLD(what=fact, count=count, calls=total)
    yield from recorded.notices
