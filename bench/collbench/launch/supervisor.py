"""Watch the ranks of one launch from outside: pass on their results, and name the rank that ends the launch early.

In: started `Ranks`, on this host or on others. Out: calls of `begun` and `sampled` with the results of the ranks, and
a `Failure` if the launch did not reach its end. Every wait has a deadline.

The failure is found from the evidence of all ranks: exit status, last error, Python stack, state of the process,
progress. When one rank ends, all other ranks soon fail too, with a closed connection: they are victims and are not
named. A rank that NCCL's watchdog aborts because it waited too long is a victim, too: the rank that did not come
reports no timeout, or had enqueued fewer calls. If the evidence points to no rank, none is named. A failure after this
host or process was suspended (a laptop, a virtual machine that was migrated, Ctrl-Z) is not a failure of its case: the
case is lost, and a resume measures it again.
"""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from collbench.launch.ranks import Rank, Ranks, Starter
from collbench.launch.turns import LOOK_EVERY_S, Measuring, Turn, drive
from collbench.machine import gpus
from collbench.model.errors import BenchError, LostRankError, MpirunError, StartError
from collbench.model.records import Failure, Json
from collbench.protocol import messages
from collbench.protocol.channel import Line

# Maximum that one poll adds to the silence, in seconds. If the machine sleeps, is migrated or starves this process, the
# ranks stop, too: the time between two polls does not show that they hang.
LONGEST_LOOK_S = 2 * LOOK_EVERY_S
# Two polls this many seconds apart show that this host or process was suspended: connections may have timed out.
STOOD_STILL_S = 5.0
# After a first rank ends, the other ranks have this long, in seconds, to report why they fail, which is evidence.
LAST_MESSAGES_S = 1.0
# Loading torch from a cold disk can take a minute before the first sign of life.
START_ALLOWANCE_S = 90.0
# A Python stack is written within milliseconds by a process that can still handle signals.
STACK_WAIT_S = 0.5
# Maximum number of characters that a message quotes from a line that ranks printed.
MOST_QUOTED = 200
# Only the end of a long log is read, because it shows why ranks ended.
LOG_BYTES = 2**20


@dataclass(slots=True)
class LaunchOutcome:
    """The outcome of one launch."""

    # Number of cases that ended.
    measured: int = 0
    # Index of the case that rank 0 was in when the launch ended; None before the first.
    position: int | None = None
    # Facts that each rank reported about its process when it was ready.
    facts: list[Json] = field(default_factory=list)
    # Time from the request until all ranks had joined; None if they never joined.
    ready_s: float | None = None
    # Why the launch ended early; None if it did not.
    failure: Failure | None = None
    # Bounds of the offset of each rank's clock from rank 0's, at start and end; None if all ranks read one clock.
    clocks: list[list[list[int]]] | None = None
    # See `ranks.Ranks`.
    open_to: tuple[str, ...] = ()
    # NCCL's log of its choices, before the first case and during each case, in a launch that only probes.
    chosen: tuple[str, ...] = ()
    # Text that names ranks that did not end, so that nothing else should be measured; None if all ranks ended.
    stuck: str | None = None
    # Health of GPUs and network adapters (`machine.gpus`).
    health: Json = field(default_factory=dict)


Begun = Callable[[int], None]
Sampled = Callable[[bytes, str | None], None]
Shown = Callable[[bytes], None]


