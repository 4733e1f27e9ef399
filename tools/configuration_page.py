"""Write the tables of docs/configuration.md from the models: every key with meaning, default and example.

And JSON Schemas: of configurations, for completion of YAML in editors, and of what --format json prints. `make docs`
runs it.
"""

import json
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from collbench.catalog.collectives import ALL_OPTIONS
from collbench.config.documents import in_flow
from collbench.config.fields import OneOf, fields_of
from collbench.config.models import SECTIONS, Config, FaultConfig, SamplingConfig, SizeRange, SplitsConfig
from collbench.model.records import OPTIONS
from collbench.model.units import format_bytes, parse_bytes, parse_seconds, parse_share
from collbench.packages.gate.config import Expectation, Expectations
from collbench.packages.replay.config import ReplaySection
from collbench.packages.training.catalog.strategies import STRATEGIES
from collbench.packages.training.config import ImportedModel, ShapeSection, StrategySection, TrainingSection
from collbench.report.machine_format import comparison_schema, run_schema

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
SCHEMAS = {
    "configs/schema.json": Config.model_json_schema,
    "docs/report-schema.json": run_schema,
    "docs/comparison-schema.json": comparison_schema,
}

# What stands above this heading of the page is written by hand.
BEGIN = "## Configurations\n"
TABLES = """\
## Tables of expected bandwidths

For `collbench check TABLE`; published ones are in `configs/expected/`.
"""
OPTIONS_OF_A_CASE = """\
## Options of a case

What a case has besides operation, backend, world size, dtype and size. Its key, in every file of results, names those \
that are not at their default: `all_reduce/gloo/n4/float32/1048576/reduce_op=max`.
"""
# Most names in a description; a verb lists longer lists of names.
MOST_NAMES = 15
# Heading → introduction of the section, and its model.
Sections = dict[str, tuple[str, type[BaseModel]]]
OF_CONFIGURATIONS: Sections = {
    "Keys": ("Keys at the beginning of a line.", Config),
    "sizes": ("`sizes` is a list of sizes, or this section:", SizeRange),
    "sampling": ("The section `sampling`:", SamplingConfig),
    "splits": (
        "An entry of `splits` is `even`, or this section, with exactly one of the first four keys:",
        SplitsConfig,
    ),
    "faults": ("Each entry of `faults`:", FaultConfig),
    "replay": ("The section `replay` ([replay.md](replay.md)):", ReplaySection),
    "training": ("The section `training`:", TrainingSection),
    "strategies": (
        "An entry of `strategies` is a name, or `{name: settings}`. The settings, of which each strategy takes some:",
        StrategySection,
    ),
    "models without computing": (
        "An entry of `models` may be the gradients of a model, with a backward pass that only waits:",
        ShapeSection,
    ),
    "models of your own": ("Or a function of yours:", ImportedModel),
}
for name, section in SECTIONS.items():
    OF_CONFIGURATIONS.setdefault(name, (f"The section `{name}`:", section))
OF_TABLES: Sections = {
    "The file": ("Keys at the beginning of a line.", Expectations),
    "expect": ("Each entry of `expect`; it names a `world_size`, or hardware:", Expectation),
}
# Fields for values that users write in another form.
INTERNAL = {("StrategySection", "name"), ("StrategySection", "imported")}


def value(field: FieldInfo, given: object) -> str:
    """Return a default as a user would write it."""
    parsers = [getattr(item, "func", None) for item in field.metadata]
    if given is None or (isinstance(given, BaseModel) and not isinstance(given, SamplingConfig)):
        return "none"
    if isinstance(given, SamplingConfig):
        return "[its keys'](#sampling)"
    if isinstance(given, float) and parse_share in parsers:
        return f"`{100 * given:g}%`"
    if isinstance(given, int | float) and parse_seconds in parsers:
        return f"`{given:g}s`" if given >= 1 else f"`{1000 * given:g}ms`"
    if isinstance(given, int) and parse_bytes in parsers:
        return f"`{format_bytes(given).replace(' ', '')}`"
    return f"`{in_flow(given)}`" if given != "" else "empty"


def names(annotation: object) -> tuple[str, ...]:
    """Return the names that a type allows if it is, or contains, a choice among names; else an empty tuple."""
    for item in (*getattr(annotation, "metadata", ()), *getattr(annotation, "__metadata__", ())):
        if isinstance(item, OneOf):
            return item.names
    inner = getattr(annotation, "annotation", None)
    return next((inner_names for part in (inner, *get_args(annotation)) if part and (inner_names := names(part))), ())


def meaning(field: FieldInfo) -> str:
    """Return the description of a field, with the allowed names."""
    allowed = names(field)
    listed = f" Allowed: {', '.join(f'`{name}`' for name in allowed)}." if 1 < len(allowed) <= MOST_NAMES else ""
    return f"{field.description}{listed}".replace("|", "\\|")


def table(model: type[BaseModel]) -> list[str]:
    """Return a row for each key; rarely needed keys have their own table."""
    head = ["| key, such as | meaning | default |", "|---|---|---|"]
    usual, advanced = [*head], ["", "Few need these:", "", *head]
    for key, field in fields_of(model).items():
        if (model.__name__, str(key)) in INTERNAL:
            continue
        default = "**required**" if field.is_required() else value(field, field.default)
        if key == "name" and model is Config:
            default = "the file's name"
        if key in {"operations", "sizes"} and model is Config:
            default = "**required** without a section"
        examples = " or ".join(f"`{key}: {in_flow(example)}`" for example in field.examples or ())
        rows = advanced if field.json_schema_extra else usual
        rows.append(f"| {examples} | {meaning(field)} | {default} |")
    return [*usual, *(advanced if len(advanced) > len(head) + 3 else [])]


def strategies() -> list[str]:
    """Return a row for each strategy, with its settings."""
    rows = ["All but your own take `accumulate`:", "", "| strategy | what it does | settings |", "|---|---|---|"]
    for name, kind in STRATEGIES.items():
        settings = ", ".join(f"`{key}`" for key in kind.takes) or "none"
        options = f" (options: {', '.join(f'`{option}`' for option in kind.options)})" if kind.options else ""
        rows.append(f"| `{name}` | {kind.about} | {settings}{options} |")
    own = "your own synchroniser ([training.md](training.md))"
    return [*rows, f"| `{{import: package.module:name}}` | {own} | none |"]


def options() -> list[str]:
    """Return a text with the options that have a key, and the names of the others."""
    keys = [f"`{row.name}`" + f" (`{row.key.name}`)" * (row.key.name != row.name) for row in OPTIONS if row.key]
    others = ", ".join(f"`{option.name}`" for option in ALL_OPTIONS if not option.key)
    whence = "follow from `metrics`, `replay` and `training`, or from the machine"
    return [f"Set by a [key](#keys): {', '.join(keys)}. The others {whence}: {others}."]


def page() -> str:
    """Return the whole page, with its head as it is."""
    parts = [PAGE.read_text().partition(BEGIN)[0].removesuffix("\n")]
    for title, group in ((BEGIN, OF_CONFIGURATIONS), (TABLES, OF_TABLES)):
        parts.append(title)
        for heading, (words, model) in group.items():
            parts += [f"### {heading}\n", f"{words}\n", *table(model), ""]
            if model is StrategySection:
                parts += [*strategies(), ""]
    return "\n".join([*parts, OPTIONS_OF_A_CASE, *options(), ""])


if __name__ == "__main__":
    PAGE.write_text(page())
    for name, schema in SCHEMAS.items():
        (ROOT / name).write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
