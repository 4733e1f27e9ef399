"""Accept workers, have them start ranks, record their reports, and notice that they are lost.

A worker is a process elsewhere that starts ranks on request: another process of a job (`coordinator`), or the process
of a side of `ab` (`sides`). In: sockets that listen, and a key. Out: `RemoteRank` values for the supervisor. The other
end is `worker`; `protocol/messages.py` lists the messages.

Nothing runs in the background. Whoever waits for workers, and the supervisor at each poll, serves all connections that
have something to read (`Workers.serve`) and waits for none of them: a caller or a worker that is stuck delays nobody.
"""

import contextlib
import itertools
import math
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import AuthenticationError
from pathlib import Path

from collbench.launch.ranks import KILL_WAIT_S, Ranks
from collbench.launch.turns import LOOK_EVERY_S
from collbench.machine import interrupts
from collbench.model.errors import UNEXPECTED, JobError, LostRankError, MpirunError, RankError, StartError, StoreError
from collbench.model.records import Json
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection, Reading
from collbench.store import folders

# Workers of a job start within seconds of each other, but a host may have to pull a container first. The process of a
# side may have to load its packages from a cold disk.
JOIN_WAIT_S = 120.0
# A worker opens the connection of a rank within milliseconds, before it forks the rank: a slower worker is stuck.
RANK_LINE_WAIT_S = 30.0
RANK_LINE_SILENT_S = channel.SILENT_S + 15
# A worker sends its handshake at once after its proof. The limit is shorter than TCP's (`channel.set_keepalive`).
HANDSHAKE_S = 20
# The workers have this long to exit after the last message, in seconds.
LEAVE_WAIT_S = 5.0
# A worker that is asked for the state of a rank answers at once, even if the rank does not end.
ANSWER_S = 2.0
# Connections that may be without a proof at once; another one closes the oldest. All workers of a large job may connect
# in one second.
MOST_UNPROVED = 1024
# Connections accepted, and messages read from one connection, before others have their turn.
MOST_AT_ONCE = 64
# Pause after a connection could not be accepted, mostly because of too many open files, in seconds.
ACCEPT_AGAIN_S = 0.02
NO_PROOF = "connected without a proof: set the same COLLBENCH_SECRET in all processes"
# Errors that a connection has failed, or that a message lacks a field or has another type of value.
MALFORMED = (EOFError, OSError, LookupError, TypeError, ValueError)
# Errors that a worker may report by name.
ERRORS = {error.__name__: error for error in (RankError, StartError, MpirunError, LostRankError)}


@dataclass(slots=True)
class RemoteWorker:
    """A worker that has joined."""

    # In a job, its rank.
    number: int
    line: AuthenticatedConnection
    handshake: Json
    # Addresses of this host and of the worker, between which `line` is.
    ends: tuple[str, str]
    # Why the worker no longer answers; None while it answers.
    lost: str | None = None
    # Monotonic time of its last message.
    heard_at: float = 0.0
    # Maps a launch to its ranks at this worker that have not ended. Several launches run while two sides take turns.
    launches: "dict[int, list[RemoteRank]]" = field(default_factory=dict)

    @property
    def hostname(self) -> str:
        return str(self.handshake["hostname"])

    def notify(self, message: Json, payload: bytes = b"") -> None:
        """Send a message; if that fails, mark the worker as lost."""
        try:
            messages.send(self.line, message, payload)
        except OSError:
            self.lose()

    def lose(self, why: str = "is lost") -> None:
        """Mark the worker as lost, with the reason."""
        self.lost = self.lost or f"rank {self.number} on host {self.hostname} {why}"