def run_launch(
    start: Callable[[], Ranks],
    timeout_s: float,
    begun: Begun = lambda _: None,
    sampled: Sampled = lambda *_: None,
    shown: Shown = lambda _: None,
    before_go: Callable[[Sequence[Json]], None] = lambda _: None,
    log: Path | None = None,
    turn: Turn | None = None,
    meanwhile: contextlib.AbstractContextManager[object] = contextlib.nullcontext(),  # noqa: B008 - it has no state
) -> Measuring[LaunchOutcome]:
    """Start ranks, watch them to their end, and kill the remaining ranks: every launch is run by this function.

    start: starts the ranks; a missing mpirun or process of a rank gives an outcome with a failure. timeout_s: longest
    permitted silence; START_ALLOWANCE_S is added to it until all ranks have joined. begun: takes the number in each
    message `begin`. sampled: takes each line for the journal, and why it has no result, or None. shown: takes lines
    with first times, which are not for the journal. before_go: takes the facts of the ranks when all have joined,
    before they receive `go`. log: the file into which ranks of this host print. turn: the turn of a side whose ranks
    take turns with the ranks of another side; while they wait for it, their silence does not count. meanwhile: entered
    when the ranks have started, left when they are done.
    """
    requested, outcome = time.monotonic(), LaunchOutcome()
    try:
        ranks = start()
        ranks.failed = True  # until they are done: an error may end the watch
        listener = _Listener(ranks, outcome, begun, sampled, shown)
        try:
            with meanwhile:
                yield from _watch(ranks, listener, requested, timeout_s, before_go, log, turn)
            ranks.failed = outcome.failure is not None
            if outcome.failure is not None and outcome.ready_s is None and outcome.failure.rank is None:
                outcome.failure = replace(outcome.failure, text=outcome.failure.text + ranks.remedy)
        finally:
            if turn is not None:
                turn.leave()
            stuck = ranks.kill()
    except LostRankError as error:  # in a job: only launches with this rank fail from here on
        return LaunchOutcome(failure=Failure("lost", error.rank, str(error)))
    except (MpirunError, StartError) as error:  # only launches that need mpirun, or this rank, fail
        return LaunchOutcome(failure=Failure("start", error.rank, str(error)))
    health = gpus.merged([member.health for member in ranks.members])
    return replace(outcome, open_to=ranks.open_to, stuck=stuck, health=health)


def ask(
    launcher: Starter, world_size: int, entry: str, job: object, timeout_s: float, begun: Begun = lambda _: None
) -> tuple[list[bytes], str | None]:
    """Run one launch; return the lines that its ranks send, and why it ended early, or None.

    entry, job, and what is raised: see `Starter.start`. timeout_s, begun: see `run_launch`.
    """
    lines: list[bytes] = []
    start = partial(launcher.start, world_size, entry, job)
    (outcome,) = drive(run_launch(start, timeout_s, begun, lambda line, _: lines.append(line)))
    return lines, outcome.failure.text if outcome.failure is not None else None


def _watch(
    ranks: Ranks,
    listener: "_Listener",
    requested: float,
    timeout_s: float,
    before_go: Callable[[Sequence[Json]], None],
    log: Path | None,
    turn: Turn | None,
) -> Measuring[None]:
    """Watch until every rank is done or one of them fails. requested: monotonic time at which the start began."""
    outcome, printed_from = listener.outcome, _size(log)
    last_progress, silence_s, looked, stood_still_s = ranks.progress(), 0.0, _now_s(), 0.0
    while not all(report.finished for report in listener.reports):
        alive = listener.listen((yield listener.connections()))
        try:
            ranks.look()
        except BenchError:
            listener.read_last_messages()
            raise
        now = _now_s()
        away_s, looked = now - looked, now
        stood_still_s += away_s if away_s > STOOD_STILL_S else 0.0
        if outcome.ready_s is None and all(report.ready for report in listener.reports):
            outcome.ready_s = time.monotonic() - requested
            before_go(outcome.facts)
            listener.notify_go()
            alive = True
        if turn is not None and not listener.waiting and all(report.asks for report in listener.reports):
            listener.waiting = True
            turn.ask(listener.notify_go)
        if listener.one_ended_early():
            listener.read_last_messages()
            # A rank that is alive and reported no error may be the rank that the others waited for: get its stack.
            _ask_stacks(ranks, [m for m in ranks.members if m.exit_code is None and not listener.reports[m.rank].error])
            outcome.failure = explain_exit(_evidence(ranks, listener.reports, log, printed_from))
            break
        progress = ranks.progress()
        if alive or listener.waiting or progress != last_progress:
            silence_s = 0.0
        else:
            silence_s += min(away_s, LONGEST_LOOK_S)
        last_progress = progress
        allowed = timeout_s if outcome.ready_s is not None else timeout_s + START_ALLOWANCE_S
        if silence_s > allowed:
            _ask_stacks(ranks, ranks.members)
            outcome.failure = explain_hang(_evidence(ranks, listener.reports, log, printed_from), allowed)
            break
    if outcome.failure is not None and stood_still_s:
        text = f"this host or process stood still for {stood_still_s:.0f} s, and then {outcome.failure.text}"
        outcome.failure = Failure("lost", None, f"{text}; collbench resume measures this case again")
    outcome.position = ranks.position()


def _ask_stacks(ranks: Ranks, members: Sequence[Rank]) -> None:
    """Ask these ranks for their stacks and states, and wait a moment for the answers."""
    for member in members:
        member.ask_stack()
    deadline = time.monotonic() + STACK_WAIT_S
    while time.monotonic() < deadline and not all(member.stack for member in members):
        time.sleep(0.02)
        ranks.look()


