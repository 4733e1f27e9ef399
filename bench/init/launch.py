"""Start ranks that look at themselves, and read what they saw.

In: a backend and a number of ranks. Out: an `Observed` of each. Writes no run.
"""

import time

from bench.init.model import InitJob, Observed
from bench.launch import mpirun
from bench.launch.launcher import RendezvousFolder
from bench.launch.supervisor import watch
from bench.launch.turns import drive
from bench.model.errors import UnmeasurableError
from bench.model.records import Case, Launch
from bench.store import encoding

ENDS_WITHIN_S = 60.0
GROUPS_MADE = 20


def observed(backend: str, ranks: int) -> list[Observed]:
    """What each rank saw. Raises UnmeasurableError if one of them fails."""
    call = Launch(backend, ranks, 1, (Case("all_reduce", backend, ranks, "float32", 4096),))
    with RendezvousFolder() as private, mpirun.ByBackend() as launcher:
        folder, requested = private.place(), time.monotonic()
        started = launcher.start(ranks, "bench.init.rank:main", InitJob(call, str(folder), GROUPS_MADE))
        try:
            watching = watch(
                started,
                requested,
                ENDS_WITHIN_S,
                before_go=lambda _: None,
                begun=lambda _: None,
                sampled=lambda *_: None,
            )
            (outcome,) = drive(watching)
        finally:
            started.kill()
        if outcome.failure is not None:
            raise UnmeasurableError(f"init {backend}: {outcome.failure.text}")
        files = [folder / f"rank-{number}.json" for number in range(ranks)]
        return [encoding.decoded(file.read_bytes(), Observed) for file in files]
