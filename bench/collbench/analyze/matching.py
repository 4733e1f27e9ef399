"""Match the cases of two sides, and give for each case without a partner the reason why the other side has no time.

In: the cases of two sides, and the fields in which the sides differ on purpose: an `Axis`. Out: pairs, and the cases of
one side only. Judges nothing.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from collbench.catalog.collectives import ALL_OPTIONS, OPERATIONS
from collbench.model.comparisons import Absence, Unpaired
from collbench.model.conclusions import Summary
from collbench.model.errors import ConfigError
from collbench.model.notices import Notice
from collbench.model.projection import grouped
from collbench.model.records import OPTIONS, Case, Run

SIZE = "size_bytes"
# Fields and options by which cases of two sides match.
FIELDS = ("op", "backend", "world_size", "dtype", SIZE, *(option.name for option in ALL_OPTIONS))
# Those that `--across` accepts. Size is not among them: time is expected to differ with size.
AXES = tuple(name for name in FIELDS if name != SIZE)
# Field of a case → the property of the operations that have this field. All have the other fields, except options.
OF = {SIZE: "sized", "dtype": "typed"}
# Fields by which a size is rounded down to equal shares.
ROUNDING = frozenset({"op", "world_size", "dtype", "groups"})
# A comma between two values, not a comma within brackets: flat,ddp(cap_bytes=1024,options=fp16).
COMMA = re.compile(r",(?![^()]*\))")

T = TypeVar("T")
# The values by which a case matches a case of the other side.
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """The fields in which the sides differ on purpose; their other fields are equal."""

    fields: tuple[str, ...] = ()
    # Value on each side of the only field, as `--across` takes it; None means any value.
    values: tuple[str | None, str | None] = (None, None)
    # True if the user named the field.
    chosen: bool = False

    def key(self, case: Case) -> Key:
        """Return the values of the fields in which partners are equal.

        If a field of ROUNDING differs, sizes are those requested. Otherwise they are those measured, because files of
        other tools have no others.
        """
        # Only calls back to back have a depth: it is a part of the metric.
        differing = {*self.fields, *(("depth",) if "metric" in self.fields else ())}
        sized = replace(case, size_bytes=case.asked) if ROUNDING & {*self.fields} else case
        return tuple(sized.value(name) for name in FIELDS if name not in differing)

    def values_of(self, case: Case) -> str:
        """Return the case's values of the fields, as `--across` takes them."""
        return ", ".join("" if case.value(name) is None else str(case.value(name)) for name in self.fields)

    def has(self, case: Case, value: str | None) -> bool:
        """Return whether the case has this value of the field; True if no value is given."""
        return value is None or self.values_of(case) == value


def axis_of(across: str | None) -> Axis:
    """Read the option `--across`. Raises ConfigError if it is not valid."""
    if across is None:
        return Axis()
    field, _, text = across.partition("=")
    values = COMMA.split(text) if text else [None, None]
    if field not in AXES or len(values) != 2:
        raise ConfigError(
            f"--across {across}: write one of {', '.join(AXES)}; or with a value for each side: backend=gloo,nccl"
        )
    return Axis((field,), (values[0], values[1]), chosen=True)


def differing_axis(a: Sequence[Case], b: Sequence[Case]) -> Axis:
    """Return the fields in which the sides as a whole differ, such as the backend in gloo against MPI.

    A field differs if no value of it is on both sides, among the operations that have the field.
    """

    def values(side: Sequence[Case], name: str) -> set[object]:
        return {case.asked if name == SIZE else case.value(name) for case in side if _has(case, name)}

    both = {name: (values(a, name), values(b, name)) for name in FIELDS}
    return Axis(tuple(name for name, (on_a, on_b) in both.items() if on_a | on_b and not on_a & on_b))


def _has(case: Case, name: str) -> bool:
    """Return whether the case's operation has this field."""
    operation = OPERATIONS[case.op]
    if option := next((option for option in ALL_OPTIONS if option.name == name), None):
        return operation.has(option) if option in OPTIONS else option in operation.own_options
    return name not in OF or bool(getattr(operation, OF[name]))


