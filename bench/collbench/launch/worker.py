"""Start ranks when the process at the other end of a connection asks for them, and report on them.

In: a connection whose ends have proved themselves, and a function that starts the ranks of an order. Out: the exit
status that the other end sends. A worker measures nothing, prints nothing and loads no torch: its ranks, which are
child processes, do. So it answers even while a rank hangs. The other end is `workers`.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import wait
from subprocess import SubprocessError
from typing import Any, cast

from collbench.launch.launcher import SERVER_END_S, UNREPORTED, LocalRank
from collbench.launch.ranks import KILL_WAIT_S, Ranks
from collbench.launch.turns import LOOK_EVERY_S
from collbench.machine import interrupts
from collbench.model.errors import INTERRUPTED, BenchError, JobError, LostRankError, MpirunError, RankError
from collbench.model.records import Json
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection

# The other end receives at most this many progress reports per second, from all workers together.
MOST_REPORTS_A_SECOND = 1000
# Time limit of one attempt to connect, in seconds; behind a firewall, attempts run into it.
CONNECT_S = 3.0
# Pause between two attempts to connect, in seconds.
AGAIN_S = 0.3
# Attempts to open a rank's connection are repeated for this long, in seconds: the other end may have too many open
# files. The worker gives up before the other end considers it stuck.
RANK_LINE_TRIES_S = 15.0
# After an interrupt, the other end has this long to end the job in order, in seconds.
LEAVE_WAIT_S = 5.0

# Starts the ranks of an order, a message `start` with the encoded job; takes a function that opens a rank's connection.
Begin = Callable[[Json, bytes, Callable[[int], AuthenticatedConnection]], Ranks]


@dataclass(slots=True)
class _Child:
    """A rank that this worker has started, and that has not ended."""

    rank: LocalRank
    # All ranks of its launch that this worker has started.
    together: Ranks
    # Shortest time between two reports of progress, in seconds.
    report_s: float
    # Progress and position in the last report.
    reported: tuple[int, int | None] = (0, None)
    # Monotonic time of that report.
    reported_at: float = 0.0
    # True if the stack of the rank is requested and not yet sent.
    asked: bool = False


@dataclass(slots=True)
class Worker:
    """Executes the messages of the other end, one after the other."""

    line: AuthenticatedConnection
    # Address and port of the other end.
    reached: tuple[str, int]
    key: bytes
    begin: Begin
    # Says, before the reason, that ranks could not be started.
    blame: str
    # Raised at the other end if ranks could not be started, apart from losses and faults of mpirun.
    error: type[RankError] = RankError
    # Maps (launch, rank) to the rank. There are several launches while two sides take turns.
    children: dict[tuple[int, int], _Child] = field(default_factory=dict)

    def serve(self) -> int:
        """Execute messages until `leave`; return the exit status in that message.

        An interrupt counts between two messages: half a message would be read as a lost worker.
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
                # The other end must know of the interrupt before it sees ranks end, which it would record as failures.
                with contextlib.suppress(EOFError, OSError):
                    messages.send(self.line, {"kind": "interrupted"})
                    self._kill_all()
                    self._report()
                    self._wait_for_leave()
                raise
            sentinels = [child.rank.process.sentinel for child in self.children.values()]
            ready: list[Any] = wait([self.line, *sentinels], LOOK_EVERY_S)  # type: ignore[list-item]
            if self.line in ready:
                message, job = messages.receive(self.line)
                if message["kind"] == "leave" and message.get("why"):  # the other end does not take this worker
                    raise JobError(str(message["why"]))
                if message["kind"] == "leave":
                    return int(message["code"])
                self._obey(message, job)
            self._report()

    def _obey(self, message: Json, job: bytes) -> None:
        if message["kind"] == "start":
            self._start(message, job)
            return
        place = (message["launch"], message["rank"])
        child = self.children.get(place)
        if child is None:
            return  # the rank has ended meanwhile, which the other end knows
        if message["kind"] == "kill":
            child.rank.kill()  # its sentinel reports its end
        elif message["kind"] == "inspect":
            child.asked = True
            child.rank.ask_stack()
            self._notify("inspected", place, state=child.rank.state, stack="")

    def _start(self, order: Json, job: bytes) -> None:
        """Start the ranks of an order. job: encoded."""
        try:
            ranks = self.begin(order, job, lambda rank: self._rank_line(order["launch"], rank))
            for rank in cast("Sequence[LocalRank]", ranks.members):
                child = _Child(rank, ranks, order["world_size"] / MOST_REPORTS_A_SECOND)
                self.children[order["launch"], rank.rank] = child
        except (AuthenticationError, OSError, BenchError, SubprocessError, LookupError, TypeError, ValueError) as error:
            self._refuse(order["launch"], error)

    def _rank_line(self, launch: int, rank: int) -> AuthenticatedConnection:
        """Return a connection for a rank; raise AuthenticationError or OSError if it cannot be opened in time."""
        line = connected(self.reached, self.key, RANK_LINE_TRIES_S)
        messages.send(line, {"kind": "rank_line", "launch": launch, "rank": rank})
        channel.limit(line, 0)  # the rank waits for `go` without a time limit
        return line

    def _refuse(self, launch: int, error: BaseException) -> None:
        known = isinstance(error, LostRankError | MpirunError)
        name, text = (type(error), str(error)) if known else (self.error, f"{self.blame}: {error}")
        messages.send(self.line, {"kind": "failed", "launch": launch, "error": name.__name__, "text": text})

    def _report(self) -> None:
        """Send changes since the last report: progress, requested stacks, ends of ranks."""
        for place, child in list(self.children.items()):
            rank, now = child.rank, time.monotonic()
            ended, state = rank.exit_code is not None, (rank.progress, rank.position)
            if state != child.reported and (ended or now - child.reported_at >= child.report_s):
                child.reported, child.reported_at = state, now
                self._notify("progress", place, progress=state[0], position=state[1])
            if child.asked and (stack := rank.stack):
                child.asked = False
                self._notify("inspected", place, state=rank.state, stack=stack)
            if ended:
                self._report_end(place, child)

    def _report_end(self, place: tuple[int, int], child: _Child) -> None:
        """Report the end of a rank; clean up after the last rank of its launch."""
        rank, together = child.rank, child.together
        if rank.exit_code == UNREPORTED and rank.server.ended(SERVER_END_S):
            rank.join(KILL_WAIT_S)  # the kernel kills it with the server
        end = {"exit_code": rank.exit_code, "lost": rank.lost, "open_to": together.open_to}
        del self.children[place]
        if all(other.together is not together for other in self.children.values()):
            together.clean()
        self._notify("ended", place, **end, log=rank.log, health=rank.health)

    def _kill_all(self) -> None:
        for child in self.children.values():
            child.rank.kill()
        for child in self.children.values():
            child.rank.join(KILL_WAIT_S)

    def _notify(self, kind: str, place: tuple[int, int], **fields: object) -> None:
        messages.send(self.line, {"kind": kind, "launch": place[0], "rank": place[1], **fields})

    def _wait_for_leave(self) -> None:
        deadline = time.monotonic() + LEAVE_WAIT_S
        while self.line.poll(max(0.0, deadline - time.monotonic())):
            message, _ = messages.receive(self.line)
            if message["kind"] == "leave":
                return
            if message["kind"] == "start":  # the other end did not know of the interrupt yet
                self._refuse(message["launch"], RankError("interrupted"))


def connected(reached: tuple[str, int], key: bytes, seconds: float) -> AuthenticatedConnection:
    """Return a connection to an address and port; attempts are repeated for `seconds`.

    Raises OSError if nobody listens there, AuthenticationError if the keys differ.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return channel.connect(*reached, key, CONNECT_S)
        except (AuthenticationError, OSError):
            if time.monotonic() > deadline:
                raise
        time.sleep(AGAIN_S)
