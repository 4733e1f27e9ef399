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
from dataclasses import dataclass
from itertools import pairwise

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
# Operation, dtype, elements, ranks of the group.
CallKind = tuple[str, str | None, int | None, int | None]
# Kind of a notice on a withheld conclusion, and the operation that it is about ("" if it is about none) → its calls.
Reasons = Counter[tuple[Kind, str]]
# Identity of a group: its ranks, or its name.
GroupKey = tuple[int, ...] | str


@dataclass(slots=True, eq=False)
class _Call:
    """A call on a rank, and its time in whole nanoseconds."""

    # World rank of the recorded rank.
    rank: int
    call: RecordedCall
    group: GroupKey
    # Begin by a common clock of all ranks; infinite without one.
    begin_ns: float
    lasted_ns: int
    # Time in which it was, among the calls in progress, the call that ended first. None without a duration.
    own_ns: float | None = None
    # Of a call that can be divided: most ns in which data moved, world rank that came last (None if it is the rank of
    # the call), and the unit that is assumed to be independent: the step.
    most_ns: float | None = None
    last: int | None = None
    unit: int | None = None

    @property
    def end_ns(self) -> float:
        return self.begin_ns + self.lasted_ns

    @property
    def moved_ns(self) -> float:
        """Time in which data moved; 0 if it is unknown."""
        return 0.0 if self.own_ns is None or self.most_ns is None else min(self.own_ns, self.most_ns)

    @property
    def waited_ns(self) -> float:
        return 0.0 if self.own_ns is None or self.most_ns is None else self.own_ns - self.moved_ns


def recorded_job(recorded: CallList) -> RecordedJob:
    """Return the account of where the time of a recorded job went."""
    ranks, steps, reasons = recorded.ranks, recorded.steps, Reasons()
    files = tuple(rank.source for rank in ranks) if any(rank.rank is None for rank in ranks) else ()
    numbers = tuple(number if files or rank.rank is None else rank.rank for number, rank in enumerate(ranks))
    unequal = len({rank.steps for rank in ranks}) > 1
    for kind, applies in ((NUMBERED_BY_FILES, files), (UNEQUAL_STEPS, unequal), (ONE_STEP, steps == 1)):
        if applies and len(ranks) > 1:
            reasons[kind, ""] = 0
    if steps > 1 and (outside := sum(call.step is None for rank in ranks for call in rank.calls)):
        reasons[OUTSIDE_STEPS, ""] = outside
    every = _timed(recorded, numbers, reasons)
    ended = _divide(every, recorded, reasons)
    calls = [each for each in every if steps == 1 or each.call.step is not None]
    share = 1 / sum(rank.steps for rank in ranks)
    exposed = all(each.call.exposed_s is not None for each in every if each.own_ns is not None)
    mean = functools.partial(_mean, share=share, exposed=exposed)
    world = f"{'at least ' * recorded.world_is_least}{recorded.world_size or 'an unknown number of'}"
    unclaimed_s = sum(rank.unclaimed_s for rank in ranks) * share
    kinds = grouped(calls, lambda each: kind_of(each.call)).items()
    rows = [_kind_row(call_kind, same, mean(same), recorded) for call_kind, same in kinds]
    by_group = [(name, mean(same)) for name, same in grouped(calls, lambda each: _name(each.group)).items()]
    waited: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in calls:
        if each.last is not None:
            waited[each.unit][each.last] += each.waited_ns
    in_calls_ns = sum(each.own_ns or 0.0 for each in calls)
    late = _late(waited.values(), numbers, in_calls_ns)
    ends = _late(ended.values(), numbers, in_calls_ns / len(ranks))
    return RecordedJob(
        f"{recorded.kind}, {len(ranks)} of {world} ranks",
        recorded.backend,
        None if recorded.world_is_least else recorded.world_size,
        numbers,
        steps,
        mean(calls) if any(each.own_ns is not None for each in every) and recorded.gaps is None else None,
        tuple(sorted(rows, key=lambda row: -(row.time.in_calls_s or 0.0))),
        tuple(sorted(by_group, key=lambda row: -(row[1].in_calls_s or 0.0))),
        tuple(_withheld(recorded, reasons, unclaimed_s)),
        unclaimed_s=unclaimed_s,
        named=late[0] if late is not None else None,
        marked=recorded.marked,
        files=files,
        ends_late=(ends[0], ends[1] * NS / steps) if ends is not None else None,
    )


