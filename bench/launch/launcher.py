"""Start ranks as fresh processes on this machine, and end them, whatever state they are in.

In: a target ("package.module:function") and its argument. Out: `Ranks`, with a two-way connection to each. Knows
nothing of cases or collectives: `supervisor` exchanges messages with the ranks.

A fork server loads torch once, in the background, while this process goes on (and never loads it);
each rank is forked from it in about 10 ms. The rendezvous of ranks on one host is a file in a private folder
(`torch.distributed.FileStore`): a TCPStore would listen on every interface of the machine. In a job (`coordinator`,
`agent`), each process of the job forks one rank with `Launcher.fork`.
"""

import contextlib
import ctypes
import multiprocessing as mp
import shutil
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.launch.ranks import KILL_WAIT_S, Ranks
from bench.launch.rendezvous import RendezvousFolder
from bench.machine import environment
from bench.model.errors import RankError
from bench.protocol.barrier import barriers
from bench.protocol.channel import Line
from bench.protocol.rank_context import RankContext, enter

PRELOAD = ["bench.rank.preload"]


@dataclass(slots=True)
class LocalRank:
    """A rank that is a child of this process. stack_file: where it writes its Python stack on SIGUSR1."""

    rank: int
    process: BaseProcess
    connection: Line
    stack_file: Path
    counts: Any
    lost: str | None = None
    log: str = ""

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    def progress(self) -> int:
        """Its own counter in the array that all ranks of the launch share."""
        return int(self.counts[self.rank])

    def position(self) -> int:
        """Index of the case, from behind the counters; -1 before the first."""
        return int(self.counts[-1]) - 1

    def state(self) -> str:
        """Its state, as psutil names it; "gone" if the process does not exist."""
        try:
            return str(psutil.Process(self.process.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    def ask_stack(self) -> None:
        """Send SIGUSR1, on which the rank writes its stack."""
        if self.process.is_alive() and self.process.pid:
            psutil.Process(self.process.pid).send_signal(signal.SIGUSR1)

    def stack(self) -> str:
        """The stack that it wrote; empty if it wrote none."""
        try:
            return self.stack_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """Send SIGKILL: a rank in a collective reacts to no other signal."""
        if self.process.is_alive():
            self.process.kill()

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self.process.join(seconds)


class Launcher:
    """Context in which ranks can be started. Entering returns at once; torch loads meanwhile.

    interface: leads to ranks on other hosts; None if all ranks are on this one. preload: modules besides torch that
    every rank needs. The fork server loads them once; otherwise all ranks would load them at the same time.
    """

    def __init__(self, interface: str | None = None, preload: Sequence[str] = ()) -> None:
        self._context = mp.get_context("forkserver")
        self._rendezvous = RendezvousFolder()
        self._interface = interface
        self._preload = [*preload, *PRELOAD]

    def __enter__(self) -> "Launcher":
        environment.prepare_process(self._interface)
        self._rendezvous.__enter__()
        self._context.set_forkserver_preload(self._preload)
        # Ctrl-C goes to every process of the terminal: this process handles it, the ranks must not.
        with _interrupts_ignored():
            forkserver.ensure_running()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # The server itself is not reaped here: multiprocessing checks for its exit before it starts another.
        for server in _fork_servers():
            ranks = server.children(recursive=True)
            for process in (server, *ranks):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(ranks, timeout=KILL_WAIT_S)
        self._rendezvous.__exit__()

    def start(self, world_size: int, entry: str, job: object, variables: Sequence[Mapping[str, str]] = ()) -> Ranks:
        """Fork `world_size` ranks, each of which runs `entry(context, job)`.

        variables: for each rank, environment variables besides those that all ranks inherit.
        """
        folder = self._rendezvous.place()
        counts = self._context.RawArray(ctypes.c_uint64, world_size + 1)
        # Kept by `ranks`: the barriers' semaphores vanish with the last reference in this process.
        barrier = barriers(self._context, world_size)
        members: list[LocalRank] = []
        ranks = Ranks(members, partial(shutil.rmtree, folder, ignore_errors=True), kept=barrier)
        try:
            for rank in range(world_size):
                ours, theirs = self._context.Pipe()
                store, stack = f"file:{folder / 'store'}", folder / f"stack-{rank}"
                context = RankContext(
                    rank, world_size, theirs, barrier[rank], counts, store, stack, self._rendezvous.folder, rank
                )
                context.variables = variables[rank] if variables else {}
                members.append(self._fork(context, entry, job, ours))
        except (EOFError, OSError) as error:
            ranks.kill()
            raise RankError(f"the ranks' processes could not be started: {type(error).__name__} {error}") from None
        except BaseException:
            ranks.kill()
            raise
        return ranks

    def folder(self) -> Path:
        """A new folder for the files of a rank, or of mpirun; the caller removes it."""
        return self._rendezvous.place()

    def fork(self, assignment: "RankAssignment", folder: Path, entry: str, job: object) -> LocalRank:
        """Fork one rank of a process group whose other ranks are forked by other processes."""
        counts = self._context.RawArray(ctypes.c_uint64, assignment.world_size + 1)
        ours, theirs = (assignment.line, assignment.line) if assignment.line else self._context.Pipe()
        context = RankContext(
            assignment.rank,
            assignment.world_size,
            theirs,
            None,
            counts,
            assignment.rendezvous,
            folder / "stack",
            self._rendezvous.folder,
            assignment.device,
            assignment.listener,
            assignment.variables,
        )
        try:
            return self._fork(context, entry, job, ours)
        except (EOFError, OSError) as error:
            raise RankError(f"the rank's process could not be started: {type(error).__name__} {error}") from None

    def _fork(self, context: RankContext, entry: str, job: object, ours: Line) -> LocalRank:
        process = self._context.Process(target=enter, args=(entry, context, job), name=f"rank {context.rank}")
        process.start()
        context.connection.close()
        return LocalRank(context.rank, process, ours, context.stack_file, context.progress)


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """Number, rendezvous and device of one rank of a job (`RankContext` describes the fields).

    line: its connection to the supervisor, if that is in another process; None for a pipe to this process.
    """

    rank: int
    world_size: int
    rendezvous: str
    device: int
    line: Line | None = None
    listener: socket.socket | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class _interrupts_ignored:  # noqa: N801 - reads as a statement
    """Context in which SIGINT is ignored, also by the processes that are started in it."""

    def __enter__(self) -> None:
        self._old = None
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)


def _fork_servers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                found.append(child)
    return found
