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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from collbench.model.notices import Notice
from collbench.model.records import Json
from collbench.model.units import NS
from collbench.packages.replay.importers.recordings import (
    OPERATIONS,
    ROOTED,
    WITHOUT_DATA,
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
    RECORDED_LEFT_OUT,
    UNSURE_KERNELS,
    UNSURE_OPERATORS,
    RankRecording,
    RecordedCall,
    whole_ns,
)
from collbench.packages.replay.spans import attributed, free_until
from collbench.stats.intervals import Floats

CALL, WAIT, STEP = "record_param_comms", "wait", re.compile(r"ProfilerStep#(\d+)")
_ANNOTATION = re.compile(r"^(gloo|mpi|ucc|[a-z]*ccl):")
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
# Prefix of operators that compute on a CPU: they nest only in each other, and none of them waits for a call.
COMPUTING = "aten::"
# A call is asynchronous if other work overlaps more than this share of it; stamps of streams can overlap slightly.
OVERLAP = 0.01
# The time in ns at which a call was made, and the call; its `ran_s` is by the same clock.
Timed = tuple[int, RecordedCall]
# Begin and end in whole nanoseconds: sums and differences of whole numbers have no rounding error.
Span = tuple[int, int]


@dataclass(slots=True)
class _Events:
    """The relevant events of a file, by kind."""

    calls: list[Json] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)
    # Operators of torch's dispatcher, by thread.
    operators: dict[object, list[Json]] = field(default_factory=lambda: defaultdict(list))
    kernels: list[Json] = field(default_factory=list)
    # Correlation number → thread and time at which a kernel was launched.
    launches: dict[int, tuple[object, int]] = field(default_factory=dict)
    # Kernels whose names do not show that they communicate; `settle` divides them into the other kinds.
    further: list[Json] = field(default_factory=list)
    # Begin and end of each kernel that computes, and of each kernel that may compute or communicate.
    computing: list[Span] = field(default_factory=list)
    unsure: list[Span] = field(default_factory=list)
    # Begin and end of each operator that computes on a CPU.
    on_cpu: list[Span] = field(default_factory=list)
    # Number of a step → its begin and end.
    steps: dict[int, Span] = field(default_factory=dict)

    def take(self, event: Json, name: str, kind: object) -> None:
        """Add one event to the events of its kind."""
        if name == CALL:
            self.calls.append(event)
        elif kind == "kernel":
            if COMMUNICATES.search(name) and not _FUSED.match(name):
                self.kernels.append(event)
            elif _COMPUTES.search(name):
                self.computing.append(_span(event))
            else:
                self.further.append(event)
        elif str(kind).endswith(("_runtime", "_driver")) and "graphlaunch" not in name.lower():
            # The kernels of a graph do not belong to the calls around its launch: its calls were captured earlier.
            correlation = event["args"].get("correlation")
            if isinstance(correlation, int):
                self.launches[correlation] = (event.get("tid"), event["ts"])
        elif kind != "gpu_user_annotation":
            if _ANNOTATION.match(name):
                self.annotations.append(event)
            elif name.startswith("c10d::"):
                self.operators[event.get("tid")].append(event)
            elif name.startswith(COMPUTING):
                self.on_cpu.append(_span(event))
            elif step := STEP.fullmatch(name):
                self.steps[int(step[1])] = _span(event)

    @property
    def all_operators(self) -> list[Json]:
        """Return the operators of all threads."""
        return [operator for operators in self.operators.values() for operator in operators]

    def settle(self, left_out: Counter[Notice]) -> None:
        """Add each further kernel to its kind: a kernel that a call launched communicates, whatever its name is."""
        callers = [*self.calls, *(event for event in self.annotations if not event["name"].startswith("gloo:"))]
        callers += self.all_operators
        numbers = {event["args"].get("External id") for event in callers} - {None, 0}
        launched_by = self.around_launches(self.further, callers)
        for kernel in self.further:
            name = kernel["name"].split("<")[0]  # the arguments of a template name other things
            if kernel["args"].get("External id") in numbers or launched_by.get(id(kernel)):
                self.kernels.append(kernel)
            elif _UNSURE.search(name) and not _FUSED.match(name):
                self.unsure.append(_span(kernel))
                left_out[UNSURE_KERNELS(kernel=name[:60])] += 1
            else:
                self.computing.append(_span(kernel))

    def around_launches(self, kernels: Sequence[Json], outer: Iterable[Json]) -> dict[int, list[Json]]:
        """Return kernel → the events in which it was launched, as `_around` does."""
        correlations = ((kernel, kernel["args"].get("correlation")) for kernel in kernels)
        launches = ((id(kernel), *self.launches[number]) for kernel, number in correlations if number in self.launches)
        return _around(launches, outer)


