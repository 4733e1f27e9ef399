"""Run the agent, in every process of a job except rank 0: start a rank per launch when rank 0 asks, and report on it.

In: a `JobRank` and a function that returns the request of this process. Out: the exit status, which rank 0 sends.
The agent measures nothing, prints nothing and loads no torch: its rank, a child process, does. So the agent answers
even while the rank hangs. `protocol/messages.py` lists the messages.
"""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.variables import unsettable
from collbench.launch import compatibility
from collbench.launch.coordinator import ANY_PORT, JOIN_WAIT_S, addresses_of_rank_0
from collbench.launch.job import JobRank
from collbench.launch.launcher import Launcher, LocalRank
from collbench.launch.ranks import KILL_WAIT_S, RANK
from collbench.launch.secret import REMEDY, JobSecret
from collbench.machine import environment, host, interrupts, network
from collbench.machine.gpus import HealthMeter
from collbench.model.errors import INTERRUPTED, ConfigError, JobError, RankError, reason_of
from collbench.model.records import Job, Json
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection
from collbench.protocol.rank_context import Board
from collbench.store import encoding

# Polling interval of the agent, in seconds: short compared with the supervisor's time-outs.
LOOK_EVERY_S = 0.25
# Rank 0 receives at most this many progress reports per second, from all agents together.
MOST_REPORTS_A_SECOND = 1000
# Time limit of one attempt to reach rank 0, in seconds; behind a firewall, attempts run into it.
CONNECT_S = 3.0
# Agents of this many ranks try the port of a launch's store. Nobody accepts them yet, and old kernels let 128 wait.
MOST_PROBING = 64
# Pause between two attempts to reach rank 0, in seconds.
AGAIN_S = 0.3
# Attempts to open a rank's connection are repeated for this long, in seconds: rank 0 may be at a limit of threads. The
# agent gives up before rank 0 considers the agent stuck.
RANK_LINE_TRIES_S = 15.0
# After an interrupt, rank 0 has this long to end the job in order, in seconds.
LEAVE_WAIT_S = 5.0
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
            return _Agent(place.rank, line, reached, key, launcher, trusted, request).serve()


@dataclass(slots=True)
class _Child:
    """A running rank."""

    launch: int
    process: LocalRank
    folder: Path
    meter: HealthMeter
    # Closing it ends the watch over the rank's GPU and this host's network adapters; `meter` then has their record.
    watching: contextlib.ExitStack
    # Shortest time between two reports of progress, in seconds.
    report_s: float
    # Progress of the rank in the last report to rank 0.
    reported: int = 0
    # Monotonic time of the last report of progress.
    reported_at: float = 0.0
    # True if the stack of the rank is requested and not yet sent.
    asked: bool = False