def _kind_row(kind: CallKind, calls: Sequence[_Call], time: RecordedTime, recorded: CallList) -> RecordedKind:
    """Return a kind of calls with its size and bus bandwidth; calls that share a kernel have no bandwidth."""
    name, dtype, elements, ranks = kind
    itemsize = DTYPES[dtype].itemsize if dtype is not None else 1 if recorded.kind in COUNTED_IN_BYTES else None
    size = None if elements is None or itemsize is None or name not in SIZED else elements * itemsize
    operation = OPERATIONS.get(name)
    factor = (lambda n: 1.0) if name in ONE_WAY else operation.bus_factor if operation is not None else None
    timed, rate = [each for each in calls if each.own_ns is not None], None
    # Time in which data moved if it is known, else the duration of calls. Overlapping calls count in full.
    carried_ns = sum(each.lasted_ns if each.most_ns is None else min(each.lasted_ns, each.most_ns) for each in timed)
    single = not any(each.call.batched for each in calls)
    if size and factor is not None and carried_ns and single and (name in ONE_WAY or (ranks or 0) > 1):
        rate = size * factor(ranks or 2) * len(timed) / (carried_ns * NS)
    return RecordedKind(*kind, len({each.group for each in calls}), time, size, rate)


def _mean(calls: Sequence[_Call], share: float, exposed: bool) -> RecordedTime:
    """Return the time of calls per step, as the mean over ranks.

    share: 1 / (number of ranks × steps). exposed: whether the exposed time of all calls is known.
    """
    timed = [each for each in calls if each.own_ns is not None]
    share_s, waited_for = share * NS, defaultdict[int, float](float)
    for each in timed:
        if each.last is not None:
            waited_for[each.last] += each.waited_ns
    in_calls_ns = sum(each.own_ns or 0.0 for each in timed)
    moved_ns, waited_ns = (sum(map(operator.attrgetter(name), timed)) for name in ("moved_ns", "waited_ns"))
    return RecordedTime(
        len(calls) * share,
        in_calls_ns * share_s if timed else None,
        moved_ns * share_s,
        waited_ns * share_s,
        (in_calls_ns - moved_ns - waited_ns) * share_s,
        {rank: rank_ns * share_s for rank, rank_ns in waited_for.items()},
        sum(whole_ns(each.call.exposed_s) for each in timed) * share_s if exposed and timed else None,
        (len(calls) - len(timed)) * share,
    )


def _late(units: Collection[Mapping[int, float]], ranks: Sequence[int], in_calls_ns: float) -> tuple[int, float] | None:
    """Return the rank that is `named`, and its ns; None below LEAST_REPORTED of the time in calls."""
    rank = named(list(units), ranks)
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


NUMBERED_BY_FILES = Kind("numbered-by-files", "ranks are numbered in the order of their files, which name no ranks")
UNEQUAL_STEPS = Kind("unequal-steps", "ranks recorded different numbers of steps: a step is the mean of all of them")
ONE_STEP = Kind("one-step", "which rank was late", "record several steps, each marked by profiler.step()")
_CALLS = "{calls:of calls}"
OUTSIDE_STEPS = Kind("outside-steps", f"calls outside the recorded steps{_CALLS}")
NO_DURATION = Kind("no-duration", f"the time of calls without a duration{_CALLS}", "torch.profiler records it")
NO_STARTS = Kind(
    "no-starts", f"whether calls overlapped: their start times were not recorded, so durations are summed{_CALLS}"
)
ONE_RANK = Kind(
    "one-rank", "waiting: one rank's recording cannot separate it from moving", "give the files of all ranks"
)
ONE_SIDED = Kind("one-sided", f"waiting in {{operation}}: a rank can be done with it before others begin{_CALLS}")
UNKNOWN_GROUPS = Kind("unknown-groups", f"waiting in groups of unknown ranks{_CALLS}")
PART_OF_GROUPS = Kind("part-of-groups", f"waiting in groups that lack ranks{_CALLS}", "give the files of all ranks")
UNEQUAL_CALLS = Kind("unequal-calls", f"waiting in groups whose ranks recorded different numbers of calls{_CALLS}")
DIFFERENT_CALLS = Kind("different-calls", f"waiting in groups whose ranks recorded different calls{_CALLS}")
BATCHED_CALLS = Kind(
    "batched-calls",
    f"waiting in calls that ran in one kernel with others, whose time is divided equally among them{_CALLS}",
)
PART_OF_CALLS = Kind("part-of-calls", f"waiting in calls that not every rank of the group recorded{_CALLS}")
FURTHER_REASONS = Kind("further-reasons", "and {count} further reasons")


