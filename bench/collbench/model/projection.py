"""Group values by a key, and cases into tables by the fields that rows and columns show.

In: cases, or items that belong to cases. Out: groups in the order of their first members. Writes no text:
`report.tables` names tables, rows and columns.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from collbench.model.records import Case

T = TypeVar("T")
K = TypeVar("K")
# Field that a projection may name → fields of a case with the values that they have in the residue.
NEUTRAL: dict[str, dict[str, Any]] = {
    "asked": {"size_bytes": 0, "asked_bytes": 0},
    "world_size": {"world_size": 0},
    "scheduling": {"scheduling": "normal"},
    "placement": {"placement": "usual"},
}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key; keys, and the items of a key, keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True, slots=True)
class Projection:
    """The fields in which the cases of one table differ: fields shown by rows, and fields shown by columns.

    The model is benchstat's `benchproc`, which calls the rest of a case the residue.
    """

    # Names in NEUTRAL.
    row: tuple[str, ...] = ()
    column: tuple[str, ...] = ()

    def residue(self, case: Case) -> Case:
        """Return the part of a case that its table shares: the case with neutral values of the fields."""
        return replace(
            case, **{name: value for field in self.row + self.column for name, value in NEUTRAL[field].items()}
        )

    def row_of(self, case: Case) -> tuple[Any, ...]:
        """Return the values of the fields that rows show."""
        return tuple(getattr(case, field) for field in self.row)

    def tables(self, items: Iterable[T], case_of: Callable[[T], Case]) -> dict[Case, list[T]]:
        """Return the items by the residue of their cases."""
        return grouped(items, lambda item: self.residue(case_of(item)))


# Cases that differ in the number of ranks.
RANKS = Projection(column=("world_size",))
# Cases that differ in size, and cases of any size and number of ranks.
SIZES = Projection(row=("asked",))
KINDS = Projection(row=("asked",), column=("world_size",))
# Cases of one table of a report.
TABLES = Projection(row=("asked",), column=("world_size", "scheduling"))
# Cases of one row of nccl-tests.
PLACEMENTS = Projection(column=("placement",))