def _now_s() -> float:
    """Return the time, in seconds, of a clock that also runs while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Report:
    """The reports of a rank so far."""

    ready: bool = False
    # True if the rank waits for its turn.
    asks: bool = False
    finished: bool = False
    # True if the connection of the rank is closed, so that no more messages can come.
    silent: bool = False
    error: str | None = None
    waits_in: tuple[str, ...] = ()


class _Listener:
    """Receives the messages of the ranks and records them by rank. Rule: no message is ever dropped."""

    def __init__(self, ranks: Ranks, outcome: LaunchOutcome, begun: Begun, sampled: Sampled, shown: Shown) -> None:
        self._members, self._look, self.outcome = ranks.members, ranks.look, outcome
        self._begun, self._sampled, self._shown = begun, sampled, shown
        self.reports = [_Report() for _ in ranks.members]
        # True if all ranks wait for their turn, and it has been requested.
        self.waiting = False

    def one_ended_early(self) -> bool:
        """Return whether a rank has raised an error, closed its connection or been lost before it had finished."""
        return any(
            report.error is not None or ((report.silent or member.lost) and not report.finished)
            for member, report in zip(self._members, self.reports, strict=True)
        )

    def connections(self) -> list[Line]:
        """Return the connections on which messages can come."""
        return [member.connection for member in self._members if not self.reports[member.rank].silent]

    def listen(self, ready: Collection[Any]) -> bool:
        """Receive the messages on the connections that are ready; return whether there was a message."""
        # The connection of a killed rank is ready, too: reading it gives EOFError, and the rank counts as silent.
        ready = set(ready)
        return sum(self._receive(member) for member in self._members if member.connection in ready) > 0

    def notify_go(self) -> None:
        """Send `go` to all ranks: they begin, or have their turn."""
        self.waiting = False
        for member, report in zip(self._members, self.reports, strict=True):
            report.asks = False
            with contextlib.suppress(OSError):  # the rank has ended, which is noticed elsewhere
                messages.send(member.connection, {"kind": "go"})

    def read_last_messages(self) -> None:
        """Receive until all ranks have ended, or for LAST_MESSAGES_S: last messages may still be on the way."""
        deadline = time.monotonic() + LAST_MESSAGES_S
        while True:
            self._look()
            all_gone = all(member.exit_code is not None or member.lost for member in self._members)
            for member in self._members:
                self._receive(member)
            if all_gone or time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _receive(self, member: Rank) -> int:
        """Record the messages that have arrived from a rank; return their number."""
        report, received = self.reports[member.rank], 0
        while not report.silent:
            try:
                if not member.connection.poll():
                    break
                message, line = messages.receive(member.connection)
            except (EOFError, OSError):
                report.silent = True
                break
            received += 1
            match message["kind"]:
                case "ready":
                    report.ready, report.waits_in = True, tuple(message["waits_in"])
                    self.outcome.facts.append(message["facts"])
                case "turn":
                    report.asks = True
                case "begin":
                    self._begun(message["index"])
                case "shown":
                    self._shown(line)
                case "sampled":
                    self.outcome.measured += 1
                    self._sampled(line, message["failure"])
                case "chosen":
                    self.outcome.chosen = tuple(message["texts"])
                case "error":
                    report.error = message["text"]
                case "done":
                    report.finished = True
                    self.outcome.clocks = message.get("clocks") or self.outcome.clocks
                    for facts in self.outcome.facts:
                        if facts.get("rank") == member.rank and "seen" in facts:
                            facts["seen"]["left"] = message["left"]
        return received


# ── evidence ─────────────────────────────────────────────────────────────────────────────────────
# Errors of torch in a rank whose peer is gone or silent; the texts differ between versions and backends.
_VICTIM = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|timed? ?out"
    r"|socket closed|remote process|ncclRemoteError|peer has closed|NCCL communicator was aborted|crash on rank \d",
    re.IGNORECASE,
)
# Lines of torch's ProcessGroupNCCL in the log, each with the rank that wrote it.
_WATCHDOG = re.compile(r"Rank (\d+)\] .*?Watchdog caught collective operation timeout")
_ENQUEUED = re.compile(r"Rank (\d+)\] .*?last enqueued (?:NCCL )?work: (\d+)")
_ASYNC = re.compile(
    r"Rank (\d+)\][^\n]*?(?:async(?:hronous)? exception|terminated with exception): (NCCL error[^\n]*)"
    r"(?:\n(nccl\w+: [^\n]*))?(?:\nLast error:[ \t]*\n?([^\n]+))?"
)
# A rank whose stack ends inside torch waits for the other ranks.
_IN_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about one rank."""

    rank: int
    # None while the rank runs, negative for a signal.
    exit_code: int | None = None
    # The last error that the rank reported.
    error: str | None = None
    # True if the rank reported that it was done.
    finished: bool = False
    # Innermost frame of the Python stack of the rank; None if the rank wrote none.
    stack: str | None = None
    # State of the process, from the operating system.
    state: str = "running"
    # Number of iterations so far.
    progress: int = 0
    # Why nothing more can be known of the rank: its host no longer answers, or its parent was killed. Else None.
    lost: str | None = None
    # Source files in which this rank waits for the others, such as the file of the barrier. The functions called there
    # leave no Python frame of their own.
    waits_in: tuple[str, ...] = ()
    # True if NCCL's watchdog aborted the rank because it waited too long.
    aborted: bool = False
    # Number of the last call that the rank had enqueued in NCCL; None if the log does not report it.
    enqueued: int | None = None
    # The error that NCCL reported to its watchdog, with NCCL's "last error"; None if it reported none.
    nccl: str | None = None
    # The first line that ranks printed in this launch. Ranks share a log, so it may be from any of them.
    printed: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the stack shows that the rank is not waiting for the other ranks."""
        if not self.stack:
            return False
        return not _IN_TORCH.search(self.stack) and not any(file in self.stack for file in self.waits_in)


def _evidence(ranks: Ranks, reports: Sequence[_Report], log: Path | None, printed_from: int) -> list[Evidence]:
    """Return the evidence about each rank. printed_from: length of the log before the launch."""
    texts = [member.log for member in ranks.members]
    if log is not None:
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(max(printed_from, _size(log) - LOG_BYTES))
            texts.insert(0, file.read().decode(errors="replace"))
    aborted, enqueued = watchdog("\n".join(texts))
    reported, printed = nccl_errors("\n".join(texts)), first_line("\n".join(texts))
    return [
        Evidence(
            rank=member.rank,
            exit_code=member.exit_code,
            error=report.error,
            finished=report.finished,
            stack=innermost_frame(member.stack),
            state=member.state,
            progress=member.progress,
            lost=member.lost,
            waits_in=report.waits_in,
            aborted=member.exit_code == -signal.SIGABRT and member.rank in aborted,
            enqueued=enqueued.get(member.rank),
            nccl=reported.get(member.rank),
            printed=printed,
        )
        for member, report in zip(ranks.members, reports, strict=True)
    ]


def first_line(log: str) -> str:
    """Return the first line with words, at most MOST_QUOTED characters of it; empty if there is none."""
    lines = (line.strip() for line in log.splitlines())
    return next((line[:MOST_QUOTED] for line in lines if re.search(r"\w", line)), "")


def _size(log: Path | None) -> int:
    return log.stat().st_size if log is not None and log.exists() else 0


def watchdog(log: str) -> tuple[set[int], dict[int, int]]:
    """Return the ranks that NCCL's watchdog aborted, and by rank the number of its last call, if the log has it."""
    aborted = {int(rank) for rank in _WATCHDOG.findall(log)}
    return aborted, {int(rank): int(number) for rank, number in _ENQUEUED.findall(log)}