def _around(moments: Iterable[tuple[int, object, int]], outer: Iterable[Json]) -> dict[int, list[Json]]:
    """Return moment → the events around it, on its thread; the innermost last. moments: (id, thread, time)."""
    by_thread: dict[object, list[tuple[int, int, int, Json]]] = defaultdict(list)
    for event in outer:
        by_thread[event.get("tid")].append((event["ts"], 0, event["ts"] + event["dur"], event))
    for number, thread, at in moments:
        if thread in by_thread:
            by_thread[thread].append((at, 1, number, {}))
    around = {}
    for entries in by_thread.values():
        under_way = list[Json]()
        for at, is_moment, number, event in sorted(entries, key=lambda entry: entry[:3]):
            while under_way and _span(under_way[-1])[1] < at:  # events of one thread nest
                under_way.pop()
            if is_moment:
                around[number] = [*under_way]
            else:
                under_way.append(event)
    return around


def _places(events: Iterable[Json]) -> Iterator[tuple[int, object, int]]:
    """Yield the moments at which events begin, as `_around` takes them."""
    return ((id(event), event.get("tid"), event["ts"]) for event in events)


def _span(event: Json) -> Span:
    """Return begin and end of an event."""
    return event["ts"], event["ts"] + event["dur"]


def read_kineto(name: str, text: str, left_out: Counter[Notice]) -> list[RankRecording]:
    """Return the calls of one rank, in the order in which they were made."""
    rest: Json = {}
    events, origin = _Events(), None
    for event in entries_in(name, text, "traceEvents", rest):
        event_name = event.get("name")
        if isinstance(event_name, str) and isinstance(event.get("ts"), int | float):
            # Older files count µs since 1970; a float in seconds would lose fractions of a µs.
            origin = event["ts"] if origin is None else origin
            event["ts"], event["dur"] = round((event["ts"] - origin) * 1000), round(event.get("dur", 0) * 1000)
            if not isinstance(event.get("args"), dict):
                event["args"] = {}
            events.take(event, event_name, event.get("cat"))
    events.settle(left_out)
    job: Json = rest.get("distributedInfo") or {}
    # The groups that the head of the file describes: the groups of this rank.
    groups = {
        str(group.get("pg_name")): numbers(group.get("ranks")) or ranks_from(whole(group.get("pg_size")) or 0)
        for group in job.get("pg_config") or ()
        if isinstance(group, dict)
    }
    only_group = next(iter(groups.values())) if len(groups) == 1 else None
    described = [call for call in events.calls if call["args"].get("Collective name")]
    timed, claimed = _described(described, events, groups, left_out)
    pairs = _operators_of_gloo(events)
    if described:  # of calls of NCCL; calls of gloo in the same job may only have annotations
        around = _around(_places(described), events.all_operators)
        holding = {id(operator) for operators in around.values() for operator in operators}
        pairs = {each: operator for each, operator in pairs.items() if id(operator) not in holding}
        events.annotations = [each for each in events.annotations if id(each) in pairs]
    claimed |= _annotated(events, pairs, only_group, timed)
    timed += _operator_calls(events, [*described, *events.annotations], pairs, only_group, left_out)
    timed.sort(key=lambda timed_call: timed_call[0])
    unclaimed = [kernel for kernel in events.kernels if id(kernel) not in claimed]
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
        unclaimed_s=float(attributed(*zip(*map(_span, unclaimed), strict=True)).sum()) * NS if unclaimed else 0.0,
    )
    return [recorded]


