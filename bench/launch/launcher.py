"""Start ranks as fresh processes on this machine, and end them, whatever state they are in.

In: an entry point ("package.module:function") and its job. Out: `Ranks`, with a two-way connection to each. Knows
nothing of cases or collectives: `supervisor` exchanges messages with the ranks.

A fork server loads torch once, in the background, while this process goes on (and never loads it);
each rank is forked from it in about 10 ms. The rendezvous of ranks on one host is a file in a private folder
(`torch.distributed.FileStore`): a TCPStore would listen on every interface of the machine. In a job (`coordinator`,
`agent`), each process of the job forks one rank with `Launcher.fork`.
"""

import contextlib
import ctypes
import multiprocessing as mp
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from bench.launch.ranks import KILL_WAIT_S, Ranks
from bench.machine import environment
from bench.model.errors import RankError
from bench.model.records import Json
from bench.protocol.channel import Line
from bench.protocol.rank_context import RankContext, SemaphoreBarrier, barriers, enter
from bench.store import locks

PRELOAD = ["bench.rank.preload"]
KEY_BYTES = 32


@dataclass(slots=True)
class LocalRank:
    """A rank that is a child of this process; implements `ranks.Rank`.

    stack_file: where it writes its Python stack on SIGUSR1. counts: `RankContext.progress`.
    """

    rank: int
    process: BaseProcess
    connection: Line
    stack_file: Path
    counts: Any
    lost: str | None = None
    log: str = ""
    health: Mapping[str, Json] = field(default_factory=dict)

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    def progress(self) -> int:
        return int(self.counts[self.rank])

    def position(self) -> int:
        return int(self.counts[-1]) - 1

    def state(self) -> str:
        try:
            return str(psutil.Process(self.process.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    def ask_stack(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.process.is_alive() and self.process.pid:
                psutil.Process(self.process.pid).send_signal(signal.SIGUSR1)

    def stack(self) -> str:
        try:
            return self.stack_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()  # a rank in a collective reacts to no other signal

    def join(self, seconds: float) -> None:
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
        # Ctrl-C goes to every process of the terminal: this process handles it, the ranks must not. They inherit that
        # SIGINT is blocked. Here it waits until the server has been started; were it ignored, it would be lost.
        try:
            resource_tracker.ensure_running()  # starts a process, too, and then unblocks SIGINT
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                forkserver.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The server itself is not reaped here: multiprocessing checks for its exit before it starts another.
        for server in fork_servers():
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
        key = secrets.token_bytes(KEY_BYTES)
        members: list[LocalRank] = []
        ranks = Ranks(members, partial(shutil.rmtree, folder, ignore_errors=True), kept=barrier)
        try:
            for rank in range(world_size):
                member = self.fork(
                    entry,
                    job,
                    folder,
                    rank=rank,
                    world_size=world_size,
                    rendezvous=f"file:{folder / 'store'}",
                    key=key,
                    device=rank,
                    barrier=barrier[rank],
                    counts=counts,
                    variables=variables[rank] if variables else {},
                )
                members.append(member)
        except BaseException:
            ranks.kill()
            raise
        return ranks

    def folder(self) -> Path:
        """A new folder for the files of a rank, or of mpirun; the caller removes it."""
        return self._rendezvous.place()

    def fork(
        self,
        entry: str,
        job: object,
        folder: Path,
        *,
        rank: int,
        world_size: int,
        rendezvous: str,
        key: bytes,
        device: int,
        line: Line | None = None,
        barrier: SemaphoreBarrier | None = None,
        counts: Any = None,
        listener: socket.socket | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> LocalRank:
        """Fork one rank of a process group; its other ranks may be forked by other processes.

        folder: for its files. line: its connection to the supervisor, if that is in another process; None for a pipe to
        this process. counts: the array `progress` of its context, if it shares one. `RankContext` describes the others.
        """
        try:
            ours, theirs = (line, line) if line else self._context.Pipe()
            context = RankContext(
                rank=rank,
                world_size=world_size,
                connection=theirs,
                barrier=barrier,
                progress=counts or self._context.RawArray(ctypes.c_uint64, world_size + 1),
                rendezvous=rendezvous,
                key=key,
                stack_file=folder / f"stack-{rank}",
                shared_folder=self._rendezvous.folder,
                device=device,
                listener=listener,
                variables=dict(variables),
            )
            process = self._context.Process(target=enter, args=(entry, context, job), name=f"rank {rank}")
            process.start()
            theirs.close()
        except (EOFError, OSError) as error:  # of the operating system, or of a broken fork server
            raise RankError(f"the ranks' processes could not be started: {type(error).__name__} {error}") from None
        return LocalRank(rank, process, ours, context.stack_file, context.progress)


def fork_servers() -> list[psutil.Process]:
    """The fork servers of this process: one, or none."""
    servers = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                servers.append(child)
    return servers


# ── the rendezvous of ranks on one host ──────────────────────────────────────────────────────────
PREFIX, LOCK = "collbench-", "lock"


class RendezvousFolder:
    """Context with a private `folder` for rendezvous files and stacks; no other run removes it while the context lasts.

    The process that made it holds a lock in it and removes it at its end. If that process is killed, its ranks remove
    the folder. If they could not either, the next run finds the lock free and removes it.
    place: where to make it; None for the temporary folder.
    """

    folder: Path

    def __init__(self, place: Path | None = None) -> None:
        self._place = place

    def __enter__(self) -> "RendezvousFolder":
        place = self._place or Path(tempfile.gettempdir())
        remove_abandoned(place)
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            with contextlib.suppress(OSError):  # another run took it for abandoned before it was locked
                self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                if locks.exclusive(self._lock) is not False and (self.folder / LOCK).exists():
                    return self
                os.close(self._lock)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def place(self) -> Path:
        """A new folder for one launch."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def remove_abandoned(place: Path | None = None) -> None:
    """Remove the folders of runs that were killed before they could do so."""
    for folder in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user, or is just being removed
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if locks.exclusive(lock) is True:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
