"""The ranks that call an operation together: all of the world, or one group of its division.

Nothing here communicates; `group` and `mpi` make teams.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# The calls of a library: on buffers, on Python objects, and the barrier. Their arguments are told in `calls`.
CallBuilder = Callable[..., Callable[[], Any]]


class LibraryCalls(NamedTuple):
    """What one library calls each operation: torch.distributed, or mpi4py."""

    on_buffers: Mapping[str, CallBuilder]
    on_objects: Mapping[str, CallBuilder]
    barrier: CallBuilder


@dataclass(frozen=True, slots=True)
class Subgroup:
    """rank, size: within the team. handle: the library's name for it (None: torch's whole world).

    number, teams: which team of how many this is, where they call one after the other; else 0 of 1.
    """

    rank: int
    size: int
    handle: Any
    number: int = 0
    subgroups: int = 1
