"""Declare results: a field of a conclusion states its meaning, and its title and unit in tables.

Columns of tables and of CSV, keys of JSON, its schema and the legends come from `columns` of a type, and their values
from `report.rows`. A field that is no `fact` is for reports alone. Nothing here computes or formats.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Any, get_args, get_type_hints

_ORDER = itertools.count()


class Unit(StrEnum):
    """The unit of a result, by which tables format it."""

    TEXT = "text"
    SECONDS = "seconds"
    RATE = "bytes per second"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Declaration:
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
    # True if JSON leaves the field out if it is None, and CSV if it is None in every case.
    optional: bool = False
    # False if it is no column of CSV.
    in_csv: bool = True
    # Facts are in the order of their declarations.
    order: int = field(default_factory=lambda: next(_ORDER))


def fact(*words: Any, default: Any = MISSING, **details: Any) -> Any:
    """Declare a field that is a result. The parameters are those of `Declaration`, and the default of the field."""
    return field(default=default, metadata={"fact": Declaration(*words, **details)})


@dataclass(frozen=True, slots=True)
class Quantity:
    """A result of a record: its declaration, the type of its value, and the function that returns the value."""

    fact: Declaration
    type: Any
    of: Callable[[Any], Any]


def computed(about: str, type_: Any, of: Callable[[Any], Any], *words: Any, **details: Any) -> Any:
    """Declare a result that `of` computes from the record. The other parameters are those of `Declaration`."""
    return Quantity(Declaration(about, *words, **details), type_, of)


# The fields of an interval, and the words on them if they have names of their own.
_OF_INTERVAL = {
    "value": "",
    "low": "lower limit of its 95 % interval, or of the range of few launches; null if none is known",
    "high": "upper limit",
    "kind": "units of the interval",
}


class CaseRecord:
    """Base of the record that a package adds to each of its cases: its facts are columns of CSV and fields of JSON."""

    __slots__ = ()


class RunRecord:
    """Base of a package's conclusions from a run whose facts are entries of the JSON document."""

    __slots__ = ()

    @property
    def cases(self) -> Mapping[Any, CaseRecord]:
        """Return the record of each case that has one."""
        return {}


@functools.cache
def columns(kind: type) -> tuple[Quantity, ...]:
    """Return the values that a type declares, in the order of the declarations; without any, return all its fields."""
    hints = get_type_hints(kind)
    given = {item.name: item.metadata["fact"] for item in fields(kind) if "fact" in item.metadata}
    given = given or {item.name: Declaration() for item in fields(kind)}
    results = {name: Quantity(own, hints[name], attrgetter(name)) for name, own in given.items()}
    results |= {name: member for name, member in vars(kind).items() if isinstance(member, Quantity)}
    ordered = sorted(results.items(), key=lambda entry: entry[1].fact.order)
    return tuple(column for name, result in ordered for column in _columns(name, result))


def _columns(name: str, result: Quantity) -> Iterator[Quantity]:
    """Yield the results that a declaration stands for, with all their names."""
    own, of = result.fact, result.of
    if own.limits:
        for each, (part, about) in zip(own.limits, _OF_INTERVAL.items(), strict=False):
            kind = (str if part == "kind" else float) | None
            yield Quantity(replace(own, about=about or own.about, name=each, json=each), kind, partial(_part, of, part))
    elif own.flat:
        inner = next(part for part in get_args(result.type) or (result.type,) if part is not NoneType)
        for column in columns(inner):
            kind = column.type if inner is result.type else column.type | None
            yield replace(column, type=kind, of=partial(_of_inner, of, column.of))
    else:
        name = own.name or name
        yield replace(result, fact=replace(own, name=name, json=own.json or name))


def _part(of: Callable[[Any], Any], part: str, record: Any) -> Any:
    """Return a part of an interval; limits are None if they have no meaning."""
    interval = of(record)
    return None if interval is None or (part in {"low", "high"} and not interval.known) else getattr(interval, part)


def _of_inner(of: Callable[[Any], Any], value: Callable[[Any], Any], record: Any) -> Any:
    inner = of(record)
    return None if inner is None else value(inner)
