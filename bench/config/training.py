"""Define the section `training` of a configuration: models, links, and ways to synchronise gradients.

In: what YAML holds. Out: a `TrainingSection`. Does not look at the machine and does not expand anything:
`planning.training` does. docs/configuration.md is made from the descriptions and examples here.
"""

import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from bench.catalog.presets import EXAMPLE as SIZES
from bench.catalog.presets import PRESETS, VOCABULARY, Preset, find, name_of
from bench.catalog.strategies import CALLED, DDP_HOOKS, STRATEGIES, USER_STRATEGY
from bench.config.fields import (
    Bytes,
    OneOf,
    Seconds,
    Several,
    Share,
    Strict,
    problem_at,
    unknown_keys,
)
from bench.config.names import allowed
from bench.model.training import Strategy
from bench.model.units import parse_link

REAL_LINK = "real"
OPTIONS = tuple(dict.fromkeys(option for entry in STRATEGIES.values() for option in entry.options))
# What a strategy may take beside what its entry in the table of strategies says.
BY_ALL = ("accumulate",)
A_LIST = "a list such as [1MiB, 4MiB]"
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _importable(value: str) -> str:
    if not _IMPORT.fullmatch(value):
        raise ValueError(f"{value!r} cannot be imported; write package.module:name")
    return value


def _preset(value: str, others: str = "") -> str:
    if find(value) is None:
        raise ValueError(f"{value} is no model{allowed(value, tuple(PRESETS), f'sizes such as {SIZES}{others}')}")
    return value


def _model(value: str) -> str:
    if ":" in value:
        return _importable(value)
    return _preset(value, ", {import: package.module:function}, {shape: xl-2026, backward: 1.2s}")


class ShapeSection(Strict):
    """A preset without its weights: backward waits until each gradient's ready time, and nothing is computed."""

    shape: Annotated[str, AfterValidator(_preset)] = Field(
        description="The model whose gradients are synchronised; `list models` shows the names.", examples=["xl-2026"]
    )
    backward: Seconds = Field(default=0.06, description="Time that a backward pass takes.", examples=["1.2s"])


class SizesSection(Strict):
    """A transformer given by its sizes."""

    d_model: Annotated[int, Field(ge=2)] = Field(description="Width of the model.", examples=[512])
    d_ff: Annotated[int, Field(ge=1)] = Field(description="Width of the feed-forward layers.", examples=[1376])
    layers: Annotated[int, Field(ge=1)] = Field(description="Number of layers.", examples=[6])
    heads: Annotated[int, Field(ge=1)] = Field(description="Number of attention heads.", examples=[8])
    vocabulary: Annotated[int, Field(ge=2)] = Field(
        default=VOCABULARY, description="Number of tokens in the vocabulary.", examples=[50_000]
    )
    kv_heads: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of heads of keys and values. With 0, as many as `heads`.", examples=[2]
    )
    tied: bool = Field(default=False, description="Whether the head has the weights of the embedding.", examples=[True])


class ImportedModel(Strict):
    """A model of the user: a function that builds it."""

    import_: Annotated[str, AfterValidator(_importable)] = Field(
        alias="import",
        description="The function, as package.module:function. Docs: docs/training.md.",
        examples=["my_models:small"],
    )


def _kind_of_model(value: Any) -> str:
    """The tag of a branch of `ModelName`: none is a key, because both stand in the paths of problems."""
    if isinstance(value, dict):
        return "own" if "import" in value else "by shape" if {"shape", "backward"} & set(value) else "by sizes"
    return "by shape" if isinstance(value, ShapeSection) else "by name"


def _name_of_sizes(sizes: SizesSection) -> str:
    return _preset(name_of(Preset(**sizes.model_dump())))


