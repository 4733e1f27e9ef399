"""Declare results: a field of a conclusion states its meaning, and its title and unit in tables.

Columns of tables and of CSV, keys of JSON, its schema and the legends come from `columns` of a type, and their values
from `report.rows`. A field that is no `fact` is for reports alone. Nothing here computes or formats.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[[Any], Any])
_ORDER = itertools.count()


class Unit(StrEnum):
    """The unit of a result, by which tables format it."""

    TEXT = "text"
    SECONDS = "seconds"
    RATE = "bytes per second"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Fact:
    """What a result states of itself."""

    # Meaning, for the schema and the legend.
    about: str = ""
    # Header of its column in tables; without one, it is in no table of all facts.
    title: str = ""
    unit: Unit = Unit.TEXT
    # Its name for programs, if that is not the name of the field; and in JSON, if that name contains the unit.
    name: str = ""
    json: str = ""
    # An interval becomes fields of these names: value, lower limit, upper limit, and kind, which may be left out.
    limits: Sequence[str] = ()
    # True if the facts of this record are facts of the record that has it.
    flat: bool = False
    # True if JSON leaves the field out if it is None.
    optional: bool = False
    # False if it is no column of CSV.
    in_csv: bool = True
    # Facts are in the order of their declarations.
    order: int = field(default_factory=lambda: next(_ORDER))


def fact(*words: Any, default: Any = MISSING, **details: Any) -> Any:
    """Declare a field that is a result. The parameters are those of `Fact`, and the default of the field."""
    return field(default=default, metadata={"fact": Fact(*words, **details)})


def derived(*words: Any, **details: Any) -> Callable[[F], F]:
    """Declare that the function of a property computes a result. The parameters are those of `Fact`."""

    def declare(function: F) -> F:
        function.fact = Fact(*words, **details)  # type: ignore[attr-defined]
        return function

    return declare


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a record, for programs or in a table."""

    # Its names in CSV and in JSON.
    name: str
    json: str
    about: str
    # Type of the value.
    type: Any
    # Returns the value in a record.
    of: Callable[[Any], Any]
    fact: Fact


# The fields of an interval, and the words on them if they have names of their own.
_OF_INTERVAL = {
    "value": "",
    "low": "lower limit of its 95 % interval, or of the range of few launches; null if none is known",
    "high": "upper limit",
    "kind": "units of the interval",
}


@functools.cache
def columns(kind: type) -> tuple[Column, ...]:
    """Return the values that a type declares, in the order of the declarations; without any, return all its fields."""
    hints = get_type_hints(kind)
    facts = [(item.name, hints[item.name], item.metadata["fact"]) for item in fields(kind) if "fact" in item.metadata]
    for name, member in vars(kind).items():
        function: Any = getattr(member, "fget", None)
        if hasattr(function, "fact"):
            facts.append((name, get_type_hints(function)["return"], function.fact))
    facts = facts or [(item.name, hints[item.name], Fact()) for item in fields(kind)]
    return tuple(column for entry in sorted(facts, key=lambda entry: entry[2].order) for column in _columns(*entry))


def _columns(attribute: str, hint: Any, declared: Fact) -> Iterator[Column]:
    if declared.limits:
        for name, (part, about) in zip(declared.limits, _OF_INTERVAL.items(), strict=False):
            hint = (str if part == "kind" else float) | None
            yield Column(name, name, about or declared.about, hint, _of_interval(attribute, part), declared)
    elif declared.flat:
        inner = next(part for part in get_args(hint) or (hint,) if part is not NoneType)
        for column in columns(inner):
            hint_of = column.type if inner is hint else column.type | None
            yield Column(column.name, column.json, column.about, hint_of, _of_inner(attribute, column), column.fact)
    else:
        name = declared.name or attribute
        yield Column(name, declared.json or name, declared.about, hint, attrgetter(attribute), declared)


def _of_interval(attribute: str, part: str) -> Callable[[Any], Any]:
    def of(record: Any) -> Any:
        """Return a part of the interval; limits of no meaning are None."""
        interval = getattr(record, attribute)
        return None if interval is None or (part in {"low", "high"} and not interval.known) else getattr(interval, part)

    return of


def _of_inner(attribute: str, column: Column) -> Callable[[Any], Any]:
    def of(record: Any) -> Any:
        inner = getattr(record, attribute)
        return None if inner is None else column.of(inner)

    return of
