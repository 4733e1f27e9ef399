"""Coordinate a job from rank 0: accept the agents of the other processes, have them start ranks, notice lost agents.

In: a `JobRank` and a function that returns the request of this process. Out: a `Coordinator` with a description of
the job and a `JobLauncher`, which `sweep` uses in place of a `Launcher`. Everything else (plan, folder, journal,
report) is as on one machine. The other end is `agent`; `protocol/messages.py` lists the messages.

In a job, too, every launch has fresh processes and a fresh process group. The processes that torchrun or srun started
are not in that group: each forks a new rank per launch, so that it can kill a rank that hangs. A smaller world size
uses the first ranks of the job, or the first chosen ranks. It is not a subgroup of a long-lived group: the other ranks
of such a group would wait, and fail with it.
"""

import contextlib
import itertools
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from pathlib import Path

from collbench.catalog.backends import BACKENDS
from collbench.launch import compatibility
from collbench.launch.job import JobRank
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import KILL_WAIT_S, NO_LOG, LaunchJob, Ranks
from collbench.launch.secret import JobSecret
from collbench.machine import environment, network
from collbench.model.errors import (
    INTERRUPTED,
    UNEXPECTED,
    BenchError,
    JobError,
    LostRankError,
    MpirunError,
    StartError,
    StoreError,
)
from collbench.model.records import Demands, Json, Machine
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection
from collbench.protocol.rank_context import Board
from collbench.store import encoding, folders

# Launchers start the processes of a job within seconds of each other, but a host may have to pull a container first.
JOIN_WAIT_S = 120.0
# Polling interval of the threads, in seconds: they notice the end of the job within it.
LOOK_EVERY_S = 0.25
# An agent opens the connection of a rank within milliseconds, before it forks the rank: a slower agent is stuck.
RANK_LINE_WAIT_S = 30.0
RANK_LINE_SILENT_S = channel.SILENT_S + 15
# An agent sends its handshake at once after its proof. The limit is shorter than TCP's (`channel.set_keepalive`).
HANDSHAKE_S = 20
# Remedy if ranks on several hosts do not reach each other: stores and libraries listen on free ports.
ANY_PORT = "hosts must reach each other on any port"
# The agents have this long to exit after the last message, in seconds.
LEAVE_WAIT_S = 5.0


@dataclass(slots=True)
class Coordinator:
    """The job as rank 0 sees it."""

    place: JobRank
    launcher: "JobLauncher"
    # Handshakes of the processes that joined, in order of rank.
    handshakes: list[Json]
    # Ranks of the processes that did not join.
    absent: tuple[int, ...] = ()
    # Exit status of all processes of the job.
    code: int = 1

    def machine(self, demands: Demands | None = None) -> Machine:
        """Return the job as a `Machine` for planning. Raises JobError if ranks would share a GPU without permission."""
        shared = demands is not None and demands.shared_gpus
        if demands is not None and demands.gpus and not shared:
            compatibility.check_gpus(self.handshakes)
        self.launcher.devices = {h["rank"]: compatibility.device_of(h, shared) for h in self.handshakes}
        machine = compatibility.merged(self.handshakes)
        machine.backends_missing.update(self.place.missing_backends() | machine.backends_missing)
        return machine

    def choose(self, members: Sequence[int]) -> None:
        """Restrict later launches to these processes of the job, renumbered in this order; rank 0 is the first."""
        self.launcher.members = tuple(members)

    def lost(self) -> dict[int, str]:
        """Return the ranks of processes that no longer answer, with the reasons."""
        return self.launcher.agents.lost()

    def facts(self) -> Json:
        """Return facts for the record: launcher, number of ranks, and hosts; ranks are numbered as in launches."""
        handshakes = {handshake["rank"]: handshake for handshake in self.handshakes}
        members = [handshakes[member] | {"rank": rank} for rank, member in enumerate(self.launcher.members)]
        used = network.network_of(self.launcher.address)
        started = {"launcher": self.place.launcher, "ranks": len(members), "network": used}
        return {"job": started, "hosts": compatibility.hosts(members)}


