"""Write and read a list of recorded calls, X.calls.jsonl: a header, then one call per line; people can edit it.

In: a `CallList`, or a path. Out: text, or a `CallList`. Fields at their defaults are left out. Raises ForeignError, a
one-line message with the line number, for a file that cannot be read.
"""

import dataclasses
from pathlib import Path

import orjson

from collbench.catalog.dtypes import DTYPES
from collbench.model.errors import ForeignError, reason_of
from collbench.model.records import Json
from collbench.packages.replay.recorded_calls import CallList, RecordedCall
from collbench.store.encoding import validated

SUFFIX = ".calls.jsonl"
# The recording of a replay, in the folder of the run.
FILE = f"recording{SUFFIX}"
FORMAT = "collbench calls"
LIST_VERSION = 4
# Fields of a rank in the header, beside its number of calls.
OF_RANK = ("rank", "source", "offset_s", "unclaimed", "unclaimed_s")
CALL_FIELDS, LIST_FIELDS = (
    {field.name: field.default for field in dataclasses.fields(kind)} for kind in (RecordedCall, CallList)
)


def is_call_list(path: Path) -> bool:
    """Return whether a path has the file name of a list of calls."""
    return path.name.endswith(SUFFIX)


def to_text(recorded: CallList) -> str:
    """Return the file's text. Raises ForeignError for a number beyond 64 bits, which only a damaged recording has."""
    header = {
        "format": FORMAT,
        "version": LIST_VERSION,
        **{name: getattr(recorded, name) for name in LIST_FIELDS if name != "ranks"},
        "notices": [{"kind": item.kind, "values": item.values} for item in recorded.notices],
        "ranks": [
            {name: getattr(rank, name) for name in OF_RANK} | {"calls": len(rank.calls)} for rank in recorded.ranks
        ],
    }
    calls = (call for rank in recorded.ranks for call in rank.calls)
    lines = (
        {name: value for name, usual in CALL_FIELDS.items() if (value := getattr(call, name)) != usual}
        for call in calls
    )
    try:
        return "".join(orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS).decode() + "\n" for line in (header, *lines))
    except TypeError as error:
        raise ForeignError(f"{recorded.kind}: a recorded number cannot be written: {str(error).lower()}") from None


def read(path: Path) -> CallList:
    """Return the list of calls in a file. Raises ForeignError."""
    number = 1
    try:
        lines = path.read_bytes().split(b"\n")
        header = _json(lines[0])
        if header.get("format") != FORMAT:
            raise ValueError(f'not a list of calls: its first line must have "format": "{FORMAT}"')
        if header.get("version") != LIST_VERSION:
            raise ValueError(f"version {header.get('version')}; this CollBench reads {LIST_VERSION}")
        calls = []
        for number in range(2, len(lines) + 1):
            if lines[number - 1].strip():
                calls.append(_call(_json(lines[number - 1])))
        number, ranks, taken = 1, [], 0
        # The calls belong to the ranks in turn, or to rank 0 if the header names no ranks.
        for rank in header.get("ranks", [{"rank": 0, "source": str(path), "calls": len(calls)}]):
            begin, taken = taken, taken + max(0, rank["calls"])
            ranks.append({**rank, "source": str(rank["source"]), "calls": tuple(calls[begin:taken])})
        if taken != len(calls):
            raise ValueError(f"it states {taken} calls, but {len(calls)} follow")
        fields = {name: value for name, value in header.items() if name in LIST_FIELDS}
        return validated(CallList, fields | {"ranks": ranks})
    except OSError as error:
        raise ForeignError(f"{path}: {reason_of(error)}") from None
    except (KeyError, TypeError):
        raise ForeignError(f"{path}:1: ranks: each needs a source, and its number of calls") from None
    except ValueError as error:
        raise ForeignError(f"{path}:{number}: {error}") from None


def _json(line: bytes) -> Json:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON from character {error.colno} on: {error.msg}") from None
    if not isinstance(value, dict):
        raise ValueError("a line must be an object")
    return value


def _call(data: Json) -> RecordedCall:
    if unknown := sorted(set(data) - CALL_FIELDS.keys()):
        raise ValueError(f"unknown field {unknown[0]!r}")
    call = validated(RecordedCall, data)
    if call.dtype is not None and call.dtype not in DTYPES:
        raise ValueError(f"dtype: {call.dtype!r:.60} is not one of {', '.join(DTYPES)}, null")
    return call
