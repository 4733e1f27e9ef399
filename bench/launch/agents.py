"""Rank 0's connections to the agents of a job: accept them, keep what they report, notice which are lost.

In: a listening socket and a key. Out: handshakes, connections to ranks, and `RemoteRank`, which the supervisor uses
like a child process on its own host. The other end is `agent`; `protocol/messages.py` lists the messages.

One thread accepts connections, and one for each agent reads its messages, so that an agent that is stuck holds up
nobody. They record what arrives and turn away a second process with the same rank; everything else is decided in the
main thread.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError

from bench.launch.ranks import KILL_WAIT_S
from bench.model.errors import JobError, LostRankError, RankError
from bench.model.records import Json
from bench.protocol import channel, messages
from bench.protocol.channel import AuthenticatedConnection

# Polling interval of the threads, in seconds: they notice the end of the job within it.
LOOK_EVERY_S = 0.25
# An agent opens the connection of a rank within milliseconds, before it forks the rank: beyond this time it is stuck.
RANK_LINE_WAIT_S = 30.0
RANK_LINE_SILENT_S = channel.SILENT_S + 15
# What a message of another version, or of a process that should not be here, can cause.
ODD = (AttributeError, KeyError, TypeError, ValueError)
# The agents have this long to exit after the last message.
LEAVE_WAIT_S = 5.0


@dataclass(slots=True)
class RemoteAgent:
    """One other process of the job. lost: why it no longer answers; None while it does. reader: reads its messages."""

    rank: int
    line: AuthenticatedConnection
    handshake: Json
    lost: str | None = None
    gone: bool = False
    current: "RemoteRank | None" = None
    reader: threading.Thread = field(default_factory=threading.Thread)

    def tell(self, message: Json) -> None:
        """Send a message; if that fails, mark the agent as lost."""
        try:
            messages.send(self.line, message)
        except OSError:
            self.lose()

    def lose(self, why: str = "is lost") -> None:
        """Mark the agent as lost, with the reason."""
        self.gone = True
        self.lost = self.lost or f"rank {self.rank} on host {self.handshake['hostname']} {why}"


@dataclass(slots=True)
class RemoteRank:
    """A rank that an agent has started, with what was last reported of it. Implements `ranks.Rank`."""

    agents: "Agents"
    agent: RemoteAgent
    launch: int
    exit_code: int | None = None
    count: int = 0
    said_state: str = "running"
    said_stack: str = ""
    log: str = ""
    problem: str | None = None
    line: AuthenticatedConnection | None = field(default=None)

    @property
    def rank(self) -> int:
        return self.agent.rank

    @property
    def connection(self) -> AuthenticatedConnection:
        assert self.line is not None  # noqa: S101 - the crew hands it out with its line
        return self.line

    @property
    def lost(self) -> str | None:
        return self.agent.lost

    def progress(self) -> int:
        """As last reported. The supervisor calls this often, so an interrupt of another process is raised here."""
        self.agents.raise_if_interrupted()
        return self.count

    def position(self) -> int:
        """Only rank 0 tells it, which is never on another host."""
        return -1

    def state(self) -> str:
        """As last reported."""
        return self.said_state

    def ask_stack(self) -> None:
        """Ask the agent for the state and the stack; the answer arrives later, as a message."""
        self.agent.tell({"kind": "inspect", "launch": self.launch})

    def stack(self) -> str:
        """As last reported."""
        return self.said_stack

    def kill(self) -> None:
        """Tell its agent to kill it."""
        if self.exit_code is None and not self.lost:
            self.agent.tell({"kind": "kill", "launch": self.launch})

    def join(self, seconds: float) -> None:
        """Wait until its agent has reported its end; an agent that does not is marked as lost."""
        self.agents.wait_until(lambda: self.exit_code is not None or self.lost or self.problem, seconds)
        if self.exit_code is None and self.problem is None:
            self.agent.lose("does not answer")


class Agents:
    """Context that accepts the agents, and at its end tells them to exit with the status `code`."""

    def __init__(self, listener: socket.socket, key: bytes, world_size: int) -> None:
        self._listener, self._key, self._world_size = listener, key, world_size
        self._changed = threading.Condition()
        self._members: dict[int, RemoteAgent] = {}
        self._lines: dict[tuple[int, int], AuthenticatedConnection] = {}
        self._problem: str | None = None
        self._interrupted = self._closing = False
        self.code = 1

    def __enter__(self) -> "Agents":
        self._listener.settimeout(LOOK_EVERY_S)
        self._accepting = threading.Thread(target=self._take_in, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        agents = list(self._members.values())
        for agent in agents:
            if not agent.gone:
                agent.tell({"kind": "leave", "code": self.code})
        self.wait_until(lambda: all(agent.gone for agent in agents), LEAVE_WAIT_S)
        self._closing = True
        self._accepting.join()
        self._listener.close()
        for agent in agents:
            with contextlib.suppress(OSError):  # its thread then reads the end
                agent.line.hang_up()
            agent.reader.join()
        for line in (*self._lines.values(), *(agent.line for agent in agents)):
            line.close()

    def gather(self, own: Json, seconds: float) -> list[Json]:
        """All handshakes, in order of rank. Raises JobError if one is missing after `seconds`, or comes twice."""
        wanted = set(range(1, self._world_size))
        self.wait_until(lambda: self._interrupted or self._problem or wanted <= set(self._members), seconds)
        self.raise_if_interrupted()
        if self._problem:
            raise JobError(self._problem)
        missing = sorted(wanted - set(self._members))
        if missing:
            names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise JobError(
                f"of {self._world_size} ranks {len(missing)} did not come within {seconds:g} s: {names}; the same "
                "command must run on all of them, with the same COLLBENCH_SECRET if one is set"
            )
        return [own, *(self._members[rank].handshake for rank in sorted(wanted))]

    def raise_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt if one of the other processes was interrupted."""
        if self._interrupted:
            raise KeyboardInterrupt

    def start(self, launch: int, world_size: int, messages: Sequence[Json]) -> list[RemoteRank]:
        """Have the agents start ranks 1 to world_size - 1. messages: fields of the `start` message of each.

        Raises LostRankError if one of these agents is lost: before anything is started, if that is known by then.
        Raises RankError if an agent could not start its rank.
        """
        self.raise_if_interrupted()
        members = [self._members[rank] for rank in range(1, world_size)]
        _raise_if_lost(members)
        ranks = [RemoteRank(self, agent, launch) for agent in members]
        try:
            for rank, message in zip(ranks, messages, strict=True):
                rank.agent.current = rank
                rank.agent.tell({"kind": "start", "launch": launch, **message})
            for rank in ranks:
                rank.line = self._line(rank)
        except BaseException:
            self._stop(ranks)
            raise
        return ranks

    def _stop(self, ranks: Sequence[RemoteRank]) -> None:
        """End the ranks of a launch that could not be started completely."""
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.join(KILL_WAIT_S)
            line = rank.line or self._lines.pop((rank.launch, rank.rank), None)
            if line is not None:
                line.close()

    def wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until the condition is true, which the threads check after each message, or `seconds` are over."""
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def _line(self, rank: RemoteRank) -> AuthenticatedConnection:
        place = (rank.launch, rank.rank)
        self.wait_until(
            lambda: place in self._lines or rank.lost or rank.problem or self._interrupted, RANK_LINE_WAIT_S
        )
        self.raise_if_interrupted()
        if rank.problem:
            raise RankError(rank.problem)
        if place not in self._lines:
            rank.agent.lose("does not answer")
            _raise_if_lost([rank.agent])
        return self._lines.pop(place)

    # ── the threads ──────────────────────────────────────────────────────────────────────────────
    def _take_in(self) -> None:
        while not self._closing:
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # above all too many open files: accept would fail again at once
                time.sleep(LOOK_EVERY_S)
                continue
            threading.Thread(target=self._greet, args=(caller,), daemon=True).start()

    def _greet(self, caller: socket.socket) -> None:
        """Prove the key; the first message then says what the connection is for."""
        try:
            line = channel.answer(caller, self._key)
        except (AuthenticationError, OSError):
            return
        try:
            message, _ = messages.receive(line)
            with self._changed:
                if message["kind"] == "rank_line":
                    # Longer than for the agent's connection: a host is known to be lost before its rank is silent.
                    channel.set_keepalive(line, RANK_LINE_SILENT_S)
                    self._lines[int(message["launch"]), int(message["rank"])] = line
                elif message["kind"] == "handshake":
                    self._register(message, line)
                self._changed.notify_all()
        except (EOFError, OSError, *ODD):
            line.close()

    def _register(self, handshake: Json, line: AuthenticatedConnection) -> None:
        rank = int(handshake["rank"])
        other = self._members.get(rank)
        if other is not None or not 0 < rank < self._world_size:
            hosts = " and ".join(
                sorted({handshake["hostname"], other.handshake["hostname"] if other else "that of rank 0"})
            )
            self._problem = f"two processes say that they are rank {rank} of {self._world_size}, on host {hosts}"
            with contextlib.suppress(OSError):
                messages.send(line, {"kind": "leave", "code": JobError.exit_code})
            return
        agent = self._members[rank] = RemoteAgent(rank, line, handshake)
        agent.reader = threading.Thread(target=self._read, args=(agent,), daemon=True)
        agent.reader.start()

    def _read(self, agent: RemoteAgent) -> None:
        """Note what an agent says until it is gone. It waits without a time limit, and wakes up for messages only."""
        while not agent.gone:
            message: Json = {"kind": "end"}
            with contextlib.suppress(EOFError, OSError):
                agent.line.poll(None)
                message, _ = messages.receive(agent.line)
            with self._changed:
                try:
                    self._note(agent, message)
                except ODD:  # another version of CollBench
                    agent.lose("speaks another language")
                self._changed.notify_all()

    def _note(self, agent: RemoteAgent, message: Json) -> None:
        kind, rank = message["kind"], agent.current
        if kind == "end":
            agent.lose()
        elif kind == "interrupted":
            self._interrupted = True
        elif rank is not None and message.get("launch") == rank.launch:
            if kind == "progress":
                rank.count = message["value"]
            elif kind == "inspected":
                rank.said_state, rank.said_stack = message["state"], message["stack"]
            elif kind == "failed":
                rank.problem = message["text"]
            elif kind == "ended":
                rank.log, rank.exit_code = message["log"], message["code"]


def _raise_if_lost(agents: Sequence[RemoteAgent]) -> None:
    lost = next((agent for agent in agents if agent.lost), None)
    if lost is not None:
        raise LostRankError(lost.rank, str(lost.lost))
