"""Define the operation that this package adds: a replay of recorded calls."""

from collbench.catalog.operation import SYNC, Operation
from collbench.model.deferred import Deferred
from collbench.model.notices import Kind
from collbench.model.records import Case
from collbench.packages.replay.replayed_calls import NAME, recording_in


def recorded_stamps(case: Case) -> int:
    """Return the stamps per iteration: start and duration of each call; 0 if the replay has only one call."""
    calls = recording_in(case).calls
    return 2 * calls if calls > 1 else 0


OPERATION = Operation(
    NAME,
    "bytes of the buffers that the calls of a recorded job use on a rank",
    None,
    (1, 0),
    calls=SYNC,
    placements=("in",),
    typed=False,
    why_not_mpi=Kind("calls-torch", "it makes the calls of torch.distributed"),
    options=("metric", "scheduling", "settings", "memory", "oversubscribed"),
    inner_stamps=recorded_stamps,
    section=Deferred("packages.replay.config:ReplaySection"),
    cases=Deferred("packages.replay.importers:asked"),
    rank=Deferred("packages.replay.rank:workloads"),
)
