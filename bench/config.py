"""Read a YAML file into a validated `Config`, or raise an error that says in one line what to change.

In: the bytes of a YAML file and `--set` overrides. Out: a validated, frozen `Config` that holds exactly
what was written plus defaults. Does not look at the machine and does not expand anything: `plan` does.
`yaml_file` reads YAML safely and turns a mistake into one line.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from bench import earlier_names, splits, subgroups, yaml_file
from bench.backends import BACKENDS
from bench.dtypes import DTYPES, REDUCE_OPS
from bench.metrics import METRICS
from bench.operations import OPERATIONS
from bench.records import MOST_RANKS, NAME_PATTERN
from bench.units import parse_bytes, parse_rate, parse_seconds
from bench.variables import SETTABLE, unsettable
from bench.yaml_file import OneOf, Several, Strict

MAX_SIZES = 200
# Enough for memory that the second-level caches of ranks do not hold; filling more takes longer than measuring.
POOL_BYTES = 64 * 2**20
BUFFER_POLICIES = ("rotate", "hot", "flush")
PLACEMENTS = ("usual", "in", "out")
CALLS = ("sync", "async")
ALIGNMENTS = ("aligned", "unaligned")
COUNTS = ("known", "exchanged")
MEMORIES = ("plain", "registered", "symmetric")
SYNCS = ("barrier", "deadline")
SCHEDULINGS = ("normal", "rr")
FAULT_KINDS = ("raise", "exit", "kill", "stop", "hang", "corrupt", "late", "slow")

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
WorldSize = Annotated[int, Field(ge=1, le=MOST_RANKS)]
BackendName = Annotated[str, OneOf(tuple(BACKENDS), "backend")]
OperationName = Annotated[str, OneOf(tuple(OPERATIONS), "operation")]
DtypeName = Annotated[str, OneOf(tuple(DTYPES), "dtype")]
ReduceOpName = Annotated[str, OneOf(tuple(REDUCE_OPS), "reduce op")]
BufferPolicy = Annotated[str, OneOf(BUFFER_POLICIES, "buffer policy")]
MetricName = Annotated[str, OneOf(tuple(METRICS), "metric")]
Placement = Annotated[str, OneOf(PLACEMENTS, "placement")]
CallKind = Annotated[str, OneOf(CALLS, "call")]
Alignment = Annotated[str, OneOf(ALIGNMENTS, "alignment")]
Counts = Annotated[str, OneOf(COUNTS, "counts")]
Memory = Annotated[str, OneOf(MEMORIES, "memory")]
Division = Annotated[str, AfterValidator(subgroups.check)]
Root = Annotated[int, Field(ge=0)]


def _settable(name: str, value: str = "") -> None:
    if reason := unsettable(name, value):
        raise ValueError(reason)


def _name(name: str) -> str:
    _settable(name)
    return name


def _value(value: str) -> str:
    _settable(SETTABLE[0], value)
    return value


VariableName = Annotated[str, AfterValidator(_name)]
VariableValue = Annotated[str, BeforeValidator(str), AfterValidator(_value)]
Sync = Annotated[str, OneOf(SYNCS, "sync")]
Scheduling = Annotated[str, OneOf(SCHEDULINGS, "scheduling")]
FaultKind = Annotated[str, OneOf(FAULT_KINDS, "fault")]


class SizeRange(Strict):
    """Sizes from `from` up to `to`, each `factor` times the one before, or `step` larger than it."""

    from_: Bytes = Field(alias="from", description="smallest size")
    to: Bytes = Field(description="largest size; included if a step lands on it")
    factor: Annotated[float, Field(gt=1)] = Field(default=2, description="ratio of neighbouring sizes")
    step: Bytes | None = Field(default=None, description="difference of neighbouring sizes, in place of a factor")

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


class SamplingConfig(Strict):
    """How many iterations a case gets in one launch."""

    warmup: Annotated[int, Field(ge=0)] = Field(default=5, description="iterations that come first and are not used")
    warmup_seconds: Seconds = Field(default=0.05, description="but no longer than this")
    iterations: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="a fixed count; leave it out for the adaptive one"
    )
    relative_error: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.05, description="stop when the 95 % interval of the median is within this share of it"
    )
    seconds_per_case: Seconds = Field(default=2.0, description="or when a case has taken this long in one launch")
    max_iterations: Annotated[int, Field(ge=6)] = Field(default=2000, description="or after so many iterations")

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
        default=None, description="popularity of the k-th most popular rank is 1 / k to this power"
    )
    lognormal: Annotated[float, Field(gt=0, le=5)] | None = Field(
        default=None, description="popularity is log-normal, with this standard deviation of its logarithm"
    )
    hot: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="one rank receives so many times as much as the mean"
    )
    matrix: list[list[Annotated[int, Field(ge=0)]]] | str | None = Field(
        default=None, description="parts from each rank (row) to each rank; or a CSV file that has them"
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="which ranks are popular")
    drift: bool = Field(default=False, description="whether other ranks are popular in each call")

    @model_validator(mode="after")
    def _check(self) -> "SplitsConfig":
        chosen = self.model_fields_set - {"seed", "drift"}
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

    do: FaultKind = Field(description="what goes wrong")
    rank: Annotated[int, Field(ge=0)] = Field(description="on which rank")
    iteration: Annotated[int, Field(ge=0)] = Field(
        default=0, description="at which call of a case (0: the verifying one); late and slow: from this one on"
    )
    world_size: WorldSize | None = Field(default=None, description="only at this world size")
    size: Bytes | None = Field(default=None, description="only at this size")
    launch: Annotated[int, Field(ge=1)] | None = Field(default=None, description="only in this launch")
    delay: Seconds = Field(default=0.002, description="for late (before the call) and slow (inside it)")


class Config(Strict):
    """One sweep: every combination of the lists below, each measured in `launches` fresh process groups."""

    benchmark: Literal["collectives"] = Field(
        default="collectives", description="or training (its keys differ: see `schema training`)"
    )
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="goes into the names of the results and plots folders; default: the file's name"
    )
    backends: Several[BackendName]
    world_sizes: Several[WorldSize] = Field(description="numbers of ranks")
    operations: Several[OperationName]
    dtypes: Several[DtypeName] = Field(default=["float32"])
    reduce_ops: Several[ReduceOpName] = Field(default=["sum"])
    sizes: Annotated[
        Annotated[Several[Bytes], Tag("list")] | Annotated[SizeRange, Tag("range")],
        Discriminator(lambda value: "range" if isinstance(value, dict | SizeRange) else "list"),
    ] = Field(default=[], description="message sizes: a list, or {from, to, factor}, or {from, to, step}")
    recording: Several[str] = Field(
        default=[],
        description="of the operation replay: a job's trace, one file a rank if there are several, or its calls",
    )
    gaps: Literal["none", "recorded"] = Field(
        default="none", description="of replay: whether ranks pause between calls as the recorded job did"
    )
    placements: Several[Placement] = Field(
        default=["usual"], description="in or out of place, if the operation has both"
    )
    calls: Several[CallKind] = Field(
        default=["sync"], description="async: the call returns a handle, which is waited for inside the timed region"
    )
    roots: Annotated[
        Annotated[Several[Root], Tag("list")] | Annotated[Literal["all"], Tag("all")],
        Discriminator(lambda value: "all" if isinstance(value, str) else "list"),
    ] = Field(default=[0], description="roots of rooted operations; all: each rank in turn is a case of its own")
    groups: Several[Division] = Field(
        default=["world"],
        description="world, or groups within it: contiguous:K, strided:K; :serial behind it for one at a time",
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="fresh processes and process groups for everything, so many times"
    )
    buffers: BufferPolicy = Field(
        default="rotate", description="rotate: buffers of a pool in turn; hot: the same buffer; flush: caches emptied"
    )
    buffer_pool: Bytes = Field(
        default=POOL_BYTES, description="memory of the buffers that calls use in turn, of each case and rank"
    )
    metrics: Several[MetricName] = Field(
        default=["isolated"], description="; ".join(f"{metric.name}: {metric.about}" for metric in METRICS.values())
    )
    pipeline_depth: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="calls back to back for the pipelined metric (nccl-tests: 20)"
    )
    sync: Sync = Field(
        default="barrier", description="deadline: ranks spin until an agreed instant; needs a core for each rank"
    )
    scheduling: Scheduling = Field(
        default="normal", description="rr: real-time round robin, where it is permitted; never compared with normal"
    )
    budget: Seconds | None = Field(
        default=None, description="time for the whole run, spent where intervals are widest; leave it out for none"
    )
    sampling: SamplingConfig = SamplingConfig()
    timeout: Seconds = Field(default=60.0, description="a rank without progress for this long counts as hung")
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="of order and data; leave it out for a new one each run (it is recorded)"
    )
    env: dict[VariableName, Several[VariableValue]] = Field(
        default={},
        description="variables of the ranks as a further axis: {NCCL_ALGO: [Ring, Tree]}; new processes for each",
    )
    ctas: Several[Annotated[int, Field(ge=0, le=64)]] = Field(
        default=[0], description="blocks (CTAs) that NCCL may use for a communicator; 0: its own choice"
    )
    memory: Several[Memory] = Field(
        default=["plain"],
        description="registered: buffers from NCCL's allocator, registered with it; symmetric: as windows",
    )
    alignments: Several[Alignment] = Field(
        default=["aligned"], description="unaligned: buffers begin one element behind a multiple of 512 bytes"
    )
    splits: Annotated[
        list[
            Annotated[
                Annotated[Literal["even"], Tag("even")] | Annotated[SplitsConfig, Tag("uneven")],
                Discriminator(lambda value: "even" if isinstance(value, str) else "uneven"),
            ]
        ],
        Field(min_length=1),
    ] = Field(
        default=["even"], description="of all_to_all: even, or {zipf: 1.2}, {lognormal: 1}, {hot: 4}, {matrix: …}"
    )
    counts: Several[Counts] = Field(
        default=["known"],
        description="exchanged: ranks send each other the uneven parts' sizes first, as in MoE layers",
    )
    oversubscribe_gpu: bool = Field(
        default=False, description="several ranks on one GPU, to try that it works; no bandwidth is published"
    )
    link: Rate | None = Field(default=None, description="what the link can carry, drawn as a bound: 25 Gbit/s, 3 GB/s")
    faults: list[FaultConfig] = Field(default=[], description="faults to plant on purpose")

    @model_validator(mode="after")
    def _check(self) -> "Config":
        replayed = [name for name in self.operations if OPERATIONS[name].recorded]
        if bool(replayed) != bool(self.recording):
            raise ValueError("the operation 'replay' needs a 'recording', and nothing else uses one")
        if not self.size_list and len(replayed) < len(self.operations):
            raise ValueError("'sizes' is missing: message sizes, such as {from: 4KiB, to: 64MiB}")
        for index, fault in enumerate(self.faults):
            if fault.rank >= max(self.world_sizes):
                raise ValueError(f"faults[{index}].rank: no world size has a rank {fault.rank}")
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
    """Validate the bytes of a YAML file; `source` names it in messages. Raises ConfigError."""
    data = yaml_file.mapping(raw, source, "backends: [gloo]")
    set_paths = [yaml_file.override(data, text) for text in overrides]
    data.setdefault("name", default_name)
    data, _ = earlier_names.configuration(data)
    return yaml_file.validate(Config, data, source, set_paths)
