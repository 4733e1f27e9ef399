"""Define every metric: the calls that one iteration times.

Does not import torch. To add a metric: an entry here and its function in the table of `rank.timing`; a test
requires both.
"""

from dataclasses import dataclass

from collbench.catalog.collectives import OPERATIONS
from collbench.model.records import Case


@dataclass(frozen=True, slots=True)
class Metric:
    """One way to time calls."""

    name: str
    # Description of the timed calls.
    about: str
    # True if an iteration is `Case.depth` calls back to back; otherwise it is one call.
    several: bool = True
    # The value "cuda" if the metric needs GPUs; None means any device.
    device: str | None = None
    # True if each call uses the same buffer for the whole launch, so that the pool has as many buffers as an iteration
    # has calls.
    fixed_buffers: bool = False
    # True if calls are made once, into a graph.
    captured: bool = False
    # True if each iteration makes a process group of its own.
    makes_group: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric("isolated", "one call between two stamps", several=False),
        Metric("first", "the first call in a process group that was just made", several=False, makes_group=True),
        Metric("pipelined", "several calls back to back"),
        Metric("graph", "the same calls captured in a CUDA graph", device="cuda", fixed_buffers=True, captured=True),
    )
}
# The only metric of operations whose iterations differ (`Operation.paired`): each call is timed by itself.
ONE_BY_ONE = "isolated"


def metric_of(case: Case) -> Metric:
    """Return the entry of a case's metric."""
    return METRICS[case.metric]


def makes_groups(case: Case) -> bool:
    """Return whether a case's iterations make process groups. The host does that, and threads go on for a while."""
    return metric_of(case).makes_group or OPERATIONS[case.op].startup


def order(name: str) -> int:
    """Return the position of a metric in tables and plots; a metric that only another tool has comes last."""
    return [*METRICS, name].index(name)
