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
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from bench.config import documents, problems
from bench.config.fields import (
    Alignment,
    BackendName,
    BufferPolicy,
    Bytes,
    CallKind,
    Division,
    DtypeName,
    Memory,
    MetricName,
    OneOf,
    OperationName,
    Placement,
    Rate,
    ReduceOpName,
    Root,
    Scheduling,
    Share,
    Strict,
    problem_at,
)
from bench.model.records import MOST_RANKS

# Expected values usually come from data sheets and other people's tables, which have round numbers.
DEFAULT_TOLERANCE = 0.1


class Expectation(Strict):
    """One line of the table. Where it names no reduce op, buffers or synchronisation, a case with any of them fits.
    All other fields that it leaves out have their defaults.

    gpu: a word in the name of the run's GPUs. A line without size is for the largest size that was measured. kind: what
    somebody measured, or a threshold that somebody sets, which is no measurement. fabric, source: for people.
    """

    operation: OperationName = Field(description="The operation.", examples=["all_reduce"])
    backend: BackendName = Field(description="The backend.", examples=["nccl"])
    # One rank has no bus.
    world_size: Annotated[int, Field(ge=2, le=MOST_RANKS)] | None = Field(
        default=None, description="Number of ranks. May be left out where the hardware is named.", examples=[8]
    )
    gpu: Annotated[str, Field(min_length=2)] | None = Field(
        default=None, description="A word in the name of the GPUs that the line is for.", examples=["H100"]
    )
    nodes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Number of nodes that the line is for.", examples=[2]
    )
    ranks_per_node: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Number of ranks on each node that the line is for.", examples=[8]
    )
    fabric: str | None = Field(default=None, description="The network, for people.", examples=["NVLink"])
    kind: Annotated[str, OneOf(("measured", "threshold"), "kind of value")] | None = Field(
        default=None,
        description="measured is what somebody measured; threshold is what somebody demands, so any shortfall fails.",
        examples=["threshold"],
    )
    source: str | None = Field(
        default=None, description="Where the number was published, for people.", examples=["data sheet"]
    )
    dtype: DtypeName = Field(default="float32", description="Type of the elements.", examples=["bfloat16"])
    size: Bytes | None = Field(
        default=None, description="Message size. Without it, the largest that was measured.", examples=["1GiB"]
    )
    busbw: Rate = Field(description="The bus bandwidth that is expected.", examples=["430 GB/s"])
    tolerance: Share | None = Field(
        default=None,
        description="Share by which the bandwidth may fall short. Without it, that of the file.",
        examples=["5%"],
    )
    metric: MetricName = Field(default="isolated", description="The metric.", examples=["pipelined"])
    reduce_op: ReduceOpName | None = Field(
        default=None, description="The reduce op. Without it, any.", examples=["sum"]
    )
    buffers: BufferPolicy | None = Field(
        default=None, description="The buffer policy. Without it, any.", examples=["rotate"]
    )
    scheduling: Scheduling = Field(default="normal", description="The scheduling.", examples=["rr"])
    placement: Placement = Field(default="usual", description="Where the result goes.", examples=["out"])
    call: CallKind = Field(default="sync", description="The kind of call.", examples=["async"])
    root: Root = Field(default=0, description="The root of an operation that has one.", examples=[1])
    groups: Division = Field(default="world", description="Which ranks call together.", examples=["contiguous:2"])
    settings: str = Field(
        default="", description="Variables of the ranks, as in the keys of cases.", examples=["NCCL_ALGO=Ring"]
    )
    ctas: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Blocks (CTAs) that NCCL may use. With 0, NCCL chooses.", examples=[8]
    )
    memory: Memory = Field(default="plain", description="Where buffers come from.", examples=["registered"])
    alignment: Alignment = Field(default="aligned", description="Where buffers begin.", examples=["unaligned"])

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if self.world_size is None and self.gpu is None and self.ranks_per_node is None:
            raise ValueError("'world_size' is missing; or name the hardware: gpu, nodes, ranks_per_node")
        return self


def _check_repetitions(lines: list[Expectation]) -> list[Expectation]:
    first: list[dict[str, object]] = []
    for index, line in enumerate(lines):
        case = line.model_dump(exclude={"busbw", "tolerance", "kind", "source"})
        if case in first:
            text = f"line {index + 1} of 'expect' repeats line {first.index(case) + 1}: keep one of them"
            raise problem_at((index,), text)
        first.append(case)
    return lines


class Expectations(Strict):
    """The whole file. tolerance: share by which a bus bandwidth may fall short, for lines without a tolerance."""

    tolerance: Share = Field(
        default=DEFAULT_TOLERANCE,
        description="Share by which a bandwidth may fall short, for lines without a tolerance of their own.",
        examples=["5%"],
    )
    expect: Annotated[list[Expectation], Field(min_length=1), AfterValidator(_check_repetitions)] = Field(
        description="The lines of the table.",
        examples=[
            [{"operation": "all_reduce", "backend": "nccl", "world_size": 8, "size": "1GiB", "busbw": "430 GB/s"}]
        ],
    )


def load(path: Path) -> Expectations:
    """Read and validate a file. Raises ConfigError."""
    return parse(documents.read(path), str(path))


def parse(raw: bytes, source: str) -> Expectations:
    """Validate the bytes of a file; `source` names it in messages. Raises ConfigError."""
    document = documents.document(raw, source, "expect: [...]")
    return problems.validate(Expectations, document)
