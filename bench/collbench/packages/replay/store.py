"""Write and read a list of recorded calls, X.calls.jsonl: a header, then one call per line; people can edit it.

In: a `CallList`, or a path. Out: text, or a `CallList`. Fields at their defaults are left out. Raises ForeignError, a
one-line message with the line number, for a file that cannot be read.
"""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from collbench.catalog.dtypes import DTYPES
from collbench.model.errors import ForeignError
from collbench.model.records import Json
from collbench.packages.replay.recorded_calls import CallList, RecordedCall

SUFFIX = ".calls.jsonl"
# The recording of a replay, in the folder of the run.
FILE = f"recording{SUFFIX}"
FORMAT = "collbench calls"
LIST_VERSION = 4
# Fields of a rank in the header, beside its number of calls.
OF_RANK = ("rank", "source", "offset_s", "unclaimed", "unclaimed_s")
T = TypeVar("T")


def is_call_list(path: Path) -> bool:
    """Return whether a path has the file name of a list of calls."""
    return path.name.endswith(SUFFIX)


def to_text(recorded: CallList) -> str:
    """Return the file's text. Raises ForeignError for a number beyond 64 bits, which only a damaged recording has."""
    header = {
        "format": FORMAT,
        "version": LIST_VERSION,
        **{item.name: getattr(recorded, item.name) for item in dataclasses.fields(recorded) if item.name != "ranks"},
        "notices": [{"kind": item.kind, "values": item.values} for item in recorded.notices],
        "ranks": [
            {name: getattr(rank, name) for name in OF_RANK} | {"calls": len(rank.calls)} for rank in recorded.ranks
        ],
    }
    lines = [header]
    for rank in recorded.ranks:
        for call in rank.calls:
            values = {field.name: (getattr(call, field.name), field.default) for field in dataclasses.fields(call)}
            lines.append({name: value for name, (value, usual) in values.items() if value != usual})
    try:
        return "".join(orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS).decode() + "\n" for line in lines)
    except TypeError as error:
        raise ForeignError(f"{recorded.kind}: a recorded number cannot be written: {str(error).lower()}") from None


def read(path: Path) -> CallList:
    """Return the list of calls in a file. Raises ForeignError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ForeignError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    header = _json(lines[0], path, 1)
    if header.get("format") != FORMAT:
        raise ForeignError(f'{path}:1: not a list of calls: its first line must have "format": "{FORMAT}"')
    if header.get("version") != LIST_VERSION:
        raise ForeignError(f"{path}:1: version {header.get('version')}; this CollBench reads {LIST_VERSION}")
    calls = [_call(line, path, number) for number, line in enumerate(lines[1:], 2) if line.strip()]
    # The calls belong to the ranks in turn, or to rank 0 if the header names no ranks.
    ranks, taken = [], 0
    try:
        for rank in header.pop("ranks", [{"rank": 0, "source": str(path), "calls": len(calls)}]):
            begin, taken = taken, taken + max(0, rank["calls"])
            ranks.append({**rank, "source": str(rank["source"]), "calls": tuple(calls[begin:taken])})
    except (KeyError, TypeError):
        raise ForeignError(f"{path}:1: ranks: each needs a source, and its number of calls") from None
    if taken != len(calls):
        raise ForeignError(f"{path}: its header states {taken} calls, but {len(calls)} follow")
    field_names = {field.name for field in dataclasses.fields(CallList)}
    fields = {name: value for name, value in header.items() if name in field_names}
    return _validated(CallList, fields | {"ranks": ranks}, path, 1)


def _json(line: bytes, path: Path, number: int) -> Json:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ForeignError(f"{path}:{number}: not JSON from character {error.colno} on: {error.msg}") from None
    if not isinstance(value, dict):
        raise ForeignError(f"{path}:{number}: a line must be an object")
    return value


def _call(line: bytes, path: Path, number: int) -> RecordedCall:
    data = _json(line, path, number)
    unknown = sorted(set(data) - {field.name for field in dataclasses.fields(RecordedCall)})
    if unknown:
        raise ForeignError(f"{path}:{number}: unknown field {unknown[0]!r}")
    call = _validated(RecordedCall, data, path, number)
    if call.dtype is not None and call.dtype not in DTYPES:
        raise ForeignError(f"{path}:{number}: dtype: {call.dtype!r:.60} is not one of {', '.join(DTYPES)}, null")
    return call


def _validated(kind: type[T], data: Json, path: Path, number: int) -> T:
    try:
        value: T = _ADAPTERS[kind].validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = "is missing" if first["type"] == "missing" else first["msg"].lower()
        raise ForeignError(f"{path}:{number}: {where}: {problem}") from None
    return value


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (RecordedCall, CallList)}
