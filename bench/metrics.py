"""The table of metrics: what one iteration times. Knows no torch.

To add a metric: an entry here and its function in the table of `bench/rank/timing.py`; a test ties them.
"""

from dataclasses import dataclass

from bench.records import Case


@dataclass(frozen=True, slots=True)
class Metric:
    """One way to time calls.

    about: what is timed, in words. several: an iteration is `Case.depth` calls back to back, else one call.
    device: "cuda" where only GPUs can do it; None for any. fixed_buffers: each call keeps its buffer for the whole
    launch, so that the pool has as many buffers as an iteration has calls.
    """

    name: str
    about: str
    several: bool = True
    device: str | None = None
    fixed_buffers: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric("isolated", "one call between two stamps", several=False),
        Metric("pipelined", "several calls back to back"),
        Metric("graph", "the same calls captured in a CUDA graph", device="cuda", fixed_buffers=True),
    )
}
# Of operations whose iterations differ, each call is timed by itself.
ONE_BY_ONE = "isolated"


def metric_of(case: Case) -> Metric:
    """The entry of a case's metric."""
    return METRICS[case.metric]


def order(name: str) -> int:
    """The place of a metric among the others in tables and pictures; one of another tool comes last."""
    return [*METRICS, name].index(name)
