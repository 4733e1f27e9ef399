"""Read PARAM's own ("basic") lists: one file a rank, an entry a call, between them waits and computing.

In: the text of one rank's file. Out: a `RankRecording`. It has groups, splits and requests, and no durations.
"""

from collections import Counter

from bench.importers.traces.files import entries_of
from bench.importers.traces.names import dtype_of, operation_of
from bench.model.errors import ForeignError
from bench.model.recorded_calls import RankRecording, RecordedCall
from bench.model.records import Json

_NO_CALL = {"init", "wait"}


def read(name: str, text: str, left_out: Counter[str]) -> RankRecording:
    """The calls of one rank."""
    groups, calls, waited, first = dict[int, tuple[int, ...]](), list[RecordedCall](), set[object](), None
    every = list(entries_of(name, text))
    waited = {one.get("req") for one in every if one.get("comms") == "wait"}
    for entry in every:
        kind = entry.get("comms")
        if kind == "init":
            groups[int(entry.get("pg_id", 0))] = tuple(map(int, entry.get("global_ranks", ())))
        if kind is None or kind in _NO_CALL:
            if kind != "init":
                left_out[str(kind) if kind else "compute"] += 1
            continue
        start = entry.get("startTime_ns")
        first = start if first is None else first
        calls.append(_call(entry, groups, waited, None if start is None or first is None else (start - first) / 1e9))
    return RankRecording(name, None, tuple(calls))


def _call(entry: Json, groups: dict[int, tuple[int, ...]], waited: set[object], start_s: float | None) -> RecordedCall:
    group = groups.get(int(entry.get("pg_id", 0))) or None
    try:
        return RecordedCall(
            operation=operation_of(str(entry["comms"])),
            dtype=dtype_of(entry.get("dtype")),
            elements_in=_whole(entry.get("in_msg_size")),
            elements_out=_whole(entry.get("out_msg_size")),
            splits_in=tuple(map(int, entry.get("in_split") or ())),
            splits_out=tuple(map(int, entry.get("out_split") or ())),
            group=group,
            group_size=len(group) if group else _whole(entry.get("world_size")),
            root=_whole(entry.get("root")),
            peer=_whole(entry.get("dst_rank", entry.get("src_rank"))),
            start_s=start_s,
            asynchronous=entry.get("req") in waited if waited else None,
        )
    except (TypeError, ValueError):
        raise ForeignError(f"an entry of PARAM's list is damaged: {str(entry)[:80]}") from None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float | str) and str(value).strip() else None
