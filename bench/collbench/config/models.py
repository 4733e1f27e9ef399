"""Read a YAML file into a validated `Config`, or raise an error that states line by line what to change.

In: the bytes of a YAML file and `--set` overrides. Out: a validated, frozen `Config` that contains exactly
the written values plus defaults. Does not look at the machine and does not expand anything: `plan` does.
docs/configuration.md is made from the descriptions and examples here.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from collbench.catalog import splits
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.registry import PACKAGES
from collbench.config import documents
from collbench.config.documents import in_flow
from collbench.config.fields import (
    READ,
    SECOND_IF_TEXT,
    BackendName,
    Branch,
    Bytes,
    DtypeName,
    FaultKind,
    LongSeconds,
    Name,
    OneOf,
    OperationName,
    PackageSection,
    Rate,
    Seconds,
    Several,
    Share,
    Strict,
    VariableName,
    VariableValue,
    WorldSize,
    example_of,
    key,
    problem_at,
    validate,
)
from collbench.config.options import with_options
from collbench.model.divisions import Splits
from collbench.model.records import OPTIONS, Variables

# An hour of calls of 4 µs.
MOST_ITERATIONS = 10**9
# Larger than the second-level caches of ranks; filling even more memory would take longer than measuring.
POOL_BYTES = 64 * 2**20
# Nobody reads a report with more rows, and each additional size costs minutes.
MAX_SIZES = 200
# Values of `splits` other than even, in messages and in the documentation.
EVEN_OTHERS = "{zipf: 1.2}, {lognormal: 1}, {hot: 4}, {distance: 1}, {matrix: [[0, 3], [1, 2]]}"


# Operation of a package → key of its section, for operations that have one.
SECTION_OF = {
    operation.name: package.name
    for package in PACKAGES
    if package.operation is not None and (operation := package.operation.value).section is not None
}
# Key of a section → its model.
SECTIONS: dict[str, type[PackageSection]] = {
    name: section.value for operation, name in SECTION_OF.items() if (section := OPERATIONS[operation].section)
}


class SizeRange(Strict):
    """Sizes from `from` up to `to`, each `factor` times the one before, or `step` larger than it."""

    from_: Bytes = key("Smallest size.", "4KiB", alias="from")
    to: Bytes = key("Largest size. It is included if a step lands on it.", "64MiB")
    factor: Annotated[float, Field(gt=1)] = key("Ratio of neighbouring sizes.", 4, default=2)
    step: Bytes | None = key("Difference of neighbouring sizes, in place of `factor`.", "1MiB", default=None)

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
        """Return the sizes in bytes, ascending and distinct."""
        if self.step is not None:
            return list(range(self.from_, self.to + 1, self.step))[: MAX_SIZES + 1]
        sizes: list[int] = []
        size = float(self.from_)
        while size <= self.to and len(sizes) <= MAX_SIZES:
            if not sizes or round(size) > sizes[-1]:
                sizes.append(round(size))
            size *= self.factor
        return sizes


# It has the fields of `records.Sampling`, and FaultConfig has the fields of `records.Fault`: plans are made from them.
class SamplingConfig(Strict):
    """How many iterations a case gets in one launch."""

    warmup: Annotated[int, Field(ge=0)] = key("Iterations at the beginning of a case that are not used.", 2, default=5)
    warmup_s: Seconds = key(
        "The warm-up ends after this time at the latest.", "10ms", default=0.05, alias="warmup_seconds"
    )
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] | None = key(
        "A fixed number of iterations. Without it, each case gets the same time.", 20, default=None
    )
    relative_error: Annotated[Share, Field(gt=0)] | None = key(
        "A case ends early when the 95 % interval of its mean is within this share of the mean. The report names "
        "the cases that did not reach it. Without it, no precision is required.",
        0.02,
        default=None,
    )
    seconds_per_case: Seconds = key(
        "Time of a case in one launch; for long calls up to 6 times as much, because few calls give no reliable mean.",
        "250ms",
        default=0.12,
    )
    max_iterations: Annotated[int, Field(ge=8, le=MOST_ITERATIONS)] = key(
        "A case ends after this number of iterations at the latest.", 500, default=2000
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

    LAWS: ClassVar = ("zipf", "lognormal", "hot", "distance")
    zipf: Annotated[float, Field(gt=0, le=10)] | None = key(
        "Popularity of the k-th most popular rank is 1 / k to this power.", 1.2, default=None
    )
    lognormal: Annotated[float, Field(gt=0, le=5)] | None = key(
        "Popularity is log-normal, with this standard deviation of its logarithm.", 1, default=None
    )
    hot: Annotated[float, Field(gt=1)] | None = key(
        "One rank receives this many times as much as the mean.", 4, default=None
    )
    distance: Annotated[float, Field(gt=0, le=1)] | None = key(
        "The share of what a rank sends that grows with the distance to the receiver, as in alltoallv_perf.",
        1,
        default=None,
    )
    matrix: Annotated[list[list[Annotated[int, Field(ge=0)]]] | str, SECOND_IF_TEXT] | None = key(
        "Parts that each rank (row) sends to each rank, or the name of a CSV file that has them.",
        [[0, 3], [1, 2]],
        default=None,
    )
    seed: Annotated[int, Field(ge=0)] = key(
        "Chooses which ranks are popular. A matrix and a distance take none.", 3, default=0
    )

    @model_validator(mode="after")
    def _check(self) -> "SplitsConfig":
        chosen = [key for key in (*self.LAWS, "matrix") if getattr(self, key) is not None]
        if len(chosen) != 1:
            raise ValueError(f"name exactly one of {', '.join(self.LAWS)}, matrix")
        if chosen[0] in {"matrix", "distance"} and self.model_fields_set != {*chosen}:
            raise ValueError(f"a {chosen[0]} has no seed")
        self.parse()
        return self

    def parse(self) -> Splits:
        """Return the distribution as cases have it; raises ValueError."""
        if self.matrix is not None:
            rows = _matrix_of(self.matrix) if isinstance(self.matrix, str) else self.matrix
            return splits.parse("rows:" + ";".join(",".join(map(str, row)) for row in rows))
        kind = next(name for name in self.LAWS if getattr(self, name) is not None)
        return splits.parse(f"{kind}:{getattr(self, kind):g}" + f":seed={self.seed}" * (self.seed > 0))


Distribution = Annotated[
    Annotated[str, OneOf(("even",), "distribution", EVEN_OTHERS), AfterValidator(lambda _: None)]
    | Annotated[SplitsConfig, AfterValidator(SplitsConfig.parse)],
    Branch(lambda value: not isinstance(value, str)),
]


def _matrix_of(path: str) -> list[list[int]]:
    """Read the whole numbers of a CSV file; raises ValueError."""
    try:
        with Path(path).open(newline="") as file:
            return [[int(cell) for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise ValueError(f"{path}: a matrix of whole numbers is expected, one row per line, with commas") from None


class FaultConfig(Strict):
    """A fault planted on purpose, to see it noticed. The report states that it was planted."""

    do: FaultKind = key(
        "What goes wrong: the rank raises an error, exits, is killed, is stopped, hangs, corrupts a "
        "result, calls late, or is slow within the call (not on GPUs).",
        "hang",
    )
    rank: Annotated[int, Field(ge=0)] = key("The rank that it happens to.", 1)
    iteration: Annotated[int, Field(ge=0)] = key(
        "The call of a case that it happens in; 0 is the verifying one. late and slow begin with it.", 3, default=0
    )
    world_size: WorldSize | None = key(
        "The only world size that it happens at. Without it, at every one.", 2, default=None
    )
    size_bytes: Bytes | None = key(
        "The only size that it happens at. Without it, at every one.", "1MiB", default=None, alias="size"
    )
    launch: Annotated[int, Field(ge=1)] | None = key(
        "The only launch that it happens in. Without it, in every one.", 2, default=None
    )
    delay_s: Seconds = key("Time by which late delays each call.", "5ms", default=0.002, alias="delay")
    share: Share = key("Share of its own time by which slow makes each call longer.", "20%", default=0.05)


def _combinations(env: dict[str, list[str]]) -> list[Variables]:
    """Return every combination of values of the environment variables."""
    assignments = [[(name, value) for value in values] for name, values in sorted(env.items())]
    return [Variables(chosen) for chosen in itertools.product(*assignments)]


@with_options(
    OPTIONS,
    **{
        name: (section | None, key(str(section.__doc__), example_of(section), default=None))
        for name, section in SECTIONS.items()
    },
)
class Config(Strict):
    """One sweep: every combination of the lists below, each measured in `launches` fresh process groups."""

    # The default of `name` is the name of the file.
    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("name"))
    if TYPE_CHECKING:  # keys from the table of options that code names
        buffers: str
        roots: list[int] | str

    name: Name = key("Part of the names of the results and plots folders. Without it, the name of the file.", "nightly")
    backends: Several[BackendName] = key(
        "Backends. One that this machine lacks is skipped with the reason.", ["gloo", "nccl"]
    )
    world_sizes: Several[WorldSize] = key(
        "Numbers of ranks. Default: 2, 4, 8 … and the maximum (ranks of the job; on one host GPUs, else cores).",
        [2, 4],
        default=[],
    )
    operations: Several[OperationName] = key(
        "Operations; `list operations` explains them. Sections add others.",
        ["all_reduce", "all_gather"],
        default=[],
    )
    dtypes: Several[DtypeName] = key("Types of the elements.", ["float32", "bfloat16"], default=["float32"])
    sizes: Annotated[Several[Bytes] | SizeRange, Branch(lambda value: isinstance(value, dict | SizeRange))] = key(
        "Message sizes: a list, or {from, to, factor}, or {from, to, step}. Sections need none.",
        {"from": "4KiB", "to": "64MiB", "factor": 4},
        ["1MB", "10MB"],
        default=[],
    )
    launches: Annotated[int, Field(ge=1, le=1000)] = key(
        "How many times all cases are measured, each time in new processes.", 8, default=3
    )
    buffer_pool: Bytes = key("Memory of the pool, for each case and rank.", "256MiB", default=POOL_BYTES, advanced=True)
    pipeline_depth: Annotated[int, Field(ge=2, le=1000)] = key(
        "Number of calls in an iteration of the metrics pipelined and graph.", 50, default=20, advanced=True
    )
    budget: LongSeconds | None = key(
        "Time for the whole run. More launches are spent on the cases with the widest intervals.", "60s", default=None
    )
    sampling: SamplingConfig = key(
        "How many iterations a case gets in one launch.",
        {"relative_error": 0.02, "seconds_per_case": "250ms"},
        default=SamplingConfig(),
    )
    timeout: LongSeconds = key("A rank without progress for this time counts as hung.", "5min", default=60.0)
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = key(
        "Seed of the order and the data. Without it, each run has a new one and records it.", 1, default=None
    )
    env: Annotated[dict[VariableName, Several[VariableValue]], AfterValidator(_combinations), READ] = key(
        "Environment variables of the ranks; `list variables` shows those that may be set. Each combination of values "
        "is measured in processes of its own.",
        {"NCCL_ALGO": ["Ring", "Tree"]},
        default={},
    )
    splits: Annotated[list[Distribution], Field(min_length=1), READ] = key(
        f"How an all-to-all divides what each rank sends: even, {EVEN_OTHERS}.",
        ["even", {"zipf": 1.2}],
        default=["even"],
        advanced=True,
    )
    oversubscribe_gpu: bool = key(
        "Let several ranks share a GPU, for functional tests only; no bandwidth is reported.",
        True,
        default=False,
        advanced=True,
    )
    link: Rate | None = key("What the link can carry. Plots show it as a bound.", "25 Gbit/s", default=None)
    faults: list[FaultConfig] = key(
        "Faults to plant on purpose.", [{"do": "hang", "rank": 1}], default=[], advanced=True
    )

    @classmethod
    def required_besides(cls, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Require `operations` or a section; for an operation, require its section if it has one, otherwise `sizes`."""
        operations = values.get("operations")
        if operations is None and not any(name in values for name in SECTIONS):
            sections = " or ".join(f"a section {name}" for name in SECTIONS)
            return {"operations": f"missing; write operations: [all_reduce], or {sections}"}
        needed = {}
        names = operations if isinstance(operations, list) else [] if operations is None else [operations]
        for operation, name in SECTION_OF.items():
            if operation in names and name not in values:
                needed[name] = (
                    f"missing; the operation {operation} needs it, such as {in_flow(example_of(SECTIONS[name]))}"
                )
        if "sizes" not in values and set(map(str, names)) - {*SECTION_OF}:
            needed["sizes"] = "missing; write message sizes, such as {from: 4KiB, to: 64MiB}"
        return needed

    @model_validator(mode="after")
    def _check(self) -> "Config":
        for operation in (name for name, section in SECTION_OF.items() if getattr(self, section) is not None):
            own = OPERATIONS[operation]
            if self.budget is not None and own.against:
                why = f"cases of {operation} take launches and rounds; a budget is for collectives"
                raise problem_at(("budget",), why)
            if set(self.operations) <= {operation}:
                collective_keys = {option.key.name for option in OPTIONS if option.key and not own.has(option)}
                for key in sorted(self.model_fields_set & (collective_keys | {"metrics", "pipeline_depth", "sizes"})):
                    raise problem_at((key,), f"cases of {operation} do not have this key, and there are no others")
        for index, fault in enumerate(self.faults):
            if self.world_sizes and fault.rank >= max(self.world_sizes):
                raise problem_at(("faults", index, "rank"), f"{fault.rank}: no world size has a rank {fault.rank}")
            on_gpu = next((name for name in self.backends if BACKENDS[name].device == "cuda"), None)
            if fault.do == "slow" and on_gpu:
                why = f"slow keeps a core busy after the call, which delays no GPU; use late with {on_gpu}"
                raise problem_at(("faults", index, "do"), why)
        return self

    @property
    def size_list(self) -> list[int]:
        """Return the message sizes in bytes."""
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