@contextlib.contextmanager
def coordinating(
    place: JobRank,
    secret: JobSecret,
    request: Callable[[], bytes],
    before_leaving: Callable[[], None],
    partial: bool = False,
) -> Iterator[Coordinator]:
    """Connect all agents of the job while the context lasts. Raises JobError if the processes are not compatible.

    request: see `compatibility.handshake`. before_leaving: called before the agents receive `leave`. partial: whether
    the job goes on without processes that do not join in time.
    """
    listeners = listen(place, addresses_of_rank_0(place, time.monotonic() + JOIN_WAIT_S), secret)
    address, port = listeners[0].getsockname()[:2]
    interface = None if place.one_host else network.interface_of(address)
    with (
        contextlib.ExitStack() as joining,
        Agents(listeners, joining.enter_context(secret.made(port)), place.world_size) as agents,
        Launcher(interface) as launcher,
    ):
        try:
            handshakes = agents.gather(compatibility.handshake(place, request), JOIN_WAIT_S, partial)
            address = agents.reached() or address
            handshakes[0]["host"]["variables"] |= environment.towards(address)
            joining.close()  # every process that takes part knows the secret by now
            compatibility.check(handshakes)
            devices = {handshake["rank"]: compatibility.device_of(handshake) for handshake in handshakes}
            absent = tuple(rank for rank in range(place.world_size) if rank not in devices)
            starter = JobLauncher(launcher, agents, address, devices, tuple(devices))
            coordinator = Coordinator(place, starter, handshakes, absent)
            yield coordinator
            agents.code = coordinator.code
        except BenchError as error:
            agents.code = error.exit_code
            raise
        except (OSError, MemoryError) as error:  # the exit statuses are as in `cli.app`
            named = isinstance(error, MemoryError) or error.filename is not None
            agents.code = BenchError.exit_code if named else UNEXPECTED
            raise
        except KeyboardInterrupt:
            agents.code = INTERRUPTED
            raise
        finally:
            before_leaving()


def addresses_of_rank_0(place: JobRank, deadline: float) -> list[str]:
    """Return the addresses at which rank 0 may listen; none if the name of its host is unknown at the deadline.

    They are the addresses of the name except loopback. Hosts may know them in another order, so an agent tries each.
    Debian resolves a host's own name to 127.0.1.1: on that host, they are all addresses of the host.
    """
    addresses = network.resolve(place.address, deadline)
    if place.one_host or not addresses:
        return addresses[:1]
    return [address for address in addresses if not network.is_loopback(address)] or network.own_addresses()


def listen(place: JobRank, addresses: Sequence[str], secret: JobSecret | None = None) -> list[socket.socket]:
    """Return sockets that listen at the addresses that this host has, on the first port of the job that is free there.

    Raises JobError if there is none, or if another rank 0 of the same name still waits at a lower port: ranks of one
    job would join the other job. secret: its file on a lower port reveals such a rank 0.
    """
    own = [address for address in addresses if network.interface_of(address) or network.is_loopback(address)]
    if not own:
        named = ", ".join(addresses) or ", ".join(network.resolve(place.address, 0)) or "an unknown name"
        raise JobError(
            f"rank 0 cannot listen at {place.address} ({named}): set MASTER_ADDR to an address of its host that other "
            "hosts reach, or to localhost if all ranks are on this host"
        )
    for port in place.ports:
        listeners = [listener for address in own if (listener := channel.listen(address, [port])) is not None]
        if len(listeners) == len(own):
            return listeners
        for listener in listeners:
            listener.close()
        if secret is not None and secret.path(port).exists():
            raise JobError(
                f"another rank 0 waits for its ranks at port {port} of {own[0]}: give each process of a job its "
                "own rank, and each job its own MASTER_PORT"
            )
    numbers = f"{place.ports[0]} to {place.ports[-1]} of {' and '.join(own)}"
    raise JobError(f"ports {numbers} are all in use: set MASTER_PORT to another one")


