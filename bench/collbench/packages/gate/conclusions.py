"""Define the conclusions on the nodes of a job, and on a run that is checked against a table."""

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.comparisons import Ratio
from collbench.model.conclusions import Interval
from collbench.model.notices import Notice, NoticeKind
from collbench.model.records import Case
from collbench.model.results import computed, fact


class CheckVerdict(StrEnum):
    """Verdict on a line of a table, or on a node of a fleet: is the measurement good enough?"""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    # Not measured.
    MISSING = "MISSING"


# Parts of sentences.
_GIVE = "give the rate by --against"
_STAGE = ", in the stage {stage}"
_ELSEWHERE = "{elsewhere:after ; lines for other hardware: }"


class GateNotice(NoticeKind):
    """Reasons for the verdict on a node, a fleet, a line of a table, or a table."""

    # Notices on a node.
    DROPPED = "dropped", "{why}"
    ROUNDS_FAILED = "rounds-failed", "its rounds failed"
    # Why a node is dropped.
    RANK_KILLED = "rank-killed", f"one of its ranks was killed{_STAGE}"
    RANK_EXITED = "rank-exited", f"one of its ranks exited early{_STAGE}"
    RANK_RAISED = "rank-raised", f"one of its ranks raised an error{_STAGE}"
    RANK_HUNG = "rank-hung", f"one of its ranks hung{_STAGE}"
    RANK_WRONG = "rank-wrong", f"a result with it was wrong{_STAGE}"
    RANK_NOT_READY = "rank-not-ready", f"one of its ranks did not get ready{_STAGE}"
    NO_ANSWER = "no-answer", f"it does not answer{_STAGE}"
    RANK_LOST = "rank-lost", "{text}"
    TOO_FEW_NODES = "too-few-nodes", "with fewer than {fewest} nodes, the usual rate is unknown", _GIVE
    NOTHING_USUAL = "nothing-usual", "too many nodes differ to know the usual value", _GIVE
    TOO_FEW_ROUNDS = "too-few-rounds", "too few rounds were measured"
    SLOW_INSIDE = "slow-inside", "too slow among its own ranks, in {rounds} rounds"
    SLOW_BETWEEN = "slow-between", "too slow with all partners, in {rounds} rounds"
    UNDECIDED_NODE = "undecided-node", "undecided after {rounds} rounds"
    BELOW_TABLE = "below-table", "too slow for the table"
    ONE_OF_TWO = "one-of-two", "too slow for the table; with one partner, either node may be the slow one"
    NOT_SHOWN = "not-shown", "its pairs do not show whether it reaches the table"
    USUAL_UNKNOWN = "usual-unknown", "reaches the table; the usual rate is unknown here"
    # Notices on a fleet.
    NONE_INSIDE = (
        "none-inside",
        "every node has one rank, so nothing was measured inside: no link between GPUs of one node",
    )
    SOME_NOT_INSIDE = (
        "some-not-inside",
        "{single} of {nodes} nodes have one rank, so nothing was measured inside: no link between GPUs of one node",
    )
    UNEQUAL_NODES = (
        "unequal-nodes",
        "nodes have {fewest} to {most} ranks: between nodes, the first {fewest} ranks per node were measured",
    )
    STAGE_FAILED = "stage-failed", "{stage}: {text}"
    GIVEN_UP = "given-up", "{stage}: given up"
    NOT_JOINED = "not-joined", "rank {rank} did not join: its host is unknown, and was not measured"
    # Notices on a line of a table.
    LINE_FAILED = "line-failed", "{why}"
    NO_BANDWIDTH = "no-bandwidth", "ranks shared a GPU: no bandwidth is given"
    NO_TIME = "no-time", "no time was measured"
    ONE_NUMBER = "one-number", "one imported number: its variation is unknown", "import several launches"
    FEW_OF_LINE = "few-launches-of-line", "fewer than {fewest} launches: too few to know the variation of launches"
    NOT_IN_RUN = "not-in-run", "not in this run"
    ABOVE_ON_AVERAGE = "above-on-average", "above its limit on average"
    # Notices on a table.
    A_LINE_MISSES = "a-line-misses", f"a line surely misses its limit{_ELSEWHERE}"
    A_LINE_MISSING = "a-line-missing", f"a line was not measured{_ELSEWHERE}"
    ALL_REACH = "all-reach", f"every line surely reaches its limit{_ELSEWHERE}"
    NOT_TOGETHER = "not-together", f"lines are open, and cannot be tested together{_ELSEWHERE}"
    TABLE_REACHES = (
        "table-reaches",
        f"the table as a whole surely reaches its limits, and each line does on average{_ELSEWHERE}",
    )
    A_LINE_BELOW = "a-line-below", f"a line is below its limit on average{_ELSEWHERE}"
    TABLE_OPEN = "table-open", f"the table as a whole is open{_ELSEWHERE}"


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
    expected: float = fact("expected bus bandwidth in bytes/s", name="expected_busbw")
    tolerance: float = fact("share by which the bus bandwidth may fall short")
    measured: Interval | None = fact(
        "measured bus bandwidth in bytes/s", limits=("busbw", "busbw_low", "busbw_high", "interval")
    )
    verdict: CheckVerdict = fact("PASS, FAIL, INCONCLUSIVE or MISSING")
    note: Notice | None = None

    note_kind = computed(
        "kind of the reason for the verdict",
        NoticeKind | None,
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
