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
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import AfterValidator, Field, create_model, model_validator

from bench.config import documents
from bench.config.fields import (
    BackendName,
    Bytes,
    DtypeName,
    OneOf,
    OperationName,
    Rate,
    Root,
    Share,
    Strict,
    problem_at,
    validate,
)
from bench.config.models import Config
from bench.model.records import MOST_RANKS, OPTIONS, Option

# Expected values usually come from data sheets and other people's tables, which have round numbers.
DEFAULT_TOLERANCE = 0.1
# Options that a case may have at any value, unless the line names one. Of all others, a line that names none means the
# default.
OPEN = ("reduce_op", "buffers")
# Options that a line writes otherwise than a configuration does: type and example of a value.
WRITTEN: dict[str, tuple[Any, object]] = {
    "root": (Root, 1),
    "settings": (str, "NCCL_ALGO=Ring"),
    "splits": (str, "zipf:1.2"),
}


class ExpectedBandwidth(Strict):
    """What a line of the table has besides options.

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

    @model_validator(mode="after")
    def _check(self) -> "ExpectedBandwidth":
        if self.world_size is None and self.gpu is None and self.ranks_per_node is None:
            raise ValueError("'world_size' is missing; or name the hardware: gpu, nodes, ranks_per_node")
        return self


def _option(option: Option) -> Any:
    """Type and description of an option, with the values that its key in a configuration takes."""
    key = Config.model_fields[option.key]
    written, example = WRITTEN.get(option.name, (None, None))
    if written is None:
        several = get_args(key.annotation)
        written = several[0] if several else Annotated[key.annotation, *key.metadata]
        (example, *_) = key.examples or (None,)
        example = example[-1] if isinstance(example, list) else example
    about = f"{option.about[0].upper()}{option.about[1:]}."
    if option.name in OPEN:
        return written | None, Field(default=None, description=f"{about} Without it, any.", examples=[example])
    return written, Field(default=option.default, description=about, examples=[example])


if TYPE_CHECKING:
    Expectation = ExpectedBandwidth
else:
    # A line of the table: an option for each that a configuration has a key for.
    Expectation = create_model(
        "Expectation", __base__=ExpectedBandwidth, **{option.name: _option(option) for option in OPTIONS if option.key}
    )


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
    return validate(Expectations, document)
