"""Write records for programs: plain values by name, and the JSON Schema of their types.

In: records, whose types declare their results (`model.results`). Out: what CSV, JSON and notebooks contain. A package
adds its own record of a case to that of the core. Computes nothing.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from collbench.catalog.collectives import ALL_OPTIONS
from collbench.model.comparisons import Change, Unpaired
from collbench.model.conclusions import Summary
from collbench.model.notices import Kind, Notice, kinds
from collbench.model.records import Case, Failure, Json, Option
from collbench.model.results import CaseRecord, Declaration, Quantity, columns, fact
from collbench.report import notices, wording
from collbench.report.labels import on_both_sides
from collbench.report.text import record_types

# The fields of a case, in front of its options; in JSON, an operation has another name.
_CASE = {
    "key": "names the case; the same in every run that measures it",
    "op": "the collective, or another operation that was measured",
    "backend": "gloo, nccl, mpi, …",
    "world_size": "number of ranks",
    "dtype": "of the elements",
    "size_bytes": "size of the message; its meaning per operation: collbench list operations",
}
_ASKED = "the size that was asked for, which size_bytes may have rounded down"


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A case and its result. Times are seconds of one call."""

    summary: Summary
    # The record of the package whose operation it is; None for a collective.
    of_package: object | None


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A fact that a reader must know in addition to the numbers (`collbench list notices` has the kinds)."""

    kind: Kind = fact("for programs; each kind has one sentence")
    text: str = fact("its sentence")
    remedy: str = fact("a remedy; empty if there is none")
    values: Mapping[str, Any] = fact("the values of the sentence: seconds, bytes, shares, names")
    cases: tuple[str, ...] = fact("keys of the cases that it is about; empty if it is about all")
    host: str | None = fact("the host that it is about; null if there is one only")
    run: str | None = fact("in a comparison: the run that it is about; left out if it is about both", optional=True)


def notice_row(notice: Notice) -> NoticeRow:
    """Return the notice with its sentence and remedy."""
    given = {name: value for name, value in notice.values.items() if value is not None}
    words = notices.meaning(notice), notices.remedy(notice)
    return NoticeRow(notice.kind, *words, given, notice.cases, notice.host, notice.run)


# ── values ───────────────────────────────────────────────────────────────────────────────────────
def columns_of(kind: type) -> tuple[Quantity, ...]:
    """Return the values of a type for programs, with those that only reports can word in front."""
    return (*_WORDED.get(kind, ()), *columns(kind))


def _column(name: str, about: str, of: Any, kind: Any = str, json: str = "") -> Quantity:
    return Quantity(Declaration(about, name=name, json=json or name), kind, of)


# Values that need the words of a report.
_WORDED: dict[type, tuple[Quantity, ...]] = {
    Change: (_column("key", "of the case before", attrgetter("case.key")), _column("name", "", on_both_sides)),
    Unpaired: (
        _column("key", "of the case", attrgetter("case.key")),
        _column("name", "", on_both_sides),
        _column("reason", "why, as a sentence", wording.absence),
    ),
}


@functools.cache
def case_columns() -> tuple[Quantity, ...]:
    """Return the values of every case: of a `Summary`, its case first."""
    kinds = {"world_size": int, "size_bytes": int}
    names = {"op": "operation"}
    described = [
        _column(name, about, attrgetter(f"case.{name}"), kinds.get(name, str), names.get(name, ""))
        for name, about in _CASE.items()
    ]
    options = [
        _column(option.name, option.about, functools.partial(_option_value, option), type(_text(option.default)))
        for option in ALL_OPTIONS
    ]
    return (*described, *options, _column("asked_bytes", _ASKED, attrgetter("case.asked"), int), *columns(Summary))


def _option_value(option: Option, summary: Summary) -> Any:
    """Return the value of an option; its default if the case's operation has no such option."""
    value = summary.case.value(option.name)
    return _text(option.default if value is None else value)


def _text(value: Any) -> str | int | float:
    """Return the value of an option for programs: an object is text."""
    return value if isinstance(value, str | int | float) else str(value or "")


def row(record: object) -> Json:
    """Return the values of a record by their names in JSON."""
    every = _values(record)
    return {column.fact.json: plain(value) for column, value in every if value is not None or not column.fact.optional}


def cells(record: object) -> Json:
    """Return the values of a record by their names in CSV."""
    return {column.fact.name: plain(value) for column, value in _values(record) if column.fact.in_csv}


def _values(record: object) -> list[tuple[Quantity, Any]]:
    if isinstance(record, CaseRow):
        values = [(column, column.of(record.summary)) for column in case_columns()]
        return values + (_values(record.of_package) if record.of_package is not None else [])
    return [(column, column.of(record)) for column in columns_of(type(record))]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: null for NaN and infinities, a key for a case, a sentence for a failure."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Case():
            return value.key
        case Failure():
            return value.text
        case Notice():
            return row(notice_row(value))
        case Mapping():
            return {name: plain(part) for name, part in value.items()}
        case tuple() | list():
            return [plain(part) for part in value]
    return row(value) if is_dataclass(value) else value


# ── the schema ───────────────────────────────────────────────────────────────────────────────────
def json_schema(*models: Any) -> Json:
    """Return the JSON Schema of documents, each of one of these models."""
    from pydantic import TypeAdapter  # here: reports need no schema
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """A schema without titles of fields, which would only repeat their names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    every: Any = Union[models]  # noqa: UP007
    adapter: Any = TypeAdapter(every)
    schema = adapter.json_schema(mode="serialization", schema_generator=Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _written(kind: Any) -> Any:
    """Return the type that `plain` makes of values of a type."""
    if kind is CaseRow:
        records = (*record_types(CaseRecord), None)
        return Union[tuple(model(record, case_columns()) for record in records)]  # noqa: UP007
    if isinstance(kind, type) and issubclass(kind, Kind):
        from pydantic import WithJsonSchema

        return Annotated[str, WithJsonSchema({"type": "string", "enum": kinds()})]
    if kind in {Case, Failure}:
        return str
    if kind is float:
        return float | None
    if kind is Notice:
        return model(NoticeRow)
    if isinstance(kind, type) and is_dataclass(kind):
        return model(kind)
    origin, parts = get_origin(kind), tuple(map(_written, get_args(kind)))
    if origin in {Union, UnionType}:
        return Union[parts]  # noqa: UP007
    return origin[parts] if parts and origin is not Literal else kind


@functools.cache
def model(kind: Any, common: tuple[Quantity, ...] = ()) -> Any:
    """Return the model of a record. common: values in front of its own; a case without a record has only these."""
    from pydantic import Field, create_model

    values: Any = {
        f"{column.fact.json}_": (
            _written(column.type),
            Field(
                None if column.fact.optional else ...,
                serialization_alias=column.fact.json,
                description=column.fact.about or None,
            ),
        )
        for column in (*common, *(columns_of(kind) if kind else ()))
    }
    named = kind or CaseRow
    return create_model(named.__name__, __doc__=named.__doc__, **values)