@dataclass(slots=True)
class RemoteRank:
    """A rank that a worker has started, with the worker's last reports on it. Implements `ranks.Rank`."""

    workers: "Workers"
    worker: RemoteWorker
    launch: int
    # Rank in its launch; the rank of its worker in the job may differ.
    rank: int
    line: AuthenticatedConnection | None = None
    # Why the rank could not be started; None if it could.
    problem: RankError | None = None
    # From the reports `progress`, `inspected` and `ended`.
    progress: int = 0
    position: int | None = None
    state: str = "running"
    stack: str = ""
    exit_code: int | None = None
    parent_lost: str | None = None
    log: str = ""
    health: Mapping[str, Json] = field(default_factory=dict)
    open_to: tuple[str, ...] = ()

    @property
    def connection(self) -> AuthenticatedConnection:
        assert self.line is not None  # noqa: S101 - `Workers.start` returns it with its line
        return self.line

    @property
    def lost(self) -> str | None:
        return self.worker.lost or self.parent_lost

    def ask_stack(self) -> None:
        """Ask the worker for the state and the stack; the answer arrives later, as a message."""
        self.worker.notify({"kind": "inspect", "launch": self.launch, "rank": self.rank})

    def kill(self) -> None:
        """Have the worker kill the rank."""
        if self.exit_code is None and not self.lost:
            self.worker.notify({"kind": "kill", "launch": self.launch, "rank": self.rank})

    def join(self, seconds: float) -> None:
        """Wait until the worker has reported the end of the rank; mark a worker that answers nothing as lost."""
        self.workers.wait_until(self._is_over, max(seconds, self.workers.stopped_s))
        if not self._is_over():
            self.ask_stack()
            asked = time.monotonic()
            self.workers.wait_until(lambda: self._is_over() or self.worker.heard_at > asked, ANSWER_S)
            if not self._is_over() and self.worker.heard_at <= asked:
                self.worker.lose("does not answer")

    def _is_over(self) -> bool:
        return self.exit_code is not None or self.lost is not None or self.problem is not None


