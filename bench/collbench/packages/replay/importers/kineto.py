"""Read Chrome traces of torch.profiler (Kineto), for NCCL with collective metadata (since 2024) or without, and gloo.

In: the text of one rank's file. Out: a `RankRecording`. An NCCL call is three nested CPU events: `c10d::allreduce_`,
`record_param_comms`, `nccl:all_reduce`. With metadata, the second event is read; without metadata, the third event,
with the sizes of the first if input and output differ. Only a timeline shows when a call ran: kernels on their streams,
whose durations include the wait for late ranks, and gloo's annotations, which are runs on a worker thread. CPU events
of NCCL calls have the times of enqueueing; a call without a kernel has no duration.
"""

import bisect
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from collbench.model.notices import Notice
from collbench.model.projection import grouped
from collbench.model.records import Json
from collbench.model.units import NS
from collbench.packages.replay.importers.recordings import (
    OPERATIONS,
    ROOTED,
    call_in,
    dtype_of,
    entries_in,
    member,
    numbers,
    operation_of,
    peer_of,
    rank_of,
    ranks_from,
    whole,
)
from collbench.packages.replay.recorded_calls import (
    ONE_WAY,
    RECORDED_LEFT_OUT,
    UNSURE_KERNELS,
    UNSURE_OPERATORS,
    WITHOUT_DATA,
    RankRecording,
    RecordedCall,
    whole_ns,
)
from collbench.packages.replay.spans import attributed, free_until
from collbench.stats.intervals import Floats

