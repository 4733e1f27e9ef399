"""Read a table of the bus bandwidths that a machine should reach, or raise an error that says what to change.

In: a YAML file such as

    tolerance: 10%
    expect:
      - {operation: all_reduce, backend: nccl, world_size: 8, dtype: float32, size: 1GiB, busbw: 430 GB/s}

Out: `Expectations`, with rates in bytes per second. Does not look at any run: `analyze.expect` compares the two.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from bench import earlier_names, yaml_file
from bench.config import (
    Alignment,
    BackendName,
    BufferPolicy,
    Bytes,
    CallKind,
    Division,
    DtypeName,
    Memory,
    MetricName,
    OperationName,
    Placement,
    Rate,
    ReduceOpName,
    Root,
    Scheduling,
    Sync,
)
from bench.records import MOST_RANKS
from bench.units import parse_share
from bench.yaml_file import Strict

# Expected values usually come from data sheets and other people's tables, which have round numbers.
DEFAULT_TOLERANCE = 0.1

Share = Annotated[
    float,
    BeforeValidator(parse_share),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "examples": ["10%", "0.1"]}]}),
]


class Expectation(Strict):
    """One line of the table. Where it names no reduce op, buffers or synchronisation, a case with any of them fits.
    All other fields that it leaves out have their defaults."""

    operation: OperationName
    backend: BackendName
    world_size: Annotated[int, Field(ge=2, le=MOST_RANKS)]  # one rank has no bus
    dtype: DtypeName = "float32"
    size: Bytes
    busbw: Rate
    tolerance: Share | None = None
    metric: MetricName = "isolated"
    reduce_op: ReduceOpName | None = None
    buffers: BufferPolicy | None = None
    sync: Sync | None = None
    scheduling: Scheduling = "normal"
    placement: Placement = "usual"
    call: CallKind = "sync"
    root: Root = 0
    groups: Division = "world"
    settings: Annotated[str, Field(description="variables of the ranks, as in the keys of cases: NCCL_ALGO=Ring")] = ""
    ctas: Annotated[int, Field(ge=0)] = 0
    memory: Memory = "plain"
    alignment: Alignment = "aligned"


def _once(lines: list[Expectation]) -> list[Expectation]:
    seen: list[dict[str, object]] = []
    for number, line in enumerate(lines, start=1):
        what = line.model_dump(exclude={"busbw", "tolerance"})
        if what in seen:
            raise ValueError(f"line {number} of 'expect' repeats line {seen.index(what) + 1}: keep one of them")
        seen.append(what)
    return lines


class Expectations(Strict):
    """The whole file. tolerance: share by which a bus bandwidth may fall short, for lines without a tolerance."""

    tolerance: Share = DEFAULT_TOLERANCE
    expect: Annotated[list[Expectation], Field(min_length=1), AfterValidator(_once)]


def load(path: Path) -> Expectations:
    """Read and validate a file. Raises ConfigError."""
    return parse(yaml_file.read(path), str(path))


def parse(raw: bytes, source: str) -> Expectations:
    """Validate the bytes of a file; `source` names it in messages. Raises ConfigError."""
    data = yaml_file.mapping(raw, source, "expect: [...]")
    if isinstance(data.get("expect"), list):
        data["expect"] = [earlier_names.expectation(line) for line in data["expect"]]
    return yaml_file.validate(Expectations, data, source)
