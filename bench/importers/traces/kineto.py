"""Read Chrome traces of torch.profiler (Kineto), with the metadata of collectives (since 2024) and without, and gloo's.

In: the text of one rank's file. Out: a `RankRecording`. An NCCL call is three nested CPU events: `c10d::allreduce_`,
`record_param_comms`, `nccl:all_reduce`; with metadata the second is read, without it the third, with the sizes of the
first where it sends and receives different amounts. Durations are those of kernels, which hold the wait for late ranks;
of gloo, those of the annotation, which is the run on a worker thread.
"""

import bisect
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.importers.traces.files import LongObject
from bench.importers.traces.names import dtype_of, operation_of, peer_of
from bench.model.recorded_calls import RankRecording, RecordedCall
from bench.model.records import Json

CALL, WAIT, STEP = "record_param_comms", "wait", re.compile(r"ProfilerStep#\d+")
_ANNOTATION = re.compile(r"^(nccl|gloo|rccl|xccl):")
# Calls whose first dimension is the output and whose second is the input.
_OUTPUT_FIRST = re.compile(r"^c10d::_?(alltoall_base|allgather_base|reduce_scatter_base)_$")
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
US = 1e-6


@dataclass(slots=True)
class _Events:
    """The events of a file that matter: by kind, and where they are looked up, by thread or number."""

    calls: list[Json] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)
    outer: dict[object, list[Json]] = field(default_factory=lambda: defaultdict(list))
    kernels: list[Json] = field(default_factory=list)
    launches: dict[int, tuple[object, float]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)

    def take(self, event: Json, name: str, kind: object) -> None:
        """Sort in one event."""
        if name == CALL:
            self.calls.append(event)
        elif kind == "kernel":
            if "nccl" in name.lower():
                self.kernels.append(event)
        elif kind in {"cuda_runtime", "cuda_driver"}:
            correlation = event["args"].get("correlation")
            if isinstance(correlation, int):
                self.launches[correlation] = (event.get("tid"), event["ts"])
        elif kind != "gpu_user_annotation":
            self._take_annotation(event, name)

    def _take_annotation(self, event: Json, name: str) -> None:
        if _ANNOTATION.match(name):
            self.annotations.append(event)
        elif name.startswith("c10d::"):
            self.outer[event.get("tid")].append(event)
        elif STEP.fullmatch(name):
            self.steps.add(name)


def read(name: str, text: str, left_out: Counter[str]) -> tuple[RankRecording, Json]:
    """The calls of one rank, in the order in which they were made; and what the file tells of the job."""
    source = LongObject(name, text, "traceEvents")
    events = _Events()
    for event in source.entries():
        what = event.get("name")
        if isinstance(what, str) and isinstance(event.get("ts"), int | float):
            if not isinstance(event.get("args"), dict):
                event["args"] = {}
            events.take(event, what, event.get("cat"))
    told: Json = source.rest.get("distributedInfo") or {}
    described = [call for call in events.calls if call["args"].get("Collective name")]
    groups = _groups(told)
    only = next(iter(groups.values())) if len(groups) == 1 else None
    found = _with_metadata(described, events, groups, left_out) if described else _without(events, only)
    found.sort(key=lambda one: one[0])
    first = found[0][0] if found else 0.0
    calls = tuple(_since(first, at, call) for at, call in found)
    return RankRecording(name, _whole(told.get("rank")), calls), told | {"steps": max(1, len(events.steps))}


def _since(first: float, at: float, call: RecordedCall) -> RecordedCall:
    """The call with its times since the first call, in place of the file's own clock."""
    return replace(call, start_s=at - first, ran_s=None if call.ran_s is None else call.ran_s - first)


def _groups(told: Json) -> dict[str, tuple[int, ...]]:
    """Ranks of the groups that the head of the file describes: those of this rank."""
    return {
        str(one.get("pg_name")): tuple(one.get("ranks") or range(int(one.get("pg_size", 0))))
        for one in told.get("pg_config") or ()
        if isinstance(one, dict)
    }