CALL, WAIT = "record_param_comms", "wait"
# Names of kernels that communicate: of each library that ends in "ccl", of libraries with their own kernels, and
# of collectives and the exchange of experts (MoE) in a library that is not known.
COMMUNICATES = re.compile(
    r"nccl|(?-i:[cC]cl(?![a-z])|CCL)|(?<!sm)(?<!block)(?<!block_)(?<!warp)(?<!warp_)all_?(?:reduce|gather|to_?all)|reduce_?scatter|send_?recv|multimem_"
    r"|cross_device_reduce|quick_?reduce|mscclpp|userbuffers|(?:nv|roc|i)shmem|deep_ep|moe_?a2a|int(?:er|ra)_?node"
    r"|(?<![a-z])ep(?:::|_?dispatch|_?combine)",
    re.IGNORECASE,
)
# Names of kernels that compute: torch's own, and those that add the parts of an attention.
_COMPUTES = re.compile(r"at::native::|(?:flash|att(?:entio)?n|mla|split_?k)\w*combine", re.IGNORECASE)
# Names of kernels that exchange data between ranks in some libraries, and within one GPU in others.
_UNSURE = re.compile(
    r"dispatch|combine|p2p|exchange|multicast|barrier|lamport|(?:one|two)_?shot|(?-i:Comm(?![a-z]))|nixl"
    r"|(?<![a-z])(?:ag|rs|ar)_gemm|gemm_(?:ag|rs|ar)(?![a-z])",
    re.IGNORECASE,
)
# A kernel that torch's compiler made: it computes, but its name lists the operators around it, too.
_FUSED = re.compile(r"triton_[a-z]+_fused_")
# Part of the name of a kernel for a group of calls → operations of these calls.
_OF_KERNEL = {
    "sendrecv": ("send", "recv"),
    "allreduce": ("all_reduce", "all_reduce_coalesced"),
    "allgather": ("all_gather", "all_gather_list"),
    "reducescatter": ("reduce_scatter", "reduce_scatter_list"),
    "broadcast": ("broadcast",),
}
# Operations that names of dispatcher operators can mean.
KNOWN = {*OPERATIONS.values()}
# Operators whose first tensor is the output and whose second tensor is the input.
_OUTPUT_FIRST = re.compile(r"^c10d::_?(alltoall_base|allgather_base|reduce_scatter_base)_$")
# Kind of an event on the host → its name. Operators that compute on a CPU nest only in each other, and none of them
# waits for a call.
_ON_HOST = {
    "annotation": re.compile(r"(gloo|mpi|ucc|[a-z]*ccl):"),
    "operator": re.compile(r"c10d::"),
    "on CPU": re.compile(r"aten::"),
    "step": re.compile(r"ProfilerStep#\d+$"),
}
# The arguments that are kept of the most frequent kinds of events, which would fill the memory.
_ARGUMENTS: dict[str, tuple[str, ...]] = {"computing": (), "on CPU": (), "launch": ("correlation",)}
# A call is asynchronous if other work overlaps more than this share of it; stamps of streams can overlap slightly.
OVERLAP = 0.01
# The time in ns at which a call was made, and the call; its `ran_s` is by the same clock.
Timed = tuple[int, RecordedCall]
# Begin and end in whole nanoseconds: sums and differences of whole numbers have no rounding error.
Span = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Event:
    """An event of a file; events are compared, and found in a dictionary, by their identity."""

    name: str
    thread: object
    span: Span
    args: Json
    # Whether it is a kernel, and the event in which the host launched it; None if that was not recorded.
    on_device: bool = False
    launch: "_Event | None" = None
    # Begin and end of the kernels of a call, or its share of a kernel that several calls have in common; their number.
    run: Span | None = None
    together: int = 1
    # Whether a kernel or an operator belongs to a call.
    claimed: bool = False

    @property
    def number(self) -> Any:
        """The number that a call shares with its kernels, if it was recorded."""
        return self.args.get("External id")

    @property
    def operation(self) -> str:
        return operation_of(str(self.args.get("Collective name") or self.name))

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor; entries of "Input Dims" that are not lists of numbers are not tensors."""
        dims = self.args.get("Input Dims")
        if isinstance(dims, list) and dims and isinstance(dims[0], list) and dims[0] and isinstance(dims[0][0], list):
            dims = dims[0]  # operators nest the sizes of a list of tensors one level deeper
        return [
            math.prod(dim)
            for dim in (dims if isinstance(dims, list) else [])
            if isinstance(dim, list) and dim and all(isinstance(number, int) for number in dim)
        ]

    @property
    def elements(self) -> tuple[int | None, int | None]:
        """Elements of the input and of the output; all elements for both if they are not separate tensors."""
        sizes = self.sizes
        if len(sizes) > 1 and _OUTPUT_FIRST.match(self.name):
            return sizes[1], sizes[0]
        return (sum(sizes), sum(sizes)) if sizes else (None, None)

    @property
    def dtype(self) -> str | None:
        return dtype_of((self.args.get("Input type") or [None])[0])


# Kind of events, as `_kind` names it → events.
Events = dict[str, list[_Event]]


def _kind(name: str, category: object) -> str | None:
    """Return what an event is; None if it is not relevant. A "further" kernel may compute or communicate."""
    if name == CALL:
        return "call"
    if category == "kernel":
        if COMMUNICATES.search(name) and not _FUSED.match(name):
            return "kernel"
        return "computing" if _COMPUTES.search(name) else "further"
    if str(category).endswith(("_runtime", "_driver")):
        # The kernels of a graph do not belong to the calls around its launch: its calls were captured earlier.
        return None if "graphlaunch" in name.lower() else "launch"
    if category == "gpu_user_annotation":
        return None
    return next((kind for kind, pattern in _ON_HOST.items() if pattern.match(name)), None)


def _settle(events: Events, left_out: Counter[Notice]) -> None:
    """Add each further kernel to its kind: a kernel that a call launched communicates, whatever its name is."""
    launches = {event.args.get("correlation"): event for event in events["launch"]}
    for kernel in (*events["kernel"], *events["further"]):
        kernel.launch = launches.get(kernel.args.get("correlation", ()))
    of_nccl = (event for event in events["annotation"] if not event.name.startswith("gloo:"))
    callers = [*events["call"], *of_nccl, *events["operator"]]
    numbers = {event.number for event in callers} - {None, 0}
    launched_by = _around(events["further"], callers)
    for kernel in events["further"]:
        name = kernel.name.split("<")[0]  # the arguments of a template name other things
        if kernel.number in numbers or launched_by.get(kernel):
            events["kernel"].append(kernel)
        elif _UNSURE.search(name) and not _FUSED.match(name):
            events["unsure"].append(kernel)
            left_out[UNSURE_KERNELS(kernel=name[:60])] += 1
        else:
            events["computing"].append(kernel)


def _around(events: Iterable[_Event], outer: Iterable[_Event]) -> dict[_Event, list[_Event]]:
    """Return event → the outer events in which it began on its thread, or was launched; the innermost last."""
    by_thread: dict[object, list[tuple[int, int, int, _Event]]] = defaultdict(list)
    for event in outer:
        by_thread[event.thread].append((event.span[0], 0, event.span[1], event))
    for event in events:
        if (made := event.launch if event.on_device else event) is not None and made.thread in by_thread:
            by_thread[made.thread].append((made.span[0], 1, 0, event))
    around = {}
    for entries in by_thread.values():
        under_way = list[_Event]()
        for at, is_inner, _, event in sorted(entries, key=lambda entry: entry[:3]):
            while under_way and under_way[-1].span[1] < at:  # events of one thread nest
                under_way.pop()
            if is_inner:
                around[event] = [*under_way]
            else:
                under_way.append(event)
    return around


def read_kineto(name: str, text: str, left_out: Counter[Notice]) -> list[RankRecording]:
    """Return the calls of one rank, in the order in which they were made."""
    rest: Json = {}
    events: Events = defaultdict(list)
    origin = None
    for entry in entries_in(name, text, "traceEvents", rest):
        begin, event_name, args = entry.get("ts"), entry.get("name"), entry.get("args")
        if not (isinstance(event_name, str) and isinstance(begin, int | float)):
            continue
        # Older files count µs since 1970; a float in seconds would lose fractions of a µs.
        origin = begin if origin is None else origin
        if kind := _kind(event_name, entry.get("cat")):
            begin_ns, duration_ns = round((begin - origin) * 1000), round(entry.get("dur", 0) * 1000)
            args = args if isinstance(args, dict) else {}
            args = {key: args[key] for key in _ARGUMENTS.get(kind, args) if key in args}
            span, on_device = (begin_ns, begin_ns + duration_ns), kind in {"kernel", "further"}
            events[kind].append(_Event(event_name, entry.get("tid"), span, args, on_device))
    _settle(events, left_out)
    job: Json = rest.get("distributedInfo") or {}
    # The groups that the head of the file describes: the groups of this rank.
    groups = {
        str(group.get("pg_name")): numbers(group.get("ranks")) or ranks_from(whole(group.get("pg_size")) or 0)
        for group in job.get("pg_config") or ()
        if isinstance(group, dict)
    }
    only_group = next(iter(groups.values())) if len(groups) == 1 else None
    described = [call for call in events["call"] if call.args.get("Collective name")]
    timed = _described(described, events, groups, left_out)
    pairs = {each: operator for each, operator in _operators_of_gloo(events).items() if not operator.claimed}
    if described:  # of calls of NCCL; calls of gloo in the same job may only have annotations
        events["annotation"] = [each for each in events["annotation"] if each in pairs]
    timed += _annotated(events, pairs, only_group)
    timed += _operator_calls(events, pairs, only_group, left_out)
    timed.sort(key=lambda timed_call: timed_call[0])
    unclaimed = [kernel.span for kernel in events["kernel"] if not kernel.claimed]
    base_ns = whole(rest.get("baseTimeNanoseconds")) or 0
    began_ns = base_ns + round((origin or 0) * 1000) + (timed[0][0] if timed else 0)
    rank = whole(job.get("rank"))
    recorded = RankRecording(
        name,
        rank_of(name) if rank is None else rank,
        _on_timeline(timed, events),
        began_ns,
        host=str(rest.get("host_name") or "") or None,
        by_name=rank is None,
        backend=str(job.get("backend") or ""),
        stated_world=whole(job.get("world_size")),
        proven_world=max((rank + 1 for ranks in groups.values() for rank in ranks), default=0),
        unclaimed=len(unclaimed),
        unclaimed_s=float(attributed(*zip(*unclaimed, strict=True)).sum()) * NS if unclaimed else 0.0,
    )
    return [recorded]


def _on_timeline(timed: Sequence[Timed], events: Events) -> tuple[RecordedCall, ...]:
    """Return the calls with their steps, their exposed time, and times since the first call.

    If the file does not record whether a call is asynchronous, it is if other work ran at the same time.
    """
    ran = [place for place, (_, call) in enumerate(timed) if call.ran_s is not None and call.duration_s is not None]
    starts = np.array([whole_ns(timed[place][1].ran_s) for place in ran], dtype=float)
    stops = starts + np.array([whole_ns(timed[place][1].duration_s) for place in ran], dtype=float)
    computing = events["computing" if events["kernel"] else "on CPU"]
    # Exposed time is known if it is the same whether the unsure kernels compute or communicate.
    most, _ = _exposed(starts, stops, computing)
    least, free = _exposed(starts, stops, [*computing, *events["unsure"]])
    exposed_s = {place: own * NS for place, own, other in zip(ran, most, least, strict=True) if own == other}
    overlapped = dict(zip(ran, _overlapped(starts, stops, *free), strict=True))
    steps = sorted((*step.span, int(step.name.partition("#")[2])) for step in events["step"])
    first_ns = timed[0][0] if timed else 0
    calls = []
    for place, (made_ns, call) in enumerate(timed):
        at = bisect.bisect_right(steps, made_ns, key=lambda step: step[0]) - 1
        calls.append(
            replace(
                call,
                start_s=(made_ns - first_ns) * NS,
                ran_s=None if call.ran_s is None else (whole_ns(call.ran_s) - first_ns) * NS,
                exposed_s=exposed_s.get(place) if computing else None,
                asynchronous=overlapped.get(place) if call.asynchronous is None else call.asynchronous,
                step=steps[at][2] if at >= 0 and made_ns <= steps[at][1] else None,
            )
        )
    return tuple(calls)


def _exposed(starts: Floats, stops: Floats, computing: Sequence[_Event]) -> tuple[list[float], list[Floats]]:
    """Return the exposed ns of each call, and its begin and end by a clock that stops while something is computed."""
    spans = np.array([event.span for event in computing], dtype=float).reshape(-1, 2)
    free = [free_until(spans[:, 0], spans[:, 1], moments) for moments in (starts, stops)]
    return attributed(*(moments.tolist() for moments in free)).tolist(), free


def _overlapped(starts: Floats, stops: Floats, free_starts: Floats, free_stops: Floats) -> list[bool]:
    """Return, for each call, whether something was computed, or another call began, while it ran."""
    least = OVERLAP * (stops - starts)
    computed = (stops - starts) - (free_stops - free_starts) > least
    begins = np.sort(starts)
    following = np.append(begins, np.inf)[np.searchsorted(begins, starts, side="right")]
    return [bool(flag) for flag in computed | (following < stops - least)]


def _claimed_around(calls: Sequence[_Event], events: Events) -> dict[_Event, list[_Event]]:
    """Return call → the operators around it, which then belong to a call."""
    around = _around(calls, events["operator"])
    for operator in (operator for operators in around.values() for operator in operators):
        operator.claimed = True
    return around


def _claim(kernels: Sequence[_Event]) -> Span | None:
    """Return begin and end of the kernels of a call, which then belong to a call."""
    for kernel in kernels:
        kernel.claimed = True
    begins, ends = zip(*(kernel.span for kernel in kernels), strict=True) if kernels else ((), ())
    return (min(begins), max(ends)) if kernels else None


def _ran(call: RecordedCall, run: Span | None) -> RecordedCall:
    """Return the call with the time at which it ran; the call itself if that is unknown."""
    return call if run is None else replace(call, ran_s=run[0] * NS, duration_s=(run[1] - run[0]) * NS)


def _named(kernels: list[_Event]) -> list[_Event]:
    """Return the kernels of a call whose names communicate; all its kernels if none has such a name."""
    return [kernel for kernel in kernels if COMMUNICATES.search(kernel.name)] or kernels


# ── with metadata ────────────────────────────────────────────────────────────────────────────────
def _described(
    described: Sequence[_Event], events: Events, groups: dict[str, tuple[int, ...]], left_out: Counter[Notice]
) -> list[Timed]:
    """Return the calls with metadata."""
    made = [call for call in described if call.args["Collective name"] != WAIT]
    if waits := len(described) - len(made):
        left_out[RECORDED_LEFT_OUT(what=WAIT)] += waits
    _find_kernels(made, events, _claimed_around(described, events))
    _find_batches(made, events)
    timed = []
    for event in made:
        args, operation = event.args, event.operation
        group, asynchronous = _group(args, groups), args.get("Is asynchronized op")
        # The peer of a send or receive is recorded as a world rank since torch 2.13, and as a group rank before.
        peers = [args[key] for key in ("Dst Rank", "Src Rank") if key in args]
        rank = whole(args.get("Rank"))
        within = rank if operation in ONE_WAY else peer_of(str(args["Collective name"]))
        call = RecordedCall(
            operation=operation,
            dtype=dtype_of(args.get("dtype")),
            elements_in=whole(args.get("In msg nelems")),
            elements_out=whole(args.get("Out msg nelems")),
            splits_in=numbers(args.get("In split size")),
            group=group,
            group_size=whole(args.get("Group size")),
            communicator=str(args.get("Process Group Name") or "") or None,
            root=rank if operation in ROOTED else None,
            peer=whole(peers[0]) if peers else member(group, within),
            asynchronous=asynchronous if isinstance(asynchronous, bool) else None,
            sequence=whole(args.get("Seq")),
            batched=event.together > 1,
        )
        timed.append((event.span[0], _ran(call, event.run)))
    return timed


def _find_kernels(calls: Sequence[_Event], events: Events, around: dict[_Event, list[_Event]]) -> None:
    """Find the kernels of calls by their External id or their operator's; calls with one id share them equally."""
    kernels_of = grouped(events["kernel"], lambda kernel: kernel.number)
    kernels_of.pop(None, None)

    def number(call: _Event) -> Any:
        operators = around.get(call)
        return operators[-1].number if call.number not in kernels_of and operators else call.number

    for shared, sharing in grouped(calls, number).items():
        kernels = sorted(_named(kernels_of.get(shared, [])), key=lambda kernel: kernel.span[0])
        each, remainder = divmod(len(kernels), len(sharing))
        if not remainder:
            for place, call in enumerate(sorted(sharing, key=lambda call: call.span[0])):
                call.run = _claim(kernels[place * each : (place + 1) * each])


