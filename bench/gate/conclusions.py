"""Define what a gate concludes of the nodes of a job."""

from dataclasses import dataclass

from bench.model.comparisons import CheckVerdict
from bench.model.conclusions import Interval


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """Whether a node of a fleet is good enough. verdict: PASS, FAIL or INCONCLUSIVE; note: why.

    rate: as a share of the usual one, or of what a table expects, with an interval if it was retested; None if unknown.
    """

    node: int
    verdict: CheckVerdict
    rate: Interval | None
    note: str


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a fleet is good enough: FAIL if a node fails, INCONCLUSIVE if one is or something broke.

    nodes: in order. remarks: sentences on what was not measured. broken: sentences on what failed meanwhile and could
    be ascribed to no node. virtual: whether GPUs were stood in for, so that times follow a rule.
    """

    verdict: CheckVerdict
    nodes: tuple[NodeCheck, ...]
    remarks: tuple[str, ...]
    broken: tuple[str, ...]
    virtual: bool = False
