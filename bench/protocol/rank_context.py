"""The context that a parent hands to a rank, and the first function that a rank runs."""

import importlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import environment
from bench.model.records import Json
from bench.protocol import messages
from bench.protocol.barrier import SemaphoreBarrier
from bench.protocol.channel import Line


@dataclass(slots=True)
class RankContext:
    """All that the launcher gives to a rank: its number, the connection to its parent, the rendezvous with other ranks.

    barrier: used before timed calls and blocks; None if the ranks have different parents and so cannot share one.
    progress: shared array with a counter for each rank, and behind them one more than the index of the case that rank 0
        measures (0: none yet): the parent reads it when a rank dies; a message would wake the parent while ranks
        measure.
    rendezvous: "file:PATH" or "tcp:HOST:PORT", through which the process group forms.
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
