"""Read YAML files strictly: a mistake becomes one line with file, key, value and what is allowed.

In: the bytes of a file and a pydantic model. Out: the validated model, or a ConfigError. Also writes plain values as
YAML. Defines no keys: `config`, `expected` and `training.config` define the keys of their files.

For safety it refuses tags beyond plain YAML, aliases (a few bytes of them expand to gigabytes), duplicate keys, and
files larger than MAX_YAML_BYTES.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import ValidationError as _ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from bench.errors import ConfigError

# A hundred times the longest configuration we know of; parsing time grows with it.
MAX_YAML_BYTES = 64 * 1024

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Base of every section: no unknown keys, no silent conversions, and frozen once it is validated."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


@dataclass(frozen=True)
class OneOf:
    """Pydantic metadata: text that must be one of these names."""

    names: tuple[str, ...]
    what: str

    def check(self, value: str) -> str:
        if value not in self.names:
            near = did_you_mean(value, self.names)
            raise ValueError(f"unknown {self.what}{near}; allowed: {', '.join(self.names)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


def did_you_mean(value: str, names: Sequence[str]) -> str:
    """`, did you mean 'gloo'?`, or nothing if no name is similar."""
    # In lower case, because the commonest mistake is `Gloo` or `Float32`.
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def _distinct(values: list[Any]) -> list[Any]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} is listed twice")
    return values


Several = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]


# ── bytes to plain values ────────────────────────────────────────────────────────────────────────
def read(path: Path) -> bytes:
    """The bytes of a file, cut off after MAX_YAML_BYTES + 1."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def mapping(raw: bytes, source: str, example: str) -> dict[str, Any]:
    """Keys and values of a whole file. source: its name in messages. example: of a key and value, for messages."""
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_YAML_BYTES // 1024} KiB: not a file of CollBench")
    data = parse(raw, source)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected keys and values such as '{example}', found {short(data)}")
    return data


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


def parse(raw: bytes, source: str) -> Any:
    """A YAML value; `source` names it in messages."""
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


def dump(settings: dict[str, Any]) -> str:
    """The YAML of plain values, in their order: each key with its value on one line."""
    return yaml.safe_dump(settings, default_flow_style=None, sort_keys=False, width=1000)


def override(data: dict[str, Any], text: str) -> tuple[str, ...]:
    """Apply one `--set key.path=value` to a file's values; returns the keys of the path."""
    path, equals, value = text.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {text}: write key.path=value, such as --set sampling.iterations=20")
    place = data
    for key in keys[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {text}: {key!r} holds {short(place)}, which has no keys of its own")
    place[keys[-1]] = parse(value.encode(), f"--set {text}")
    return keys


# ── plain values to a model, or one line for people ──────────────────────────────────────────────
def validate(model: type[M], data: dict[str, Any], source: str, set_paths: Sequence[tuple[str, ...]] = ()) -> M:
    """The model, or a ConfigError. set_paths: keys set by `--set`; messages on them name `--set`, not the file."""
    try:
        return model.model_validate(data)
    except _ValidationError as error:
        raise ConfigError(_one_line(model, error, source, set_paths)) from None


def _one_line(
    model: type[BaseModel], error: _ValidationError, source: str, set_paths: Sequence[tuple[str, ...]]
) -> str:
    problems = error.errors(include_url=False)
    # A misspelt key also makes the right key missing: report the misspelt one, which explains both.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    loc, keys = _place(model, first)
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    where = "--set" if any(all(a == b for a, b in zip(loc, keys, strict=False)) for keys in set_paths) else source
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    key = f" {path}:" if path else ""
    return f"{where}:{key} {_explain(first, loc, keys)}{more}"


def _place(model: type[BaseModel], problem: ErrorDetails) -> tuple[list[Any], list[str]]:
    """Path of the problem, without pydantic's own names for branches of a union; and the keys allowed there."""
    section: type[BaseModel] | None = model
    kept: list[Any] = []
    for part in problem["loc"]:
        fields = {info.alias or name: info for name, info in section.model_fields.items()} if section else {}
        if isinstance(part, int):
            kept.append(part)
        elif part in fields:
            kept.append(part)
            section = _section_of(fields[part].annotation)
    last = list(problem["loc"][-1:])
    # Of two possible sections `_section_of` finds the first; a key that is missing in the second is added here.
    if problem["type"] == "extra_forbidden" or (problem["type"] == "missing" and kept[-1:] != last):
        kept += last
    keys = [info.alias or name for name, info in section.model_fields.items()] if section else []
    return kept, keys


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_of(part))), None)


def _explain(problem: ErrorDetails, loc: list[Any], keys: list[str]) -> str:
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(str(loc[-1]), keys)}; allowed: {', '.join(keys)}"
    if kind == "missing":
        return "missing; this key is required"
    if kind == "list_type":
        return f"{short(value)} is not a list; write [{short(value)}]"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:].replace("Input should", "should").replace("input should", "should")
    message = message.replace("input should", "should")
    if isinstance(value, dict) or repr(value) in message or str(value) in message.split():
        return message
    return f"{short(value)}: {message}"


def short(value: Any) -> str:
    """A value as it was written, cut to fit into a line."""
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