@dataclass(slots=True)
class _Caller:
    """An accepted connection, and the function that reads it."""

    raw: socket.socket
    # Monotonic time until which the next message, or the whole proof, must have arrived.
    deadline: float = math.inf
    steps: Reading[None] = field(init=False)
    # Number of bytes that `steps` needs next, and those of them that have arrived.
    wanted: int = 0
    arrived: bytearray = field(default_factory=bytearray)

    def receive(self) -> bytes | None:
        """Return the bytes that are needed next; None if some of them have not arrived. Raises EOFError and OSError."""
        while len(self.arrived) < self.wanted:
            try:
                piece = self.raw.recv(self.wanted - len(self.arrived), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not piece:
                raise EOFError
            self.arrived += piece
            self.deadline = min(self.deadline, time.monotonic() + channel.MESSAGE_S)
        complete, self.arrived = bytes(self.arrived), bytearray()
        return complete


class Workers:
    """Context in which workers join and start ranks; when it ends, they exit with the status `code`.

    numbers: the workers that may join. check: called while this process waits for workers or ranks; it may raise.
    stopped_s: a worker may be stopped, and so be silent, for this long before it counts as lost.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: bytes,
        numbers: Collection[int],
        check: Callable[[], None] = lambda: None,
        stopped_s: float = 0.0,
    ) -> None:
        self.listeners, self.key, self._numbers, self._check = listeners, key, numbers, check
        self.stopped_s = stopped_s
        self._selector = selectors.DefaultSelector()
        # Maps descriptors to the connections, and to those that have not proved themselves, the oldest first.
        self._callers: dict[int, _Caller] = {}
        self._unproved: dict[int, _Caller] = {}
        # Monotonic time at which deadlines are looked at again: a large job has thousands of connections.
        self._check_deadlines_at = 0.0
        # Maps (launch, rank) to the ranks that have no connection yet.
        self._expected: dict[tuple[int, int], RemoteRank] = {}
        self.members: dict[int, RemoteWorker] = {}
        # Maps the address of a caller to the reason why no worker has joined from there.
        self.refused: dict[str, str] = {}
        # True if a caller knew the key, and then sent nothing.
        self.silent = False
        # Why the workers do not fit together; None if they do.
        self.problem: str | None = None
        self.interrupted = False
        self.code = UNEXPECTED
        # The next launch; launches of different workers have different numbers.
        self.launches = itertools.count(1)

    def __enter__(self) -> "Workers":
        for listener in self.listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.members.values():
            if worker.lost is None:
                worker.notify({"kind": "leave", "code": self.code})
        self.wait_until(lambda: all(worker.lost for worker in self.members.values()), LEAVE_WAIT_S)
        for caller in self._callers.values():
            caller.raw.close()
        for worker in self.members.values():
            worker.line.close()
        for listener in self.listeners:
            listener.close()
        self._selector.close()

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────
    def look(self, ranks: Sequence[RemoteRank] = ()) -> None:
        """Serve all connections. Raises an interrupt of any process, or the error by which a rank was not started."""
        interrupts.raise_if_noted()
        self.serve()
        if self.interrupted:
            raise KeyboardInterrupt
        self._check()
        for rank in ranks:
            if rank.problem is not None:
                raise rank.problem

    def wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Serve all connections until the condition is true, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition() and (left_s := deadline - time.monotonic()) > 0:
            self.serve(min(left_s, LOOK_EVERY_S))

    # ── joining ──────────────────────────────────────────────────────────────────────────────────
    def join(self, seconds: float, enough: Callable[[], object] = lambda: False) -> list[int]:
        """Wait until all workers have joined, or `enough` is true, at most `seconds`; return those that are missing.

        Raises JobError if a worker joins twice.
        """

        def settled() -> object:
            self.look()
            return self.problem or enough() or len(self.members) == len(self._numbers)

        self.wait_until(settled, seconds)
        if self.problem:
            raise JobError(self.problem)
        return sorted({*self._numbers} - self.members.keys())

    def reached(self) -> str | None:
        """Return the address of this host at which most workers have reached it, on other hosts if there are any."""
        ends = [worker.ends for worker in self.members.values()]
        there = Counter(own for own, peer in ends if own != peer) or Counter(own for own, _ in ends)
        return there.most_common(1)[0][0] if there else None

    def lost(self) -> dict[int, str]:
        """Return the numbers of workers that no longer answer, with the reasons."""
        self.serve()
        return {number: worker.lost for number, worker in sorted(self.members.items()) if worker.lost is not None}

    # ── starting ranks ───────────────────────────────────────────────────────────────────────────
    def start(self, shares: Sequence[tuple[int, Json]], order: Json, job: bytes, log: Path) -> Ranks:
        """Have workers start ranks of a launch; return the ranks once each has its connection to this process.

        shares: for each worker its number and its own part of the message `start`. order: the common part. job:
        encoded. log: gets the output of ranks that print into files of their own, once they have ended.

        Raises LostRankError if one of the workers is lost; if that is known beforehand, no rank is started.
        Raises RankError if a worker could not start its ranks.
        """
        self.look()
        launch = order["launch"]
        members = [RemoteRank(self, self.members[n], launch, rank) for n, own in shares for rank in own["ranks"]]
        for rank in members:
            if rank.lost:
                raise LostRankError(rank.lost, rank.rank)
        for rank in members:
            rank.worker.launches.setdefault(launch, []).append(rank)
            self._expected[launch, rank.rank] = rank
        try:
            for number, own in shares:
                self.members[number].notify({"kind": "start", **order, **own}, job)
            for rank in members:
                self._wait_for_line(rank)
        except BaseException:
            for rank in members:
                rank.kill()
            for rank in members:
                rank.join(KILL_WAIT_S)
                self._expected.pop((launch, rank.rank), None)
            raise

        def clean() -> None:
            for worker in {rank.worker.number: rank.worker for rank in members}.values():
                worker.launches.pop(launch, None)
            ranks.open_to = next((rank.open_to for rank in members), ())
            with contextlib.suppress(OSError, StoreError):
                for rank in [rank for rank in members if rank.log]:
                    with folders.appending(log) as file:
                        file.write(f"[rank {rank.rank} on host {rank.worker.hostname}]\n{rank.log.rstrip()}\n".encode())

        ranks = Ranks(members, clean, partial(self.look, members))
        return ranks

    def _wait_for_line(self, rank: RemoteRank) -> None:
        def settled() -> object:
            self.look([rank])
            return rank.line or rank.lost

        self.wait_until(settled, RANK_LINE_WAIT_S)
        if rank.line is None:
            rank.worker.lose("does not answer")
            raise LostRankError(str(rank.lost), rank.rank)

    # ── connections ──────────────────────────────────────────────────────────────────────────────
    def serve(self, seconds: float = 0.0) -> None:
        """Serve all connections that have something to read; wait for at most `seconds` until there is one."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            else:
                self._go_on(key.data)
        if (now := time.monotonic()) >= self._check_deadlines_at:
            self._check_deadlines_at = now + LOOK_EVERY_S
            for caller in [caller for caller in self._callers.values() if now > caller.deadline]:
                self._go_on(caller, late=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                raw, (peer, *_) = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                time.sleep(ACCEPT_AGAIN_S)
                return
            caller = _Caller(raw)
            caller.steps = self._converse(caller, peer)
            self._selector.register(raw, selectors.EVENT_READ, caller)
            self._callers[raw.fileno()] = self._unproved[raw.fileno()] = caller
            if len(self._unproved) > MOST_UNPROVED:
                self._go_on(next(iter(self._unproved.values())), late=True)
            self._go_on(caller)

    def _go_on(self, caller: _Caller, late: bool = False) -> None:
        """Pass what has arrived on a connection to the function that reads it. late: its deadline is over."""
        try:
            for _ in range(MOST_AT_ONCE):
                try:
                    if late:
                        raise TimeoutError
                    arrived = caller.receive()
                except (EOFError, OSError) as error:
                    late, caller.wanted = False, caller.steps.throw(error)
                else:
                    if arrived is None:
                        return
                    caller.wanted = caller.steps.send(arrived or None)  # type: ignore[arg-type] # None begins
        except StopIteration:
            self._selector.unregister(caller.raw)
            del self._callers[caller.raw.fileno()]
            self._unproved.pop(caller.raw.fileno(), None)
            caller.raw.close()

    def _converse(self, caller: _Caller, peer: str) -> Reading[None]:
        """Authenticate a caller; its first message then states the purpose of the connection."""
        reached = str(caller.raw.getsockname()[0])
        caller.deadline = time.monotonic() + channel.PROOF_S
        try:
            line = yield from channel.answer(caller.raw, self.key)
        except (AuthenticationError, EOFError, OSError):
            self.refused[peer] = NO_PROOF
            return
        del self._unproved[caller.raw.fileno()]
        caller.deadline = time.monotonic() + HANDSHAKE_S
        try:
            message, _ = messages.parsed((yield from line.reading()))
            worker = self._admitted(message, line, (reached, peer))
        except MALFORMED as error:
            self._refuse(line, peer, isinstance(error, TimeoutError))
            return
        if worker is not None:
            yield from self._listen(caller, worker)

    def _admitted(self, message: Json, line: AuthenticatedConnection, ends: tuple[str, str]) -> RemoteWorker | None:
        """Take the connection of a rank; or register a worker, and return it. Raises an error of MALFORMED."""
        if message["kind"] == "handshake":
            return self._registered(message, line, ends)
        # Longer than for the worker's connection: a lost host is noticed before the silence of its rank.
        channel.set_keepalive(line, RANK_LINE_SILENT_S)
        if (rank := self._expected.pop((message["launch"], message["rank"]), None)) is not None:
            rank.line = line
        return None

    def _refuse(self, line: AuthenticatedConnection, peer: str, silent: bool) -> None:
        """Refuse a caller that sent no handshake. silent: until the time limit, within which small packets arrived."""
        what = f"sent nothing for {HANDSHAKE_S} s: do large packets arrive (MTU)?" if silent else "failed"
        self.silent |= silent
        self.refused[peer] = f"proved itself, then {what}"
        self._dismiss(line, f"rank 0 reports that {peer} proved itself, then {what}")

    def _dismiss(self, line: AuthenticatedConnection, why: str) -> None:
        with line, contextlib.suppress(OSError):
            messages.send(line, {"kind": "leave", "code": JobError.exit_code, "why": why})

    def _registered(self, handshake: Json, line: AuthenticatedConnection, ends: tuple[str, str]) -> RemoteWorker | None:
        """Register and return the worker that sent the handshake; None if its number is invalid or registered."""
        number = int(handshake["rank"])
        other = self.members.get(number)
        if other is not None or number not in self._numbers:
            hosts = {handshake["hostname"], other.hostname if other else "that of rank 0"}
            self.problem = (
                f"two processes say that they are rank {number} of {len(self._numbers) + 1}, "
                f"on host {' and '.join(sorted(hosts))}"
            )
            self._dismiss(line, self.problem)
            return None
        worker = self.members[number] = RemoteWorker(number, line, handshake, ends)
        self.refused.pop(ends[1], None)  # such as a caller whose first attempt came too late
        return worker

    def _listen(self, caller: _Caller, worker: RemoteWorker) -> Reading[None]:
        """Record the messages of a worker until it is lost. The wait for the next message has no time limit."""
        while worker.lost is None:
            caller.deadline = math.inf
            try:
                message, _ = messages.parsed((yield from worker.line.reading()))
                worker.heard_at = time.monotonic()
                if worker.lost is None:
                    self._record(worker, message)
            except MALFORMED:
                worker.lose()

    def _record(self, worker: RemoteWorker, message: Json) -> None:
        self.interrupted |= message["kind"] == "interrupted"
        launch = worker.launches.get(message.get("launch", 0), [])
        for rank in [rank for rank in launch if message.get("rank", rank.rank) == rank.rank]:
            match message["kind"]:
                case "progress":
                    rank.progress, rank.position = message["progress"], message["position"]
                case "inspected":
                    rank.state, rank.stack = message["state"], message["stack"]
                case "failed":
                    alone = rank.rank if len(launch) == 1 else None
                    rank.problem = ERRORS[message["error"]](message["text"], alone)
                case "ended":
                    rank.exit_code, rank.parent_lost, rank.log = message["exit_code"], message["lost"], message["log"]
                    rank.health, rank.open_to = message["health"], tuple(message["open_to"])
        launch[:] = [rank for rank in launch if rank.exit_code is None and rank.problem is None]
