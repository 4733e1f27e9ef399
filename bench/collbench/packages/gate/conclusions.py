"""Define the conclusions on the nodes of a job, and on a run that is checked against a table."""

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.comparisons import Ratio
from collbench.model.conclusions import Interval
from collbench.model.notices import Kind, Notice
from collbench.model.records import Case
from collbench.model.results import computed, fact


class CheckVerdict(StrEnum):
    """Verdict on a line of a table, or on a node of a fleet: is the measurement good enough?"""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    # Not measured.
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The verdict on a node of a fleet."""

    node: int
    # Verdict: PASS, FAIL or INCONCLUSIVE.
    verdict: CheckVerdict
    # Rate as a share of the usual rate, or of the rate in a table, with its interval. None if unknown.
    rate: Interval | None
    # Reason for the verdict.
    note: Notice | None = None


@dataclass(frozen=True, slots=True)
class SlowPath:
    """Groups of nodes that are slow with each other, but not among themselves."""

    groups: tuple[tuple[int, ...], ...]
    # Rate across groups, as a share of the rate within groups.
    rate: float


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on a fleet."""

    # FAIL if a node fails or a rank is absent; else INCONCLUSIVE if a node is undecided, a stage failed or a path slow.
    verdict: CheckVerdict
    # Checks of the nodes, in order.
    nodes: tuple[NodeCheck, ...]
    # Notices on links and ranks that were not measured.
    remarks: tuple[Notice, ...]
    # Notices on failures that could not be attributed to a node.
    broken: tuple[Notice, ...]
    # Slow path between groups of nodes. None if there is none.
    path: SlowPath | None = None
    # True if the GPUs were virtual, so that times follow a rule.
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a table of expectations, checked in a run."""

    case: Case = fact("of the case", name="key")
    verdict: CheckVerdict = fact("PASS, FAIL, INCONCLUSIVE or MISSING")
    expected: float = fact("expected bus bandwidth in bytes/s", name="expected_busbw")
    tolerance: float = fact("share by which the bus bandwidth may fall short")
    measured: Interval | None = fact(
        "measured bus bandwidth in bytes/s", limits=("busbw", "busbw_low", "busbw_high", "interval")
    )
    note: Notice | None = None

    note_kind = computed(
        "kind of the reason for the verdict",
        Kind | None,
        lambda check: check.note and check.note.kind,
        name="note",
    )
    source: str = fact(
        "publication of the expected value, and when it was last found there; empty if the table does not give it",
        default="",
    )


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table of expectations, checked in a run."""

    checks: tuple[Check, ...] = fact("the lines of the table")
    verdict: CheckVerdict = fact("on the table")
    reason: Notice = fact("for the verdict")
    # Geometric mean of measured / least allowed bandwidth over all lines that can be tested together. None if they
    # cannot be tested together.
    index: Interval | None = None
    ratio = computed("the index", Ratio | None, lambda table: table.index and Ratio(table.index), name="index")
