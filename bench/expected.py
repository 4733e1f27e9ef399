"""Read a table of the bus bandwidths that a machine should reach, or raise an error that says what to change.

In: a YAML file such as

    tolerance: 10%
    expect:
      - {operation: all_reduce, backend: nccl, world_size: 8, dtype: float32, size: 1GiB, busbw: 430 GB/s}

Out: `Expectations`, with rates in bytes per second. Does not look at any run: `analyze.expect` compares the two.
Published tables (`configs/expected/`) name the hardware that they are of, and apply to nothing else:

      - {operation: all_reduce, backend: nccl, gpu: H100, nodes: 1, ranks_per_node: 8, metric: pipelined,
         busbw: 460 GB/s, kind: threshold, source: …}
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from bench import earlier_names, problems, yaml_file
from bench.config_types import (
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
    Share,
    Sync,
)
from bench.records import MOST_RANKS
from bench.sections import Strict, problems_at

# Expected values usually come from data sheets and other people's tables, which have round numbers.
DEFAULT_TOLERANCE = 0.1


class Expectation(Strict):
    """One line of the table. Where it names no reduce op, buffers or synchronisation, a case with any of them fits.
    All other fields that it leaves out have their defaults.

    gpu: a word in the name of the run's GPUs. A line without size is for the largest size that was measured. kind: what
    somebody measured, or a threshold that somebody sets, which is no measurement. fabric, source: for people.
    """

    operation: OperationName
    backend: BackendName
    # One rank has no bus.
    world_size: Annotated[int, Field(ge=2, le=MOST_RANKS)] | None = None
    gpu: Annotated[str, Field(min_length=2)] | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    ranks_per_node: Annotated[int, Field(ge=1)] | None = None
    fabric: str | None = None
    kind: Literal["measured", "threshold"] | None = None
    source: str | None = None
    dtype: DtypeName = "float32"
    size: Bytes | None = None
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

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if self.world_size is None and self.gpu is None and self.ranks_per_node is None:
            raise ValueError("'world_size' is missing; or name the hardware: gpu, nodes, ranks_per_node")
        return self


def _once(lines: list[Expectation]) -> list[Expectation]:
    seen: list[dict[str, object]] = []
    repeated: list[tuple[tuple[int], str]] = []
    for index, line in enumerate(lines):
        what = line.model_dump(exclude={"busbw", "tolerance", "kind", "source"})
        if what in seen:
            text = f"line {index + 1} of 'expect' repeats line {seen.index(what) + 1}: keep one of them"
            repeated.append(((index,), text))
        seen.append(what)
    if repeated:
        raise problems_at(repeated)
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
    document = yaml_file.document(raw, source, "expect: [...]")
    data = dict(document.values)
    if isinstance(data.get("expect"), list):
        data["expect"] = [earlier_names.expectation(line) for line in data["expect"]]
    return problems.validate(Expectations, data, document)
