"""The types of values in configurations and tables of expectations: sizes, times, rates, and names of what exists.

In: what YAML holds. Out: bytes, seconds, bytes a second, and names that are checked. A wrong value raises ValueError
with what is allowed; `problems` adds file and key.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from bench.catalog import subgroups
from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import DTYPES, REDUCE_OPS
from bench.catalog.metrics import METRICS
from bench.catalog.operations import OPERATIONS
from bench.catalog.variables import SETTABLE, unsettable
from bench.config.sections import OneOf
from bench.model.records import MOST_RANKS, NAME_PATTERN
from bench.model.units import parse_bytes, parse_rate, parse_seconds, parse_share

BUFFER_POLICIES = ("rotate", "hot", "flush")
PLACEMENTS = ("usual", "in", "out")
CALLS = ("sync", "async")
ALIGNMENTS = ("aligned", "unaligned")
COUNTS = ("known", "exchanged")
MEMORIES = ("plain", "registered", "symmetric")
SCHEDULINGS = ("normal", "rr")
FAULT_KINDS = ("raise", "exit", "kill", "stop", "hang", "corrupt", "late", "slow")


def _text(value: Any) -> Any:
    """The value of a variable, which YAML may read as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _settable(name: str, value: str = "") -> None:
    if reason := unsettable(name, value):
        raise ValueError(reason)


def _variable(name: str) -> str:
    _settable(name)
    return name


def _value(value: str) -> str:
    _settable(SETTABLE[0], value)
    return value


def _name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"{name!r} is no name; letters, digits, dots, dashes and underscores are allowed, 64 at most")
    return name


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "examples": ["64KiB", "1MB"]}]}),
]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "examples": ["50ms", "2s", "10min"]}]}
    ),
]
Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    WithJsonSchema({"type": "string", "examples": ["25 Gbit/s", "430 GB/s", "1 GiB/s"]}),
]
Share = Annotated[
    float,
    BeforeValidator(parse_share),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "examples": ["10%", "0.1"]}]}),
]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
WorldSize = Annotated[int, Field(ge=1, le=MOST_RANKS)]
BackendName = Annotated[str, OneOf(tuple(BACKENDS), "backend")]
OperationName = Annotated[str, OneOf(tuple(OPERATIONS), "operation")]
DtypeName = Annotated[str, OneOf(tuple(DTYPES), "dtype")]
ReduceOpName = Annotated[str, OneOf(tuple(REDUCE_OPS), "reduce op")]
BufferPolicy = Annotated[str, OneOf(BUFFER_POLICIES, "buffer policy")]
MetricName = Annotated[str, OneOf(tuple(METRICS), "metric")]
Placement = Annotated[str, OneOf(PLACEMENTS, "placement")]
CallKind = Annotated[str, OneOf(CALLS, "kind of call")]
Alignment = Annotated[str, OneOf(ALIGNMENTS, "alignment")]
Counts = Annotated[str, OneOf(COUNTS, "way to know counts")]
Memory = Annotated[str, OneOf(MEMORIES, "kind of memory")]
Division = Annotated[str, AfterValidator(subgroups.check)]
Root = Annotated[int, Field(ge=0)]
VariableName = Annotated[str, AfterValidator(_variable)]
VariableValue = Annotated[str, BeforeValidator(_text), AfterValidator(_value)]
Scheduling = Annotated[str, OneOf(SCHEDULINGS, "scheduling")]
FaultKind = Annotated[str, OneOf(FAULT_KINDS, "fault")]