@dataclass(slots=True)
class JobLauncher:
    """Starts rank 0 of each launch in this process, and has the agents start the other ranks."""

    launcher: Launcher
    agents: "Agents"
    # Address of this host, where rank 0 listens.
    address: str
    # Maps a rank of the job to its GPU number.
    devices: Mapping[int, int]
    # Ranks of the job that launches may use, rank 0 first. The index of a rank here is its rank in a launch.
    members: tuple[int, ...]
    # Environment variables of the ranks, from the side of `ab` that is measured.
    variables: Mapping[str, str] = field(default_factory=dict)
    launches: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    # The MPI ranks that were started last; None if no MPI ranks were started.
    mpi: Ranks | None = None

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG) -> Ranks:
        """See `ranks.Starter.start`; raises LostRankError at once if an agent that should start a rank is lost.

        Raises MpirunError for MPI ranks if the last launch of MPI ranks failed: they would wait for a lost rank.
        """
        by_mpi = isinstance(job, LaunchJob) and BACKENDS[job.launch.backend].library == "mpi4py"
        if by_mpi and self.mpi is not None and self.mpi.failed:
            raise MpirunError(
                "a rank of MPI was lost; mpirun does not replace it: start a job with collbench resume RUN"
            )
        listener = channel.listen(self.address, [0])
        assert listener is not None  # noqa: S101 - port 0 is any free one
        with listener:
            host, port = listener.getsockname()[:2]
            rendezvous = f"tcp:{host}:{port}"
            launch, encoded, variables = next(self.launches), encoding.encoded(job), dict(self.variables)
            order = {"launch": launch, "world_size": world_size, "rendezvous": rendezvous, "variables": variables}
            devices = {member: self.devices[member] for member in self.members[1:world_size]}
            others = self.agents.start(launch, devices, order, encoded)
            folder = self.launcher.folder()

            def clean() -> None:
                """Remove the folder of rank 0, and append the output of the other ranks on their hosts to the log."""
                shutil.rmtree(folder, ignore_errors=True)
                for rank in others:
                    if rank.log:
                        with contextlib.suppress(OSError, StoreError), folders.appending(log) as file:
                            file.write(
                                f"[rank {rank.rank} on host {rank.agent.hostname}]\n{rank.log.rstrip()}\n".encode()
                            )

            ranks = Ranks(others, clean, remedy="" if network.is_loopback(host) else f": {ANY_PORT}")
            try:
                own = self.launcher.fork(
                    entry,
                    encoded,
                    folder,
                    log,
                    rank=0,
                    world_size=world_size,
                    rendezvous=rendezvous,
                    key=self.agents.launch_key(launch),
                    board=Board(world_size),
                    device=self.devices[0],
                    listener=listener,
                    variables=environment.towards(host) | variables,
                )
            except BaseException:
                ranks.kill()
                raise
        ranks.members = [own, *others]
        if by_mpi:
            self.mpi = ranks
        return ranks


# ── the agents ───────────────────────────────────────────────────────────────────────────────────
@dataclass(slots=True)
class RemoteAgent:
    """The agent in one other process of the job."""

    rank: int
    line: AuthenticatedConnection
    handshake: Json
    # Reads the messages of the agent.
    reader: threading.Thread
    # Addresses of this host and of the agent, between which `line` is.
    ends: tuple[str, str]
    # Why the agent no longer answers; None while it answers.
    lost: str | None = None
    gone: bool = False
    # Maps a launch to the agent's rank that has not ended; there are several ranks while two sides take turns.
    ranks: "dict[int, RemoteRank]" = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        return str(self.handshake["hostname"])

    def notify(self, message: Json, payload: bytes = b"") -> None:
        """Send a message; if that fails, mark the agent as lost."""
        try:
            messages.send(self.line, message, payload)
        except OSError:
            self.lose()

    def lose(self, why: str = "is lost") -> None:
        """Mark the agent as lost, with the reason."""
        self.gone = True
        self.lost = self.lost or f"rank {self.rank} on host {self.hostname} {why}"


