"""Read a YAML file that begins with `benchmark: training`.

In: the bytes of the file, and overrides. Out: a `TrainingConfig`, or a ConfigError: one line that says what to change.
Does not look at the machine and does not expand anything: `training.plan` does.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from bench import earlier_names, yaml_file
from bench.config import BackendName, Bytes, Seconds, WorldSize
from bench.records import NAME_PATTERN
from bench.training.presets import EXAMPLE as SIZES
from bench.training.presets import PRESETS, VOCABULARY, Preset, find, name_of
from bench.training.records import Link
from bench.training.strategies import DDP_HOOKS, STRATEGIES, USER_STRATEGY
from bench.units import parse_link, parse_share
from bench.yaml_file import OneOf, Several, Strict, did_you_mean

EXAMPLE = "benchmark: training"
OPTIONS = tuple(dict.fromkeys(option for entry in STRATEGIES.values() for option in entry.options))
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _importable(value: str) -> str:
    if not _IMPORT.fullmatch(value):
        raise ValueError("write package.module:name")
    return value


def _preset(value: str, others: str = "") -> str:
    if find(value) is None:
        near = did_you_mean(value, tuple(PRESETS))
        raise ValueError(f"unknown model{near}; allowed: {', '.join(PRESETS)}, sizes such as {SIZES}{others}")
    return value


class ShapeConfig(Strict):
    """A preset without its weights: backward waits until each gradient's ready time, and nothing is computed."""

    shape: Annotated[str, AfterValidator(_preset)]
    backward: Seconds = 0.06


class SizesConfig(Strict):
    """A transformer given by its sizes."""

    d_model: Annotated[int, Field(ge=2)]
    d_ff: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    vocabulary: Annotated[int, Field(ge=2)] = VOCABULARY
    kv_heads: Annotated[int, Field(ge=0)] = 0
    tied: bool = False


def _model(value: Any) -> Any:
    if isinstance(value, dict) and "d_model" in value:
        sizes = SizesConfig.model_validate(value)
        return _preset(name_of(Preset(**sizes.model_dump())))
    if isinstance(value, dict) and set(value) == {"import"}:
        return _importable(str(value["import"]))
    if isinstance(value, dict) and "shape" in value:
        return ShapeConfig.model_validate(value)
    if isinstance(value, str) and ":" not in value:
        return _preset(value, ", {import: package.module:function}, {shape: xl-2026, backward: 1.2s}")
    return value


