"""Define the section `training` of a configuration: models, links, and ways to synchronise gradients.

In: the content of a YAML file. Out: a `TrainingSection`. Does not look at the machine and does not expand anything:
`training.planning.steps` does. docs/configuration.md is made from the descriptions and examples here.
"""

import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from collbench.config.fields import (
    SECOND_IF_TEXT,
    Branch,
    Bytes,
    OneOf,
    PackageSection,
    Seconds,
    Several,
    Share,
    Strict,
    key,
    problem_at,
    unknown_keys,
)
from collbench.config.names import allowed
from collbench.config.options import with_options
from collbench.model.records import options_in
from collbench.model.units import parse_link
from collbench.packages.training.catalog.presets import EXAMPLE as SIZES
from collbench.packages.training.catalog.presets import PRESETS, find
from collbench.packages.training.catalog.strategies import DDP_HOOKS, STRATEGIES, USER_STRATEGY
from collbench.packages.training.synchronisation import CALLED, StepOptions, Strategy

REAL_LINK = "real"
AUTOCAST = "bfloat16"
OPTIONS = tuple(dict.fromkeys(option for entry in STRATEGIES.values() for option in entry.options))
# Keys that every strategy takes, in addition to the keys of its entry in the table of strategies.
BY_ALL = ("accumulate",)
A_LIST = "a list such as [1MiB, 4MiB]"
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _importable(value: str) -> str:
    if not _IMPORT.fullmatch(value):
        raise ValueError(f"{value!r} cannot be imported; write package.module:name")
    return value


def known_model(value: str, examples: str = "") -> str:
    """Return the model's name if it is a preset or sizes. Raises ValueError on any other text, with a suggestion."""
    if find(value) is None:
        raise ValueError(f"{value} is not a model{allowed(value, tuple(PRESETS), f'sizes such as {SIZES}{examples}')}")
    return value


def _model(value: str) -> str:
    if ":" in value:
        return _importable(value)
    return known_model(value, ", {import: package.module:function}, {shape: xl-2026, backward: 1.2s}")


class ShapeSection(Strict):
    """A preset without its weights: backward waits until each gradient's ready time, and nothing is computed."""

    shape: Annotated[str, AfterValidator(known_model)] = key(
        "The model whose gradients are synchronised; `list models` shows the names.", "xl-2026"
    )
    backward: Seconds = key("Time that a backward pass takes.", "1.2s", default=0.06)


class ImportedModel(Strict):
    """A model of the user: a function that builds it."""

    import_: Annotated[str, AfterValidator(_importable)] = key(
        "The function, as package.module:function. Docs: docs/training.md.", "my_models:small", alias="import"
    )


def _kind_of_model(value: Any) -> int:
    return (2 if "import" in value else 1) if isinstance(value, dict) else isinstance(value, ShapeSection)


def _strategy(value: Any) -> Any:
    """Return `flat`, `{ddp: {cap: 1MiB}}` or `{import: package.module:name}` as the fields of a `StrategySection`."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1:
        name, settings = next(iter(value.items()))
        if name == "import":
            return {"name": name, "imported": _importable(str(settings))}
        if isinstance(settings, dict) and "name" not in settings:
            if name in STRATEGIES and (unknown := [key for key in settings if key not in StrategySection.model_fields]):
                raise unknown_keys(unknown, (*STRATEGIES[name].takes, *BY_ALL))
            return {"name": name, **settings}
    if isinstance(value, dict) and "name" in value:
        return value
    if isinstance(value, dict) and len(value) > 1 and next(iter(value)) in STRATEGIES:
        raise ValueError(f"indent the settings of {next(iter(value))} below it, or write {{ddp: {{cap: 1MiB}}}}")
    raise ValueError("write a name such as flat, or {ddp: {cap: 1MiB}}")


def _link(value: str) -> str:
    if value != REAL_LINK:
        parse_link(value)
    return value.replace(" ", "")


class OneOrSeveral:
    """Marks a list for the JSON Schema: a single value may replace it."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        list_schema = handler(schema)
        return {"anyOf": [list_schema["items"], list_schema]}