def nccl_errors(log: str) -> dict[int, str]:
    """Return, by rank, the first error that NCCL reported while its calls ran, in one line."""
    errors: dict[int, str] = {}
    for rank, *lines in _ASYNC.findall(log):
        errors.setdefault(int(rank), "; ".join(line.strip() for line in lines if line)[:300])
    return errors


def innermost_frame(dump: str) -> str | None:
    """Return the first frame in a faulthandler dump, as `in function (file.py:12)`; None if there is none."""
    match = re.search(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)', dump)
    return f"in {match['function']} ({match['file']}:{match['line']})" if match else None


# ── whom the evidence names ──────────────────────────────────────────────────────────────────────
def explain_exit(ranks: Sequence[Evidence]) -> Failure:
    """Return the failure of the rank that ended first, if known. Order: lost, killed, raised, stopped, left early."""
    lost = [rank for rank in ranks if rank.lost is not None]
    if lost:  # all ranks with the fork server, some with another host
        return Failure("lost", lost[0].rank if len(lost) < len(ranks) else None, str(lost[0].lost))
    for rank in ranks:
        if rank.exit_code == -signal.SIGABRT and rank.nccl is not None:
            continue  # torch ends a process whose communicator reports an error
        if rank.exit_code is not None and rank.exit_code < 0 and not rank.aborted:
            try:
                name = signal.Signals(-rank.exit_code).name
            except ValueError:
                name = f"signal {-rank.exit_code}"
            why = " (out of memory, or killed from outside)" if name == "SIGKILL" else ""
            return Failure("killed", rank.rank, f"rank {rank.rank} was ended by {name}{why}")
    if (failure := _nccl_reported(ranks, victims=False)) is not None:
        return failure
    if any(rank.aborted for rank in ranks):
        return _did_not_come(ranks)
    raised = [rank for rank in ranks if rank.error is not None]
    for rank in raised:
        if not _VICTIM.search(rank.error or ""):
            return Failure("raised", rank.rank, f"rank {rank.rank} raised {rank.error}")
    for rank in ranks:
        if rank.state == "stopped" and rank.exit_code is None:
            return Failure("hang", rank.rank, f"rank {rank.rank} is stopped (SIGSTOP or a debugger), others gave up")
    gone = [rank for rank in ranks if rank.exit_code is not None and not rank.finished and rank.error is None]
    left = [rank for rank in gone if rank.nccl is None]
    if len(ranks) > 1 and len(left) == len(ranks) and len({rank.exit_code for rank in left}) == 1:
        # MPI ranks do this when mpirun is killed
        text = f"all ranks left with status {left[0].exit_code} before they were done"
        quoted = f"; the first line that they printed: {left[0].printed}" if left[0].printed else ""
        return Failure("exited", None, text + quoted)
    if left:
        text = f"rank {left[0].rank} left with status {left[0].exit_code} before it was done"
        return Failure("exited", left[0].rank, text)
    if (failure := _nccl_reported(ranks, victims=True)) is not None:
        return failure
    if raised:
        text = f"every rank lost the others; rank {raised[0].rank} reports {raised[0].error}"
        return Failure("raised", None, text)
    return Failure("exited", None, "the ranks ended without an error message")


