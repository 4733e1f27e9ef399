"""Read dumps of torch's flight recorder, and lines of NCCL's inspector plugin (formats v4.0 and v4.3).

In: the text of a file. Out: a `RankRecording` per rank in it. The flight recorder's times are enqueue times; durations
exist only with TORCH_NCCL_ENABLE_TIMING=1. Its ring buffer drops the oldest entries, and a dump after a hang can
contain calls that never ended; it records no splits, roots or streams. The inspector writes one object per call, for
one or several processes: bytes, communicators and durations, but no dtypes, splits or ranks of groups. Format v4.3
(NCCL 2.29) writes the process once, before its lines.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collbench.model.notices import Kind, Notice
from collbench.model.records import Json
from collbench.model.units import US
from collbench.packages.replay.importers.recordings import (
    DEFAULT_GROUP,
    call_in,
    dtype_of,
    entries_in,
    entries_of,
    member,
    numbers,
    operation_of,
    peer_of,
    rank_of,
    whole,
)
from collbench.packages.replay.recorded_calls import INCOMPLETE_CALLS, RankRecording, RecordedCall

# NCCL has no operations on lists of tensors.
_WITHOUT_LISTS = {"all_gather_list": "all_gather", "reduce_scatter_list": "reduce_scatter"}
# Host and pid of a process, or None and the rank in the header if they are unknown.
_Process = tuple[str | None, Any]
# Name of the entry for a whole batch of calls.
BATCH = "nccl:coalesced"
# Inspector's numbers of dropped calls, and the keys of its lines that are no calls.
DROPPED = ("coll_dropped_total", "p2p_dropped_total")
NO_CALL = {"dump_stats", "proxy_trace"}


def read_flight_recorder(name: str, text: str, left_out: Counter[Notice]) -> list[RankRecording]:
    """Return the calls of one rank, oldest first."""
    rest: Json = {}
    entries = sorted(entries_in(name, text, "entries", rest), key=lambda entry: entry.get("record_id", 0))
    groups = {
        str(key): numbers(described.get("ranks")) or None
        for key, described in (rest.get("pg_config") or {}).items()
        if isinstance(described, dict)
    }
    only_group = next(iter(groups.values())) if len(groups) == 1 else None
    first_ns = next((entry["time_created_ns"] for entry in entries if entry.get("time_created_ns")), None)
    batches = _batches_of(entries)
    calls = []
    for entry in entries:
        if entry.get("profiling_name") == BATCH:
            continue  # its state and its time are used for its calls
        described, together, torn = batches.get(id(entry), (entry, 1, False))
        # gloo never marks a call as completed, only as retired.
        left_out[INCOMPLETE_CALLS()] += not _complete(described)
        raw, created_ns = str(entry.get("profiling_name", "")), entry.get("time_created_ns")
        communicator, duration_ms = _group_name(entry), described.get("duration_ms")
        group = groups.get(communicator, only_group)
        dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or [None]
        sizes = _elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))
        call = replace(
            call_in(group, operation_of(raw), dtype_of(dtypes[0]), *sizes),
            communicator=communicator or None,
            peer=member(group, peer_of(raw)),
            start_s=None if created_ns is None or first_ns is None else (created_ns - first_ns) / 1e9,
            duration_s=None if duration_ms is None or torn else float(duration_ms) / 1e3 / together,
            batched=together > 1 or torn,
            sequence=whole(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")),
        )
        calls.append(call)
    dropped = whole(entries[0].get("record_id")) if entries else None  # the ring drops the oldest; numbers begin at 0
    world, began_ns = len(groups.get(DEFAULT_GROUP) or ()) or None, first_ns or None
    rank = rank_of(name)
    return [RankRecording(name, rank, tuple(calls), began_ns, by_name=True, dropped=dropped, stated_world=world)]


def _batches_of(entries: Sequence[Json]) -> dict[int, tuple[Json, int, bool]]:
    """Return call → the entry of its batch, the number of its calls, and whether some may be lost.

    torch makes these calls as one group, and only the entry of the group has their state and time. It follows the
    entries of its calls, which never become complete. The recorder's ring may have lost the first calls of a batch.
    """
    open_calls: dict[str, list[int]] = defaultdict(list)
    batches: dict[int, tuple[Json, int, bool]] = {}
    for place, entry in enumerate(entries):
        if entry.get("profiling_name") != BATCH:
            if not _complete(entry) and entry.get("duration_ms") is None:
                open_calls[_group_name(entry)].append(place)
            continue
        calls = open_calls.pop(_group_name(entry), [])
        torn = bool(calls) and calls[0] == 0 and bool(entries[0].get("record_id"))
        batches |= {id(entries[call]): (entry, len(calls), torn) for call in calls}
    return batches


def _group_name(entry: Json) -> str:
    return str((entry.get("process_group") or [""])[0])


def _complete(entry: Json) -> bool:
    return entry.get("state") in {"completed", None} or bool(entry.get("retired"))


def _elements(sizes: Any) -> int | None:
    """Return the number of elements of all tensors, by their dimensions."""
    if not isinstance(sizes, list):
        return None
    return sum(math.prod(map(int, dims)) if isinstance(dims, list) else 1 for dims in sizes)


LINES_WITHOUT_CALL = Kind("lines-without-call", "{count} × lines without a call: left out")


def read_inspector(name: str, text: str, left_out: Counter[Notice]) -> list[RankRecording]:
    """Return the calls of each rank, in the order of their numbers within their communicator. An element is a byte."""
    # Process → its calls, and its rank within the communicator of each.
    calls_of: dict[_Process, list[tuple[RecordedCall, int | None]]] = defaultdict(list)
    # Process → its communicator → number of calls that the inspector dropped.
    dropped: dict[_Process, dict[str, int]] = defaultdict(dict)
    header: Json = {}
    metadata: Json = {}
    for entry in entries_of(name, text):
        # A header applies to the lines after it, until the next header.
        call = entry.get("coll_perf") or entry.get("p2p_perf")
        if entry.get("header"):
            header, metadata = entry["header"], entry.get("metadata") or {}
        # header.rank counts within the communicator, so it does not identify a process.
        host, pid = metadata.get("hostname"), metadata.get("pid")
        process: _Process = (None, header.get("rank")) if host is None or pid is None else (str(host), pid)
        if isinstance(stats := entry.get("dump_stats"), dict):  # of one communicator, since the job began
            dropped[process][str(header.get("id"))] = sum(whole(stats.get(key)) or 0 for key in DROPPED)
        if not isinstance(call, dict):
            if not NO_CALL & {*entry, *metadata}:
                left_out[LINES_WITHOUT_CALL()] += 1
            continue
        call = {key.removeprefix("p2p_").removeprefix("coll_"): value for key, value in call.items()}
        raw = operation_of(str(call.get("coll") or call.get("p2p") or ""))
        operation = _WITHOUT_LISTS.get(raw, raw)
        nbytes = whole(call.get("msg_size_bytes"))
        size = whole(header.get("n_ranks"))
        # For all-gather and reduce-scatter, the recorded bytes are the part of one rank.
        total = None if nbytes is None or size is None else nbytes * size
        time_us = call.get("exec_time_us")
        recorded = RecordedCall(
            operation=operation,
            dtype=None,
            elements_in=total if operation == "reduce_scatter" else nbytes,
            elements_out=total if operation == "all_gather" else nbytes,
            group_size=size,
            communicator=str(header.get("id") or "") or None,
            peer=whole(call.get("peer")),
            duration_s=None if time_us is None else float(time_us) * US,
            sequence=whole(call.get("sn")),
            by_host=not str(call.get("timing_source") or "_gpu").endswith("_gpu"),
        )
        calls_of[process].append((recorded, whole(header.get("rank"))))
    ranks = []
    for process, made in calls_of.items():
        # The largest communicator is assumed to contain all ranks.
        _, rank = max(made, key=lambda entry: (entry[0].group_size or 0, entry[0].communicator or ""))
        calls = sorted((recorded for recorded, _ in made), key=lambda recorded: recorded.sequence or 0)
        host, pid = process
        # Calls that are too small for the inspector have numbers, too, but are not counted as dropped: 0 is no proof.
        lost = sum(dropped[process].values()) or None
        known = None if host is None else (host, pid)
        ranks.append(RankRecording(name, rank, tuple(calls), host=host, process=known, dropped=lost))
    return sorted(ranks, key=lambda recording: (recording.rank is None, recording.rank or 0))