@dataclass(slots=True)
class _Agent:
    """Executes the messages of rank 0, one after the other."""

    rank: int
    line: AuthenticatedConnection
    # Address and port of rank 0.
    reached: tuple[str, int]
    key: bytes
    launcher: Launcher
    trusted: bool
    asked: Callable[[], bytes]
    # Maps a launch to its rank. There are several ranks while two sides take turns.
    children: dict[int, _Child] = field(default_factory=dict)

    def serve(self) -> int:
        """Execute the messages of rank 0 until it sends `leave`; return the exit status in that message.

        An interrupt counts between two messages: half a message would be read as a lost agent.
        """
        try:
            with interrupts.deferred():
                return self._serve()
        except KeyboardInterrupt:
            return INTERRUPTED
        except (EOFError, OSError):
            raise JobError("rank 0 is lost: its process has ended or its host no longer answers") from None
        finally:
            self._kill_all()

    def _serve(self) -> int:
        while True:
            try:
                interrupts.raise_if_noted()
            except KeyboardInterrupt:
                # Rank 0 must know of the interrupt before it sees the rank end, which it would record as a failure.
                with contextlib.suppress(EOFError, OSError):
                    messages.send(self.line, {"kind": "interrupted"})
                    self._kill_all()
                    self._report()
                    self._wait_for_leave()
                raise
            sentinels = [child.process.process.sentinel for child in self.children.values()]
            ready: list[Any] = wait([self.line, *sentinels], LOOK_EVERY_S)  # type: ignore[list-item]
            if self.line in ready:
                message, job = messages.receive(self.line)
                if message["kind"] == "leave" and message.get("why"):  # rank 0 does not take this rank
                    raise JobError(str(message["why"]))
                if message["kind"] == "leave":
                    return int(message["code"])
                self._obey(message, job)
            self._report()

    def _obey(self, message: Json, job: bytes) -> None:
        if message["kind"] == "start":
            self._start(message, job)
            return
        child = self.children.get(message.get("launch", 0))
        if child is None:
            return  # that rank has ended meanwhile, which rank 0 knows
        if message["kind"] == "kill":
            _kill(child)
        elif message["kind"] == "inspect":
            child.asked = True
            child.process.ask_stack()
            self._notify(child, "inspected", state=child.process.state(), stack="")

    def _start(self, message: Json, encoded: bytes) -> None:
        """Start a rank. encoded: its job, passed on unchanged if this process permits its imports and variables."""
        launch, folder = message["launch"], self.launcher.folder()
        try:
            job: Job = encoding.decoded(encoded, Job)
            for name in encoding.imports_of(job):
                if not self.trusted and name.encode() not in self.asked():
                    raise RankError(f"{name} is not in the configuration of this process")
            variables = dict(message["variables"])
            for name, value in [*encoding.variables_of(job), *variables.items()]:
                if reason := unsettable(name, value):
                    raise RankError(f"{name}: {reason}")
            address = _reached_store(message["rendezvous"], message["rank"] <= MOST_PROBING)
            line = self._rank_line()
            messages.send(line, {"kind": "rank_line", "launch": launch, "rank": self.rank})
            channel.limit(line, 0)  # the rank waits for `go` without a time limit
            process = self.launcher.fork(
                RANK,
                encoded,
                folder,
                folder / "log",
                rank=message["rank"],
                world_size=message["world_size"],
                rendezvous=message["rendezvous"],
                key=channel.derived(self.key, f"launch {launch}"),
                board=Board(message["world_size"]),
                device=message["device"],
                line=line,
                variables=environment.towards(address) | variables,
            )
            on_gpu, watching = BACKENDS[job.launch.backend].device == "cuda", contextlib.ExitStack()
            meter = watching.enter_context(host.health_meter(on_gpu, message["device"]))
            report_s = message["world_size"] / MOST_REPORTS_A_SECOND
            self.children[launch] = _Child(launch, process, folder, meter, watching, report_s)
        except (AuthenticationError, OSError, RankError, KeyError, TypeError, ValueError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._refuse(launch, str(error))

    def _rank_line(self) -> AuthenticatedConnection:
        """Return a connection for a rank; raise AuthenticationError or OSError if it cannot be opened in time."""
        deadline = time.monotonic() + RANK_LINE_TRIES_S
        while True:
            try:
                return channel.connect(*self.reached, self.key, CONNECT_S)
            except (AuthenticationError, OSError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(AGAIN_S)

    def _refuse(self, launch: int, why: str) -> None:
        text = f"rank {self.rank} could not be started: {why}"
        messages.send(self.line, {"kind": "failed", "launch": launch, "text": text})

    def _report(self) -> None:
        """Send changes since the last report to rank 0: progress, requested stacks, ends of ranks."""
        for child in list(self.children.values()):
            count, now = child.process.progress(), time.monotonic()
            if count != child.reported and now - child.reported_at >= child.report_s:
                child.reported, child.reported_at = count, now
                self._notify(child, "progress", value=count)
            if child.asked and (stack := child.process.stack()):
                child.asked = False
                self._notify(child, "inspected", state=child.process.state(), stack=stack)
            if child.process.exit_code is not None:
                printed = b""
                with contextlib.suppress(OSError), (child.folder / "log").open("rb") as file:
                    size = file.seek(0, 2)
                    file.seek(max(0, size - LOG_BYTES))
                    printed = file.read()
                child.watching.close()
                text, health = printed.decode(errors="replace"), {host.hostname(): child.meter.record}
                self._notify(child, "ended", code=child.process.exit_code, log=text, health=health)
                shutil.rmtree(child.folder, ignore_errors=True)
                del self.children[child.launch]

    def _kill_all(self) -> None:
        for child in self.children.values():
            _kill(child)

    def _notify(self, child: _Child, kind: str, **fields: object) -> None:
        messages.send(self.line, {"kind": kind, "launch": child.launch, **fields})

    def _wait_for_leave(self) -> None:
        deadline = time.monotonic() + LEAVE_WAIT_S
        while self.line.poll(max(0.0, deadline - time.monotonic())):
            message, _ = messages.receive(self.line)
            if message["kind"] == "leave":
                return
            if message["kind"] == "start":  # rank 0 did not know of the interrupt yet
                self._refuse(message["launch"], "interrupted")


def _kill(child: _Child) -> None:
    child.process.kill()
    child.process.join(KILL_WAIT_S)


def _reached_store(rendezvous: str, probe: bool) -> str:
    """Return the address of the store of a launch. Raises RankError if its port, which is any free one, is blocked."""
    address, _, port = rendezvous.removeprefix("tcp:").rpartition(":")
    try:
        if probe:
            socket.create_connection((address, int(port)), RANK_LINE_TRIES_S).close()
    except OSError as error:
        raise RankError(f"its host does not reach port {port} of {address} ({reason_of(error)}): {ANY_PORT}") from None
    return address


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