def _nccl_reported(ranks: Sequence[Evidence], victims: bool) -> Failure | None:
    """Return NCCL's first error while calls ran: if `victims`, an error about a lost peer, else any other error."""
    for rank in ranks:
        if rank.nccl and bool(_VICTIM.search(rank.nccl)) is victims:
            return Failure("raised", rank.rank, f"rank {rank.rank}: {rank.nccl}")
    return None


def _did_not_come(ranks: Sequence[Evidence]) -> Failure:
    """Return the failure after NCCL's watchdog ended waiting ranks: of the rank that did not wait or enqueued least."""
    ended = "NCCL's watchdog ended the ranks that waited"
    others = [rank for rank in ranks if not rank.aborted]
    if len(others) == 1:
        return Failure("hang", others[0].rank, f"{ended}: rank {others[0].rank} did not reach the collective")
    enqueued = {rank.rank: rank.enqueued for rank in ranks if rank.aborted and rank.enqueued is not None}
    behind = [rank for rank, number in enqueued.items() if number == min(enqueued.values())]
    if not others and len(enqueued) == len(ranks) and len(behind) < len(ranks):
        return Failure("hang", behind[0], f"{ended}: rank {behind[0]} had enqueued least, {enqueued[behind[0]]} calls")
    return Failure("hang", None, f"{ended}; none of the others stands out")


def explain_hang(ranks: Sequence[Evidence], timeout_s: float) -> Failure:
    """Return the failure of the rank that delays the others: stopped, else not waiting, else an iteration behind."""
    if (failure := _nccl_reported(ranks, victims=False)) is not None:
        return failure
    silence = f"no rank made progress for {timeout_s:g} s"
    least = min(rank.progress for rank in ranks)
    for suspects, reason in (
        ([rank for rank in ranks if rank.state == "stopped"], "is stopped (SIGSTOP or a debugger)"),
        ([rank for rank in ranks if rank.is_elsewhere], "is not in the collective"),
        ([rank for rank in ranks if rank.progress == least], "is an iteration behind the others"),
    ):
        if 0 < len(suspects) < len(ranks):
            first = suspects[0]
            where = f", but {first.stack}" if first.stack and "not in" in reason else ""
            also = "".join(f", so is rank {other.rank}" for other in suspects[1:])
            named = tuple(rank.rank for rank in suspects) if len(suspects) > 1 else ()
            return Failure("hang", first.rank, f"{silence}: rank {first.rank} {reason}{where}{also}", named)
    if (failure := _nccl_reported(ranks, victims=True)) is not None:
        return failure
    return Failure("hang", None, f"{silence}: all ranks wait for each other, none stands out")
