"""What the supervisor needs of a rank, wherever it runs: a line to talk over, and what is known from outside.

`launcher` has ranks that are processes of this one's own; `agents` has ranks on other hosts. Nothing here starts one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

# SIGKILL leaves no choice; what takes longer is the kernel freeing gigabytes of buffers.
KILL_WAIT_S = 10.0


class Rank(Protocol):
    """One rank of one launch. None of these waits, but for `join`.

    connection: messages go both ways, see `protocol.messages`. exit_code: None while it runs, negative for a signal.
    lost: why nothing more can be known of it, once its host has gone; None as long as it answers.
    """

    @property
    def rank(self) -> int: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def exit_code(self) -> int | None: ...

    @property
    def lost(self) -> str | None: ...

    def progress(self) -> int:
        """A number that grows as the rank goes through its iterations."""

    def state(self) -> str:
        """What its operating system says of it: running, sleeping, stopped, zombie, gone."""

    def ask_stack(self) -> None:
        """Have it write its Python stack; one that is stopped will not."""

    def stack(self) -> str:
        """What it wrote; empty as long as it did not."""

    def kill(self) -> None:
        """End it, whatever state it is in."""

    def join(self, seconds: float) -> None:
        """Wait until it has gone."""


@dataclass(slots=True)
class Ranks:
    """The ranks of one process group, in order of rank. clean: removes what they leave behind.

    kept: whatever would vanish with its last reference in this process while the ranks need it. remarks: what a reader
    of their numbers must know of how they were started.
    """

    members: Sequence[Rank]
    clean: Callable[[], None]
    kept: Any = None
    remarks: tuple[str, ...] = ()

    def progress(self) -> tuple[int, ...]:
        """Of each rank."""
        return tuple(member.progress() for member in self.members)

    def kill(self) -> None:
        """End every rank now and wait until it is gone."""
        for member in self.members:
            member.kill()
        for member in self.members:
            member.join(KILL_WAIT_S)
            member.connection.close()
        self.clean()


class Starter(Protocol):
    """Starts ranks: `launcher.Launcher`, or one that prepares a place for them first."""

    def start(self, world_size: int, target: str, argument: Any) -> Ranks:
        """Start so many ranks, each of which runs `target(context, argument)`."""
