"""Define notices: facts that a reader must know in addition to a number, each as a kind with values.

A kind stands in the module that decides it, with its sentence and its remedy. `report.notices` writes a notice as the
sentence and the remedy of its kind, and programs filter by the kind.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

# Every kind by its name, of all modules that are loaded.
_KINDS: dict[str, Kind] = {}
# The declaration of a kind, in the source of a module.
_DECLARES = re.compile(rb"\bKind\(\s*\"")


class Kind(str):
    """A kind of notice: its name for programs, its sentence, and its remedy, with places for values.

    It is its name as text: JSON, JUnit and OpenMetrics have it. Raises ValueError if another kind has the name.
    """

    text: str
    remedy: str

    def __new__(cls, name: str, text: str, remedy: str = "") -> Self:
        """Make a kind, and register it by its name."""
        kind = super().__new__(cls, name)
        kind.text, kind.remedy = text, remedy
        if _KINDS.setdefault(name, kind) is not kind:
            raise ValueError(f"two kinds of notices are named {name}")
        return kind

    def __call__(self, cases: Iterable[str] = (), host: str | None = None, **values: Value) -> Notice:
        """Return a notice of this kind with these values."""
        return Notice(self, values, tuple(cases), host)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Return the names of the values in its sentence and remedy."""
        from string import Formatter  # here, so that --help starts without it

        parsed = Formatter().parse(self.text + self.remedy)
        return tuple(dict.fromkeys(name for _, name, _, _ in parsed if name))

    def of(self, facts: object, names: Mapping[str, str] = MappingProxyType({})) -> Notice:
        """Return a notice whose values are the facts of their names.

        names: of facts whose names differ, also "a.b", and of the fact that is the `cases` of the notice.
        """
        return self(**{name: attrgetter(names.get(name, name))(facts) for name in (*names, *self.values)})

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the kind itself, which `dataclasses.asdict` would make anew."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        from pydantic_core import core_schema  # here: most processes read no notice

        return core_schema.no_info_plain_validator_function(kind_named)


# Kinds that `analyze` decides and `report` treats apart.
INCOMPLETE = Kind(
    "incomplete",
    "INCOMPLETE: {missing} of {planned} measurements missing",
    "go on with collbench resume {path}",
)
STOPPED_EARLY = Kind("stopped-early", "stopped by time at ±{reached:share} where ±{asked:share} was asked")


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that a reader must know in addition to a number."""

    kind: Kind
    # Values of the sentence: numbers in seconds, bytes and shares, names, lists of them, or further notices.
    values: Mapping[str, Value] = field(default_factory=dict)
    # Keys of the cases that it is about; empty if it is about all.
    cases: tuple[str, ...] = ()
    # The host that it is about; None if there is only one host.
    host: str | None = None
    # The run that it is about, in a comparison.
    run: str | None = None

    def __hash__(self) -> int:
        return hash((self.kind, frozenset(self.values.items()), self.cases, self.host, self.run))


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on facts, and the kind of notice to give if it holds (`Kind.of`)."""

    holds: Callable[[Any], Any]
    # None: the condition returns the notice itself, or None.
    kind: Kind | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def first(rules: Iterable[Rule], facts: object) -> Notice | None:
    """Return the notice of the first rule that holds; None if none does."""
    for rule in rules:
        if held := rule.holds(facts):
            return held if rule.kind is None else rule.kind.of(facts, rule.names)
    return None


def every(rules: Iterable[Rule], facts: object) -> list[Notice]:
    """Return the notices of all rules that hold."""
    return [held for rule in rules if (held := first([rule], facts)) is not None]


Value = str | int | float | tuple[str, ...] | tuple[float, ...] | tuple[Notice, ...] | None


def kinds() -> list[Kind]:
    """Return all kinds of notices, of the core and of all packages, by name."""
    for module in _modules():
        importlib.import_module(module)
    return sorted(_KINDS.values())


def kind_named(name: str) -> Kind:
    """Return the kind of this name; raises ValueError if no module has it. Modules are loaded until one has it."""
    modules = _modules()
    while name not in _KINDS:
        if (module := next(modules, None)) is None:
            raise ValueError(f"{name!a:.60}: CollBench has no notice of this kind")
        importlib.import_module(module)
    return _KINDS[name]


def _modules() -> Iterator[str]:
    """Yield the modules whose source declares kinds. None of them imports torch.

    Planning first: ranks read its kinds with a replay, and most other modules load numpy and scipy.
    """
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py"), key=lambda file: ("planning" not in file.parts, file)):
        if _DECLARES.search(file.read_bytes()):
            yield ".".join((root.name, *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def of_run(run: str, notices: Iterable[Notice]) -> list[Notice]:
    """Return the notices, each with the run that it is about."""
    return [replace(entry, run=run) for entry in notices]


def with_counts(counts: Mapping[Notice, int], name: str = "count") -> list[Notice]:
    """Return the notices, each with its number as a further value; notices with number 0 are left out."""
    return [replace(entry, values={**entry.values, name: number}) for entry, number in counts.items() if number]