class ByName:
    """Marks a strategy for the JSON Schema: a name, or a name with its settings, as `_strategy` reads them."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        section_schema = handler(schema)
        properties = handler.resolve_ref_schema(section_schema)["properties"]

        def settings(name: str) -> dict[str, Any]:
            keys = {key: properties[key] for key in (*STRATEGIES[name].takes, *BY_ALL)}
            return {"type": "object", "properties": keys, "additionalProperties": False}

        by_key = {**{name: settings(name) for name in STRATEGIES}, "import": {"type": "string"}}
        counts = {"minProperties": 1, "maxProperties": 1}
        by_name = {"type": "object", "properties": by_key, "additionalProperties": False, **counts}
        return {"anyOf": [{"type": "string", "enum": [*STRATEGIES]}, by_name, section_schema]}


Caps = Annotated[
    list[Bytes],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1),
    OneOrSeveral(),
]
ModelName = Annotated[
    Annotated[str, AfterValidator(_model)]
    | ShapeSection
    | Annotated[ImportedModel, AfterValidator(lambda model: model.import_)],
    Branch(_kind_of_model),
]


class StrategySection(Strict):
    """One strategy; a list of caps makes one strategy per cap."""

    name: Annotated[str, OneOf((*STRATEGIES, "import"), "strategy")] = key(
        "The strategy. Written as a name, or as a key with its settings: {ddp: {cap: 1MiB}}.", "ddp"
    )
    cap: Caps | None = key(
        "Size at which a bucket is full. A list makes one strategy of each size.",
        "1MiB",
        ["1MiB", "4MiB"],
        default=None,
    )
    buckets: (
        Annotated[list[Bytes] | Annotated[str, OneOf(tuple(CALLED), "choice of buckets", A_LIST)], SECOND_IF_TEXT]
        | None
    ) = key(
        "Sizes of the buckets. For a shape, `advised` uses those of the best cap and `torch` those of torch's default.",
        ["1MiB", "4MiB"],
        "advised",
        default=None,
    )
    options: list[Annotated[str, OneOf(OPTIONS, "option")]] = key(
        "Options of torch's class, and one communication hook at most.", ["static_graph", "fp16"], default=[]
    )
    accumulate: Annotated[int, Field(ge=1, le=1024)] = key(
        "Number of micro-batches in a step. Gradients are synchronised after the last one.", 4, default=1
    )
    every: Annotated[int, Field(ge=1, le=1000)] = key(
        "Of local_sgd: after how many steps parameters are averaged. `steps` must be a multiple of it.", 4, default=0
    )
    imported: str | None = key(
        "Your own synchroniser, as package.module:name. Written {import: package.module:name}.",
        "my_strategies:mine",
        default=None,
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
        if isinstance(self.buckets, str) and self.name != "plan":
            raise ValueError(
                f"buckets: {self.buckets} is for plan; {self.name} has torch's own without this key, and "
                "`advise --from RUN` recommends others"
            )
        if self.cap and self.buckets:
            raise ValueError("cap and buckets exclude each other")
        if len(set(self.options) & set(DDP_HOOKS)) > 1:
            raise ValueError(f"torch accepts only one communication hook: {', '.join(DDP_HOOKS)}")
        return self

    @property
    def strategies(self) -> list[Strategy]:
        """Return the configured strategy, or one strategy per cap."""
        base = Strategy(
            self.name,
            buckets=tuple(self.buckets) if isinstance(self.buckets, list) else (),
            options=tuple(self.options),
            accumulate=self.accumulate,
            imported=self.imported,
            every=self.every,
            called=self.buckets if isinstance(self.buckets, str) else "",
        )
        return [base] if self.cap is None else [replace(base, cap_bytes=cap) for cap in self.cap]


@with_options(options_in(StepOptions))
class TrainingSection(PackageSection):
    """Steps of training: the cost of synchronising gradients. Docs: docs/training.md."""

    models: Several[ModelName] = key(
        "Models: names (`list models`), sizes such as d512-ff1376-l6-h8-v10000, {shape: …} for gradients without "
        "computing, {import: …} for your own.",
        ["tiny", "small-2026"],
        [{"shape": "xl-2026", "backward": "1.2s"}],
    )
    strategies: Annotated[
        list[Annotated[StrategySection, BeforeValidator(_strategy), ByName()]], Field(min_length=1)
    ] = key("Ways to synchronise gradients: names, or {name: settings}.", ["flat", {"ddp": {"cap": ["1MiB", "4MiB"]}}])
    links: Several[Annotated[str, AfterValidator(_link)]] = key(
        "real, or an emulated link: latency of a call + rate.", ["real", "2ms + 1GB/s"], default=["real"]
    )
    autocast: Annotated[str, OneOf((AUTOCAST,), "dtype of autocast")] | None = key(
        "Mixed precision: forward computes in this dtype, by torch's autocast. Parameters and gradients stay float32.",
        AUTOCAST,
        default=None,
    )
    rounds: Annotated[int, Field(ge=2, le=10_000)] = key(
        "Number of rounds in a launch. In each, every strategy has its turn.", 6, default=10
    )
    steps: Annotated[int, Field(ge=1, le=1000)] = key(
        "Number of steps of a strategy in one round, between two barriers.", 2, default=4
    )
    # torch rebuilds its buckets after the first backward, and reports them two steps later.
    warmup: Annotated[int, Field(ge=3)] = key(
        "Number of steps of a strategy before the first round, which are not used.", 5, default=3
    )
    max_foreign_cpu: Share = key(
        "A timed block is left out if other programs used more than this share of the CPU.", "10%", default=0.06
    )
    memory: bool = key(
        "Also measures the peak memory of each strategy alone, which needs memory for one more copy.",
        True,
        default=False,
    )

    @model_validator(mode="after")
    def _check_steps(self) -> "TrainingSection":
        for position, strategy in enumerate(self.strategies):
            if strategy.every and self.steps % strategy.every:
                text = f"{strategy.every}: steps, {self.steps}, must be a multiple of it, or rounds would differ"
                raise problem_at(("strategies", position, strategy.name, "every"), text)
        return self
