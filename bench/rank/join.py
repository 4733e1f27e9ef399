"""Join the ranks of a launch, by the library that their backend belongs to; and what a rank then tells of itself.

In: a `RankContext` and the name of a backend. Out: a `Group`, the same for every library.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.backends import BACKENDS
from bench.protocol.rank_context import RankContext
from bench.rank import mpi, process_group
from bench.rank.process_group import Group
from bench.records import Json

JOINED = {"torch": process_group.joined, "mpi4py": mpi.joined}


@contextmanager
def joined(
    context: RankContext, backend: str, timeout_s: float, sync: str = "barrier", ctas: int = 0
) -> Iterator[Group]:
    """Meet the other ranks; leave the group at the end of the context if nothing was raised in it."""
    with JOINED[BACKENDS[backend].library](context, backend, timeout_s, sync, ctas) as found:
        yield found


def facts(found: Group, backend: str) -> Json:
    """What only a rank can tell of itself."""
    loaded = {"mpi": mpi.version()} if BACKENDS[backend].library == "mpi4py" else {}
    return process_group.facts(found, backend) | loaded