# ── with metadata ────────────────────────────────────────────────────────────────────────────────
def _with_metadata(
    described: Sequence[Json], events: _Events, groups: dict[str, tuple[int, ...]], left_out: Counter[str]
) -> list[tuple[float, RecordedCall]]:
    kernels: dict[Any, list[Json]] = defaultdict(list)
    for kernel in events.kernels:
        kernels[kernel["args"].get("External id")].append(kernel)
    found = []
    for event in described:
        raw = str(event["args"]["Collective name"])
        if raw == WAIT:
            left_out[raw] += 1
        else:
            ran = _run(kernels.get(event["args"].get("External id"), ()))
            found.append((event["ts"] * US, _described(event["args"], raw, groups, ran)))
    return found


def _described(args: Json, raw: str, groups: dict[str, tuple[int, ...]], ran: "_Ran") -> RecordedCall:
    operation, group = operation_of(raw), _group(args, groups)
    asynchronous = args.get("Is asynchronized op")
    return RecordedCall(
        operation=operation,
        dtype=dtype_of(args.get("dtype")),
        elements_in=_whole(args.get("In msg nelems")),
        elements_out=_whole(args.get("Out msg nelems")),
        splits_in=_splits(args.get("In split size")),
        splits_out=_splits(args.get("Out split size")),
        group=group,
        group_size=_whole(args.get("Group size")),
        root=_whole(args.get("Rank")) if operation in _ROOTED else None,
        peer=_peer(raw, args, group),
        stream=ran.stream,
        ran_s=ran.begin_s,
        duration_s=ran.duration_s,
        asynchronous=asynchronous if isinstance(asynchronous, bool) else None,
        sequence=_whole(args.get("Seq")),
    )


