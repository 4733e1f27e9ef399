"""A YAML file → `Config`, or one line that says what to change.

In: the bytes of a YAML file and `--set` overrides. Out: a validated, frozen `Config` that holds exactly
what was written plus defaults. Does not look at the machine and does not expand anything: `plan` does.

Read safely: no tags beyond plain YAML, no aliases (a few bytes of them expand to gigabytes), no
duplicate keys, no file above MAX_YAML_BYTES.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from bench.backends import BACKENDS
from bench.errors import ConfigError
from bench.operations import DTYPES, OPERATIONS, REDUCE_OPS
from bench.units import parse_bytes, parse_seconds

# A hundred times the longest configuration we know of; parsing time grows with it.
MAX_YAML_BYTES = 64 * 1024
MAX_SIZES = 200
BUFFER_POLICIES = ("rotate", "hot", "flush")
METRICS = ("isolated", "pipelined")
SYNCS = ("barrier", "deadline")
SCHEDULINGS = ("normal", "rr")
FAULT_KINDS = ("raise", "exit", "kill", "stop", "hang", "corrupt", "late", "slow")


@dataclass(frozen=True)
class _OneOf:
    """Pydantic metadata: text that must be one of these names."""

    names: tuple[str, ...]
    what: str

    def check(self, value: str) -> str:
        if value not in self.names:
            near = _did_you_mean(value, self.names)
            raise ValueError(f"unknown {self.what}{near}; allowed: {', '.join(self.names)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


def _did_you_mean(value: str, names: Sequence[str]) -> str:
    # Case is folded because the commonest slip is `Gloo` or `Float32`.
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def _distinct(values: list[Any]) -> list[Any]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} is listed twice")
    return values


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
WorldSize = Annotated[int, Field(ge=1, le=65536)]
BackendName = Annotated[str, _OneOf(tuple(BACKENDS), "backend")]
OperationName = Annotated[str, _OneOf(tuple(OPERATIONS), "operation")]
DtypeName = Annotated[str, _OneOf(tuple(DTYPES), "dtype")]
ReduceOpName = Annotated[str, _OneOf(REDUCE_OPS, "reduce op")]
BufferPolicy = Annotated[str, _OneOf(BUFFER_POLICIES, "buffer policy")]
Metric = Annotated[str, _OneOf(METRICS, "metric")]
Sync = Annotated[str, _OneOf(SYNCS, "sync")]
Scheduling = Annotated[str, _OneOf(SCHEDULINGS, "scheduling")]
FaultKind = Annotated[str, _OneOf(FAULT_KINDS, "fault")]

T = TypeVar("T")
Several = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


class SizeRange(_Strict):
    """Sizes from `from` up to `to`, each `factor` times the one before."""

    from_: Bytes = Field(alias="from", description="smallest size")
    to: Bytes = Field(description="largest size; included if a step lands on it")
    factor: Annotated[float, Field(gt=1)] = Field(default=2, description="ratio of neighbouring sizes")

    @model_validator(mode="after")
    def _check(self) -> "SizeRange":
        if self.from_ > self.to:
            raise ValueError(f"'from' ({self.from_} B) is larger than 'to' ({self.to} B)")
        if len(self.expand()) > MAX_SIZES:
            raise ValueError(f"more than {MAX_SIZES} sizes: use a larger factor")
        return self

    def expand(self) -> list[int]:
        """The sizes in bytes, ascending, distinct."""
        sizes: list[int] = []
        size = float(self.from_)
        while size <= self.to and len(sizes) <= MAX_SIZES:
            if not sizes or round(size) > sizes[-1]:
                sizes.append(round(size))
            size *= self.factor
        return sizes


class SamplingConfig(_Strict):
    """How many iterations a case gets in one launch."""

    warmup: Annotated[int, Field(ge=0)] = Field(default=5, description="untimed iterations first, at least")
    warmup_seconds: Seconds = Field(default=0.05, description="and at least this long")
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


class FaultConfig(_Strict):
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


class Config(_Strict):
    """One sweep: every combination of the lists below, each measured in `launches` fresh process groups."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
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
    ] = Field(description="message sizes: a list, or {from, to, factor}")
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="fresh processes and process groups for everything, so many times"
    )
    buffers: BufferPolicy = Field(
        default="rotate", description="rotate: cold memory each time; hot: the same buffer; flush: caches emptied"
    )
    metrics: Several[Metric] = Field(
        default=["isolated"], description="isolated: one call between two stamps; pipelined: several back to back"
    )
    pipeline_depth: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="calls back to back for the pipelined metric (nccl-tests: 20)"
    )
    sync: Sync = Field(
        default="barrier", description="deadline: ranks spin to an agreed instant; wants a core for each rank"
    )
    scheduling: Scheduling = Field(
        default="normal", description="rr: real-time round robin, where it is permitted; never compared with normal"
    )
    budget: Seconds | None = Field(
        default=None, description="time for the whole run, spent where intervals are widest; leave it out for none"
    )
    sampling: SamplingConfig = SamplingConfig()
    timeout: Seconds = Field(default=60.0, description="a rank silent for this long is a hang")
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="of order and data; leave it out for a new one each run (it is recorded)"
    )
    faults: list[FaultConfig] = Field(default=[], description="faults to plant on purpose")

    @model_validator(mode="after")
    def _check(self) -> "Config":
        for index, fault in enumerate(self.faults):
            if fault.rank >= max(self.world_sizes):
                raise ValueError(f"faults[{index}].rank: no world size has a rank {fault.rank}")
        return self

    @property
    def size_list(self) -> list[int]:
        """Message sizes in bytes."""
        return self.sizes.expand() if isinstance(self.sizes, SizeRange) else list(self.sizes)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
