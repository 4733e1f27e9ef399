"""Read dumps of torch's flight recorder, as JSON; pickled ones are refused, because a pickle can run code.

In: the text of one rank's file. Out: a `RankRecording`. Times are when calls were enqueued; durations are there with
TORCH_NCCL_ENABLE_TIMING=1 only. The ring drops the oldest entries, and a dump after a hang can hold calls that never
ended. Splits, roots and streams are not recorded.
"""

import json
from collections import Counter
from typing import Any

from bench.importers.traces.files import LongObject
from bench.importers.traces.names import dtype_of, operation_of, peer_of, rank_of
from bench.model.recorded_calls import RankRecording, RecordedCall
from bench.model.records import Json


def read(name: str, text: str, left_out: Counter[str]) -> RankRecording:
    """The calls of one rank, oldest first."""
    source = LongObject(name, text, "entries")
    entries = sorted(source.entries(), key=lambda one: one.get("record_id", 0))
    groups = {
        str(key): _ranks(one.get("ranks"))
        for key, one in (source.rest.get("pg_config") or {}).items()
        if isinstance(one, dict)
    }
    first = next((one["time_created_ns"] for one in entries if one.get("time_created_ns")), None)
    calls = []
    for entry in entries:
        # gloo never says that a call is complete, only that it is done with it.
        if entry.get("state") not in {"completed", None} and not entry.get("retired"):
            left_out["calls that were not complete"] += 1
        calls.append(_call(entry, groups, first))
    return RankRecording(name, rank_of(name), tuple(calls))


def _call(entry: Json, groups: dict[str, tuple[int, ...] | None], first: int | None) -> RecordedCall:
    raw, created = str(entry.get("profiling_name", "")), entry.get("time_created_ns")
    named = entry.get("process_group") or [""]
    only = next(iter(groups.values())) if len(groups) == 1 else None
    group, peer = groups.get(str(named[0]), only), peer_of(raw)
    milliseconds = entry.get("duration_ms")
    types = entry.get("input_dtypes") or entry.get("output_dtypes") or [None]
    return RecordedCall(
        operation=operation_of(raw),
        dtype=dtype_of(types[0]),
        elements_in=_elements(entry.get("input_sizes")),
        elements_out=_elements(entry.get("output_sizes")),
        splits_in=None if "all_to_all" in raw else (),
        splits_out=None if "all_to_all" in raw else (),
        group=group,
        group_size=len(group) if group else None,
        peer=group[peer] if peer is not None and group and peer < len(group) else None,
        start_s=None if created is None or first is None else (created - first) / 1e9,
        duration_s=None if milliseconds is None else float(milliseconds) / 1e3,
        sequence=entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id"),
    )


def _elements(sizes: Any) -> int | None:
    if not isinstance(sizes, list):
        return None
    total = 0
    for dims in sizes:
        product = 1
        for one in dims if isinstance(dims, list) else []:
            product *= int(one)
        total += product
    return total


def _ranks(value: Any) -> tuple[int, ...] | None:
    try:
        ranks = json.loads(value) if isinstance(value, str) else value
        return tuple(int(rank) for rank in ranks) or None
    except (TypeError, ValueError):
        return None
