"""Who starts the ranks of a block: the fork server alone, or with mpirun, as the block's backend needs it.

In: a job. Out: its ranks; `sweep` uses this in place of a `Launcher`, for plans with backends of any kind.
"""

from types import TracebackType
from typing import Any

from bench.backends import BACKENDS
from bench.launch.launcher import Launcher
from bench.launch.mpirun import MpiLauncher
from bench.launch.ranks import Ranks
from bench.launch.sweep import Starter
from bench.records import Job


class ByBackend:
    """Context in which ranks can be started, by the library of the backend that they are for."""

    def __init__(self) -> None:
        self._launcher = Launcher()
        self._starters: dict[str, Starter] = {}

    def __enter__(self) -> "ByBackend":
        entered = self._launcher.__enter__()
        self._starters = {"torch": entered, "mpi4py": MpiLauncher(entered)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._launcher.__exit__(kind, error, tb)

    def start(self, world_size: int, target: str, argument: Any) -> Ranks:
        """Start so many ranks, each of which runs `target(seat, argument)`; the argument is a `Job`."""
        assert isinstance(argument, Job)  # noqa: S101 - nothing else tells of a backend
        return self._starters[BACKENDS[argument.block.backend].library].start(world_size, target, argument)