def _on_timeline(timed: Sequence[Timed], events: _Events) -> tuple[RecordedCall, ...]:
    """Return the calls with their steps, their exposed time, and times since the first call.

    If the file does not record whether a call is asynchronous, it is if other work ran at the same time.
    """
    ran = [place for place, (_, call) in enumerate(timed) if call.ran_s is not None and call.duration_s is not None]
    starts = np.array([whole_ns(timed[place][1].ran_s) for place in ran], dtype=float)
    stops = starts + np.array([whole_ns(timed[place][1].duration_s) for place in ran], dtype=float)
    computing = events.computing if events.kernels else events.on_cpu
    # Exposed time is known if it is the same whether the unsure kernels compute or communicate.
    most, _ = _exposed(starts, stops, computing)
    least, free = _exposed(starts, stops, [*computing, *events.unsure])
    exposed_s = {place: own * NS for place, own, other in zip(ran, most, least, strict=True) if own == other}
    overlapped = dict(zip(ran, _overlapped(starts, stops, *free), strict=True))
    steps = sorted((begin, end, number) for number, (begin, end) in events.steps.items())
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


def _exposed(starts: Floats, stops: Floats, computing: Sequence[Span]) -> tuple[list[float], list[Floats]]:
    """Return the exposed ns of each call, and its begin and end by a clock that stops while something is computed."""
    spans = np.array(computing, dtype=float).reshape(-1, 2)
    free = [free_until(spans[:, 0], spans[:, 1], moments) for moments in (starts, stops)]
    return attributed(*(moments.tolist() for moments in free)).tolist(), free


def _overlapped(starts: Floats, stops: Floats, free_starts: Floats, free_stops: Floats) -> list[bool]:
    """Return, for each call, whether something was computed, or another call began, while it ran."""
    least = OVERLAP * (stops - starts)
    computed = (stops - starts) - (free_stops - free_starts) > least
    begins = np.sort(starts)
    following = np.append(begins, np.inf)[np.searchsorted(begins, starts, side="right")]
    return [bool(flag) for flag in computed | (following < stops - least)]


def _run(kernels: Sequence[Json]) -> Span | None:
    """Return the begin and end of the kernels of a call."""
    if not kernels:
        return None
    begins, ends = zip(*map(_span, kernels), strict=True)
    return min(begins), max(ends)


def _ran(call: RecordedCall, run: Span | None) -> RecordedCall:
    """Return the call with the time at which it ran; the call itself if that is unknown."""
    return call if run is None else replace(call, ran_s=run[0] * NS, duration_s=(run[1] - run[0]) * NS)


def _named(kernels: list[Json]) -> list[Json]:
    """Return the kernels of a call whose names communicate; all its kernels if none has such a name."""
    return [kernel for kernel in kernels if COMMUNICATES.search(kernel["name"])] or kernels


# ── with metadata ────────────────────────────────────────────────────────────────────────────────
def _described(
    described: Sequence[Json], events: _Events, groups: dict[str, tuple[int, ...]], left_out: Counter[Notice]
) -> tuple[list[Timed], set[int]]:
    """Return the calls with metadata, and the ids of their kernels."""
    kernels_of: dict[Any, list[Json]] = defaultdict(list)
    for kernel in events.kernels:
        kernels_of[kernel["args"].get("External id")].append(kernel)
    kernels_of.pop(None, None)
    own = _kernels_of_calls(described, kernels_of, _around(_places(described), events.all_operators))
    claimed = {id(kernel) for kernels in own.values() for kernel in kernels}
    batches = _batches(described, events, own, claimed)
    timed = []
    for event in described:
        args = event["args"]
        raw = str(args["Collective name"])
        if raw == WAIT:
            left_out[RECORDED_LEFT_OUT(what=raw)] += 1
            continue
        run, together = batches.get(id(event), (None, 1))
        operation, group, asynchronous = operation_of(raw), _group(args, groups), args.get("Is asynchronized op")
        # The peer of a send or receive is recorded as a world rank since torch 2.13, and as a group rank before.
        peers = [args[key] for key in ("Dst Rank", "Src Rank") if key in args]
        within = whole(args.get("Rank")) if operation in {"send", "recv"} else peer_of(raw)
        call = RecordedCall(
            operation=operation,
            dtype=dtype_of(args.get("dtype")),
            elements_in=whole(args.get("In msg nelems")),
            elements_out=whole(args.get("Out msg nelems")),
            splits_in=numbers(args.get("In split size")),
            group=group,
            group_size=whole(args.get("Group size")),
            communicator=str(args.get("Process Group Name") or "") or None,
            root=whole(args.get("Rank")) if operation in ROOTED else None,
            peer=whole(peers[0]) if peers else member(group, within),
            asynchronous=asynchronous if isinstance(asynchronous, bool) else None,
            sequence=whole(args.get("Seq")),
            batched=together > 1,
        )
        timed.append((event["ts"], _ran(call, run or _run(own.get(id(event), ())))))
    return timed, claimed