def _find_batches(calls: Sequence[_Event], events: Events) -> None:
    """Divide each common kernel among its calls: torch launches one kernel for a group of calls.

    Such a kernel is launched after the last of these calls, on their thread, and belongs to no single call. The calls
    are the latest calls of one group of several ranks, with no other call or kernel in between.
    """
    waiting: dict[object, list[_Event]] = defaultdict(list)
    order = [(call.span[0], False, call, call) for call in calls]
    order += [(k.launch.span[0], True, k, k.launch) for k in events["kernel"] if not k.claimed and k.launch is not None]
    for at, is_kernel, event, made in sorted(order, key=lambda entry: entry[:2]):
        group = waiting[made.thread]
        if not is_kernel:
            if group and group[-1].args.get("Process Group Name") != event.args.get("Process Group Name"):
                group.clear()
            if event.run is not None or event.args.get("Group size") == 1:
                group.clear()
            else:
                group.append(event)
            continue
        waiting[made.thread] = []
        name = event.name.lower().replace("_", "")
        group = group[-1:] if group and at < group[-1].span[1] else group  # a call launches its own kernel itself
        operations = next((names for word, names in _OF_KERNEL.items() if word in name), ())
        if group and all(call.operation in operations for call in group):
            event.claimed = True
            begin, end = event.span
            moments = [begin + (end - begin) * place // len(group) for place in range(len(group) + 1)]
            for call, share in zip(group, pairwise(moments), strict=True):
                call.run, call.together = share, len(group)


def _operator_calls(
    events: Events, pairs: dict[_Event, _Event], only_group: tuple[int, ...] | None, left_out: Counter[Notice]
) -> list[Timed]:
    """Return the calls that only dispatcher operators show (backends without annotations). They have no durations.

    gloo builds some operations from others: if one of its annotations has no operator, all such operators are left out.
    """
    unsure = any(event.name.startswith("gloo:") and event not in pairs for event in events["annotation"])
    timed = []
    for operators in grouped(events["operator"], lambda operator: operator.thread).values():
        until = -math.inf  # operators nest: the outermost is the call
        for operator in sorted(operators, key=lambda event: (event.span[0], -event.span[1])):
            begin, end = operator.span
            if begin < until or operator.claimed or operator.operation not in KNOWN:
                continue
            until = end
            if unsure:
                left_out[UNSURE_OPERATORS()] += 1
                continue
            timed.append((begin, call_in(only_group, operator.operation, operator.dtype, *operator.elements)))
    return timed


def _group(args: Json, groups: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the ranks of the group: as listed, else by start and stride, else as the file's head lists them."""
    size, listed = whole(args.get("Group size")), numbers(args.get("Process Group Ranks"))
    if listed:
        return listed
    start, stride = whole(args.get("Global rank start")), whole(args.get("Global rank stride"))
    if size and start is not None and stride is not None and stride > 0:
        return ranks_from(size, start, stride)
    ranks = groups.get(str(args.get("Process Group Name")))
    return ranks if ranks and (not size or len(ranks) == size) else None


# ── without metadata ─────────────────────────────────────────────────────────────────────────────
def _annotated(events: Events, made_by: dict[_Event, _Event], only_group: tuple[int, ...] | None) -> list[Timed]:
    """Return the calls with annotations. made_by: gloo's annotation → its operator. only_group: of the job, if any."""
    kernels_of: dict[_Event, list[_Event]] = defaultdict(list)
    for kernel, annotations in _around(events["kernel"], events["annotation"]).items():
        if annotations:
            kernels_of[annotations[-1]].append(kernel)
    around = _claimed_around(events["annotation"], events)
    timed = []
    for event in events["annotation"]:
        maker = made_by.get(event)
        operator = maker or next(reversed(around.get(event, ())), None)
        operation, (into, out) = event.operation, event.elements
        if maker is not None:
            maker.claimed = True
        if operator is not None and _OUTPUT_FIRST.match(operator.name):
            operation = operator.operation
            into, out = operator.elements if len(operator.sizes) > 1 else (into, out)
        call = call_in(only_group, operation, event.dtype, into, out)
        if not only_group and operation in {"all_gather", "reduce_scatter"} and into and out:
            call = replace(call, group_size=max(into, out) // min(into, out))
        run = _claim(_named(kernels_of[event]))
        timed.append(((maker or event).span[0], _ran(call, event.span if event.name.startswith("gloo:") else run)))
    return timed


def _operators_of_gloo(events: Events) -> dict[_Event, _Event]:
    """Return gloo's annotation → the dispatcher operator that made the call, on another thread and earlier.

    gloo runs calls in order, so annotations and operators of one operation and size are paired in order. Annotations
    of gloo do not distinguish calls into one tensor from calls into a list. The tensor of a barrier is no data.
    """

    def kind(event: _Event) -> tuple[str, int]:
        operation = event.operation.removesuffix("_list")
        return operation, 0 if operation in WITHOUT_DATA else event.elements[0] or 0

    waiting: dict[tuple[str, int], deque[_Event]] = defaultdict(deque)
    for operator in sorted(events["operator"], key=lambda event: event.span[0]):
        waiting[kind(operator)].append(operator)
    pairs: dict[_Event, _Event] = {}
    for event in sorted(events["annotation"], key=lambda event: event.span[0]):
        earlier = waiting[kind(event)]
        if event.name.startswith("gloo:") and earlier and earlier[0].span[0] <= event.span[0]:
            pairs[event] = earlier.popleft()
    return pairs
