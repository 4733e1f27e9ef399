"""Read a YAML file into a validated `Config`, or raise an error that says line by line what to change.

In: the bytes of a YAML file and `--set` overrides. Out: a validated, frozen `Config` that holds exactly
what was written plus defaults. Does not look at the machine and does not expand anything: `plan` does.
docs/configuration.md is made from the descriptions and examples here.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from bench.catalog import splits
from bench.catalog.metrics import METRICS
from bench.catalog.operations import REPLAY, TRAINING_STEP
from bench.config import documents
from bench.config.fields import (
    Alignment,
    BackendName,
    BufferPolicy,
    Bytes,
    CallKind,
    Counts,
    Division,
    DtypeName,
    FaultKind,
    Memory,
    MetricName,
    Name,
    OneOf,
    OperationName,
    Placement,
    Rate,
    ReduceOpName,
    Root,
    Scheduling,
    Seconds,
    Several,
    Strict,
    VariableName,
    VariableValue,
    WorldSize,
    problem_at,
    validate,
)
from bench.config.training import TrainingSection

# Enough for memory that the second-level caches of ranks do not hold; filling more takes longer than measuring.
POOL_BYTES = 64 * 2**20
# A report with more rows is not read any more, and a size too many costs minutes.
MAX_SIZES = 200
# What `splits` takes besides even, in messages and in the documentation.
EVEN_OTHERS = "{zipf: 1.2}, {lognormal: 1}, {hot: 4}, {matrix: [[0, 3], [1, 2]]}"


class SizeRange(Strict):
    """Sizes from `from` up to `to`, each `factor` times the one before, or `step` larger than it."""

    from_: Bytes = Field(alias="from", description="Smallest size.", examples=["4KiB"])
    to: Bytes = Field(description="Largest size. It is included if a step lands on it.", examples=["64MiB"])
    factor: Annotated[float, Field(gt=1)] = Field(default=2, description="Ratio of neighbouring sizes.", examples=[4])
    step: Bytes | None = Field(
        default=None, description="Difference of neighbouring sizes, in place of `factor`.", examples=["1MiB"]
    )

    @model_validator(mode="after")
    def _check(self) -> "SizeRange":
        if self.step is not None and "factor" in self.model_fields_set:
            raise ValueError("sizes grow by a 'factor' or by a 'step': keep only one")
        if self.from_ > self.to:
            raise ValueError(f"'from' ({self.from_} B) is larger than 'to' ({self.to} B)")
        if len(self.expand()) > MAX_SIZES:
            raise ValueError(f"more than {MAX_SIZES} sizes: use a larger {'step' if self.step else 'factor'}")
        return self

    def expand(self) -> list[int]:
        """The sizes in bytes, ascending, distinct."""
        if self.step is not None:
            return list(range(self.from_, self.to + 1, self.step))[: MAX_SIZES + 1]
        sizes: list[int] = []
        size = float(self.from_)
        while size <= self.to and len(sizes) <= MAX_SIZES:
            if not sizes or round(size) > sizes[-1]:
                sizes.append(round(size))
            size *= self.factor
        return sizes


# Its fields are those of `records.Sampling`, and those of FaultConfig are those of `records.Fault`: plans take them.
class SamplingConfig(Strict):
    """How many iterations a case gets in one launch."""

    warmup: Annotated[int, Field(ge=0)] = Field(
        default=5, description="Iterations at the beginning of a case that are not used.", examples=[2]
    )
    warmup_s: Seconds = Field(
        alias="warmup_seconds",
        default=0.05,
        description="The warm-up ends after this time at the latest.",
        examples=["10ms"],
    )
    iterations: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="A fixed number of iterations. Without it, a case ends when its interval is narrow enough.",
        examples=[20],
    )
    relative_error: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.05,
        description="A case ends when the 95 % interval of its median is within this share of the median.",
        examples=[0.02],
    )
    seconds_per_case: Seconds = Field(
        default=2.0, description="A case ends after this time in one launch at the latest.", examples=["120ms"]
    )
    max_iterations: Annotated[int, Field(ge=6)] = Field(
        default=2000, description="A case ends after this number of iterations at the latest.", examples=[500]
    )

    @model_validator(mode="after")
    def _check(self) -> "SamplingConfig":
        unused = self.model_fields_set & {"relative_error", "seconds_per_case", "max_iterations"}
        if self.iterations is not None and unused:
            raise ValueError(
                f"'iterations' fixes the count, so {', '.join(sorted(unused))} would be ignored: keep only one"
            )
        return self


class SplitsConfig(Strict):
    """How unevenly an all-to-all divides what each rank sends: exactly one distribution."""

    zipf: Annotated[float, Field(gt=0, le=10)] | None = Field(
        default=None, description="Popularity of the k-th most popular rank is 1 / k to this power.", examples=[1.2]
    )
    lognormal: Annotated[float, Field(gt=0, le=5)] | None = Field(
        default=None,
        description="Popularity is log-normal, with this standard deviation of its logarithm.",
        examples=[1],
    )
    hot: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="One rank receives this many times as much as the mean.", examples=[4]
    )
    matrix: (
        Annotated[
            Annotated[list[list[Annotated[int, Field(ge=0)]]], Tag("rows")] | Annotated[str, Tag("file")],
            Discriminator(lambda value: "file" if isinstance(value, str) else "rows"),
        ]
        | None
    ) = Field(
        default=None,
        description="Parts that each rank (row) sends to each rank, or the name of a CSV file that has them.",
        examples=[[[0, 3], [1, 2]]],
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Chooses which ranks are popular. A matrix takes none.", examples=[3]
    )
    drift: bool = Field(
        default=False, description="Whether other ranks are popular in each call. A matrix takes none.", examples=[True]
    )

    @model_validator(mode="after")
    def _check(self) -> "SplitsConfig":
        chosen = {key for key in ("zipf", "lognormal", "hot", "matrix") if getattr(self, key) is not None}
        if len(chosen) != 1:
            raise ValueError("name exactly one of zipf, lognormal, hot, matrix")
        if "matrix" in chosen and self.model_fields_set != {"matrix"}:
            raise ValueError("a matrix has no seed and no drift")
        splits.parse(self.text)
        return self

    @property
    def text(self) -> str:
        """As `splits` reads it."""
        if self.matrix is not None:
            rows = _matrix_of(self.matrix) if isinstance(self.matrix, str) else self.matrix
            return "rows:" + ";".join(",".join(map(str, row)) for row in rows)
        kind = next(name for name in ("zipf", "lognormal", "hot") if getattr(self, name) is not None)
        seed, drift = f":seed={self.seed}" if self.seed else "", ":drift" if self.drift else ""
        return f"{kind}:{getattr(self, kind):g}{seed}{drift}"


def _matrix_of(path: str) -> list[list[int]]:
    """The whole numbers of a CSV file; raises ValueError."""
    try:
        with Path(path).open(newline="") as file:
            return [[int(cell) for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise ValueError(f"{path}: a matrix of whole numbers is expected, a row a line, with commas") from None


class FaultConfig(Strict):
    """A fault planted on purpose, to see it noticed. The report says that it was planted."""

    do: FaultKind = Field(
        description="What goes wrong: the rank raises an error, exits, is killed, is stopped, hangs, corrupts a "
        "result, calls late, or is slow within the call.",
        examples=["hang"],
    )
    rank: Annotated[int, Field(ge=0)] = Field(description="The rank that it happens to.", examples=[1])
    iteration: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="The call of a case that it happens in; 0 is the verifying one. late and slow begin with it.",
        examples=[3],
    )
    world_size: WorldSize | None = Field(
        default=None, description="The only world size that it happens at. Without it, at every one.", examples=[2]
    )
    size_bytes: Bytes | None = Field(
        alias="size",
        default=None,
        description="The only size that it happens at. Without it, at every one.",
        examples=["1MiB"],
    )
    launch: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The only launch that it happens in. Without it, in every one.", examples=[2]
    )
    delay_s: Seconds = Field(
        alias="delay",
        default=0.002,
        description="Time that late (before the call) and slow (in it) take.",
        examples=["5ms"],
    )


class Config(Strict):
    """One sweep: every combination of the lists below, each measured in `launches` fresh process groups."""

    name: Name = Field(
        description="Part of the names of the results and plots folders. Without it, the name of the file.",
        examples=["nightly"],
    )
    backends: Several[BackendName] = Field(
        description="Backends. One that this machine lacks is skipped with the reason.", examples=[["gloo", "nccl"]]
    )
    world_sizes: Several[WorldSize] = Field(description="Numbers of ranks.", examples=[[2, 4]])
    operations: Several[OperationName] = Field(
        default=[],
        description="Operations; `list operations` explains them. The section `training` adds training_step.",
        examples=[["all_reduce", "all_gather"]],
    )
    dtypes: Several[DtypeName] = Field(
        default=["float32"], description="Types of the elements.", examples=[["float32", "bfloat16"]]
    )
    reduce_ops: Several[ReduceOpName] = Field(
        default=["sum"], description="How operations that reduce combine elements.", examples=[["sum", "max"]]
    )
    sizes: Annotated[
        Annotated[Several[Bytes], Tag("list")] | Annotated[SizeRange, Tag("range")],
        Discriminator(lambda value: "range" if isinstance(value, dict | SizeRange) else "list"),
    ] = Field(
        default=[],
        description="Message sizes: a list, or {from, to, factor}, or {from, to, step}. A replay and steps of training "
        "need none.",
        examples=[{"from": "4KiB", "to": "64MiB", "factor": 4}, ["1MB", "10MB"]],
    )
    recording: Several[str] = Field(
        default=[],
        description="Files of a recorded job, for the operation replay: traces, one for each rank, or a list of calls.",
        examples=[["job/rank0.json", "job/rank1.json"]],
    )
    gaps: Annotated[str, OneOf(("none", "recorded"), "kind of gaps")] = Field(
        default="none",
        description="For the operation replay: recorded lets ranks pause between calls as the job did.",
        examples=["recorded"],
    )
    placements: Several[Placement] = Field(
        default=["usual"],
        description="Where results go: in place, out of place, or as is usual for the operation.",
        examples=[["in", "out"]],
    )
    calls: Several[CallKind] = Field(
        default=["sync"],
        description="With async, the call returns a handle, and the timed region ends when waiting for it ends.",
        examples=[["sync", "async"]],
    )
    roots: Annotated[
        Annotated[Several[Root], Tag("list")]
        | Annotated[Annotated[str, OneOf(("all",), "root", "or a list such as [0, 1]")], Tag("all")],
        Discriminator(lambda value: "all" if isinstance(value, str) else "list"),
    ] = Field(
        default=[0],
        description="Roots of operations that have one. With all, each rank in turn is a case.",
        examples=[[0, 1], "all"],
    )
    groups: Several[Division] = Field(
        default=["world"],
        description="Which ranks call together: world, or contiguous:K or strided:K for groups of K ranks. With "
        ":serial behind it, one group calls after the other.",
        examples=[["world", "strided:2"]],
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="How many times all cases are measured, each time in new processes.", examples=[8]
    )
    buffers: BufferPolicy = Field(
        default="rotate",
        description="rotate uses the buffers of a pool in turn, hot one buffer, flush empties the caches before each "
        "call.",
        examples=["hot"],
    )
    buffer_pool: Bytes = Field(
        default=POOL_BYTES, description="Memory of the pool, for each case and rank.", examples=["256MiB"]
    )
    metrics: Several[MetricName] = Field(
        default=["isolated"],
        description="What an iteration times. "
        + "; ".join(f"{metric.name}: {metric.about}" for metric in METRICS.values())
        + ".",
        examples=[["isolated", "pipelined"]],
    )
    pipeline_depth: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="Number of calls in an iteration of the metrics pipelined and graph.", examples=[50]
    )
    scheduling: Scheduling = Field(
        default="normal",
        description="With rr, ranks run under real-time round robin, where that is permitted.",
        examples=["rr"],
    )
    budget: Seconds | None = Field(
        default=None,
        description="Time for the whole run. More launches are spent on the cases with the widest intervals.",
        examples=["60s"],
    )
    training: TrainingSection | None = Field(
        default=None,
        description="Steps of training: what synchronising gradients costs. Docs: docs/training.md.",
        examples=[{"models": ["tiny"], "strategies": ["flat", "ddp"]}],
    )
    sampling: SamplingConfig = Field(
        default=SamplingConfig(),
        description="How many iterations a case gets in one launch.",
        examples=[{"relative_error": 0.02, "seconds_per_case": "120ms"}],
    )
    timeout: Seconds = Field(
        default=60.0, description="A rank without progress for this time counts as hung.", examples=["5min"]
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None,
        description="Seed of the order and the data. Without it, each run has a new one and records it.",
        examples=[1],
    )
    env: dict[VariableName, Several[VariableValue]] = Field(
        default={},
        description="Environment variables of the ranks. Each combination of values is measured in processes of its "
        "own.",
        examples=[{"NCCL_ALGO": ["Ring", "Tree"]}],
    )
    ctas: Several[Annotated[int, Field(ge=0, le=64)]] = Field(
        default=[0],
        description="Blocks (CTAs) that NCCL may use for a communicator. With 0, NCCL chooses.",
        examples=[[0, 8]],
    )
    memory: Several[Memory] = Field(
        default=["plain"],
        description="Where buffers come from: registered are allocated by NCCL and registered with it, symmetric are "
        "windows.",
        examples=[["plain", "registered"]],
    )
    alignments: Several[Alignment] = Field(
        default=["aligned"],
        description="With unaligned, buffers begin one element after a multiple of 512 bytes.",
        examples=[["aligned", "unaligned"]],
    )
    splits: Annotated[
        list[
            Annotated[
                Annotated[Annotated[str, OneOf(("even",), "distribution", EVEN_OTHERS)], Tag("even")]
                | Annotated[SplitsConfig, Tag("uneven")],
                Discriminator(lambda value: "even" if isinstance(value, str) else "uneven"),
            ]
        ],
        Field(min_length=1),
    ] = Field(
        default=["even"],
        description=f"How an all-to-all divides what each rank sends: even, {EVEN_OTHERS}.",
        examples=[["even", {"zipf": 1.2}]],
    )
    counts: Several[Counts] = Field(
        default=["known"],
        description="With exchanged, ranks first send each other the sizes of the uneven parts, as in MoE layers.",
        examples=[["known", "exchanged"]],
    )
    oversubscribe_gpu: bool = Field(
        default=False,
        description="Whether several ranks may share a GPU, to try that it works. No bandwidth is published.",
        examples=[True],
    )
    link: Rate | None = Field(
        default=None, description="What the link can carry. Plots show it as a bound.", examples=["25 Gbit/s"]
    )
    faults: list[FaultConfig] = Field(
        default=[], description="Faults to plant on purpose.", examples=[[{"do": "hang", "rank": 1}]]
    )

    @classmethod
    def required_besides(cls, values: Mapping[str, Any]) -> Mapping[str, str]:
        """`operations`, or the section `training`; `sizes` for operations that have one; `recording` for replay."""
        asked = values.get("operations")
        if asked is None and "training" not in values:
            return {"operations": "missing; write operations: [all_reduce], or a section training"}
        needed = {}
        names = asked if isinstance(asked, list) else [] if asked is None else [asked]
        if REPLAY in names and "recording" not in values:
            needed["recording"] = f"missing; the operation {REPLAY} needs the files of a recorded job"
        if TRAINING_STEP in names and "training" not in values:
            needed["training"] = f"missing; the operation {TRAINING_STEP} needs models and strategies"
        if "sizes" not in values and set(map(str, names)) - {REPLAY, TRAINING_STEP}:
            needed["sizes"] = "missing; write message sizes, such as {from: 4KiB, to: 64MiB}"
        return needed

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.recording and REPLAY not in self.operations:
            raise problem_at(("recording",), f"only the operation {REPLAY} uses a recording")
        if self.training is not None and self.budget is not None:
            raise problem_at(("budget",), "steps of training take launches and rounds; a budget is for collectives")
        for index, fault in enumerate(self.faults):
            if fault.rank >= max(self.world_sizes):
                raise problem_at(("faults", index, "rank"), f"{fault.rank}: no world size has a rank {fault.rank}")
        return self

    @property
    def split_texts(self) -> list[str]:
        """Each distribution as `splits` reads it; empty: even."""
        return ["" if isinstance(split, str) else split.text for split in self.splits]

    @property
    def size_list(self) -> list[int]:
        """Message sizes in bytes."""
        return self.sizes.expand() if isinstance(self.sizes, SizeRange) else list(self.sizes)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
def load(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, bytes]:
    """Read and validate a file. Returns the Config and the file's bytes; raises ConfigError."""
    raw = documents.read(path)
    return parse(raw, str(path), overrides, default_name=path.stem), raw


def parse(raw: bytes, source: str, overrides: Sequence[str] = (), default_name: str = "run") -> Config:
    """Validate the bytes of a YAML file; `source` names it in messages. Raises ConfigError with all problems."""
    document = documents.document(raw, source, "backends: [gloo]", overrides)
    return validate(Config, document, name=default_name)
