"""Define the records of tuning: cells, choices, the table of rules, and the state of a run of `tune`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from collbench.model.conclusions import Interval
from collbench.model.errors import StoreError
from collbench.model.notices import Notice
from collbench.model.records import Case


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """An operation, a number of ranks and a size, for which there can be a rule."""

    op: str
    ranks: int
    # Message size as the library counts it, which is `Case.size_bytes`.
    size: int


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """A choice that a case or a rule sets in a library."""

    algorithm: str
    # NCCL's protocol.
    protocol: str = ""
    # Bytes of a segment of Open MPI; 0 for whole messages.
    segment: int = 0

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol, f"in segments of {self.segment // 1024} KiB" if self.segment else ""]
        return " ".join(filter(None, words))


# The library's own choice. A table without a rule for a cell means this choice.
DEFAULT = Pick("default")
# The choice of a side whose ranks read the rule file.
FROM_FILE = Pick("the file")


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule of a table, for messages of `low` to `high` bytes."""

    op: str
    ranks: int
    low: int
    # None if there is no largest size.
    high: int | None
    choice: Pick
    # Line of the rule in a file.
    line: int = 0

    def holds(self, op: str, size: int) -> bool:
        """Return whether the rule is for a message of this operation and size, on the rule's number of ranks."""
        return self.op == op and self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True, slots=True)
class Crossover:
    """The size at which the faster choice changes: `at` bytes, with the interval limits `low` and `high`."""

    op: str
    ranks: int
    below: Pick
    above: Pick
    at: float
    low: float
    high: float


class Why(StrEnum):
    """Reasons why a cell of a table has its rule, or has no rule."""

    NOT_FASTER = "not-faster"
    NO_GAIN = "no-gain"
    TOO_FEW = "too-few-launches-in-the-budget"
    FASTER_IN_FRESH = "faster-in-fresh-launches"
    THEN_SLOWER = "then-slower"
    THEN_FAILED = "then-failed"
    # For a rule file that is checked.
    NO_RULE = "no-rule"
    NOT_MEASURED = "not-measured"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result for a cell."""

    cell: Cell
    # Choice in the table.
    choice: Pick
    # Choice that was compared with the default in fresh launches.
    tried: Pick
    why: Why
    # Time with `tried` over time with the default, in the launches of `pairs`. None if nothing was tried or paired.
    ratio: Interval | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a run of `tune`."""

    results: tuple[CellResult, ...]
    # Rules of the file.
    rules: tuple[SizeRule, ...]
    crossovers: tuple[Crossover, ...]
    # Time over the default, for all cells with a rule together, in `checked` launches.
    whole: Interval | None
    checked: int
    # Total number of launches, that is, sets of ranks that measured.
    launches: int = 0
    # Cells and choices that failed.
    wrong: tuple[str, ...] = ()
    notes: tuple[Notice, ...] = ()

    @property
    def changed(self) -> list[CellResult]:
        """Cells for which the table has a rule."""
        return [result for result in self.results if result.choice != DEFAULT]


# Variables of a case, as text → operation → choice that they set in the library.
Assigned = Mapping[str, Mapping[str, Pick]]


def choice_of(assigned: Assigned, case: Case) -> Pick:
    """Return the choice that a case sets in the library; the default on the side that sets none. Raises StoreError.

    A case with an unknown choice is never treated as a case with the default.
    """
    choices = assigned.get(str(case.settings))
    if choices is None or (choices and case.op not in choices):
        raise StoreError(f"{case.key}: the state of tune does not record which choice this case got")
    return choices[case.op] if choices else DEFAULT


@dataclass(slots=True)
class TuneState:
    """The state that a run needs to resume; everything else follows from the samples."""

    backend: str
    budget_s: float
    min_change: float
    # The choices that cases have set in the library so far, as in `Assigned`.
    assigned: dict[str, dict[str, Pick]]
    seed: int = 0
    # Number of hosts.
    hosts: int = 1
    # Numbers of Open MPI's algorithms, by collective and name.
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Number of rounds of each stage that has ended; together they number the launches from 1.
    rounds: dict[str, int] = field(default_factory=dict)
    spent_s: float = 0.0
    # True if a rule file is checked.
    checks: bool = False
    # Path of the rule file to write. None for a file in the run's folder.
    output: str | None = None
    # Reason why sides do not take turns. None if they do.
    alternate: Notice | None = None


Picks = Mapping[Cell, Pick]


def cell_of(case: Case) -> Cell:
    """Return the cell of a case."""
    return Cell(case.op, case.world_size, case.size_bytes)
