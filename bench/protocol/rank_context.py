"""The context that a parent hands to a rank, with the barrier of ranks on one host, and a rank's first function."""

import importlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

from bench.machine import environment
from bench.model.records import Json
from bench.protocol import messages
from bench.protocol.channel import Line


@dataclass(slots=True)
class SemaphoreBarrier:
    """A barrier of two semaphore hops for ranks on one host, used before timed calls and blocks.

    Compared with `dist.barrier` on a gloo control group (interleaved blocks in one process group on two cores), a
    barrier takes 0.11 ms instead of 0.8 ms at 2 ranks, and 0.8 ms instead of 3.8 ms at 4 ranks. The 90th percentile
    of the arrival skew fell from 0.17 to 0.08 ms and from 4.1 to 0.7 ms. After gloo's barrier its threads still have
    work to do, and they compete with the timed call for the cores. Ranks of a job share no memory and have to use
    `dist.barrier`.

    Each barrier has another rank as its master, in turn. The master releases the others and therefore leaves first or
    last: a fixed master would look early or late (docs/method.md, "Naming a rank").
    """

    rank: int
    arrived: list[Semaphore]
    go: list[Semaphore]
    rounds: int = 0

    def wait(self) -> None:
        """Return once every rank has called it. If a rank dies, the others wait until the supervisor ends them."""
        self.rounds += 1
        world_size = len(self.go)
        master = self.rounds % world_size
        if self.rank != master:
            self.arrived[master].release()
            self.go[self.rank].acquire()
            return
        for _ in range(world_size - 1):
            self.arrived[master].acquire()
        for step in range(1, world_size):
            self.go[(master + step) % world_size].release()


def barriers(context: ForkServerContext, world_size: int) -> list[SemaphoreBarrier]:
    """One object per rank; together they are one barrier."""
    arrived = [context.Semaphore(0) for _ in range(world_size)]
    go = [context.Semaphore(0) for _ in range(world_size)]
    return [SemaphoreBarrier(rank, arrived, go) for rank in range(world_size)]


@dataclass(slots=True)
class RankContext:
    """All that the launcher gives to a rank: its number, the connection to its parent, the rendezvous with other ranks.

    barrier: used before timed calls and blocks; None if the ranks have different parents and so cannot share one.
    progress: shared array with a counter for each rank, and behind them one more than the index of the case that rank 0
        measures (0: none yet): the parent reads it when a rank dies; a message would wake the parent while ranks
        measure.
    rendezvous: "file:PATH" or "tcp:HOST:PORT", through which the process group forms. key: of the launch; its ranks
        know each other by it.
    stack_file: where the rank writes its Python stack on SIGUSR1.
    shared_folder: the folder that all launches of the run share on this host. device: number of its GPU, if it needs
        one. listener: on rank 0 of a "tcp:" rendezvous, the socket that listens there.
    variables: environment variables that the rank sets for itself.
    """

    rank: int
    world_size: int
    connection: Line
    barrier: SemaphoreBarrier | None
    progress: Any
    rendezvous: str
    key: bytes
    stack_file: Path
    shared_folder: Path
    device: int
    listener: socket.socket | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def tick(self) -> None:
        """Count an iteration of this rank."""
        self.progress[self.rank] += 1

    def enters(self, position: int) -> None:
        """Note that this rank now measures the launch's case number `position`, from 0; only rank 0's note counts."""
        if self.rank == 0:
            self.progress[self.world_size] = position + 1

    def send(self, message: Json, payload: bytes = b"") -> None:
        """Send a message and its payload to the parent."""
        messages.send(self.connection, message, payload)

    def wait_for_go(self) -> None:
        """Wait for a message of the parent; the only one that it sends is `go`."""
        self.connection.recv_bytes()

    def wait_for_turn(self) -> None:
        """Give up the turn, and sleep until the next one. Every rank does so itself: in a barrier, MPI would spin."""
        self.send({"kind": "turn"})
        self.wait_for_go()


def enter(target: str, context: RankContext, argument: Any) -> None:
    """First function of a rank. `target` is text, "package.module:function": the parent must not import that module."""
    module, _, function = target.partition(":")
    environment.adopt(context.variables)
    try:
        entry = getattr(importlib.import_module(module), function)
    except BaseException as error:  # torch is missing or broken: the parent reports it in one line
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
        raise
    entry(context, argument)
