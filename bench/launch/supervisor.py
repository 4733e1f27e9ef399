"""Watch the ranks of one launch from outside: pass on what they measure, and notice how they end.

In: started `Ranks`, on this host or on others. Out: calls of `begun` and `sampled` with the results of the ranks, and
a `Failure` if the launch did not reach its end. Every wait has a deadline.
"""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from bench.launch import blame
from bench.launch.blame import Evidence, explain_exit, explain_hang, innermost_frame
from bench.launch.ranks import Rank, Ranks
from bench.model.records import Failure, Json
from bench.protocol import messages

# Polling interval of the supervisor, in seconds. Ctrl-C is answered within it.
LOOK_EVERY_S = 0.25
# Most that one poll adds to the silence, in seconds. If the machine sleeps, is migrated or starves this process, that
# also stops the ranks: the time between two polls does not show that they hang.
LONGEST_LOOK_S = 2 * LOOK_EVERY_S
# After a first rank ends, the others have this long to say why they fail: their messages are evidence.
LAST_MESSAGES_S = 1.0
# Loading torch from a cold disk can take a minute before the first sign of life.
START_ALLOWANCE_S = 90.0
# A Python stack is written within milliseconds by a process that can still handle signals.
STACK_WAIT_S = 0.5
# Of a long log, the end says why ranks ended.
LOG_BYTES = 2**20


@dataclass(slots=True)
class LaunchOutcome:
    """The outcome of one launch. measured: number of cases that ended. failure: why the launch ended early.

    position: index of the case that rank 0 was in when the launch ended; -1 before the first.
    facts: what each rank said about its process when it was ready. clocks: bounds of each rank's clock against
    rank 0's, at start and end; None if all ranks read one clock. ready_s: from the request until all ranks had joined;
    None if they never did. remarks: about how the ranks were started (`ranks.Ranks`).
    chosen: what NCCL wrote of its choices, before the first case and during each, in a launch that only probes.
    stuck: which rank cannot be ended, so that nothing else should be measured. health: of GPUs and network adapters
    (`machine.gpus`).
    """

    measured: int = 0
    position: int = -1
    facts: list[Json] = field(default_factory=list)
    ready_s: float | None = None
    failure: Failure | None = None
    clocks: list[list[list[int]]] | None = None
    remarks: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    stuck: str | None = None
    health: Json = field(default_factory=dict)


@dataclass(slots=True)
class _Reported:
    """What a rank has reported so far."""

    ready: bool = False
    finished: bool = False
    silent: bool = False  # its connection is closed: no more messages can come
    said: str | None = None
    waits_in: tuple[str, ...] = ()


Begun = Callable[[int], None]
Sampled = Callable[[bytes, str | None], None]


def watch(
    ranks: Ranks,
    requested: float,
    timeout_s: float,
    before_go: Callable[[], None],
    begun: Begun,
    sampled: Sampled,
    log: Path | None = None,
) -> LaunchOutcome:
    """Watch until every rank is done or one of them fails. requested: monotonic time at which the start began.

    timeout_s: longest silence; START_ALLOWANCE_S is added to it until all ranks have joined. before_go: called when all
    ranks have joined, before they are told to measure. begun: takes the number in each message `begin`. sampled: takes
    each line for the journal, and why it holds no number, or None. log: the file into which ranks of this host print.
    """
    printed = _Printed(log)
    listener = _Listener(ranks, LaunchOutcome(), begun, sampled)
    result = listener.result
    silence, last_progress = _Silence(), ranks.progress()
    while not listener.all_finished():
        if listener.listen():
            silence.end()
        if result.ready_s is None and listener.all_ready():
            result.ready_s = time.monotonic() - requested
            before_go()
            listener.send_go()
            silence.end()
        if listener.one_ended_early():
            listener.read_last_messages()
            result.failure = explain_exit(_evidence(ranks, listener.seen, printed))
            break
        progress = ranks.progress()
        if progress != last_progress:
            last_progress = progress
            silence.end()
        allowed = timeout_s if result.ready_s is not None else timeout_s + START_ALLOWANCE_S
        if silence.look() > allowed:
            result.failure = explain_hang(_evidence_of_hang(ranks, listener.seen, printed), allowed)
            break
    result.position = ranks.position()
    return result


class _Silence:
    """How long no rank has shown progress. Time counts only as far as the supervisor polled."""

    def __init__(self) -> None:
        self._seconds, self._looked = 0.0, time.monotonic()

    def end(self) -> None:
        """A rank has shown progress."""
        self._seconds, self._looked = 0.0, time.monotonic()

    def look(self) -> float:
        """Seconds of silence until this poll."""
        now = time.monotonic()
        self._seconds += min(now - self._looked, LONGEST_LOOK_S)
        self._looked = now
        return self._seconds