GROUPS_BY_NAME = Kind(
    "groups-by-name",
    "which ranks call together (in {count} of {calls} calls): groups are ranks with one name, otherwise all ranks",
)
UNTOLD = Kind("untold", "{what} (of {count} of {calls} calls)")
UNTOLD_SHAPE = Kind("untold-shape", UNTOLD.text, "torch.profiler records it with record_shapes=True")


def _withheld(recorded: CallList, reasons: Reasons, unclaimed_s: float) -> Iterator[Notice]:
    """Yield notices on calls that the files prove to be missing, on withheld conclusions, and on unknown facts.

    Conclusions are withheld first on the whole recording, then by number of calls, descending.
    """
    if recorded.gaps is not None:
        yield Notice(MISSING_CALLS, recorded.gaps)
    if kernels := sum(rank.unclaimed for rank in recorded.ranks):
        yield UNCLAIMED_KERNELS(kernels=kernels, seconds=unclaimed_s)
    order = sorted(reasons, key=lambda reason: (-(reasons[reason] or math.inf), reason[0] is ONE_SIDED))
    for kind, operation in order[:MOST_REASONS]:
        values = {"operation": operation} if kind is ONE_SIDED else {}
        yield Notice(kind, {**values, "calls": reasons[kind, operation] or None})
    if (more := len(order) - MOST_REASONS) > 0:
        yield FURTHER_REASONS(count=more)
    total = sum(len(rank.calls) for rank in recorded.ranks)
    for fact, count in recorded.unknown.items():
        if fact == "group":
            yield GROUPS_BY_NAME(count=count, calls=total)
        elif fact != "duration":
            yield (UNTOLD_SHAPE if fact in {"dtype", "elements"} else UNTOLD)(what=fact, count=count, calls=total)
    yield from recorded.notices


def _timed(recorded: CallList, numbers: Sequence[int], reasons: Reasons) -> list[_Call]:
    """Return the calls of all ranks, with the time of those whose duration was recorded."""
    every = list[_Call]()
    world = () if recorded.world_is_least else tuple(range(recorded.world_size or 0))
    for number, rank in zip(numbers, recorded.ranks, strict=True):
        calls = list[_Call]()
        for call in rank.calls:
            # The ranks of the call's group, or the group's name; "" if neither is known.
            named = f"group {call.communicator}" if call.communicator else ""
            is_world = not named and call.group_size in {None, recorded.world_size}
            group = call.group or (is_world and world) or named
            common = rank.offset_s is not None and call.ran_s is not None
            begin_ns = whole_ns(rank.offset_s) + whole_ns(call.ran_s) if common else math.inf
            calls.append(_Call(number, call, group, begin_ns, whole_ns(call.duration_s)))
        timed = [each for each in calls if each.call.duration_s is not None]
        if without := len(calls) - len(timed):
            reasons[NO_DURATION, ""] += without
        starts = [whole_ns(each.call.ran_s) for each in timed if each.call.ran_s is not None]
        own: list[float] = [each.lasted_ns for each in timed]
        if len(starts) == len(timed):
            own = attributed(starts, [*map(operator.add, starts, own)]).tolist()
        elif timed:
            reasons[NO_STARTS, ""] += len(timed)
        for each, own_ns in zip(timed, own, strict=True):
            each.own_ns = own_ns
        every += calls
    return every


def _divide(calls: Sequence[_Call], recorded: CallList, reasons: Reasons) -> dict[object, dict[int, float]]:
    """Match the calls of all ranks, and divide the calls that every rank of the group recorded.

    Returns step → world rank → ns by which it ended calls after the first rank; empty without common clock.
    """
    ended: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    if all(each.own_ns is None for each in calls):
        return ended
    if len(recorded.ranks) < 2:
        reasons[ONE_RANK, ""] = 0
        return ended
    matched = [same for same in _matched(calls, recorded, reasons) if all(each.own_ns is not None for each in same)]
    instants = all(
        max(each.begin_ns for each in same) < min(each.end_ns for each in same) + CLOCKS_AGREE_NS for same in matched
    )
    for same in matched:
        last = min(same, key=lambda each: each.lasted_ns)
        if instants:
            last = max(same, key=lambda each: (each.begin_ns, each.lasted_ns))
        first_ns, unit = min(each.end_ns for each in same), same[0].call.step
        for each in same:
            each.most_ns = max(0.0, each.end_ns - last.begin_ns) if instants else last.lasted_ns
            each.last, each.unit = None if each is last else last.rank, unit
            if instants:
                ended[unit][each.rank] += each.end_ns - first_ns
    return ended


