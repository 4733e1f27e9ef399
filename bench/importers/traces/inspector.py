"""Read lines of NCCL's inspector plugin, format v4.0: one object a call, of one process or of several.

In: a text. Out: a `RankRecording` of each rank that it tells. It has bytes, communicators and durations, and no dtypes,
splits or ranks of groups. Bytes of all-gather and reduce-scatter are one rank's part.
"""

from collections import Counter, defaultdict

from bench.importers.traces.files import entries_of
from bench.importers.traces.names import operation_of
from bench.model.recorded_calls import RankRecording, RecordedCall
from bench.model.records import Json

# NCCL knows no lists of tensors.
_WITHOUT_LISTS = {"all_gather_list": "all_gather", "reduce_scatter_list": "reduce_scatter"}
US = 1e-6


def read(name: str, text: str, left_out: Counter[str]) -> list[RankRecording]:
    """The calls of each rank, in the order of their numbers within their communicator. An element is a byte."""
    found: dict[int, list[RecordedCall]] = defaultdict(list)
    for entry in entries_of(name, text):
        header, call = entry.get("header") or {}, entry.get("coll_perf") or entry.get("p2p_perf")
        if not isinstance(call, dict) or not isinstance(header, dict):
            left_out["lines without a call"] += 1
            continue
        found[int(header.get("rank", -1))].append(_call(call, header))
    return [
        RankRecording(name, rank if rank >= 0 else None, tuple(sorted(calls, key=lambda one: one.sequence or 0)))
        for rank, calls in sorted(found.items())
    ]


def _call(call: Json, header: Json) -> RecordedCall:
    raw = operation_of(str(call.get("coll") or call.get("p2p") or ""))
    operation = _WITHOUT_LISTS.get(raw, raw)
    nbytes, ranks = call.get("coll_msg_size_bytes", call.get("p2p_msg_size_bytes")), header.get("n_ranks")
    whole = nbytes * ranks if isinstance(nbytes, int) and isinstance(ranks, int) else None
    time_us = call.get("coll_exec_time_us", call.get("p2p_exec_time_us"))
    return RecordedCall(
        operation=operation,
        dtype=None,
        elements_in=whole if operation == "reduce_scatter" else nbytes,
        elements_out=whole if operation == "all_gather" else nbytes,
        group_size=ranks if isinstance(ranks, int) else None,
        peer=call.get("p2p_peer"),
        duration_s=None if time_us is None else float(time_us) * US,
        sequence=call.get("coll_sn", call.get("p2p_sn")),
    )