@dataclass(frozen=True, slots=True)
class Matched(Generic[T]):
    """What two sides have of each case."""

    pairs: list[tuple[T, T]]
    only_before: list[T]
    only_after: list[T]


def matched(before: Iterable[T], after: Iterable[T], case_of: Callable[[T], Case], axis: Axis) -> Matched[T]:
    """Pair what the sides have of cases with equal keys. If all sizes differ, they pair in ascending order.

    Raises ConfigError if a case has several partners.
    """

    def by_key(side: Iterable[T], value: str | None) -> dict[Key, list[T]]:
        groups = grouped((m for m in side if axis.has(case_of(m), value)), lambda m: axis.key(case_of(m)))
        return {key: sorted(members, key=lambda m: case_of(m).size_bytes) for key, members in groups.items()}

    olds, news = (by_key(side, value) for side, value in zip((before, after), axis.values, strict=True))
    pairs = list[tuple[T, T]]()
    for key, members in olds.items():
        partners = news.get(key, [])
        most = max(members, partners, key=len)
        if partners and len(most) > 1 and (SIZE not in axis.fields or len(members) != len(partners)):
            both = [axis.values_of(case_of(member)) for member in most[:2]]
            remedy = f"; name the value of each side: --across {axis.fields[0]}={','.join(both)}" if axis.chosen else ""
            raise ConfigError(
                f"the sides differ in {', '.join(axis.fields)}, and one of them has both {' and '.join(both)}: it is "
                f"not clear which cases form pairs{remedy}"
            )
        pairs += zip(members, partners, strict=False)
    return Matched(
        pairs,
        [member for key, members in olds.items() if key not in news for member in members],
        [member for key, members in news.items() if key not in olds for member in members],
    )


# ── cases with a time on one side only ───────────────────────────────────────────────────────────
def one_sided(
    before: Run, after: Run, cases: Matched[Summary], axis: Axis
) -> tuple[tuple[Unpaired, ...], tuple[Unpaired, ...], tuple[Unpaired, ...]]:
    """Return the cases that failed on the side after only, in some launch; cases timed only before; and only after."""
    failed_after, only_before = _lacking(cases.pairs, cases.only_before, after, axis, axis.values[1])
    backwards = [(new, old) for old, new in cases.pairs]
    failed_before, only_after = _lacking(backwards, cases.only_after, before, axis, axis.values[0])
    partly = [(a, b) for a, b in cases.pairs if a.time_s and b.time_s and b.failures and not a.failures]
    failed_once = (Unpaired(a.case, b.case, Absence.FAILED_ONCE, b.failures[0].text) for a, b in partly)
    return (*failed_after, *failed_once), tuple(only_before), (*failed_before, *only_after)


def _lacking(
    pairs: Sequence[tuple[Summary, Summary]], alone: Sequence[Summary], other: Run, axis: Axis, value: str | None
) -> tuple[list[Unpaired], list[Unpaired]]:
    """Return the cases of a side that failed on the other side, and those that were not measured there."""
    planned: dict[Case, tuple[Absence, str | Notice]] = dict.fromkeys(other.plan.cases, (Absence.NOT_YET, ""))
    planned |= {skip.case: (Absence.SKIPPED, skip.reason) for skip in other.plan.skips}
    reasons = {axis.key(case): why for case, why in planned.items() if axis.has(case, value)}

    def unpaired(mine: Summary, theirs: Summary) -> Unpaired:
        if theirs is not mine and theirs.failures:
            return Unpaired(mine.case, theirs.case, Absence.FAILED, theirs.failures[0].text)
        # A skip may represent all cases of its kind.
        why = reasons.get(axis.key(mine.case)) or reasons.get(axis.key(mine.case.shared)) or (Absence.NOT_ASKED, "")
        return Unpaired(mine.case, theirs.case, *why)

    failed = [unpaired(mine, theirs) for mine, theirs in pairs if mine.time_s and not theirs.time_s]
    return failed, [unpaired(mine, mine) for mine in alone if mine.time_s]