@dataclass(slots=True)
class RemoteRank:
    """A rank that an agent has started, with the agent's last report on it. Implements `ranks.Rank`."""

    agents: "Agents"
    agent: RemoteAgent
    launch: int
    # Rank in its launch; the rank of its agent in the job may differ.
    rank: int
    exit_code: int | None = None
    log: str = ""
    health: dict[str, Json] = field(default_factory=dict)
    # Why the rank could not be started; None if it could.
    problem: str | None = None
    line: AuthenticatedConnection | None = None
    reported_progress: int = 0
    reported_state: str = "running"
    reported_stack: str = ""

    @property
    def connection(self) -> AuthenticatedConnection:
        assert self.line is not None  # noqa: S101 - `Agents.start` returns it with its line
        return self.line

    @property
    def lost(self) -> str | None:
        return self.agent.lost

    def progress(self) -> int:
        """Return the reported progress; raise the interrupt of another process: the supervisor calls this often."""
        self.agents.raise_if_interrupted()
        return self.reported_progress

    def position(self) -> None:
        """Return None: only rank 0 reports a position, and rank 0 is never started by an agent."""

    def state(self) -> str:
        return self.reported_state

    def stack(self) -> str:
        return self.reported_stack

    def ask_stack(self) -> None:
        """Ask the agent for the state and the stack; the answer arrives later, as a message."""
        self.agent.notify({"kind": "inspect", "launch": self.launch})

    def kill(self) -> None:
        """Have the agent kill the rank."""
        if self.exit_code is None and not self.lost:
            self.agent.notify({"kind": "kill", "launch": self.launch})

    def join(self, seconds: float) -> None:
        """Wait until the agent has reported the end of the rank; mark an agent that does not report it as lost."""
        self.agents.wait_until(lambda: self.exit_code is not None or self.lost or self.problem, seconds)
        if self.exit_code is None and self.problem is None:
            self.agent.lose("does not answer")