def _matched(calls: Sequence[_Call], recorded: CallList, reasons: Reasons) -> Iterator[Sequence[_Call]]:
    """Yield the calls of the ranks of a group that are the same call; only calls that can be divided."""
    # Group, name of its communicator, sender and receiver of a one-way call → calls that can be the same call. Calls
    # with numbers have a communicator: groups of the same ranks number their calls separately.
    candidates: dict[tuple[GroupKey, str | None, tuple[int, int] | None], list[_Call]] = defaultdict(list)
    for each in calls:
        call = each.call
        if call.batched:
            reasons[BATCHED_CALLS, ""] += 1
        elif call.operation in TOGETHER:
            candidates[each.group, call.communicator if call.sequence is not None else None, None].append(each)
        elif call.operation in ONE_WAY and call.peer is not None and recorded.backend != "gloo":
            way = (each.rank, call.peer) if call.operation == "send" else (call.peer, each.rank)
            candidates[each.group, None, way].append(each)
        else:
            reasons[ONE_SIDED, call.operation] += 1
    for (group, _, pair), of_group in candidates.items():
        recorded_ranks = {each.rank for each in of_group}
        size = 2 if pair else of_group[0].call.group_size or (len(group) if isinstance(group, tuple) else None)
        if pair is None and group == "":
            reasons[UNKNOWN_GROUPS, ""] += len(of_group)
        elif size is None or len(recorded_ranks) < size:
            reasons[PART_OF_GROUPS, ""] += len(of_group)
        elif size == 1:
            yield from ([each] for each in of_group)
        else:
            yield from _same_calls(of_group, pair is not None, reasons)


def _same_calls(calls: Sequence[_Call], one_way: bool, reasons: Reasons) -> Iterator[Sequence[_Call]]:
    """Yield each call that all ranks of a group made; if this is uncertain, add only a reason.

    Calls with one number, or in one step, are matched in their order, only if every rank recorded as many. torch and
    NCCL number sends and receives by group, not by pair.
    """

    def place(each: _Call) -> tuple[int | None, int | None]:
        by_step = one_way or each.call.sequence is None
        return (None, each.call.step) if by_step else (each.call.sequence, None)

    by_rank = [grouped(own, place) for own in grouped(calls, lambda each: each.rank).values()]
    common = sorted(set.intersection(*map(set, by_rank)), key=str)
    common = [at for at in common if len({len(own[at]) for own in by_rank}) == 1]
    matched = [same for at in common for same in zip(*(own[at] for own in by_rank), strict=True)]
    left = len(calls) - sum(map(len, matched))
    if left and any((None, None) in own for own in by_rank):
        reasons[UNEQUAL_CALLS, ""] += len(calls)
    elif any(len({_alike(each.call) for each in same}) > 1 for same in matched):
        reasons[DIFFERENT_CALLS, ""] += len(calls)
    else:
        if left:
            reasons[PART_OF_CALLS, ""] += left
        yield from matched


def _alike(call: RecordedCall) -> tuple[object, ...]:
    """Return the fields that must be equal on all ranks of a group for their calls to match."""
    if call.operation in ONE_WAY:
        return ("one way", call.elements_in if call.elements_in is not None else call.elements_out)
    return ("all_to_all",) if call.operation in ALL_TO_ALL else kind_of(call)[:3]


def _name(group: GroupKey) -> str:
    """Format as `ranks 0–7` or `ranks 0, 4`."""
    if isinstance(group, str):
        return group or "unknown ranks"
    steps = {after - before for before, after in pairwise(group)}
    if len(group) > 2 and len(steps) == 1:
        by = f" by {steps.pop()}" if steps != {1} else ""
        return f"ranks {group[0]}–{group[-1]}{by}"
    return f"ranks {', '.join(map(str, group[:8]))}{', …' if len(group) > 8 else ''}"
