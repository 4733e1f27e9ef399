"""Start ranks as fresh processes on this machine, and end them, whatever state they are in.

In: a target ("package.module:function") and its argument. Out: a list of `Rank` handles with a two-way
pipe each. Knows nothing of cases or collectives: `supervisor` talks to the ranks.

A fork server loads torch once, in the background, while this process goes on (and never loads it);
each rank is forked from it in about 10 ms. The ranks meet through a file in a private folder
(`torch.distributed.FileStore`): a TCPStore would listen on every interface of the machine.
"""

import contextlib
import ctypes
import importlib
import json
import multiprocessing as mp
import shutil
import signal
import threading
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.errors import RankError
from bench.measure import environment
from bench.measure.gate import Gate, gates
from bench.measure.meeting import Meeting
from bench.records import Json

PRELOAD = ["bench.measure.preload"]
# SIGKILL leaves no choice; what takes longer is the kernel freeing gigabytes of buffers.
KILL_WAIT_S = 10.0
SAMPLED = b"sampled\n"


@dataclass(slots=True)
class Rank:
    """One rank's process. `stack_file`: where it writes its Python stack on SIGUSR1."""

    rank: int
    process: BaseProcess
    connection: Connection
    stack_file: Path

    def send(self, message: Json) -> None:
        self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> tuple[Json, bytes | None]:
        """The next message and, with `sampled`, its line; raises EOFError or OSError when the rank is gone.

        The line is passed on byte for byte: it can be megabytes, and only the journal needs it.
        """
        raw = self.connection.recv_bytes()
        if raw.startswith(SAMPLED):
            return {"kind": "sampled"}, raw[len(SAMPLED) :]
        return json.loads(raw), None


@dataclass(slots=True)
class Ranks:
    """The ranks of one process group. `progress[r]` grows as rank r goes through its iterations.

    gates: kept here because their semaphores vanish with the last reference in this process.
    """

    members: list[Rank]
    progress: Any
    folder: Path
    gates: list[Gate]

    def kill(self) -> None:
        """End every rank now and wait until it is gone."""
        for member in self.members:
            if member.process.is_alive():
                member.process.kill()
        for member in self.members:
            member.process.join(KILL_WAIT_S)
            member.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def state(self, rank: int) -> str:
        """What the operating system says of a rank: running, sleeping, stopped, zombie, gone."""
        try:
            return str(psutil.Process(self.members[rank].process.pid).status())
        except psutil.NoSuchProcess:
            return "gone"


class Launcher:
    """Context in which ranks can be started. Entering returns at once; torch loads meanwhile."""

    def __init__(self) -> None:
        self._context = mp.get_context("forkserver")
        self._meeting = Meeting()

    def __enter__(self) -> "Launcher":
        environment.prepare_process()
        self._meeting.__enter__()
        self._context.set_forkserver_preload(PRELOAD)
        # Ctrl-C goes to every process of the terminal: this one answers it, the ranks must not.
        with _interrupts_ignored():
            forkserver.ensure_running()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # The server itself stays unreaped: multiprocessing looks for its exit before it starts another.
        for server in _fork_servers():
            ranks = server.children(recursive=True)
            for process in (server, *ranks):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(ranks, timeout=KILL_WAIT_S)
        self._meeting.__exit__()

    def start(self, world_size: int, target: str, argument: Any) -> Ranks:
        """Fork `world_size` ranks, each of which runs `target(seat, argument)`."""
        folder = self._meeting.place()
        progress = self._context.RawArray(ctypes.c_uint64, world_size)
        gate = gates(self._context, world_size)
        members: list[Rank] = []
        ranks = Ranks(members, progress, folder, gate)
        try:
            for rank in range(world_size):
                ours, theirs = self._context.Pipe()
                store, stack = folder / "store", folder / f"stack-{rank}"
                seat = Seat(rank, world_size, theirs, gate[rank], progress, store, stack, self._meeting.folder)
                process = self._context.Process(target=_enter, args=(target, seat, argument), name=f"rank {rank}")
                process.start()
                theirs.close()
                members.append(Rank(rank, process, ours, seat.stack_file))
        except (EOFError, OSError) as error:
            ranks.kill()
            raise RankError(f"the ranks' processes could not be started: {type(error).__name__} {error}") from None
        except BaseException:
            ranks.kill()
            raise
        return ranks


@dataclass(slots=True)
class Seat:
    """What a rank is given by the launcher: who it is, the way to its parent, where to meet the others.

    gate: the barrier before each timed call. rendezvous: the file through which the process group forms.
    meeting: the folder that all launches of the run share.
    """

    rank: int
    world_size: int
    connection: Connection
    gate: Gate
    progress: Any
    rendezvous: Path
    stack_file: Path
    meeting: Path

    def send(self, message: Json, line: bytes = b"") -> None:
        """A message to the parent; `sampled` carries its line instead."""
        sampled = message["kind"] == "sampled"
        self.connection.send_bytes(SAMPLED + line if sampled else json.dumps(message).encode())

    def wait_for_word(self) -> None:
        """Until the parent says something; there is only one thing that it says."""
        self.connection.recv_bytes()


def _enter(target: str, seat: Seat, argument: Any) -> None:
    """First function in a rank. The target is named by text: the parent must not import its module."""
    module, _, function = target.partition(":")
    try:
        entry = getattr(importlib.import_module(module), function)
    except BaseException as error:  # torch missing or broken: the parent is told, and says so in one line
        seat.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
        raise
    entry(seat, argument)


class _interrupts_ignored:  # noqa: N801 - reads as a statement
    """SIGINT is ignored inside, and by the processes that are started inside."""

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


def request_stacks(ranks: Ranks) -> None:
    """Ask each living rank to write its Python stack; one that is stopped will not."""
    for member in ranks.members:
        if member.process.is_alive() and member.process.pid:
            psutil.Process(member.process.pid).send_signal(signal.SIGUSR1)
