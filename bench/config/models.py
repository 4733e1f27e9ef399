"""Read a YAML file into a validated `Config`, or raise an error that says line by line what to change.

In: the bytes of a YAML file and `--set` overrides. Out: a validated, frozen `Config` that holds exactly
what was written plus defaults. Does not look at the machine and does not expand anything: `plan` does.
docs/configuration.md is made from the descriptions and examples here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from bench.catalog.metrics import METRICS
from bench.catalog.operations import REPLAY
from bench.config import problems, yaml_file
from bench.config.config_sections import EVEN_OTHERS, FaultConfig, SamplingConfig, SizeRange, SplitsConfig
from bench.config.sections import OneOf, Several, Strict, problem_at
from bench.config.values import (
    Alignment,
    BackendName,
    BufferPolicy,
    Bytes,
    CallKind,
    Counts,
    Division,
    DtypeName,
    Memory,
    MetricName,
    Name,
    OperationName,
    Placement,
    Rate,
    ReduceOpName,
    Root,
    Scheduling,
    Seconds,
    VariableName,
    VariableValue,
    WorldSize,
)

# Enough for memory that the second-level caches of ranks do not hold; filling more takes longer than measuring.
POOL_BYTES = 64 * 2**20


class Config(Strict):
    """One sweep: every combination of the lists below, each measured in `launches` fresh process groups."""

    benchmark: Annotated[str, OneOf(("collectives",), "benchmark of these keys")] = Field(
        default="collectives", description="The benchmark. `training` has other keys.", examples=["collectives"]
    )
    name: Name = Field(
        description="Part of the names of the results and plots folders. Without it, the name of the file.",
        examples=["nightly"],
    )
    backends: Several[BackendName] = Field(
        description="Backends. One that this machine lacks is skipped with the reason.", examples=[["gloo", "nccl"]]
    )
    world_sizes: Several[WorldSize] = Field(description="Numbers of ranks.", examples=[[2, 4]])
    operations: Several[OperationName] = Field(
        description="Operations; `list operations` explains them.", examples=[["all_reduce", "all_gather"]]
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
        description="Message sizes: a list, or {from, to, factor}, or {from, to, step}. Only a replay needs none.",
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
        """`sizes` for all operations but replay, and `recording` for replay."""
        asked = values.get("operations")
        needed = {}
        replayed = isinstance(asked, list) and REPLAY in asked
        if replayed and "recording" not in values:
            needed["recording"] = f"missing; the operation {REPLAY} needs the files of a recorded job"
        if "sizes" not in values and asked != [REPLAY]:
            needed["sizes"] = "missing; write message sizes, such as {from: 4KiB, to: 64MiB}"
        return needed

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.recording and REPLAY not in self.operations:
            raise problem_at(("recording",), f"only the operation {REPLAY} uses a recording")
        for index, fault in enumerate(self.faults):
            if fault.rank >= max(self.world_sizes):
                raise problem_at(("faults", index, "rank"), f"{fault.rank}: no world size has a rank {fault.rank}")
        return self

    @property
    def split_texts(self) -> list[str]:
        """Each distribution as `splits` reads it; empty: even."""
        return ["" if isinstance(one, str) else one.text for one in self.splits]

    @property
    def size_list(self) -> list[int]:
        """Message sizes in bytes."""
        return self.sizes.expand() if isinstance(self.sizes, SizeRange) else list(self.sizes)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
def load(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, bytes]:
    """Read and validate a file. Returns the Config and the file's bytes; raises ConfigError."""
    raw = yaml_file.read(path)
    return parse(raw, str(path), overrides, default_name=path.stem), raw


def parse(raw: bytes, source: str, overrides: Sequence[str] = (), default_name: str = "run") -> Config:
    """Validate the bytes of a YAML file; `source` names it in messages. Raises ConfigError with all problems."""
    document = yaml_file.document(raw, source, "backends: [gloo]", overrides)
    return problems.validate(Config, {"name": default_name, **document.values}, document)
