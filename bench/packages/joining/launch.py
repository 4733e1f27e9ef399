"""Start ranks that inspect themselves, and read their results.

In: a backend and a number of ranks. Out: an `Observed` per rank. Writes no run.
"""

from bench.launch import mpirun
from bench.launch.launcher import RendezvousFolder
from bench.launch.supervisor import run_launch
from bench.launch.turns import drive
from bench.model.errors import UnmeasurableError
from bench.model.records import Case, Launch
from bench.packages.joining.process_state import InitJob, Observed
from bench.store import encoding

ENDS_WITHIN_S = 60.0
GROUPS_MADE = 20


def observed(backend: str, ranks: int) -> list[Observed]:
    """Return the observed state of each rank. Raises UnmeasurableError if a rank fails."""
    call = Launch(backend, ranks, 1, (Case("all_reduce", backend, ranks, "float32", 4096),))
    with RendezvousFolder() as private, mpirun.ByBackend() as launcher:
        folder = private.place()
        job = InitJob(call, str(folder), GROUPS_MADE)
        launching = run_launch(lambda: launcher.start(ranks, "bench.packages.joining.rank:main", job), ENDS_WITHIN_S)
        (outcome,) = drive(launching)
        if outcome.failure is not None:
            raise UnmeasurableError(f"init {backend}: {outcome.failure.text}")
        files = [folder / f"rank-{number}.json" for number in range(ranks)]
        return [encoding.decoded(file.read_bytes(), Observed) for file in files]