def _group(args: Json, groups: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Ranks of the group: as listed, else by start and stride, else as the file's head lists them."""
    size, listed = _whole(args.get("Group size")), _splits(args.get("Process Group Ranks"))
    if listed:
        return listed
    start, stride = _whole(args.get("Global rank start")), _whole(args.get("Global rank stride"))
    if size and start is not None and stride is not None and stride > 0:
        return tuple(range(start, start + stride * size, stride))
    known = groups.get(str(args.get("Process Group Name")))
    return known if known and (not size or len(known) == size) else None


def _peer(raw: str, args: Json, group: tuple[int, ...] | None) -> int | None:
    """Of a send or receive: told as a rank of the world since 2.13, before as one of the group."""
    for name in ("Dst Rank", "Src Rank"):
        if name in args:
            return _whole(args[name])
    within = _whole(args.get("Rank")) if operation_of(raw) in {"send", "recv"} else peer_of(raw)
    return group[within] if within is not None and group and within < len(group) else None


def _splits(value: object) -> tuple[int, ...] | None:
    """Numbers in a text such as `[3, 1]`; None where the text is cut."""
    try:
        return tuple(int(one) for one in json.loads(str(value or "[]")))
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _Ran:
    """When and on which stream the kernels of a call ran."""

    stream: str | None = None
    begin_s: float | None = None
    duration_s: float | None = None


def _run(kernels: Sequence[Json]) -> _Ran:
    if not kernels:
        return _Ran()
    begin = min(one["ts"] for one in kernels)
    end = max(one["ts"] + one.get("dur", 0) for one in kernels)
    return _Ran(str(kernels[0]["args"].get("stream", "")) or None, begin * US, (end - begin) * US)


# ── without ──────────────────────────────────────────────────────────────────────────────────────
def _without(events: _Events, only: tuple[int, ...] | None) -> list[tuple[float, RecordedCall]]:
    """Calls by their annotations. only: the ranks of the job's only group, if it has one."""
    kernels = _kernels_by_annotation(events)
    made = _made_by(events)
    found = []
    for event in events.annotations:
        outer = made.get(id(event)) or _around(events.outer.get(event.get("tid"), []), event)
        gloo = event["name"].startswith("gloo:")
        at_s, took_s = event["ts"] * US, event.get("dur", 0) * US
        ran = _Ran(str(event.get("tid")), at_s, took_s) if gloo else _run(kernels.get(id(event), ()))
        made_s = made[id(event)]["ts"] * US if id(event) in made else at_s
        found.append((made_s, _annotated(event, outer, ran, only)))
    return found


def _made_by(events: _Events) -> dict[int, Json]:
    """Annotation of gloo → the dispatcher's event that made the call, on another thread and earlier.

    gloo takes calls in their order, so those of one operation and size are paired in order.
    """
    waiting: dict[object, list[Json]] = defaultdict(list)
    for outer in sorted((one for some in events.outer.values() for one in some), key=lambda one: float(one["ts"])):
        sizes = _sizes(_flat(outer["args"].get("Input Dims")))
        if _OUTPUT_FIRST.match(outer["name"]):
            sizes = sizes[1:2]
        waiting[_kind(outer["name"]), sum(sizes)].append(outer)
    pairs: dict[int, Json] = {}
    for event in sorted(events.annotations, key=lambda one: float(one["ts"])):
        before = waiting.get((_kind(event["name"]), sum(_sizes(event["args"].get("Input Dims")))))
        if event["name"].startswith("gloo:") and before and before[0]["ts"] <= event["ts"]:
            pairs[id(event)] = before.pop(0)
    return pairs


def _kind(name: str) -> str:
    """The operation, whether into one tensor or into a list: gloo's annotations do not tell."""
    return operation_of(name).removesuffix("_list")


def _flat(dims: object) -> object:
    """Sizes of a list of tensors, which the dispatcher's events nest once more."""
    first = dims[0] if isinstance(dims, list) and dims else None
    return first if isinstance(first, list) and first and isinstance(first[0], list) else dims


def _kernels_by_annotation(events: _Events) -> dict[int, list[Json]]:
    """Annotation → the kernels that were launched within it, by the launch's thread and instant."""
    by_thread: dict[object, list[Json]] = defaultdict(list)
    for event in sorted(events.annotations, key=lambda one: one["ts"]):
        by_thread[event.get("tid")].append(event)
    starts = {thread: [one["ts"] for one in found] for thread, found in by_thread.items()}
    kernels: dict[int, list[Json]] = defaultdict(list)
    for kernel in events.kernels:
        thread, at = events.launches.get(kernel["args"].get("correlation"), (None, 0.0))
        place = bisect.bisect_right(starts.get(thread, []), at) - 1
        if place >= 0:
            event = by_thread[thread][place]
            if at <= event["ts"] + event.get("dur", 0):
                kernels[id(event)].append(kernel)
    return kernels


def _annotated(event: Json, outer: Json | None, ran: _Ran, group: tuple[int, ...] | None) -> RecordedCall:
    args = event["args"]
    sizes, operation = _sizes(args.get("Input Dims")), operation_of(event["name"])
    into = out = sum(sizes) if sizes else None
    if outer is not None and _OUTPUT_FIRST.match(outer["name"]):
        operation = operation_of(outer["name"])
        of_outer = _sizes(outer["args"].get("Input Dims"))
        if len(of_outer) >= 2:
            out, into = of_outer[0], of_outer[1]
    whole = operation in {"all_gather", "reduce_scatter"} and into and out
    types = args.get("Input type") or [None]
    return RecordedCall(
        operation=operation,
        dtype=dtype_of(types[0]),
        elements_in=into,
        elements_out=out,
        splits_in=None if operation.startswith("all_to_all") else (),
        splits_out=None if operation.startswith("all_to_all") else (),
        group=group,
        group_size=len(group) if group else max(into, out) // min(into, out) if whole and into and out else None,
        stream=ran.stream,
        ran_s=ran.begin_s,
        duration_s=ran.duration_s,
    )


def _around(outer: Sequence[Json], event: Json) -> Json | None:
    """The innermost event of torch's dispatcher around an annotation."""
    inside = [one for one in outer if one["ts"] <= event["ts"] <= one["ts"] + one.get("dur", 0)]
    return max(inside, key=lambda one: float(one["ts"])) if inside else None


def _sizes(dims: object) -> list[int]:
    """Elements of each tensor in "Input Dims"; what is no list of numbers is no tensor."""
    found = []
    for dim in dims if isinstance(dims, list) else []:
        if isinstance(dim, list) and dim and all(isinstance(one, int) for one in dim):
            product = 1
            for one in dim:
                product *= one
            found.append(product)
    return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
