"""Define the interface of a rank to the supervisor, on any host: its connection, its state and how to end it.

`launcher` implements it for child processes, `workers` for ranks that processes elsewhere have started. Starts no rank.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import psutil

from collbench.model.records import Json, Launch
from collbench.protocol.channel import Line

# The function that ranks run for a `records.Job`.
RANK = "collbench.rank.main:main"
# Wait after SIGKILL, in seconds: no process can resist it, but the kernel may have gigabytes of buffers to free.
KILL_WAIT_S = 10.0


class Rank(Protocol):
    """One rank of one launch. No method blocks except `join`."""

    @property
    def rank(self) -> int: ...

    # For messages in both directions (`protocol.messages`).
    @property
    def connection(self) -> Line: ...

    # None while the rank runs, negative for a signal.
    @property
    def exit_code(self) -> int | None: ...

    # Why nothing more can be known of the rank: its host no longer answers, or its parent was killed. Else None.
    @property
    def lost(self) -> str | None: ...

    # Output of a rank that does not print into the run's log, once it has ended.
    @property
    def log(self) -> str: ...

    # For a rank of another process, once it has ended: by host, the record of GPUs and network adapters during the
    # launch (`machine.gpus`).
    @property
    def health(self) -> Mapping[str, Json]: ...

    # A number that grows with each iteration of the rank.
    @property
    def progress(self) -> int: ...

    # Index of the case that rank 0 measures, if rank 0 shares its memory; None before the first.
    @property
    def position(self) -> int | None: ...

    # From its operating system: running, sleeping, stopped, zombie, gone.
    @property
    def state(self) -> str: ...

    # The Python stack that the rank wrote; empty until then.
    @property
    def stack(self) -> str: ...

    def ask_stack(self) -> None:
        """Ask the rank to write its Python stack; a stopped process writes none."""

    def kill(self) -> None:
        """End the rank, whatever state it is in."""

    def join(self, seconds: float) -> None:
        """Wait until the rank has ended, at most `seconds`."""


@dataclass(slots=True)
class Ranks:
    """The ranks of one process group, in order of rank."""

    members: Sequence[Rank]
    # Removes the files that the ranks leave.
    clean: Callable[[], None]
    # Takes reports on ranks elsewhere; raises an interrupt or an error that ends the launch.
    look: Callable[[], None] = lambda: None
    # Addresses beyond loopback on which the launcher of the ranks listened.
    open_to: tuple[str, ...] = ()
    # True if the launch of these ranks failed.
    failed: bool = False
    # What to do if they never join, and no rank is found to be at fault.
    remedy: str = ""

    def progress(self) -> tuple[int, ...]:
        """Return the progress of every rank."""
        return tuple(member.progress for member in self.members)

    def position(self) -> int | None:
        """Return the index of the case that rank 0 measures; None before the first."""
        return self.members[0].position

    def kill(self) -> str | None:
        """Kill every rank, wait for its end, and clean up. Returns a text that names ranks that did not end, or None.

        A process that waits for a hanging device or file system reacts to no signal until that answers.
        """
        for member in self.members:
            member.kill()
        for member in self.members:
            member.join(KILL_WAIT_S)
            member.connection.close()
        # A zombie has ended, but its parent, which may be stopped, has not reported it.
        running = [member for member in self.members if member.exit_code is None and member.lost is None]
        stuck = [member for member in running if member.state != psutil.STATUS_ZOMBIE]
        names = ", ".join(f"rank {member.rank} ({member.state})" for member in stuck)
        self.clean()
        return f"{names} did not end within {KILL_WAIT_S:g} s of SIGKILL" if stuck else None


# ── what ranks run ───────────────────────────────────────────────────────────────────────────────
# Log of ranks whose output nobody reads.
NO_LOG = Path(os.devnull)


@runtime_checkable
class LaunchJob(Protocol):
    """The job of ranks that make the calls of a launch."""

    @property
    def launch(self) -> Launch: ...


@dataclass(frozen=True, slots=True)
class EncodedJob:
    """A `LaunchJob` that another process has encoded, and that is passed on unchanged."""

    launch: Launch
    data: bytes


class Starter(Protocol):
    """Starts ranks: here (`launcher.Launcher`), or by workers, which are processes elsewhere."""

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG) -> Ranks:
        """Start `world_size` ranks, each of which calls `entry(context, encoded job)`; the caller has to end them.

        entry: "package.module:function". job: a record, for MPI and for workers a `LaunchJob`. It is encoded here, but
        for an `EncodedJob`, and the entry decodes it on the host of the rank. log: the file into which ranks print.
        Raises RankError if a rank cannot be started.
        """