class _Listener:
    """Receives the messages of the ranks and records them by rank. Rule: no message is ever dropped."""

    def __init__(self, ranks: Ranks, result: LaunchOutcome, begun: Begun, sampled: Sampled) -> None:
        self._members, self.result = ranks.members, result
        self._begun, self._sampled = begun, sampled
        self.seen = [_Reported() for _ in ranks.members]

    def all_ready(self) -> bool:
        return all(one.ready for one in self.seen)

    def all_finished(self) -> bool:
        return all(one.finished for one in self.seen)

    def one_ended_early(self) -> bool:
        ended = any(one.said is not None or (one.silent and not one.finished) for one in self.seen)
        return ended or any(member.lost and not self.seen[member.rank].finished for member in self._members)

    def send_go(self) -> None:
        for member in self._members:
            with contextlib.suppress(OSError):  # it has ended already: `one_ended_early` notices that
                messages.send(member.connection, {"kind": "go"})

    def listen(self) -> bool:
        """Receive what has arrived, waiting at most LOOK_EVERY_S; returns whether there was a message."""
        # `wait` also returns the connection of a killed rank: reading it gives EOFError, and the rank counts as silent.
        listening = {one.connection: one for one in self._members if not self.seen[one.rank].silent}
        ready = wait(list(listening), LOOK_EVERY_S)  # type: ignore[arg-type]
        return sum(self._take_in(member) for connection, member in listening.items() if connection in ready) > 0

    def read_last_messages(self) -> None:
        """Receive until all ranks have ended, or for LAST_MESSAGES_S: last messages may still be on the way."""
        deadline = time.monotonic() + LAST_MESSAGES_S
        while True:
            all_gone = all(member.exit_code is not None or member.lost for member in self._members)
            for member in self._members:
                self._take_in(member)
            if all_gone or time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _take_in(self, member: Rank) -> int:
        one, heard = self.seen[member.rank], 0
        while not one.silent:
            try:
                if not member.connection.poll():
                    break
                message, line = messages.receive(member.connection)
            except (EOFError, OSError):
                one.silent = True
                break
            heard += 1
            self._note(one, message, line)
        return heard

    def _note(self, one: _Reported, message: Json, line: bytes) -> None:
        match message["kind"]:
            case "ready":
                one.ready = True
                one.waits_in = tuple(message["waits_in"])
                self.result.facts.append(message["facts"])
            case "begin":
                self._begun(message["index"])
            case "sampled":
                self.result.measured += 1
                self._sampled(line, message["failure"])
            case "chosen":
                self.result.chosen = tuple(message["texts"])
            case "error":
                one.said = message["text"]
            case "done":
                one.finished = True
                self.result.clocks = message.get("clocks") or self.result.clocks


class _Printed:
    """What ranks have printed since this was made."""

    def __init__(self, log: Path | None) -> None:
        self._log, self._from = log, self._size(log)

    @staticmethod
    def _size(log: Path | None) -> int:
        return log.stat().st_size if log is not None and log.exists() else 0

    def text(self) -> str:
        if self._log is None:
            return ""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(max(self._from, self._size(self._log) - LOG_BYTES))
            return file.read().decode(errors="replace")
        return ""


def _evidence(ranks: Ranks, seen: list[_Reported], printed: _Printed) -> list[Evidence]:
    said = blame.watchdog("\n".join([printed.text(), *(member.log for member in ranks.members)]))
    return [
        Evidence(
            rank=member.rank,
            exit_code=member.exit_code,
            said=one.said,
            finished=one.finished,
            stack=innermost_frame(member.stack()),
            state=member.state(),
            progress=member.progress(),
            lost=member.lost,
            waits_in=one.waits_in,
            aborted=member.exit_code == -signal.SIGABRT and said.get(member.rank, (False, None))[0],
            enqueued=said.get(member.rank, (False, None))[1],
        )
        for member, one in zip(ranks.members, seen, strict=True)
    ]


def _evidence_of_hang(ranks: Ranks, seen: list[_Reported], printed: _Printed) -> list[Evidence]:
    for member in ranks.members:
        member.ask_stack()
    deadline = time.monotonic() + STACK_WAIT_S
    while time.monotonic() < deadline and not all(member.stack() for member in ranks.members):
        time.sleep(0.02)
    return _evidence(ranks, seen, printed)