def _strategy(value: Any) -> Any:
    """`flat`, `{ddp: {cap: 1MiB}}` or `{import: package.module:name}` as the fields of a `StrategyConfig`."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1:
        name, settings = next(iter(value.items()))
        if name == "import":
            return {"name": name, "imported": _importable(str(settings))}
        if isinstance(settings, dict) and "name" not in settings:
            return {"name": name, **settings}
    if isinstance(value, dict) and "name" in value:
        return value
    raise ValueError("write a name such as flat, or {ddp: {cap: 1MiB}}")


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def link_of(value: str) -> Link | None:
    """The emulated link of a text such as `2ms + 1GB/s`, or None for `real`. Raises ValueError."""
    return None if value == "real" else Link(*parse_link(value))


def _link(value: Any) -> str:
    link_of(str(value))
    return str(value)


Caps = Annotated[list[Bytes], BeforeValidator(_several), Field(min_length=1)]
ModelName = Annotated[str | ShapeConfig, BeforeValidator(_model), WithJsonSchema({"type": ["string", "object"]})]
Share = Annotated[float, BeforeValidator(parse_share), WithJsonSchema({"type": ["string", "number"]})]


class StrategyConfig(Strict):
    """One strategy; `cap` may be a list, which makes several of it."""

    name: Annotated[str, OneOf((*STRATEGIES, "import"), "strategy")]
    cap: Caps | None = None
    bucket_boundary: Annotated[str, OneOf(("after", "before"), "way to close a bucket")] = "after"
    buckets: list[Bytes] | Literal["advised", "torch"] | None = Field(
        default=None,
        description="bytes of each; or advised, the advisor's; of plan also torch, those of torch's default",
    )
    options: list[Annotated[str, OneOf(OPTIONS, "option")]] = Field(default=[])
    accumulate: Annotated[int, Field(ge=1, le=1024)] = 1
    imported: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "StrategyConfig":
        entry = STRATEGIES.get(self.name, USER_STRATEGY)
        takes = (*(entry.takes if self.name in STRATEGIES else ("imported",)), "accumulate")
        given = self.model_fields_set - {"name"}
        unused = sorted(given - set(takes))
        if unused:
            raise ValueError(f"{self.name} does not take {unused[0]}; it takes {', '.join(takes)}")
        if entry.needs and not getattr(self, entry.needs[0]):
            raise ValueError(f"{self.name} needs {entry.needs[0]}, such as {entry.needs[1]}")
        if unknown := [option for option in self.options if option not in entry.options]:
            raise ValueError(f"{self.name} has no option {unknown[0]}; it has {', '.join(entry.options)}")
        if self.buckets == "torch" and self.name != "plan":
            raise ValueError(f"{self.name} has torch's buckets without this key; torch is for plan")
        if self.cap and self.buckets:
            raise ValueError("cap and buckets exclude each other")
        if len(set(self.options) & set(DDP_HOOKS)) > 1:
            raise ValueError(f"torch takes one communication hook only: {', '.join(DDP_HOOKS)}")
        return self


class CallSizesConfig(Strict):
    """So many parameters, all-reduced in so many calls."""

    parameters: Annotated[int, Field(ge=1)] = 6_000_000
    calls: Several[Annotated[int, Field(ge=1)]] = Field(default=[1, 6, 60, 600])


class TrainingConfig(Strict):
    """A run of the training benchmark: every strategy in every scenario."""

    benchmark: Literal["training"]
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = "training"
    models: Several[ModelName]
    backends: Several[BackendName] = Field(default=["gloo"])
    links: Several[Annotated[str, AfterValidator(_link)]] = Field(
        default=["real"], description="real, or an emulated one: 2ms + 1GB/s"
    )
    world_sizes: Several[WorldSize] = Field(default=[2])
    batch: Annotated[int, Field(ge=1, description="examples of each rank in a step")] = 4
    sequence: Annotated[int, Field(ge=2, description="tokens of an example")] = 64
    dtype: Annotated[str, OneOf(("float32", "float64", "bfloat16"), "dtype")] = "float32"
    optimizer: Annotated[str, OneOf(("sgd", "adamw"), "optimizer")] = "sgd"
    clip: Annotated[
        float, Field(ge=0, description="largest norm of all gradients, as of clip_grad_norm_; 0 clips nothing")
    ] = 0.0
    threads: Annotated[int, Field(ge=1, le=1024, description="of each rank's computing")] = 1
    strategies: Annotated[list[Annotated[StrategyConfig, BeforeValidator(_strategy)]], Field(min_length=1)]
    launches: Annotated[int, Field(ge=1, le=100)] = 5
    rounds: Annotated[int, Field(ge=2, le=10_000)] = 10
    steps: Annotated[int, Field(ge=1, le=10_000, description="of a strategy in one round")] = 4
    warmup: Annotated[
        int, Field(ge=3, description="torch rebuilds its buckets after the first backward, and tells two later")
    ] = 3
    max_foreign_cpu: Share = 0.06
    call_sizes: CallSizesConfig | None = None
    timeout: Seconds = 60.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None


def parse(raw: bytes, source: str, sets: list[str], default_name: str) -> TrainingConfig:
    """The configuration, with the overrides `sets` applied. Raises a ConfigError of one line."""
    data = {"name": default_name, **yaml_file.mapping(raw, source, EXAMPLE)}
    paths = [yaml_file.override(data, text) for text in sets]
    data, _ = earlier_names.configuration(data)
    return yaml_file.validate(TrainingConfig, data, source, paths)
