"""Write and read a list of recorded calls: X.calls.jsonl, a header, then one call a line, to be read and edited.

In: a `CallList`, or a path. Out: text, or a `CallList`. Fields at their defaults are left out. Raises ForeignError, in
one line with the number of the line, for what cannot be read.
"""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from bench.model.errors import ForeignError
from bench.model.recorded_calls import CallList, RankRecording, RecordedCall
from bench.model.records import Json

SUFFIX = ".calls.jsonl"
FORMAT = "collbench calls"
VERSION = 1
# A call must name these, even where they are unknown.
REQUIRED = ("operation", "dtype", "elements_in", "elements_out")
MOST_CALLS = 2_000_000
T = TypeVar("T")


def is_one(path: Path) -> bool:
    """Whether the name is that of a list of calls."""
    return path.name.endswith(SUFFIX)


def to_text(found: CallList) -> str:
    """The whole file."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        **{name: value for name, value in dataclasses.asdict(found).items() if name != "ranks"},
        "ranks": [{"rank": one.rank, "source": one.source, "calls": len(one.calls)} for one in found.ranks],
    }
    lines = [header, *(_line(call) for one in found.ranks for call in one.calls)]
    return "".join(orjson.dumps(line).decode() + "\n" for line in lines)


def _line(call: RecordedCall) -> Json:
    return {
        field.name: value
        for field in dataclasses.fields(call)
        if (value := getattr(call, field.name)) != field.default or field.name in REQUIRED
    }


def read(path: Path) -> CallList:
    """The list in a file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ForeignError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return parse(lines, str(path))


def parse(lines: list[bytes], source: str) -> CallList:
    """The list in the lines of a file, which `source` names in messages."""
    if len(lines) > MOST_CALLS:
        raise ForeignError(f"{source}: {len(lines)} lines; at most {MOST_CALLS} calls are read")
    header = _json(lines[0] if lines else b"", source, 1)
    if header.get("format") != FORMAT:
        raise ForeignError(f'{source}:1: no list of calls: its first line must have "format": "{FORMAT}"')
    if header.get("version") != VERSION:
        raise ForeignError(f"{source}:1: version {header.get('version')}; this CollBench reads {VERSION}")
    calls = [_call(line, source, number) for number, line in enumerate(lines[1:], 2) if line.strip()]
    ranks, taken = [], 0
    for one in header.pop("ranks", [{"rank": 0, "source": source, "calls": len(calls)}]):
        try:
            ranks.append(RankRecording(str(one["source"]), one["rank"], tuple(calls[taken : taken + one["calls"]])))
            taken += one["calls"]
        except (KeyError, TypeError) as error:
            raise ForeignError(f"{source}:1: ranks: {error} is missing or no number") from None
    if taken != len(calls):
        raise ForeignError(f"{source}: its header counts {taken} calls, and {len(calls)} follow")
    known = {field.name for field in dataclasses.fields(CallList)}
    told = {name: value for name, value in header.items() if name in known}
    return _validated(CallList, told | {"ranks": ranks}, source, 1)


def _json(line: bytes, source: str, number: int) -> Json:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ForeignError(f"{source}:{number}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ForeignError(f"{source}:{number}: a line must be an object")
    return found


def _call(line: bytes, source: str, number: int) -> RecordedCall:
    data = _json(line, source, number)
    missing = [name for name in REQUIRED if name not in data]
    if missing:
        raise ForeignError(f"{source}:{number}: {missing[0]} is missing")
    unknown = sorted(set(data) - {field.name for field in dataclasses.fields(RecordedCall)})
    if unknown:
        raise ForeignError(f"{source}:{number}: unknown field {unknown[0]!r}")
    return _validated(RecordedCall, data, source, number)


def _validated(kind: type[T], data: Json, source: str, number: int) -> T:
    try:
        found: T = _ADAPTERS[kind].validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ForeignError(f"{source}:{number}: {where}: {first['msg'].lower()}") from None
    return found


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (RecordedCall, CallList)}
