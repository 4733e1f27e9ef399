"""What a parent hands to a rank, and the first function that a rank runs."""

import importlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.machine import environment
from bench.protocol import messages
from bench.protocol.barrier import SemaphoreBarrier
from bench.records import Json


@dataclass(slots=True)
class RankContext:
    """What a rank is given by the launcher: who it is, the way to its parent, where to meet the others.

    gate: the barrier before each timed call; None where ranks share none, because their processes have
        different parents. rendezvous: "file:PATH" or "tcp:HOST:PORT", through which the process group forms.
    meeting: the folder that all launches of the run share on this host. device: number of its GPU, if it needs one.
    listener: on rank 0 of a "tcp:" rendezvous, the socket that listens there. variables: for its environment.
    """

    rank: int
    world_size: int
    connection: Connection
    barrier: SemaphoreBarrier | None
    progress: Any
    rendezvous: str
    stack_file: Path
    shared_folder: Path
    device: int
    listener: socket.socket | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def send(self, message: Json, payload: bytes = b"") -> None:
        """A message to the parent, with its payload."""
        messages.send(self.connection, message, payload)

    def wait_for_word(self) -> None:
        """Until the parent says something; there is only one thing that it says."""
        self.connection.recv_bytes()


def enter(target: str, context: RankContext, argument: Any) -> None:
    """First function in a rank. The target is named by text: the parent must not import its module."""
    module, _, function = target.partition(":")
    environment.adopt(context.variables)
    try:
        entry = getattr(importlib.import_module(module), function)
    except BaseException as error:  # torch missing or broken: the parent is told, and says so in one line
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
        raise
    entry(context, argument)
