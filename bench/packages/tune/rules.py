"""Records of tuning: cells, choices, the table of rules, and the state of a run of `tune`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bench.model.conclusions import Interval
from bench.model.notices import Notice, NoticeKind
from bench.model.records import Case


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What a rule is for. size: message size as the library counts it, which is `Case.size_bytes`."""

    op: str
    ranks: int
    size: int


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """What a library is told to use. protocol: NCCL's. segment: bytes of a segment, Open MPI's; 0: whole messages."""

    algorithm: str
    protocol: str = ""
    segment: int = 0

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol, f"in segments of {self.segment // 1024} KiB" if self.segment else ""]
        return " ".join(filter(None, words))


# The library decides. A table that says nothing of a cell means this.
DEFAULT = Pick("default")


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule of a table: for messages of `low` to `high` bytes. high: None without end. line: of a file."""

    op: str
    ranks: int
    low: int
    high: int | None
    choice: Pick
    line: int = 0

    def holds(self, op: str, size: int) -> bool:
        """Whether the rule is for such a message, with its number of ranks."""
        return self.op == op and self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where one choice stops being the faster one: `at` bytes, from `low` to `high`."""

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
    FILE_NOTE = "file-note"


# The library does something else than the rule file says.
DISHONOURED = frozenset({TuneNotice.RULE_NOT_READ, TuneNotice.NOT_HONOURED})


@dataclass(frozen=True, slots=True)
class CellResult:
    """What was found for a cell. choice: in the table; tried: what was compared with the default in fresh launches.

    ratio: time with `tried` over the default, in the launches of `pairs`; None where nothing was tried or paired.
    """

    cell: Cell
    choice: Pick
    tried: Pick
    why: Why
    ratio: Interval | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome. rules: of the file. whole: time over the default of all cells that have one, in `checked` launches.

    launches: sets of ranks that measured in all. wrong: cells and choices that failed.
    """

    results: tuple[CellResult, ...]
    rules: tuple[SizeRule, ...]
    crossovers: tuple[Crossover, ...]
    whole: Interval | None
    checked: int
    launches: int = 0
    wrong: tuple[str, ...] = ()
    notes: tuple[Notice, ...] = ()

    @property
    def changed(self) -> list[CellResult]:
        """Cells for which the table has a rule."""
        return [result for result in self.results if result.choice != DEFAULT]


@dataclass(slots=True)
class TuneState:
    """What must be known to go on; everything else follows from the samples.

    hosts: number of them. numbers: of Open MPI's algorithms, by collective and name. rounds: of each stage that has
    ended; together they number the launches from 1. checks: whether a rule file is checked. output: where the rule file
    goes. alternate: why sides do not take turns.
    """

    backend: str
    budget_s: float
    min_change: float
    seed: int = 0
    hosts: int = 1
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    spent_s: float = 0.0
    checks: bool = False
    output: str | None = None
    alternate: str | None = None


Picks = Mapping[Cell, Pick]


def cell_of(case: Case) -> Cell:
    """The cell of a case."""
    return Cell(case.op, case.world_size, case.size_bytes)
