"""Hold a document against a model: every problem becomes one line with file, line, column, key, value and remedy.

In: plain values with their places, and a pydantic model. Out: the validated model, or a ConfigError with all problems
in the order of the file. A misspelt key also makes the right key missing: only the misspelt one is reported.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic import ValidationError as _ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bench.config.sections import OURS, UNKNOWN, Strict
from bench.config.yaml_file import Document, Part, Position, in_flow, short
from bench.model.errors import ConfigError
from bench.model.spelling import ALLOWED, allowed, near

# More lines than this are no help: the file is of another program.
MOST_LINES = 20
# Types of pydantic's problems → what is allowed, with the numbers of the problem.
_NUMBER, _WHOLE, _KEYS = "a number", "a whole number", "keys and values"
_ALLOWED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "mapping_type"), _KEYS),
    "list_type": "a list",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "too_short": "at least {min_length} value",
    "string_too_short": "at least {min_length} characters",
}
M = TypeVar("M", bound=Strict)


def validate(model: type[M], values: dict[str, Any], document: Document) -> M:
    """The model, or a ConfigError with a line for each problem. values: those of the document, under current names."""
    found: list[ErrorDetails] = []
    valid = None
    try:
        valid = model.model_validate(values)
    except _ValidationError as error:
        found = error.errors(include_url=False)
    lines = list(_lines(_problems(model, found, values, document)))
    if lines or valid is None:
        # One line that says "1 more" would take as much room as the problem itself.
        if len(lines) > MOST_LINES + 1:
            lines[MOST_LINES:] = [f"{document.source}: and {len(lines) - MOST_LINES} more problems"]
        raise ConfigError(*lines)
    return valid


@dataclass(frozen=True, slots=True)
class _Problem:
    """One line. meant: the path of the key that an unknown key stands for, if that is clear."""

    place: Position
    text: str
    missing: bool = False
    meant: tuple[Part, ...] | None = None

    def __str__(self) -> str:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place.path).lstrip(".")
        return f"{self.place.where}: {path}: {self.text}" if path else f"{self.place.where}: {self.text}"


def _problems(
    model: type[Strict], found: Sequence[ErrorDetails], values: Mapping[str, Any], document: Document
) -> list[_Problem]:
    """In the order of the file; what has no position comes last."""
    every = [_problem(model, one, document) for one in found]
    known = {one.place.path for one in every}
    for key, text in model.required_besides(values).items():
        if (key,) not in known:
            every.append(_Problem(Position((key,), document.source), text, missing=True))
    meant = {one.meant for one in every}
    kept = [one for one in every if not (one.missing and one.place.path in meant)]
    return sorted(dict.fromkeys(kept), key=lambda one: _order(one.place.where))


def _order(where: str) -> tuple[bool, int, int]:
    position = re.search(r":(\d+):(\d+)$", where)
    return (False, int(position[1]), int(position[2])) if position else (True, 0, 0)


def _lines(found: Sequence[_Problem]) -> Iterator[str]:
    """A line for each; long lists of what is allowed stand once."""
    told = set()
    for one in found:
        line, _, names = str(one).partition(ALLOWED)
        yield line if names and names in told and line.endswith("?") else str(one)
        told.add(names)


def _problem(model: type[Strict], problem: ErrorDetails, document: Document) -> _Problem:
    kind, path, value = problem["type"], problem["loc"], problem.get("input")
    if kind in {"extra_forbidden", UNKNOWN}:
        keys = problem.get("ctx", {}).get("keys") or _keys(_annotation(model, path[:-1])[0])
        return _unknown_key(document, path, keys)
    if kind == "missing":
        place = document.place(path[:-1])
        text = f"missing; this key is required{_such_as(_annotation(model, path)[1])}"
        return _Problem(Position((*place.path, path[-1]), place.where), text, missing=True)
    place = document.place(path, of_key=path[-1:] == ("[key]",))
    return _Problem(place, _explain(problem, value, _annotation(model, path)[1]))


def _unknown_key(document: Document, path: Sequence[Part], keys: Sequence[str]) -> _Problem:
    """The problem of a key that is not among `keys`."""
    place = document.place(path, of_key=True)
    likely = near(str(path[-1]), keys)
    meant = (*place.path[:-1], likely[0]) if likely else None
    return _Problem(place, f"unknown key{allowed(path[-1], keys)}", meant=meant)


def _explain(problem: ErrorDetails, value: Any, field: FieldInfo | None) -> str:
    """The value, and what is allowed instead."""
    kind = problem["type"]
    such_as = _such_as(field)
    if value is None:
        return f"nothing stands here; write a value{such_as}, or leave the key out"
    if kind == "list_type":
        flat = field is None or all(_plain(one) for example in field.examples or () for one in example)
        mend = f"write [{short(value)}]" if flat and _plain(value) else f"write one{such_as}"
        return f"{short(value)} is not a list; {mend}"
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected", "")))
        return f"{short(value)} is not allowed{allowed(value, names)}"
    if kind in _ALLOWED:
        words = _ALLOWED[kind].format(**problem.get("ctx", {}))
        words += such_as if words == _KEYS else ", not a list" if isinstance(value, list) and value else ""
        hint = _hint(value, words)
        return f"{value!r}: {words}{hint}" if hint and isinstance(value, str) else f"{short(value)}: {words}{hint}"
    if kind == OURS:
        return problem["msg"]
    if kind != "value_error":
        return f"{short(value)}: not allowed{such_as}"
    text = str(problem.get("ctx", {}).get("error", problem["msg"]))
    if not isinstance(value, str):  # in YAML's words, not in Python's
        text = text.replace(repr(value), short(value))
    said = isinstance(value, dict | BaseModel) or repr(value) in text or short(value) in text
    return text if said or problem["loc"][-1:] == ("[key]",) else f"{short(value)}: {text}"


def _such_as(field: FieldInfo | None) -> str:
    return f", such as {in_flow(field.examples[0])}" if field and field.examples else ""


def _hint(value: Any, words: str) -> str:
    """How to write what YAML reads as text (`'2'`, `1e-3`, `5%`), or as a number."""
    if words == "text":
        return f"; write '{short(value)}' with quotes" if _plain(value) else ""
    if not isinstance(value, str) or words not in {_NUMBER, _WHOLE}:
        return ""
    number = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(%?)\s*", value)
    try:
        meant = float(number[1]) / (100 if number[2] else 1) if number else None
    except ValueError:
        return ""
    if meant is None or (words == _WHOLE and not meant.is_integer()):
        return ""
    return f"; for YAML this is text, write {int(meant) if meant.is_integer() else meant!r}"


def _plain(value: Any) -> bool:
    return not isinstance(value, list | dict)


# ── from a path to the field of a model ──────────────────────────────────────────────────────────
def _annotation(model: type[BaseModel], path: Sequence[Part]) -> tuple[Any, FieldInfo | None]:
    """The type of what a path leads to, and the field, if the path ends at a key of a section."""
    annotation: Any = model
    field: FieldInfo | None = None
    for part in path:
        tagged = _tagged(annotation, part)
        if tagged is not None:
            annotation = tagged
            continue
        field = next((fields[part] for one in sections(annotation) if part in (fields := fields_of(one))), None)
        if field is not None:
            annotation = field.annotation
    return annotation, field


def fields_of(section: type[BaseModel]) -> dict[Part, FieldInfo]:
    """The fields of a section under the keys that a file has."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def keys(section: type[BaseModel]) -> dict[str, bool]:
    """The keys of a section, and whether each is required."""
    return {str(key): field.is_required() for key, field in fields_of(section).items()}


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that are named in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections(part)


def _tagged(annotation: Any, tag: Part) -> Any:
    """The branch of a union that has this tag; None if there is none."""
    if get_origin(annotation) is Annotated and any(
        isinstance(one, Tag) and one.tag == tag for one in get_args(annotation)[1:]
    ):
        return get_args(annotation)[0]
    return next((found for part in get_args(annotation) if (found := _tagged(part, tag)) is not None), None)


def _keys(annotation: Any) -> list[str]:
    return list(dict.fromkeys(str(key) for section in sections(annotation) for key in fields_of(section)))
