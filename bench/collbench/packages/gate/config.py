"""Read a table of the bus bandwidths that a machine should reach, or raise an error that names the necessary change.

In: a YAML file such as

    tolerance: 10%
    expect:
      - {operation: all_reduce, backend: nccl, world_size: 8, dtype: float32, size: 1GiB, busbw: 430 GB/s}

Out: `Expectations`, with rates in bytes per second. Reads no run: `gate.analyze.tables` compares a run with a table.
Published tables (`configs/expected/`) name their hardware, and apply to no other hardware:

      - {operation: all_reduce, backend: nccl, gpu: H100, nodes: 1, ranks_per_node: 8, metric: pipelined,
         busbw: 460 GB/s, tolerance: 0%, source: "…, 2026-11-23"}
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, create_model, model_validator

from collbench.catalog import splits
from collbench.catalog.metrics import METRICS
from collbench.config import documents
from collbench.config.fields import (
    BackendName,
    Bytes,
    DtypeName,
    OneOf,
    OperationName,
    Rate,
    Share,
    Strict,
    key,
    problem_at,
    validate,
)
from collbench.config.options import type_of
from collbench.model.records import OPTIONS, Option, Variables
from collbench.model.units import MOST_RANKS

# Expected values usually come from data sheets and other people's tables, which have round numbers.
DEFAULT_TOLERANCE = 0.1
# Options that may have any value in a case if the line does not name them. For all other options, a line that does not
# name them means the default.
OPEN = ("reduce_op", "buffers")


def _variables(text: str) -> Variables:
    pairs = (setting.partition("=") for setting in text.split())
    return Variables(tuple((name, value) for name, _, value in pairs))


# Options with another syntax in a line than in a configuration: type and example of a value.
WRITTEN: dict[str, tuple[Any, object]] = {
    "settings": (Annotated[str, AfterValidator(_variables)], "NCCL_ALGO=Ring"),
    "splits": (Annotated[str, AfterValidator(lambda text: splits.parse(text) if text else None)], "zipf:1.2"),
}


def _option(option: Option) -> Any:
    """Return type and description of an option, with the values that its key in a configuration accepts."""
    if option.name in WRITTEN:
        written, example = WRITTEN[option.name]
    else:
        written, (example, *_) = type_of(option), option.key.examples
        example = example[-1] if isinstance(example, list) else example
    if option.name in OPEN:
        return written | None, key(f"{option.sentence} Without it, any.", example, default=None)
    return written, key(option.sentence, example, default=option.default)


if TYPE_CHECKING:
    Options = Strict
else:
    # A key for each option with a key in a configuration, except metric, which is a key of the line itself.
    Options = create_model(
        "Options",
        __base__=Strict,
        **{option.name: _option(option) for option in OPTIONS if option.key and option.name != "metric"},
    )


class Expectation(Strict):
    """A line of the table: a case, optionally its hardware, and the bandwidth that the case should reach."""

    operation: OperationName = key("The operation.", "all_reduce")
    backend: BackendName = key("The backend.", "nccl")
    # One rank has no bus.
    world_size: Annotated[int, Field(ge=2, le=MOST_RANKS)] | None = key(
        "Number of ranks. May be left out where the hardware is named.", 8, default=None
    )
    gpu: Annotated[str, Field(min_length=2)] | None = key(
        "A word in the name of the GPUs that the line is for.", "H100", default=None
    )
    nodes: Annotated[int, Field(ge=1)] | None = key("Number of nodes that the line is for.", 2, default=None)
    ranks_per_node: Annotated[int, Field(ge=1)] | None = key(
        "Number of ranks on each node that the line is for.", 8, default=None
    )
    fabric: str | None = key("The network; `check TABLE:NETWORK` chooses by a word of it.", "NVLink", default=None)
    dtype: DtypeName = key("Type of the elements.", "bfloat16", default="float32")
    size: Bytes | None = key("Message size. Without it, the largest that was measured.", "1GiB", default=None)
    metric: Annotated[str, OneOf(tuple(METRICS), "metric")] = key(
        "What an iteration times, as in `metrics`.", "pipelined", default="isolated"
    )
    busbw: Rate = key("The bus bandwidth that is expected.", "430 GB/s")
    tolerance: Share | None = key(
        "Share by which the bandwidth may fall short. Without it, that of the file.", "5%", default=None
    )
    source: str = key("Where the number was published, and when, for people.", "data sheet, 2026", default="")
    options: Options = key(
        "Other [options of the case](#options-of-a-case), written as in its key. Without them, the defaults, and any "
        "reduce op and buffers.",
        {"reduce_op": "max"},
        default=Options(),
    )

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if self.world_size is None and self.gpu is None and self.ranks_per_node is None:
            raise ValueError("'world_size' is missing; or name the hardware: gpu, nodes, ranks_per_node")
        return self

    @property
    def names_hardware(self) -> bool:
        """Return whether the line is for certain hardware only."""
        return not (self.gpu is None and self.nodes is None and self.ranks_per_node is None)

    def option(self, name: str) -> Any:
        """Return the value that a case must have for this option; None if any value is allowed."""
        return self.metric if name == "metric" else getattr(self.options, name)


def _check_repetitions(lines: list[Expectation]) -> list[Expectation]:
    first: list[dict[str, object]] = []
    for index, line in enumerate(lines):
        case = {name: value for name, value in line if name not in {"busbw", "tolerance", "source"}}
        if case in first:
            text = f"line {index + 1} of 'expect' repeats line {first.index(case) + 1}: keep one of them"
            raise problem_at((index,), text)
        first.append(case)
    return lines


class Expectations(Strict):
    """A whole table of expectations: the file."""

    tolerance: Share = key(
        "Share by which a bandwidth may fall short, for lines without a tolerance of their own.",
        "5%",
        default=DEFAULT_TOLERANCE,
    )
    expect: Annotated[list[Expectation], Field(min_length=1), AfterValidator(_check_repetitions)] = key(
        "The lines of the table.",
        [{"operation": "all_reduce", "backend": "nccl", "world_size": 8, "size": "1GiB", "busbw": "430 GB/s"}],
    )

    def least(self, line: Expectation) -> float:
        """Return the least bus bandwidth in bytes/s that passes: the expected value less its tolerance."""
        return line.busbw * (1 - self.tolerance_of(line))

    def tolerance_of(self, line: Expectation) -> float:
        """Return the share by which the bandwidth of a line may fall short."""
        return self.tolerance if line.tolerance is None else line.tolerance


def load(path: Path) -> Expectations:
    """Read and validate a file. Raises ConfigError."""
    return parse(documents.read(path), str(path))


def parse(raw: bytes, source: str) -> Expectations:
    """Validate the bytes of a file; `source` names it in messages. Raises ConfigError."""
    document = documents.document(raw, source, "expect: [...]")
    return validate(Expectations, document)