def _strategy(value: Any) -> Any:
    """`flat`, `{ddp: {cap: 1MiB}}` or `{import: package.module:name}` as the fields of a `StrategySection`."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1:
        name, settings = next(iter(value.items()))
        if name == "import":
            return {"name": name, "imported": _importable(str(settings))}
        if isinstance(settings, dict) and "name" not in settings:
            return _checked(name, settings)
    if isinstance(value, dict) and "name" in value:
        return value
    if isinstance(value, dict) and len(value) > 1 and next(iter(value)) in STRATEGIES:
        raise ValueError(f"indent the settings of {next(iter(value))} below it, or write {{ddp: {{cap: 1MiB}}}}")
    raise ValueError("write a name such as flat, or {ddp: {cap: 1MiB}}")


def _checked(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    if name in STRATEGIES and (unknown := [key for key in settings if key not in StrategySection.model_fields]):
        raise unknown_keys(unknown, (*STRATEGIES[name].takes, *BY_ALL))
    return {"name": name, **settings}


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _link(value: str) -> str:
    if value != REAL_LINK:
        parse_link(value)
    return value.replace(" ", "")


Caps = Annotated[list[Bytes], BeforeValidator(_several), Field(min_length=1)]
ModelName = Annotated[
    Annotated[Annotated[str, AfterValidator(_model)], Tag("by name")]
    | Annotated[ShapeSection, Tag("by shape")]
    | Annotated[Annotated[SizesSection, AfterValidator(_name_of_sizes)], Tag("by sizes")]
    | Annotated[Annotated[ImportedModel, AfterValidator(lambda model: model.import_)], Tag("own")],
    Discriminator(_kind_of_model),
]


class StrategySection(Strict):
    """One strategy; `cap` may be a list, which makes several of it."""

    name: Annotated[str, OneOf((*STRATEGIES, "import"), "strategy")] = Field(
        description="The strategy. Written as a name, or as a key with its settings: {ddp: {cap: 1MiB}}.",
        examples=["ddp"],
    )
    cap: Caps | None = Field(
        default=None,
        description="Size at which a bucket is full. A list makes one strategy of each size.",
        examples=["1MiB", ["1MiB", "4MiB"]],
    )
    bucket_boundary: Annotated[str, OneOf(("after", "before"), "way to close a bucket")] = Field(
        default="after",
        description="Whether a bucket ends after the gradient that reaches the cap, as torch's do, or before it.",
        examples=["before"],
    )
    buckets: (
        Annotated[
            Annotated[list[Bytes], Tag("sizes")]
            | Annotated[Annotated[str, OneOf(tuple(CALLED), "choice of buckets", A_LIST)], Tag("chosen")],
            Discriminator(lambda value: "chosen" if isinstance(value, str) else "sizes"),
        ]
        | None
    ) = Field(
        default=None,
        description="Sizes of the buckets. A plan of a shape also takes advised, for the advisor's, and torch, for "
        "torch's default.",
        examples=[["1MiB", "4MiB"], "advised"],
    )
    options: list[Annotated[str, OneOf(OPTIONS, "option")]] = Field(
        default=[],
        description="Options of torch's class, and one communication hook at most.",
        examples=[["static_graph", "fp16"]],
    )
    accumulate: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="Number of micro-batches in a step. Gradients are synchronised after the last one.",
        examples=[4],
    )
    imported: str | None = Field(
        default=None,
        description="Your own synchroniser, as package.module:name. Written {import: package.module:name}.",
        examples=["my_strategies:mine"],
    )

    @model_validator(mode="after")
    def _check(self) -> "StrategySection":
        entry = STRATEGIES.get(self.name, USER_STRATEGY)
        takes = (*(entry.takes if self.name in STRATEGIES else ("imported",)), *BY_ALL)
        unused = sorted(self.model_fields_set - {"name"} - set(takes))
        if unused:
            text = f"{self.name} does not take {unused[0]}; it takes {', '.join(takes)}"
            raise problem_at((unused[0],), text)
        if entry.needs and not getattr(self, entry.needs[0]):
            raise ValueError(f"{self.name} needs {entry.needs[0]}, such as {entry.needs[1]}")
        if unknown := [option for option in self.options if option not in entry.options]:
            number = self.options.index(unknown[0])
            text = f"{self.name} has no option {unknown[0]}; it has {', '.join(entry.options)}"
            raise problem_at(("options", number), text)
        if isinstance(self.buckets, str) and self.name != "plan":
            raise ValueError(
                f"buckets: {self.buckets} is for plan; {self.name} has torch's own without this key, and "
                "`advise --from RUN` says which others to type"
            )
        if self.cap and self.buckets:
            raise ValueError("cap and buckets exclude each other")
        if len(set(self.options) & set(DDP_HOOKS)) > 1:
            raise ValueError(f"torch takes one communication hook only: {', '.join(DDP_HOOKS)}")
        return self

    @property
    def strategies(self) -> list[Strategy]:
        """The strategy that is asked for, or one for each of its caps."""
        base = Strategy(
            self.name,
            bucket_boundary=self.bucket_boundary,
            buckets=tuple(self.buckets) if isinstance(self.buckets, list) else (),
            options=tuple(self.options),
            accumulate=self.accumulate,
            imported=self.imported,
            called=self.buckets if isinstance(self.buckets, str) else "",
        )
        return [base] if self.cap is None else [replace(base, cap_bytes=cap) for cap in self.cap]


class CallSizesSection(Strict):
    """So many parameters, all-reduced in so many calls."""

    parameters: Annotated[int, Field(ge=1)] = Field(
        default=6_000_000, description="Number of float32 values that are all-reduced altogether.", examples=[1_000_000]
    )
    calls: Several[Annotated[int, Field(ge=1)]] = Field(
        default=[1, 6, 60, 600], description="Numbers of calls that the values are divided into.", examples=[[1, 10]]
    )


class TrainingSection(Strict):
    """Steps of training: every strategy in every scenario."""

    models: Several[ModelName] = Field(
        description="Models: names (`list models`), {d_model: …} for sizes, {shape: …} for gradients without "
        "computing, {import: …} for your own.",
        examples=[["tiny", "small-2026"], [{"shape": "xl-2026", "backward": "1.2s"}]],
    )
    strategies: Annotated[list[Annotated[StrategySection, BeforeValidator(_strategy)]], Field(min_length=1)] = Field(
        description="Ways to synchronise gradients: names, or {name: settings}.",
        examples=[["flat", {"ddp": {"cap": ["1MiB", "4MiB"]}}]],
    )
    links: Several[Annotated[str, AfterValidator(_link)]] = Field(
        default=["real"],
        description="real, or an emulated link: latency of a call + rate.",
        examples=[["real", "2ms + 1GB/s"]],
    )
    batch: Annotated[int, Field(ge=1)] = Field(
        default=4, description="Number of examples of each rank in a step.", examples=[8]
    )
    sequence: Annotated[int, Field(ge=2)] = Field(
        default=64, description="Number of tokens in an example.", examples=[256]
    )
    optimizer: Annotated[str, OneOf(("sgd", "adamw"), "optimizer")] = Field(
        default="sgd", description="The optimizer, sgd or adamw.", examples=["adamw"]
    )
    clip: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="Largest norm of all gradients, as for torch's clip_grad_norm_. 0 clips nothing.",
        examples=[1.0],
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Number of threads that each rank computes with.", examples=[4]
    )
    rounds: Annotated[int, Field(ge=2, le=10_000)] = Field(
        default=10, description="Number of rounds in a launch. In each, every strategy has its turn.", examples=[6]
    )
    steps: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4, description="Number of steps of a strategy in one round, between two barriers.", examples=[2]
    )
    # torch rebuilds its buckets after the first backward, and tells two later.
    warmup: Annotated[int, Field(ge=3)] = Field(
        default=3, description="Number of steps of a strategy before the first round, which are not used.", examples=[5]
    )
    max_foreign_cpu: Share = Field(
        default=0.06,
        description="A timed block is left out if other programs used more than this share of the CPU.",
        examples=["10%"],
    )
    call_sizes: CallSizesSection | None = Field(
        default=None,
        description="Measures also what the number of calls costs. Without it, this is not measured.",
        examples=[{"parameters": 6_000_000, "calls": [1, 6, 60]}],
    )
