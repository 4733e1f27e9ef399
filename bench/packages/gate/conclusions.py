"""Define the conclusions on the nodes of a job, and on a run that is checked against a table."""

from dataclasses import dataclass
from enum import StrEnum

from bench.model.conclusions import Interval
from bench.model.notices import Notice, NoticeKind
from bench.model.records import Case


class CheckVerdict(StrEnum):
    """Whether what was measured is good enough: a line of a table, or a node of a fleet. MISSING: not measured."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    MISSING = "MISSING"


class GateNotice(NoticeKind):
    """Why a node or a line of a table has its verdict."""

    # Of a node.
    DROPPED = "dropped"
    ROUNDS_FAILED = "rounds-failed"
    TOO_FEW_NODES = "too-few-nodes"
    NOTHING_USUAL = "nothing-usual"
    TOO_FEW_ROUNDS = "too-few-rounds"
    SLOW_INSIDE = "slow-inside"
    SLOW_BETWEEN = "slow-between"
    UNDECIDED_NODE = "undecided-node"
    BELOW_TABLE = "below-table"
    ONE_OF_TWO = "one-of-two"
    NOT_SHOWN = "not-shown"
    USUAL_UNKNOWN = "usual-unknown"
    # Of a fleet.
    NONE_INSIDE = "none-inside"
    SOME_NOT_INSIDE = "some-not-inside"
    UNEQUAL_NODES = "unequal-nodes"
    # Of a line of a table.
    LINE_FAILED = "line-failed"
    NO_BANDWIDTH = "no-bandwidth"
    NO_TIME = "no-time"
    ONE_NUMBER = "one-number"
    FEW_OF_LINE = "few-launches-of-line"
    NOT_IN_RUN = "not-in-run"
    ABOVE_ON_AVERAGE = "above-on-average"
    # Of a table.
    A_LINE_MISSES = "a-line-misses"
    A_LINE_MISSING = "a-line-missing"
    ALL_REACH = "all-reach"
    NOT_TOGETHER = "not-together"
    TABLE_REACHES = "table-reaches"
    A_LINE_BELOW = "a-line-below"
    TABLE_OPEN = "table-open"


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """Whether a node of a fleet is good enough. verdict: PASS, FAIL or INCONCLUSIVE; note: why.

    rate: as a share of the usual one, or of what a table expects, with its interval; None if unknown.
    """

    node: int
    verdict: CheckVerdict
    rate: Interval | None
    note: Notice | None = None


@dataclass(frozen=True, slots=True)
class SlowPath:
    """Groups of nodes that are slow with each other, not among themselves. rate: across, as a share of that within."""

    groups: tuple[tuple[int, ...], ...]
    rate: float


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a fleet is good enough: FAIL if a node fails, INCONCLUSIVE if one is or something broke.

    nodes: in order. remarks: on what was not measured. broken: sentences on what failed meanwhile and could
    be ascribed to no node. path: what is slow between groups of nodes. virtual: whether GPUs were stood in for, so that
    times follow a rule.
    """

    verdict: CheckVerdict
    nodes: tuple[NodeCheck, ...]
    remarks: tuple[Notice, ...]
    broken: tuple[str, ...]
    path: SlowPath | None = None
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a table of expectations, checked in a run. verdict: PASS, FAIL, INCONCLUSIVE or MISSING.

    expected, measured: bus bandwidth in bytes/s; tolerance: share by which it may fall short. source: where the
    expectation stands, and when it was last found there; "" if the table does not say it.
    """

    case: Case
    expected: float
    tolerance: float
    measured: Interval | None
    verdict: CheckVerdict
    note: Notice | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table of expectations, checked in a run.

    index: measured bandwidth over what the table allows at least, over all lines that can be tested together; None if
    they cannot.
    """

    checks: tuple[Check, ...]
    verdict: CheckVerdict
    reason: Notice
    index: Interval | None = None