def load(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, bytes]:
    """Read and validate a file. Returns the Config and the file's bytes; raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    return parse(raw, str(path), overrides, default_name=path.stem), raw


def parse(raw: bytes, source: str, overrides: Sequence[str] = (), default_name: str = "run") -> Config:
    """Validate the bytes of a YAML file; `source` names it in messages. Raises ConfigError."""
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_YAML_BYTES // 1024} KiB, so it is no CollBench configuration")
    data = _read_yaml(raw, source)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected keys and values such as 'backends: [gloo]', found {_short(data)}")
    set_paths = [_override(data, text) for text in overrides]
    data.setdefault("name", default_name)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_one_line(error, source, set_paths)) from None


class _Loader(yaml.SafeLoader):
    """Plain YAML only: no aliases, no duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not allowed; write the value out", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _read_yaml(raw: bytes, source: str) -> Any:
    try:
        return yaml.load(raw.decode("utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader, made stricter
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not text (UTF-8)") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise ConfigError(f"{source}:{line} {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None


def _override(data: dict[str, Any], text: str) -> tuple[str, ...]:
    path, equals, value = text.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {text}: write key.path=value, such as --set sampling.iterations=20")
    place = data
    for key in keys[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {text}: {key!r} holds {_short(place)}, which has no keys of its own")
    place[keys[-1]] = _read_yaml(value.encode(), f"--set {text}")
    return keys


# ── one line for people ──────────────────────────────────────────────────────────────────────────
def _one_line(error: ValidationError, source: str, set_paths: list[tuple[str, ...]]) -> str:
    problems = error.errors(include_url=False)
    # A misspelt key also makes the right one missing: say the first, it explains both.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    # The tags of the `sizes` union are pydantic's, not the user's.
    loc = [part for part in first["loc"] if part not in {"list", "range"} or first["loc"][0] != "sizes"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    where = "--set" if any(all(a == b for a, b in zip(loc, keys, strict=False)) for keys in set_paths) else source
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    key = f" {path}:" if path else ""
    return f"{where}:{key} {_explain(first, loc)}{more}"


def _explain(problem: ErrorDetails, loc: list[Any]) -> str:
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        names = _keys_at(loc[:-1])
        return f"unknown key{_did_you_mean(str(loc[-1]), names)}; allowed: {', '.join(names)}"
    if kind == "missing":
        return "missing; this key is required"
    if kind == "list_type":
        return f"{_short(value)} is not a list; write [{_short(value)}]"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:].replace("Input should", "should").replace("input should", "should")
    message = message.replace("input should", "should")
    if isinstance(value, dict) or repr(value) in message or str(value) in message.split():
        return message
    return f"{_short(value)}: {message}"


def _keys_at(loc: list[Any]) -> list[str]:
    models: dict[Any, type[BaseModel]] = {"sampling": SamplingConfig, "sizes": SizeRange, "faults": FaultConfig}
    model = models[loc[0]] if loc else Config
    return [info.alias or name for name, info in model.model_fields.items()]


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