def _kernels_of_calls(
    described: Sequence[Json], kernels_of: dict[Any, list[Json]], around: dict[int, list[Json]]
) -> dict[int, list[Json]]:
    """Return call → its kernels, by its External id, else by its operator's; calls with one id share them equally."""
    calls_of: dict[Any, list[Json]] = defaultdict(list)
    for event in described:
        if event["args"].get("Collective name") != WAIT:
            number = event["args"].get("External id")
            if number not in kernels_of and (operators := around.get(id(event))):
                number = operators[-1]["args"].get("External id")
            calls_of[number].append(event)
    own: dict[int, list[Json]] = {}
    for number, calls in calls_of.items():
        kernels = sorted(_named(kernels_of.get(number, [])), key=lambda kernel: float(kernel["ts"]))
        each, remainder = divmod(len(kernels), len(calls))
        if kernels and not remainder:
            calls.sort(key=lambda event: float(event["ts"]))
            own |= {id(call): kernels[place * each : (place + 1) * each] for place, call in enumerate(calls)}
    return own


def _batches(
    described: Sequence[Json], events: _Events, own: dict[int, list[Json]], claimed: set[int]
) -> dict[int, tuple[Span, int]]:
    """Return call → (its share of a common kernel, number of its calls): torch launches one kernel for a group.

    Such a kernel is launched after the last of these calls, on their thread, and belongs to no single call. The calls
    are the latest calls of one group of several ranks, with no other call or kernel in between. The kernels that were
    found are added to `claimed`.
    """
    waiting: dict[object, list[Json]] = defaultdict(list)
    made = sorted((event["ts"], 0, number, event) for number, event in enumerate(described))
    launched = sorted(
        (events.launches[kernel["args"].get("correlation")][1], 1, number, kernel)
        for number, kernel in enumerate(events.kernels)
        if id(kernel) not in claimed and kernel["args"].get("correlation") in events.launches
    )
    ran: dict[int, tuple[Span, int]] = {}
    for _, _, _, event in sorted([*made, *launched], key=lambda entry: entry[:3]):
        if event.get("cat") != "kernel":
            args, before = event["args"], waiting[event.get("tid")]
            if args["Collective name"] == WAIT:
                continue
            if before and before[-1]["args"].get("Process Group Name") != args.get("Process Group Name"):
                before.clear()
            if id(event) in own or args.get("Group size") == 1:
                before.clear()
            else:
                before.append(event)
            continue
        thread, at = events.launches[event["args"].get("correlation")]
        group, name = waiting.pop(thread, []), event["name"].lower().replace("_", "")
        group = group[-1:] if group and at < _span(group[-1])[1] else group  # a call launches its own kernel itself
        operations = next((names for word, names in _OF_KERNEL.items() if word in name), ())
        if not group or any(operation_of(str(call["args"]["Collective name"])) not in operations for call in group):
            continue
        claimed.add(id(event))
        moments = [event["ts"] + event["dur"] * place // len(group) for place in range(len(group) + 1)]
        ran |= {id(call): (share, len(group)) for call, share in zip(group, pairwise(moments), strict=True)}
    return ran


def _operator_calls(
    events: _Events,
    recorded: Sequence[Json],
    pairs: dict[int, Json],
    only_group: tuple[int, ...] | None,
    left_out: Counter[Notice],
) -> list[Timed]:
    """Return the calls that only dispatcher operators show (backends without annotations). They have no durations.

    gloo builds some operations from others: if one of its annotations has no operator, all such operators are left out.
    """
    around = _around(_places(recorded), events.all_operators)
    known = {id(operator) for operators in around.values() for operator in operators}
    known |= {id(operator) for operator in pairs.values()}
    unsure = any(event["name"].startswith("gloo:") and id(event) not in pairs for event in events.annotations)
    timed = []
    for operators in events.operators.values():
        until = -math.inf  # operators nest: the outermost is the call
        for operator in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = _span(operator)
            operation = operation_of(operator["name"])
            if begin < until or id(operator) in known or operation not in KNOWN:
                continue
            until = end
            if unsure:
                left_out[UNSURE_OPERATORS()] += 1
                continue
            sizes = _sizes(operator["args"].get("Input Dims"))
            out, into = sizes[:2] if _OUTPUT_FIRST.match(operator["name"]) and len(sizes) > 1 else [sum(sizes)] * 2
            dtype = dtype_of((operator["args"].get("Input type") or [None])[0])
            known_sizes = (into, out) if sizes else (None, None)
            timed.append((begin, call_in(only_group, operation, dtype, *known_sizes)))
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
def _annotated(
    events: _Events, made_by: dict[int, Json], only_group: tuple[int, ...] | None, timed: list[Timed]
) -> set[int]:
    """Add the calls with annotations to `timed`, and return the ids of their kernels.

    made_by: gloo's annotation → its operator. only_group: the ranks of the job's only group, if it has one.
    """
    kernels_of: dict[int, list[Json]] = defaultdict(list)
    launched_in = events.around_launches(events.kernels, events.annotations)
    for kernel in events.kernels:
        if annotations := launched_in.get(id(kernel)):
            kernels_of[id(annotations[-1])].append(kernel)
    kernels_of = {number: _named(own) for number, own in kernels_of.items()}
    around = _around(_places(events.annotations), events.all_operators)
    for event in events.annotations:
        maker = made_by.get(id(event))
        operator = maker or next(reversed(around.get(id(event), ())), None)
        sizes, operation = _sizes(event["args"].get("Input Dims")), operation_of(event["name"])
        elements_in = elements_out = sum(sizes) if sizes else None
        if operator is not None and _OUTPUT_FIRST.match(operator["name"]):
            operation = operation_of(operator["name"])
            operator_sizes = _sizes(operator["args"].get("Input Dims"))
            if len(operator_sizes) >= 2:
                elements_out, elements_in = operator_sizes[0], operator_sizes[1]
        dtype = dtype_of((event["args"].get("Input type") or [None])[0])
        call = call_in(only_group, operation, dtype, elements_in, elements_out)
        if not only_group and operation in {"all_gather", "reduce_scatter"} and elements_in and elements_out:
            call = replace(call, group_size=max(elements_in, elements_out) // min(elements_in, elements_out))
        run = _span(event) if event["name"].startswith("gloo:") else _run(kernels_of.get(id(event), ()))
        timed.append(((maker or event)["ts"], _ran(call, run)))
    return {id(kernel) for own in kernels_of.values() for kernel in own}


def _operators_of_gloo(events: _Events) -> dict[int, Json]:
    """Return gloo's annotation → the dispatcher operator that made the call, on another thread and earlier.

    gloo runs calls in order, so annotations and operators of one operation and size are paired in order. Annotations
    of gloo do not distinguish calls into one tensor from calls into a list. The tensor of a barrier is no data.
    """

    def kind(name: str, sizes: list[int]) -> tuple[str, int]:
        operation = operation_of(name).removesuffix("_list")
        return operation, 0 if operation in WITHOUT_DATA else sum(sizes)

    waiting: dict[tuple[str, int], deque[Json]] = defaultdict(deque)
    for operator in sorted(events.all_operators, key=lambda event: float(event["ts"])):
        sizes = _sizes(operator["args"].get("Input Dims"))
        if _OUTPUT_FIRST.match(operator["name"]):
            sizes = sizes[1:2]
        waiting[kind(operator["name"], sizes)].append(operator)
    pairs: dict[int, Json] = {}
    for event in sorted(events.annotations, key=lambda event: float(event["ts"])):
        earlier = waiting.get(kind(event["name"], _sizes(event["args"].get("Input Dims"))))
        if event["name"].startswith("gloo:") and earlier and earlier[0]["ts"] <= event["ts"]:
            pairs[id(event)] = earlier.popleft()
    return pairs


def _sizes(dims: object) -> list[int]:
    """Return the elements of each tensor in "Input Dims"; entries that are not lists of numbers are not tensors."""
    if isinstance(dims, list) and dims and isinstance(dims[0], list) and dims[0] and isinstance(dims[0][0], list):
        dims = dims[0]  # operators nest the sizes of a list of tensors one level deeper
    return [
        math.prod(dim)
        for dim in (dims if isinstance(dims, list) else [])
        if isinstance(dim, list) and dim and all(isinstance(number, int) for number in dim)
    ]
