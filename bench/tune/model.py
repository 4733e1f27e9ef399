"""Records of tuning: cells, choices, the table of rules, and the state of a run of `tune`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.model.conclusions import Interval
from bench.model.records import Case


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What a rule is for. size: message size as the library counts it, which is `Case.size_bytes`."""

    op: str
    ranks: int
    size: int


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """What a library is told to use. protocol: NCCL's. segment: bytes of a segment, Open MPI's; 0: whole messages."""

    algorithm: str
    protocol: str = ""
    segment: int = 0

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol, f"in segments of {self.segment // 1024} KiB" if self.segment else ""]
        return " ".join(filter(None, words))


# The library decides. A table that says nothing of a cell means this.
DEFAULT = Choice("default")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a table: for messages of `low` to `high` bytes. high: None without end. line: of a file."""

    op: str
    ranks: int
    low: int
    high: int | None
    choice: Choice
    line: int = 0

    def holds(self, cell: Cell) -> bool:
        """Whether the rule is for this cell."""
        same = (self.op, self.ranks) == (cell.op, cell.ranks)
        return same and self.low <= cell.size and (self.high is None or cell.size <= self.high)


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where one choice stops being the faster one: `at` bytes, from `low` to `high`."""

    op: str
    ranks: int
    below: Choice
    above: Choice
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """What was found for a cell. choice: in the table; tried: what was compared with the default in fresh launches.

    ratio: time with `tried` over the default, in the launches of `pairs`; None where nothing was tried or paired.
    """

    cell: Cell
    choice: Choice
    tried: Choice
    why: str
    ratio: Interval | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome. whole: time over the default of all cells that the table changes, in launches of the last stage.

    checked: those launches. launches: of ranks, that were measured in all. wrong: cells and choices that failed.
    """

    results: tuple[CellResult, ...]
    crossovers: tuple[Crossover, ...]
    whole: Interval | None
    checked: int
    launches: int
    wrong: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> list[CellResult]:
        """Cells for which the table has a rule."""
        return [result for result in self.results if result.choice != DEFAULT]


@dataclass(slots=True)
class TuneState:
    """What must be known to go on: asked, and decided so far. Everything else follows from the samples.

    numbers: of Open MPI's algorithms, by collective and name. race, confirm, check: number of launches of each stage,
    None while it is open; together they number the launches from 1. file: of `--check`. alternate: why sides do not
    take turns.
    """

    backend: str
    budget_s: float
    min_change: float
    seed: int
    hosts: int = 1
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    race: int | None = None
    confirm: int | None = None
    check: int | None = None
    spent_s: float = 0.0
    file: str | None = None
    output: str | None = None
    alternate: str | None = None


Picks = Mapping[Cell, Choice]


def cell_of(case: Case) -> Cell:
    """The cell of a case."""
    return Cell(case.op, case.world_size, case.size_bytes)


def picked(rules: Sequence[Rule], cell: Cell) -> Choice:
    """What a table says of a cell: its first rule that holds."""
    return next((rule.choice for rule in rules if rule.holds(cell)), DEFAULT)
