"""Records of tuning: cells, choices, the table of rules, and the state of a run of `tune`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bench.model.conclusions import Interval
from bench.model.errors import StoreError
from bench.model.notices import Notice, NoticeKind
from bench.model.records import Case


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """An operation, a number of ranks and a size, for which there can be a rule."""

    op: str
    ranks: int
    # Message size as the library counts it, which is `Case.size_bytes`.
    size: int


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """The choice that a library is told to use."""

    algorithm: str
    # NCCL's protocol.
    protocol: str = ""
    # Bytes of a segment of Open MPI; 0 for whole messages.
    segment: int = 0

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol, f"in segments of {self.segment // 1024} KiB" if self.segment else ""]
        return " ".join(filter(None, words))


# The library decides. A table that says nothing of a cell means this.
DEFAULT = Pick("default")
# The choice of a side whose ranks read the rule file.
FROM_FILE = Pick("the file")


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule of a table, for messages of `low` to `high` bytes."""

    op: str
    ranks: int
    low: int
    # None for a rule without end.
    high: int | None
    choice: Pick
    # Line of the rule in a file.
    line: int = 0

    def holds(self, op: str, size: int) -> bool:
        """Whether the rule is for a message of this operation and size, on the rule's number of ranks."""
        return self.op == op and self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True, slots=True)
class Crossover:
    """The size at which one choice stops being the faster one: `at` bytes, from `low` to `high`."""

    op: str
    ranks: int
    below: Pick
    above: Pick
    at: float
    low: float
    high: float


class Why(StrEnum):
    """Why a cell of a table has the rule that it has, or none."""

    NOT_FASTER = "not-faster"
    NO_GAIN = "no-gain"
    FASTER_IN_FRESH = "faster-in-fresh-launches"
    THEN_SLOWER = "then-slower"
    THEN_FAILED = "then-failed"
    # Of a rule file that is checked.
    NO_RULE = "no-rule"
    NOT_MEASURED = "not-measured"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class TuneNotice(NoticeKind):
    """What can be said of rules."""

    VIRTUAL = "virtual-gpus"
    AS_MEASURED = "as-measured"
    RULE_NOT_READ = "rule-not-read"
    NOT_HONOURED = "not-honoured"
    # Of a rule file that is checked.
    OTHER_HOSTS = "rule-for-other-hosts"
    OWN_CHANNELS = "rule-with-channels"
    FOR_SOME_CALLS = "rule-for-some-calls"
    # Why sides do not take turns.
    ONE_LAUNCH_AT_A_TIME = "one-launch-at-a-time"


# The library does something else than the rule file says.
DISHONOURED = frozenset({TuneNotice.RULE_NOT_READ, TuneNotice.NOT_HONOURED})


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
    # Time over the default, of all cells that have a rule, in `checked` launches.
    whole: Interval | None
    checked: int
    # Number of sets of ranks that measured, in all.
    launches: int = 0
    # Cells and choices that failed.
    wrong: tuple[str, ...] = ()
    notes: tuple[Notice, ...] = ()

    @property
    def changed(self) -> list[CellResult]:
        """Cells for which the table has a rule."""
        return [result for result in self.results if result.choice != DEFAULT]


# Variables of a case, as text → operation → the choice that they tell the library.
Told = Mapping[str, Mapping[str, Pick]]


def choice_of(told: Told, case: Case) -> Pick:
    """The choice that a case tells the library; the default on the side that tells none. Raises StoreError.

    A case whose choice is not known is never taken for one that has the default.
    """
    choices = told.get(str(case.settings))
    if choices is None or (choices and case.op not in choices):
        raise StoreError(f"{case.key}: the state of tune does not say which choice this case was told")
    return choices[case.op] if choices else DEFAULT


@dataclass(slots=True)
class TuneState:
    """The state that a run needs to go on; everything else follows from the samples."""

    backend: str
    budget_s: float
    min_change: float
    # The choices that cases told the library so far, as in `Told`.
    told: dict[str, dict[str, Pick]]
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
    # Path of the rule file to write. None for one in the run's folder.
    output: str | None = None
    # Reason why sides do not take turns. None if they do.
    alternate: Notice | None = None


Picks = Mapping[Cell, Pick]


def cell_of(case: Case) -> Cell:
    """The cell of a case."""
    return Cell(case.op, case.world_size, case.size_bytes)
