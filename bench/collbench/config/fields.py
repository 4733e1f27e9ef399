"""Define the base of configuration models: the strict section, also of a package, types of values, and validation.

In: values from YAML. Out: bytes, seconds, bytes per second, names that exist; or a ConfigError with all problems in the
order of the file, each on one line with file, line, column, key, value and remedy. A validator raises ValueError with
the value and the allowed values, or `problem_at` for a value within its own; `validate` adds file, line and key.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.catalog.variables import unfit, unknown
from collbench.config.documents import Document, in_flow, plain, short
from collbench.config.names import allowed, near
from collbench.model.errors import ConfigError
from collbench.model.records import NAME_PATTERN
from collbench.model.units import MOST_RANKS, parse_bytes, parse_rate, parse_seconds, parse_share

# Types of our problems: a wrong value, an unknown key, a missing key.
VALUE, UNKNOWN, MISSING = "value", "unknown", "missing key"
# Types of pydantic's problems → the allowed values, with the numbers of the problem. Others keep pydantic's words.
WHOLE_NUMBER, NUMBER = "a whole number", "a number"
BETTER_WORDS = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), WHOLE_NUMBER),
    **dict.fromkeys(("float_type", "float_parsing"), NUMBER),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("dict_type", "model_type"), "keys and values"),
    "list_type": "a list",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "too_short": "at least {min_length} value",
    "string_too_short": "at least {min_length} characters",
}
# Largest number of lines in a message: a file with more problems is a file of another program.
MOST_LINES = 20
T = TypeVar("T")
Model = TypeVar("Model", bound="Strict")


# ── sections ─────────────────────────────────────────────────────────────────────────────────────
class Strict(BaseModel):
    """Base of every section: no unknown keys, no silent conversions, and frozen once it is validated."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False, allow_inf_nan=False)

    @classmethod
    def required_besides(cls, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the missing keys that other values require, with the reason. values: plain values, not validated."""
        return {}

    @model_validator(mode="wrap")
    @classmethod
    def _explain_problems(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate this section. The ValidationError has all its problems in words for people.

        A misspelt key also makes the right key missing: only the misspelt one is reported.
        """
        if not isinstance(values, dict):
            return handler(values)
        fields = fields_of(cls)
        problems = [_unknown_key(key, fields) for key in values if key not in fields]
        misspelt = {name for key in values if key not in fields for name in near(key, [*fields])[:1]}
        for key, text in cls.required_besides(values).items():
            if key not in misspelt:
                problems.append(_problem((key,), MISSING, text))
        section = None
        try:
            section = handler({key: value for key, value in values.items() if key in fields})
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path, kind = details["loc"], details["type"]
                field = fields.get(str(path[0])) if path else None
                if kind in {VALUE, UNKNOWN, MISSING}:  # explained already, by a section within this one
                    problems.append(_problem(path, kind, details["ctx"]["text"]))
                elif kind != "missing":
                    problems.append(_problem(path, VALUE, _in_words(details, field)))
                elif path[-1] not in misspelt:
                    problems.append(_problem(path, MISSING, f"missing; this key is required{_such_as(field)}"))
        if problems or section is None:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return section


class PackageSection(Strict):
    """Base of the section that a package adds to a configuration; its key is the name of the package.

    The docstring of a subclass describes it in the documentation.
    """


def key(about: str, *examples: object, default: Any = ..., alias: str | None = None, advanced: bool = False) -> Any:
    """Declare a key of a section: its description, examples and default; no default if it is required.

    advanced: few users need it, so the page lists it separately; the JSON Schema marks it as `x-advanced`.
    """
    extra: dict[str, JsonValue] = {"x-advanced": True} if advanced else {}
    return Field(default, alias=alias, description=about, examples=[*examples], json_schema_extra=extra or None)


def fields_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a section by the keys that a file has."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def example_of(section: type[BaseModel]) -> dict[str, Any]:
    """Return an example of a section: its required keys."""
    return {
        name: field.examples[0] for name, field in fields_of(section).items() if field.is_required() and field.examples
    }


def problem_at(path: Sequence[str | int], text: str) -> ValidationError:
    """Return a validator's error for an inner value. path: within the validated value. text: value and remedy."""
    return ValidationError.from_exception_data("section", [_problem(path, VALUE, text)])


def unknown_keys(unknown: Sequence[str], keys: Sequence[str]) -> ValidationError:
    """Return a validator's error for unknown keys of a section that takes other keys than its model has."""
    return ValidationError.from_exception_data("section", [_unknown_key(key, keys) for key in unknown])


def _unknown_key(key: str, keys: Sequence[str] | Mapping[str, Any]) -> InitErrorDetails:
    return _problem((key,), UNKNOWN, f"unknown key{allowed(key, [*keys])}")


def _problem(path: Sequence[str | int], kind: str, text: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=tuple(path), input=None)


def _such_as(field: FieldInfo | None) -> str:
    return f", such as {in_flow(field.examples[0])}" if field and field.examples else ""


def _in_words(details: ErrorDetails, field: FieldInfo | None) -> str:
    """Return the problem in words: the value, and the allowed values."""
    kind, value, context = details["type"], details.get("input"), details.get("ctx", {})
    if value is None:
        return f"the value is missing; write one{_such_as(field)}, or leave the key out"
    if kind == "list_type":
        return f"{short(value)} is not a list{_such_as(field).replace('such as', 'write one such as')}"
    if kind == "value_error":
        text = str(context["error"])
        if not isinstance(value, str):  # in YAML's words, not in Python's
            text = text.replace(repr(value), short(value))
        return text if repr(value) in text or short(value) in text else f"{short(value)}: {text}"
    if kind not in BETTER_WORDS:
        return f"{short(value)}: {details['msg'].removeprefix('Input ')}"
    words = BETTER_WORDS[kind].format(**context)
    # In quotes if YAML reads the value as text, such as '2' or 5%.
    written = repr(value) if isinstance(value, str) and words in {WHOLE_NUMBER, NUMBER} else short(value)
    return f"{written}: {words}{_such_as(field) if isinstance(value, dict | list) else ''}"


def validate(model: type[Model], document: Document, **defaults: Any) -> Model:
    """Return the validated model, or raise ConfigError with a line per problem. defaults: values of absent keys."""
    try:
        return model.model_validate({**defaults, **plain(document.root)})
    except ValidationError as error:
        problems = error.errors(include_url=False)
    lines = []
    for problem in problems:
        path, kind = problem["loc"], problem["type"]
        at_key = kind == UNKNOWN or path[-1:] == ("[key]",)
        keys, where, order = document.place(path[:-1] if kind == MISSING else path, at_key)
        keys = (*keys, path[-1]) if kind == MISSING else keys
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        lines.append((order, ": ".join(filter(None, (where, name, problem["msg"])))))
    ordered = list(dict.fromkeys(line for _, line in sorted(lines, key=lambda line: line[0])))
    # One line that says "1 more" would take as much room as the problem itself.
    if len(ordered) > MOST_LINES + 1:
        ordered[MOST_LINES:] = [f"{document.source}: and {len(ordered) - MOST_LINES} more problems"]
    raise ConfigError(*ordered)


# ── types of values ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class OneOf:
    """Pydantic metadata: a text must be one of these names."""

    names: tuple[str, ...]
    # Kind of the names, such as dtype.
    what: str
    # Other allowed values, in words.
    others: str = ""

    def check(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.names:
            raise ValueError(f"unknown {self.what} {short(value)}{allowed(value, self.names, self.others)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


@dataclass(frozen=True)
class Branch:
    """Pydantic metadata of a union: the type that a value must have, so that a message is about one type only."""

    # Returns the place of the type in the union, for a value.
    of: Callable[[Any], int]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # The path of a problem contains these names, so they are no keys.
        kinds = {f"({place})": handler.generate_schema(kind) for place, kind in enumerate(get_args(source))}
        return core_schema.tagged_union_schema(kinds, lambda value: f"({int(self.of(value))})")


SECOND_IF_TEXT = Branch(lambda value: isinstance(value, str))
# Reads a default, too, which is then as a file has it.
READ = Field(validate_default=True)


def _distinct(values: list[Any]) -> list[Any]:
    if twice := [index for index, value in enumerate(values) if value in values[:index]]:
        problems = [_problem((index,), VALUE, f"{short(values[index])} is listed twice") for index in twice]
        raise ValidationError.from_exception_data("list", problems)
    return values


def _name(name: str) -> str:
    name = unicodedata.normalize("NFC", name)  # some systems write ü as u and two dots
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"{name!r} is not a name; allowed: letters, digits, dots, dashes and underscores, 64 at most")
    return name


def _variable_name(name: str) -> str:
    if reason := unknown(name):
        raise ValueError(reason)
    return name


def _variable_value(value: Any) -> Any:
    # YAML reads some values of variables as numbers.
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(text, str) and (reason := unfit(text)):
        raise ValueError(reason)
    return text


def _at_least_a_second(seconds: float) -> float:
    if seconds < 1:
        raise ValueError("at least 1s")
    return seconds


def _number_or_text(minimum: int, *examples: str) -> WithJsonSchema:
    number = {"type": "integer" if minimum else "number", "minimum": minimum}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "examples": [*examples]}]})


Several = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), _number_or_text(1, "64KiB", "1MB")]
Seconds = Annotated[float, BeforeValidator(parse_seconds), _number_or_text(0, "50ms", "2s", "10min")]
LongSeconds = Annotated[Seconds, AfterValidator(_at_least_a_second)]
Share = Annotated[float, BeforeValidator(parse_share), _number_or_text(0, "10%", "0.1")]
Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    WithJsonSchema({"type": "string", "examples": ["25 Gbit/s", "430 GB/s", "1 GiB/s"]}),
]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "maxLength": 64})]
WorldSize = Annotated[int, Field(ge=1, le=MOST_RANKS)]
BackendName = Annotated[str, OneOf(tuple(BACKENDS), "backend")]
OperationName = Annotated[str, OneOf(tuple(OPERATIONS), "operation")]
DtypeName = Annotated[str, OneOf(tuple(DTYPES), "dtype")]
VariableName = Annotated[str, AfterValidator(_variable_name)]
VariableValue = Annotated[str, BeforeValidator(_variable_value)]
FaultKind = Annotated[str, OneOf(("raise", "exit", "kill", "stop", "hang", "corrupt", "late", "slow"), "fault")]
