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
from typing import Any, cast

from collbench.launch.launcher import LocalRank
from collbench.launch.ranks import KILL_WAIT_S, Ranks
from collbench.machine import interrupts
from collbench.model.errors import INTERRUPTED, JobError, LostRankError, MpirunError, RankError
from collbench.model.records import Json
from collbench.protocol import channel, messages
from collbench.protocol.channel import AuthenticatedConnection

# Polling interval of the worker, in seconds: short compared with the supervisor's time-outs.
LOOK_EVERY_S = 0.25
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
class _StartedRanks:
    """The ranks of one launch that this worker has started."""

    ranks: Ranks
    # Shortest time between two reports of progress, in seconds.
    report_s: float
    # Progress of the ranks, and position of the first rank, in the last report.
    reported: tuple[list[int], int | None] = field(default_factory=lambda: ([], None))
    # Monotonic time of that report.
    reported_at: float = 0.0
    # Ranks whose stack is requested and not yet sent, and ranks whose end was reported.
    asked: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    @property
    def running(self) -> list[LocalRank]:
        """Return the ranks whose end was not reported yet."""
        members = cast("Sequence[LocalRank]", self.ranks.members)
        return [member for member in members if member.rank not in self.ended]

    def kill(self) -> None:
        for member in self.running:
            _kill(member)


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
    # Maps a launch to its ranks. There are several launches while two sides take turns.
    launches: dict[int, _StartedRanks] = field(default_factory=dict)

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
            sentinels = [rank.process.sentinel for launch in self.launches.values() for rank in launch.running]
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
        started = self.launches.get(message.get("launch", 0))
        if started is None:
            return  # its ranks have ended meanwhile, which the other end knows
        for rank in started.running:
            if rank.rank != message["rank"]:
                continue
            if message["kind"] == "kill":
                _kill(rank)
            elif message["kind"] == "inspect":
                started.asked.add(rank.rank)
                rank.ask_stack()
                self._notify("inspected", message["launch"], rank=rank.rank, state=rank.state(), stack="")

    def _start(self, order: Json, job: bytes) -> None:
        """Start the ranks of an order. job: encoded."""
        try:
            ranks = self.begin(order, job, lambda rank: self._rank_line(order["launch"], rank))
            self.launches[order["launch"]] = _StartedRanks(ranks, order["world_size"] / MOST_REPORTS_A_SECOND)
        except (AuthenticationError, OSError, RankError, KeyError, TypeError, ValueError) as error:
            self._refuse(order["launch"], error)

    def _rank_line(self, launch: int, rank: int) -> AuthenticatedConnection:
        """Return a connection for a rank; raise AuthenticationError or OSError if it cannot be opened in time."""
        deadline = time.monotonic() + RANK_LINE_TRIES_S
        while True:
            try:
                line = channel.connect(*self.reached, self.key, CONNECT_S)
            except (AuthenticationError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)
            else:
                messages.send(line, {"kind": "rank_line", "launch": launch, "rank": rank})
                channel.limit(line, 0)  # the rank waits for `go` without a time limit
                return line

    def _refuse(self, launch: int, error: BaseException) -> None:
        if isinstance(error, LostRankError | MpirunError):
            self._notify("failed", launch, error=type(error).__name__, text=str(error))
        else:
            self._notify("failed", launch, error=self.error.__name__, text=f"{self.blame}: {error}")

    def _report(self) -> None:
        """Send changes since the last report: progress, requested stacks, ends of ranks."""
        for number, started in list(self.launches.items()):
            over = [rank for rank in started.running if rank.exit_code is not None]
            state, now = (list(started.ranks.progress()), started.ranks.position()), time.monotonic()
            if state != started.reported and (over or now - started.reported_at >= started.report_s):
                started.reported, started.reported_at = state, now
                self._notify("progress", number, counts=state[0], position=state[1])
            for rank in started.running:
                if rank.rank in started.asked and (stack := rank.stack()):
                    started.asked.remove(rank.rank)
                    self._notify("inspected", number, rank=rank.rank, state=rank.state(), stack=stack)
            for rank in over:
                self._report_end(number, started, rank)

    def _report_end(self, launch: int, started: _StartedRanks, rank: LocalRank) -> None:
        """Report the end of a rank; clean up after the last rank of its launch."""
        code, lost = rank.exit_code, rank.lost
        started.ended.add(rank.rank)
        if not started.running:
            del self.launches[launch]
            started.ranks.clean()
        end = {"code": code, "lost": lost, "log": rank.log, "health": rank.health, "open_to": started.ranks.open_to}
        self._notify("ended", launch, rank=rank.rank, **end)

    def _kill_all(self) -> None:
        for started in self.launches.values():
            started.kill()

    def _notify(self, kind: str, launch: int, **fields: object) -> None:
        messages.send(self.line, {"kind": kind, "launch": launch, **fields})

    def _wait_for_leave(self) -> None:
        deadline = time.monotonic() + LEAVE_WAIT_S
        while self.line.poll(max(0.0, deadline - time.monotonic())):
            message, _ = messages.receive(self.line)
            if message["kind"] == "leave":
                return
            if message["kind"] == "start":  # the other end did not know of the interrupt yet
                self._refuse(message["launch"], RankError("interrupted"))


def _kill(rank: LocalRank) -> None:
    rank.kill()
    rank.join(KILL_WAIT_S)
