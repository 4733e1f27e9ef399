"""Take part in a job, in every process except rank 0: start a rank per launch when rank 0 asks.

In: a `JobRank` and a function that returns the request of this process. Out: the exit status, which rank 0 sends. This
process is a `Worker`; the other end is `coordinator`.
"""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from pathlib import Path

from collbench.catalog.backends import BACKENDS
from collbench.catalog.variables import unsettable
from collbench.launch import compatibility
from collbench.launch.coordinator import ANY_PORT, addresses_of_rank_0
from collbench.launch.job import JobRank
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import RANK, Ranks
from collbench.launch.secret import REMEDY, JobSecret
from collbench.launch.worker import AGAIN_S, CONNECT_S, Worker
from collbench.launch.workers import JOIN_WAIT_S
from collbench.machine import environment, host, network
from collbench.model.errors import ConfigError, JobError, RankError, StartError, reason_of
from collbench.model.records import Job, Json
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection
from collbench.store import encoding

# Processes of this many ranks try the port of a launch's store. Nobody accepts them yet, and old kernels let 128 wait.
MOST_PROBING = 64
# Time limit of that attempt, in seconds.
STORE_WAIT_S = 15.0
# Only the end of a rank's output is sent, because it shows why the rank exited.
LOG_BYTES = 64 * 1024


def run_agent(place: JobRank, secret: JobSecret, request: Callable[[], bytes], trusted: bool) -> int:
    """Serve rank 0 until it sends `leave`. Raises JobError if rank 0 cannot be reached, or is lost.

    trusted: its rank may import modules that `request` does not name, as the user confirmed for the run to resume.
    """
    deadline = time.monotonic() + JOIN_WAIT_S
    interface = None
    if not place.one_host and (addresses := addresses_of_rank_0(place, deadline)):
        interface = network.interface_towards(addresses[0])
    with Launcher(interface) as launcher:
        handshake = compatibility.handshake(place, request)
        line, reached, key = _reach(place, secret, deadline)
        handshake["host"]["variables"] |= environment.towards(reached[0])
        with line:
            messages.send(line, handshake)
            begin = Agent(launcher, key, request, trusted).begin
            blame = f"rank {place.rank} could not be started"
            return Worker(line, reached, key, begin, blame, StartError).serve()


@dataclass(slots=True)
class Agent:
    """Starts the rank of this process in each launch of a job."""

    launcher: Launcher
    key: bytes
    # Returns the request of this process, which names the modules that its ranks may import.
    request: Callable[[], bytes]
    # True if ranks may import other modules, too.
    trusted: bool

    def begin(self, order: Json, encoded: bytes, connect: Callable[[int], AuthenticatedConnection]) -> Ranks:
        """See `worker.Begin`. The job is passed on unchanged if this process permits its imports and variables."""
        job: Job = encoding.decoded(encoded, Job)
        self._check(job, dict(order["variables"]))
        (rank,), folder, watching = order["ranks"], self.launcher.folder(), contextlib.ExitStack()
        watching.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            if rank <= MOST_PROBING:
                _probe_store(order["rendezvous"])
            own = {"rank": rank, "device": order["device"], "line": connect(rank)}
            process = self.launcher.fork_in_job(RANK, encoded, folder, folder / "log", order, self.key, **own)
        except BaseException:
            watching.close()
            raise
        on_gpu = BACKENDS[job.launch.backend].device == "cuda"
        meter = watching.enter_context(host.health_meter(on_gpu, order["device"]))

        def clean() -> None:
            """End the watch over the rank's GPU and this host's network adapters, and keep the record and the log."""
            process.log = _end_of(folder / "log")
            watching.close()
            process.health = {host.hostname(): meter.record}

        return Ranks([process], clean)

    def _check(self, job: Job, variables: dict[str, str]) -> None:
        """Raise RankError if the job imports modules, or sets variables, that this process does not permit."""
        for name in encoding.imports_of(job):
            if not self.trusted and name.encode() not in self.request():
                raise RankError(f"{name} is not in the configuration of this process")
        for name, value in [*encoding.variables_of(job), *variables.items()]:
            if reason := unsettable(name, value):
                raise RankError(f"{name}: {reason}")


def _end_of(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
        return file.read().decode(errors="replace")
    return ""


def _probe_store(rendezvous: str) -> None:
    """Raise RankError if the port of a launch's store, which is any free one, is blocked."""
    address, _, port = rendezvous.removeprefix("tcp:").rpartition(":")
    try:
        socket.create_connection((address, int(port)), STORE_WAIT_S).close()
    except OSError as error:
        raise RankError(f"its host does not reach port {port} of {address} ({reason_of(error)}): {ANY_PORT}") from None


def _reach(
    place: JobRank, secret: JobSecret, deadline: float
) -> tuple[AuthenticatedConnection, tuple[str, int], bytes]:
    """Return a connection to rank 0, the address and the port at which it was reached, and the key that it knew.

    Nothing is sent to a port without a key. Raises ConfigError if no port has a key, else JobError at the deadline.
    """
    problems: dict[int, str] = {}
    unreached: dict[str, str] = {}
    any_key, addresses = False, list[str]()
    while time.monotonic() < deadline:
        addresses = addresses_of_rank_0(place, deadline)
        for port in place.ports:
            try:
                key = secret.key(port)
            except ConfigError as error:
                problems[port] = str(error)
                continue
            if key is None:
                continue
            any_key = True
            for address in addresses:
                try:
                    return channel.connect(address, port, key, CONNECT_S), (address, port), key
                except AuthenticationError as error:
                    problems[port] = str(error)
                except OSError as error:
                    unreached[address] = reason_of(error)
        time.sleep(AGAIN_S)
    reasons = "; ".join(f"{port}: {why}" for port, why in sorted(problems.items()))
    if addresses and not any_key:
        folder = secret.path(place.ports[0]).parent
        raise ConfigError(f"rank 0 left no secret in {folder} ({reasons or 'no file'}): start them there, or {REMEDY}")
    never = ", ".join(f"{address} ({why})" for address, why in unreached.items()) or "it: its name is unknown here"
    raise JobError(
        f"rank {place.rank} did not reach rank 0 within {JOIN_WAIT_S:g} s at {place.address}, ports {place.ports[0]} "
        f"to {place.ports[-1]}: {reasons or f'never connected to {never}'}"
    )
