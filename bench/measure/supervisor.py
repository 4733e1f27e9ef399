"""Watch the ranks of one launch from outside: pass on what they measure, notice how they end.

In: started `Ranks`. Out: events for the observer, lines for the journal, and a
`Failure` if the launch did not reach its end. Every wait has a deadline; whatever happens, the ranks are
gone afterwards.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from bench.measure.blame import Evidence, blame_a_hang, blame_an_end, innermost_frame
from bench.measure.launcher import Rank, Ranks, request_stacks
from bench.records import Failure, Json

# How often the ranks' progress is looked at; also the longest that Ctrl-C waits in a system call.
LOOK_EVERY_S = 0.25
# After a first rank ends, the others get this long to say why they fail: their words are evidence.
LAST_WORDS_S = 1.0
# Loading torch from a cold disk can take a minute before the first sign of life.
START_ALLOWANCE_S = 90.0
# A Python stack is written within milliseconds by a process that can still handle signals.
STACK_WAIT_S = 0.5


@dataclass(slots=True)
class Watch:
    """What one launch gave. measured: cases that ended. failure: why the launch ended before its time.

    ready_s: from the request to the moment in which all ranks had joined; None if that never came.
    """

    measured: int = 0
    facts: list[Json] = field(default_factory=list)
    ready_s: float | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class _Seen:
    """What a rank has said so far."""

    ready: bool = False
    finished: bool = False
    silent: bool = False  # its pipe is closed: it has said all that it ever will
    said: str | None = None


Begun = Callable[[int], None]
Sampled = Callable[[bytes], None]


def watch(
    ranks: Ranks,
    requested: float,
    timeout_s: float,
    before_go: Callable[[], None],
    begun: Begun,
    sampled: Sampled,
) -> Watch:
    """Until every rank is done or one of them fails. `requested`: monotonic time of the start."""
    result = Watch()
    seen = [_Seen() for _ in ranks.members]
    alive_at = time.monotonic()
    last_progress: tuple[int, ...] = ()
    while not all(one.finished for one in seen):
        for member in _waiting(ranks, seen):
            for message, payload in _messages(member, seen[member.rank]):
                alive_at = time.monotonic()
                _note(result, seen[member.rank], message, payload, begun, sampled)
        if result.ready_s is None and all(one.ready for one in seen):
            result.ready_s = time.monotonic() - requested
            before_go()
            alive_at = time.monotonic()
            for member in ranks.members:
                with contextlib.suppress(OSError):  # gone already: noticed below
                    member.send({"kind": "go"})
        if _ended_early(seen):
            _hear_last_words(ranks, seen)
            result.failure = blame_an_end(_evidence(ranks, seen))
            return result
        progress = tuple(ranks.progress)
        if progress != last_progress:
            last_progress, alive_at = progress, time.monotonic()
        allowed = timeout_s if result.ready_s is not None else timeout_s + START_ALLOWANCE_S
        if time.monotonic() - alive_at > allowed:
            result.failure = blame_a_hang(_evidence_of_hang(ranks, seen), allowed)
            return result
    return result


def _waiting(ranks: Ranks, seen: list[_Seen]) -> list[Rank]:
    """Ranks that have something to say, after at most LOOK_EVERY_S."""
    # A killed rank's pipe reads as ready with its end; it then counts as silent.
    listening = {member.connection: member for member in ranks.members if not seen[member.rank].silent}
    ready = wait(list(listening), LOOK_EVERY_S)
    return [member for connection, member in listening.items() if connection in ready]


def _messages(member: Rank, seen: _Seen) -> Iterator[tuple[Json, bytes | None]]:
    """What has arrived from a rank; nothing once it has gone."""
    try:
        while not seen.silent and member.connection.poll():
            yield member.receive()
    except (EOFError, OSError):
        seen.silent = True


def _note(result: Watch, seen: _Seen, message: Json, payload: bytes | None, begun: Begun, sampled: Sampled) -> None:
    match message["kind"]:
        case "ready":
            seen.ready = True
            result.facts.append(message["facts"])
        case "begin":
            begun(message["index"])
        case "sampled":
            result.measured += 1
            sampled(payload or b"")
        case "error":
            seen.said = message["text"]
        case "done":
            seen.finished = True


def _ended_early(seen: list[_Seen]) -> bool:
    return any(one.said is not None or (one.silent and not one.finished) for one in seen)


def _hear_last_words(ranks: Ranks, seen: list[_Seen]) -> None:
    deadline = time.monotonic() + LAST_WORDS_S
    while True:
        all_gone = all(member.process.exitcode is not None for member in ranks.members)
        for member in ranks.members:  # once more after the end: what a rank said last lies in its pipe
            for message, payload in _messages(member, seen[member.rank]):
                _note(Watch(), seen[member.rank], message, payload, lambda _: None, lambda _: None)
        if all_gone or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _evidence(ranks: Ranks, seen: list[_Seen]) -> list[Evidence]:
    return [
        Evidence(
            rank=member.rank,
            exit_code=member.process.exitcode,
            said=one.said,
            finished=one.finished,
            stack=innermost_frame(_stack(member)),
            state=ranks.state(member.rank),
            progress=ranks.progress[member.rank],
        )
        for member, one in zip(ranks.members, seen, strict=True)
    ]


def _evidence_of_hang(ranks: Ranks, seen: list[_Seen]) -> list[Evidence]:
    request_stacks(ranks)
    deadline = time.monotonic() + STACK_WAIT_S
    while time.monotonic() < deadline and not all(_stack(member) for member in ranks.members):
        time.sleep(0.02)
    return _evidence(ranks, seen)


def _stack(member: Rank) -> str:
    try:
        return member.stack_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
