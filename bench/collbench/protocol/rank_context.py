"""Define the context that a parent gives to a rank, the memory and barrier of ranks on one host, and a rank's start.

In: data from the launcher. Out: all that a rank needs to join the other ranks, be watched, and talk to its parent.
"""

import ctypes
import errno
import importlib
import mmap
import os
import socket
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from collbench.machine import environment
from collbench.machine.network import is_loopback
from collbench.model.records import Json
from collbench.protocol import messages
from collbench.protocol.channel import Line

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True

# Bytes from one semaphore to the next. A `sem_t` has at most 32; processors load cache lines of 64 bytes in pairs.
SEMAPHORE_BYTES = 128
_libc = ctypes.CDLL(None, use_errno=True)


class Board:
    """Memory that the ranks of one launch share with their parent: counters, and two semaphores for each rank.

    The memory has no name, so nothing of it remains, whichever process is killed. It can be sent to a child process.
    """

    def __init__(self, world_size: int, descriptor: int | None = None) -> None:
        self.world_size = world_size
        counts_at = 2 * world_size * SEMAPHORE_BYTES
        size = counts_at + (world_size + 1) * ctypes.sizeof(ctypes.c_uint64)
        self._descriptor = os.memfd_create("collbench") if descriptor is None else descriptor
        os.ftruncate(self._descriptor, size)
        weakref.finalize(self, os.close, self._descriptor)
        memory = mmap.mmap(self._descriptor, size)
        # One counter per rank, and then the index of the case that rank 0 measures, plus one (0: no case yet). The
        # parent reads them when it polls; a message would wake the parent while ranks measure.
        self.counts = (ctypes.c_uint64 * (world_size + 1)).from_buffer(memory, counts_at)
        first = ctypes.addressof(self.counts) - counts_at  # the memory stays mapped while the array exists
        # Addresses of the semaphores.
        self.semaphores = [ctypes.c_void_p(first + number * SEMAPHORE_BYTES) for number in range(2 * world_size)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.world_size, DupFd(self._descriptor))


def _received(world_size: int, descriptor: Any) -> Board:
    return Board(world_size, descriptor.detach())


@dataclass(slots=True)
class SemaphoreBarrier:
    """A barrier of two semaphore hops for ranks on one host, used before timed calls and blocks.

    Compared with `dist.barrier` on a gloo control group (interleaved blocks in one process group on two cores), a
    barrier takes 0.11 ms instead of 0.8 ms at 2 ranks, and 0.8 ms instead of 3.8 ms at 4 ranks. The 90th percentile
    of the arrival skew fell from 0.17 to 0.08 ms and from 4.1 to 0.7 ms. After gloo's barrier, gloo's threads still
    have work to do, and they compete with the timed call for the cores. Ranks of a job share no memory and have to use
    `dist.barrier`.

    The ranks take turns as master, one barrier each. The master releases the other ranks and therefore leaves first or
    last: a fixed master would look early or late (docs/develop/statistics.md, "Naming a rank").

    Rank r waits on two semaphores of the board: as master, on number 2r for the other ranks; otherwise, on number
    2r + 1 for the master.
    """

    rank: int
    board: Board
    rounds: int = 0

    def wait(self) -> None:
        """Return once every rank has called it. If a rank dies, the other ranks wait until the supervisor ends them."""
        self.rounds += 1
        world_size = self.board.world_size
        master = self.rounds % world_size
        if self.rank != master:
            self._release(2 * master)
            self._acquire(2 * self.rank + 1)
            return
        for _ in range(world_size - 1):
            self._acquire(2 * master)
        for step in range(1, world_size):
            self._release(2 * ((master + step) % world_size) + 1)

    def _release(self, number: int) -> None:
        if _libc.sem_post(self.board.semaphores[number]):
            raise OSError(ctypes.get_errno(), "sem_post")

    def _acquire(self, number: int) -> None:
        while _libc.sem_wait(self.board.semaphores[number]):
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "sem_wait")


def barriers(board: Board) -> list[SemaphoreBarrier]:
    """Return one barrier object per rank."""
    for semaphore in board.semaphores:
        if _libc.sem_init(semaphore, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init")
    return [SemaphoreBarrier(rank, board) for rank in range(board.world_size)]


@dataclass(slots=True)
class RankContext:
    """All data that the launcher gives to a rank: its number, the connection to its parent, the rendezvous."""

    rank: int
    world_size: int
    connection: Line
    # Where the rank counts its iterations.
    board: Board
    # "file:PATH" or "tcp:HOST:PORT", through which the process group forms.
    rendezvous: str
    # Key of the launch, with which its ranks authenticate each other.
    key: bytes
    # File into which the rank prints.
    log: Path
    # File into which the rank writes its Python stack on SIGUSR1.
    stack_file: Path
    # Number of the GPU of the rank, if it needs one.
    device: int
    # Used before timed calls and blocks; None if the ranks have different parents and so cannot share one.
    barrier: SemaphoreBarrier | None = None
    # On rank 0 of a "tcp:" rendezvous, the socket that listens there.
    listener: socket.socket | None = None
    # Environment variables that the rank sets for itself.
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_one_host(self) -> bool:
        """Return whether all ranks are on this host."""
        kind, _, place = self.rendezvous.partition(":")
        return kind == "file" or is_loopback(place.rpartition(":")[0])

    def tick(self) -> None:
        """Count an iteration of this rank."""
        self.board.counts[self.rank] += 1

    def enters(self, position: int) -> None:
        """Record that rank 0 now measures case number `position` of the launch, from 0; do nothing on other ranks."""
        if self.rank == 0:
            self.board.counts[self.world_size] = position + 1

    def send(self, message: Json, payload: bytes = b"") -> None:
        """Send a message and its payload to the parent."""
        messages.send(self.connection, message, payload)

    def wait_for_go(self) -> None:
        """Wait for a message from the parent, which sends only `go`."""
        self.connection.recv_bytes()

    def wait_for_turn(self) -> None:
        """Give up the turn, and sleep until the next turn. Every rank calls it: in a barrier, MPI would busy-wait."""
        self.send({"kind": "turn"})
        self.wait_for_go()


def enter(target: str, context: RankContext, job: bytes) -> None:
    """Run the job of a rank by `target`, which decodes it; this is the first function of the process.

    target: text, "package.module:function", because the parent must not import that module.
    """
    module, _, function = target.partition(":")
    environment.adopt(context.variables)
    try:
        entry = getattr(importlib.import_module(module), function)
    except BaseException as error:  # torch is missing or broken: the parent reports it in one line
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
        raise
    entry(context, job)