class Agents:
    """Context that accepts the agents, and has them exit with the status `code` when it ends.

    A thread per listener accepts connections. Each connection has a thread that authenticates the caller and, if it is
    an agent, reads its messages; so a caller or an agent that is stuck delays nobody else. The threads record the
    messages and refuse a second process with the same rank; everything else is decided in the main thread.
    """

    def __init__(self, listeners: Sequence[socket.socket], key: bytes, world_size: int) -> None:
        self._listeners, self._key, self._world_size = listeners, key, world_size
        self._changed = threading.Condition()
        self._members: dict[int, RemoteAgent] = {}
        self._lines: dict[tuple[int, int], AuthenticatedConnection] = {}
        # Maps the address of a caller to the reason why no agent has joined from there.
        self._refused: dict[str, str] = {}
        # True if a caller knew the key, and then sent nothing.
        self._silent = False
        self._problem: str | None = None
        self._interrupted = self._closing = False
        self.code = UNEXPECTED  # until `coordinating` sets another status

    def __enter__(self) -> "Agents":
        self._accepting = []
        for listener in self._listeners:
            listener.settimeout(LOOK_EVERY_S)
            self._accepting.append(threading.Thread(target=self._accept, args=(listener,), daemon=True))
            self._accepting[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        agents = list(self._members.values())
        for agent in agents:
            if not agent.gone:
                agent.notify({"kind": "leave", "code": self.code})
        self.wait_until(lambda: all(agent.gone for agent in agents), LEAVE_WAIT_S)
        self._closing = True
        for accepting, listener in zip(self._accepting, self._listeners, strict=True):
            accepting.join(LEAVE_WAIT_S)
            listener.close()
        for agent in agents:
            with contextlib.suppress(OSError):  # its thread then reads the end
                agent.line.hang_up()
            agent.reader.join(LEAVE_WAIT_S)
        for line in (*self._lines.values(), *(agent.line for agent in agents)):
            line.close()

    def gather(self, own: Json, seconds: float, partial: bool = False) -> list[Json]:
        """Return all handshakes, in order of rank. partial: missing ranks are left out, unless all are missing.

        Raises JobError if a rank is missing after `seconds`, joins twice, or (if not partial) sends no handshake.
        """
        wanted, began = set(range(1, self._world_size)), time.monotonic()

        def settled() -> object:
            over = self._interrupted or self._problem or (self._silent and not partial)
            return over or wanted <= self._members.keys()

        self.wait_until(settled, seconds)
        self.raise_if_interrupted()
        if self._problem:
            raise JobError(self._problem)
        missing = sorted(wanted - self._members.keys())
        if missing and not (partial and len(missing) < len(wanted)):
            names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            places = " and ".join(str(listener.getsockname()[0]) for listener in self._listeners)
            refused = "".join(f"{peer} {why}; " for peer, why in self._refused.items())
            seen = (
                f"{refused}nobody {'else ' if self._members or refused else ''}connected: the same command must run on "
                "all ranks, and their hosts must reach rank 0 there"
            )
            raise JobError(
                f"{len(missing)} of {self._world_size} ranks did not join within {time.monotonic() - began:.0f} s: "
                f"{names}; rank 0 listens at {places}, port {self._listeners[0].getsockname()[1]}; {seen}"
            )
        return [own, *(self._members[rank].handshake for rank in sorted(wanted - set(missing)))]

    def reached(self) -> str | None:
        """Return the address of this host at which most agents have reached it, on other hosts if there are any."""
        ends = [agent.ends for agent in self._members.values()]
        there = Counter(own for own, peer in ends if own != peer) or Counter(own for own, _ in ends)
        return there.most_common(1)[0][0] if there else None

    def lost(self) -> dict[int, str]:
        """Return the ranks of agents that no longer answer, with the reasons."""
        return {rank: agent.lost for rank, agent in sorted(self._members.items()) if agent.lost is not None}

    def raise_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt if one of the other processes was interrupted."""
        if self._interrupted:
            raise KeyboardInterrupt

    def wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until the condition is true, at most `seconds`; it is evaluated again after each message."""
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def start(self, launch: int, devices: Mapping[int, int], order: Json, job: bytes) -> list[RemoteRank]:
        """Have agents start ranks 1, 2, … of a launch. devices: maps the job ranks of these agents, in order, to GPUs.

        order: common content of the `start` messages. job: encoded.

        Raises LostRankError if one of these agents is lost; if that is known beforehand, no rank is started.
        Raises StartError if an agent could not start its rank.
        """
        self.raise_if_interrupted()
        ranks = [RemoteRank(self, self._members[member], launch, rank) for rank, member in enumerate(devices, 1)]
        for rank in ranks:
            if rank.lost:
                raise LostRankError(rank.lost, rank.rank)
        try:
            for rank, device in zip(ranks, devices.values(), strict=True):
                rank.agent.ranks[launch] = rank
                rank.agent.notify({"kind": "start", **order, "rank": rank.rank, "device": device}, job)
            for rank in ranks:
                rank.line = self._line(rank)
        except BaseException:
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                rank.join(KILL_WAIT_S)
                line = rank.line or self._lines.pop((launch, rank.agent.rank), None)
                if line is not None:
                    line.close()
            raise
        return ranks

    def _line(self, rank: RemoteRank) -> AuthenticatedConnection:
        place = (rank.launch, rank.agent.rank)
        self.wait_until(
            lambda: place in self._lines or rank.lost or rank.problem or self._interrupted, RANK_LINE_WAIT_S
        )
        self.raise_if_interrupted()
        if rank.problem:
            raise StartError(rank.problem, rank.rank)
        if place not in self._lines:
            rank.agent.lose("does not answer")
            raise LostRankError(str(rank.lost), rank.rank)
        return self._lines.pop(place)

    def launch_key(self, launch: int) -> bytes:
        """Return the key with which the ranks of a launch authenticate each other; no message contains it."""
        return channel.derived(self._key, f"launch {launch}")

    # ── the threads ──────────────────────────────────────────────────────────────────────────────
    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                caller, (peer, *_) = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # mostly too many open files: accept would fail again at once
                time.sleep(LOOK_EVERY_S)
                continue
            try:
                threading.Thread(target=self._greet, args=(caller, peer), daemon=True).start()
            except RuntimeError:  # the limit of threads is reached: the caller tries again, and so does this loop
                caller.close()
                time.sleep(LOOK_EVERY_S)

    def _greet(self, caller: socket.socket, peer: str) -> None:
        """Authenticate the caller; its first message then states the purpose of the connection."""
        try:
            reached = str(caller.getsockname()[0])
            line = channel.answer(caller, self._key)
        except (AuthenticationError, OSError):
            self._refuse(peer, "connected without a proof: set the same COLLBENCH_SECRET in all processes")
            return
        agent = None
        try:
            channel.limit(line, HANDSHAKE_S)
            message, _ = messages.receive(line)
            channel.limit(line, channel.MESSAGE_S)
            with self._changed:
                if message["kind"] == "rank_line":
                    # Longer than for the agent's connection: a lost host is noticed before the silence of its rank.
                    channel.set_keepalive(line, RANK_LINE_SILENT_S)
                    self._lines[int(message["launch"]), int(message["rank"])] = line
                elif message["kind"] == "handshake":
                    agent = self._registered(message, line, (reached, peer))
                self._changed.notify_all()
        except (EOFError, OSError) as error:
            silent = isinstance(error, BlockingIOError)  # the time limit, within which small packets arrived
            what = f"sent nothing for {HANDSHAKE_S} s: do large packets arrive (MTU)?" if silent else "failed"
            with self._changed:
                self._silent |= silent
                self._refuse(peer, f"proved itself, then {what}")
            why = f"rank 0 reports that {peer} proved itself, then {what}"
            with contextlib.suppress(OSError):
                messages.send(line, {"kind": "leave", "code": JobError.exit_code, "why": why})
            line.close()
        if agent is not None:
            self._read(agent)

    def _refuse(self, peer: str, why: str) -> None:
        with self._changed:
            self._refused[peer] = why
            self._changed.notify_all()

    def _registered(self, handshake: Json, line: AuthenticatedConnection, ends: tuple[str, str]) -> RemoteAgent | None:
        """Register and return the agent that sent the handshake; None if its rank is invalid or already registered."""
        rank = int(handshake["rank"])
        other = self._members.get(rank)
        if other is not None or not 0 < rank < self._world_size:
            hosts = {handshake["hostname"], other.hostname if other else "that of rank 0"}
            self._problem = (
                f"two processes say that they are rank {rank} of {self._world_size}, "
                f"on host {' and '.join(sorted(hosts))}"
            )
            with contextlib.suppress(OSError):
                messages.send(line, {"kind": "leave", "code": JobError.exit_code, "why": self._problem})
            return None
        agent = self._members[rank] = RemoteAgent(rank, line, handshake, threading.current_thread(), ends)
        self._refused.pop(ends[1], None)  # such as a caller at the limit of threads
        return agent

    def _read(self, agent: RemoteAgent) -> None:
        """Record the messages of an agent until it is gone. The wait for the next message has no time limit."""
        while not agent.gone:
            message: Json = {"kind": "end"}
            with contextlib.suppress(EOFError, OSError):
                agent.line.poll(None)
                message, _ = messages.receive(agent.line)
            with self._changed:
                self._record(agent, message)
                self._changed.notify_all()

    def _record(self, agent: RemoteAgent, message: Json) -> None:
        kind, rank = message["kind"], agent.ranks.get(message.get("launch", 0))
        if kind == "end":
            agent.lose()
        elif kind == "interrupted":
            self._interrupted = True
        elif rank is not None:
            if kind == "progress":
                rank.reported_progress = message["value"]
            elif kind == "inspected":
                rank.reported_state, rank.reported_stack = message["state"], message["stack"]
            elif kind == "failed":
                rank.problem = message["text"]
                del agent.ranks[rank.launch]
            elif kind == "ended":
                rank.log, rank.health, rank.exit_code = message["log"], message["health"], message["code"]
                del agent.ranks[rank.launch]
