"""Define the conclusions on the nodes of a job, and on a run that is checked against a table."""

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.conclusions import Interval
from collbench.model.notices import Notice
from collbench.model.records import Case


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

    case: Case
    # Expected bus bandwidth in bytes/s.
    expected: float
    # Share by which the bus bandwidth may fall short.
    tolerance: float
    # Measured bus bandwidth in bytes/s.
    measured: Interval | None
    # Verdict: PASS, FAIL, INCONCLUSIVE or MISSING.
    verdict: CheckVerdict
    note: Notice | None = None
    # Publication of the expected value, and when it was last found there. "" if the table does not give it.
    source: str = ""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table of expectations, checked in a run."""

    checks: tuple[Check, ...]
    verdict: CheckVerdict
    reason: Notice
    # Geometric mean of measured / least allowed bandwidth over all lines that can be tested together. None if they
    # cannot be tested together.
    index: Interval | None = None
