"""Name the rank that made a launch fail, from the evidence of all ranks.

In: what is known of each rank after a launch has failed (exit status, last error, Python stack, state of the
process, progress). Out: one `Failure`. When one rank ends, all others soon fail too, with a closed connection:
they are victims and are not named. So is a rank that NCCL's watchdog aborts because it waited too long: the one that
did not come says nothing of a timeout, or had enqueued less. If the evidence points to no rank, none is named.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from bench.model.records import Failure, FailureKind

# Errors of torch in a rank whose peer is gone or silent; the texts differ between versions and backends.
_VICTIM = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|timed? ?out"
    r"|socket closed|remote process|ncclRemoteError|peer has closed|NCCL communicator was aborted|crash on rank \d",
    re.IGNORECASE,
)
# Lines of torch's ProcessGroupNCCL in the log, each with the rank that wrote it.
_WATCHDOG = re.compile(r"Rank (\d+)\] .*?Watchdog caught collective operation timeout")
_ENQUEUED = re.compile(r"Rank (\d+)\] .*?last enqueued (?:NCCL )?work: (\d+)")
# A rank whose stack ends inside torch waits for the other ranks.
_IN_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one rank. exit_code: None while it runs, negative for a signal.

    said: its last error. finished: it reported that it was done. stack: innermost frame of its Python stack, None if
    it wrote none. state: of the process, from the operating system. progress: iterations. lost: why its host no longer
    answers; None while it does. waits_in: source files in which this rank waits for the others, such as that of the
    barrier: the functions called there leave no Python frame of their own. aborted: by NCCL's watchdog, because it
    waited too long. enqueued: number of its last call that NCCL had been given; None if its log does not tell.
    """

    rank: int
    exit_code: int | None = None
    said: str | None = None
    finished: bool = False
    stack: str | None = None
    state: str = "running"
    progress: int = 0
    lost: str | None = None
    waits_in: tuple[str, ...] = ()
    aborted: bool = False
    enqueued: int | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether its stack shows that it is not waiting for the other ranks."""
        if not self.stack:
            return False
        return not _IN_TORCH.search(self.stack) and not any(file in self.stack for file in self.waits_in)


def explain_exit(ranks: Sequence[Evidence]) -> Failure:
    """The failure of the rank that ended first, if known. In order: lost, killed, raised, left early, victims."""
    for one in ranks:
        if one.lost is not None:
            return Failure("lost", one.rank, one.lost)
    killed = [(one.rank, one.exit_code) for one in ranks if (one.exit_code or 0) < 0 and not one.aborted]
    for rank, exit_code in killed:
        return Failure("killed", rank, f"rank {rank} was ended by {_signal_name(exit_code or 0)}")
    return _did_not_come(ranks) if any(one.aborted for one in ranks) else _explain_words(ranks)


def _explain_words(ranks: Sequence[Evidence]) -> Failure:
    """The failure where no rank was killed: raised, left early, victims."""
    spoke = [one for one in ranks if one.said is not None]
    for one in spoke:
        if not _VICTIM.search(one.said or ""):
            return Failure("raised", one.rank, f"rank {one.rank} raised {one.said}")
    left = [one for one in ranks if one.exit_code is not None and not one.finished and one.said is None]
    if len(ranks) > 1 and len(left) == len(ranks) and len({one.exit_code for one in left}) == 1:
        # MPI ranks do this when mpirun is killed
        text = f"all ranks left with status {left[0].exit_code} before they were done; log.txt says more"
        return Failure("exited", None, text)
    if left:
        text = f"rank {left[0].rank} left with status {left[0].exit_code} before it was done"
        return Failure("exited", left[0].rank, text)
    if spoke:
        return Failure("raised", None, f"every rank lost the others; rank {spoke[0].rank} says {spoke[0].said}")
    return Failure("exited", None, "the ranks ended without a word")


def watchdog(log: str) -> dict[int, tuple[bool, int | None]]:
    """For each rank of which the log tells: whether NCCL's watchdog aborted it, and the number of its last call."""
    aborted = {int(rank) for rank in _WATCHDOG.findall(log)}
    enqueued = {int(rank): int(number) for rank, number in _ENQUEUED.findall(log)}
    return {rank: (rank in aborted, enqueued.get(rank)) for rank in sorted(aborted | set(enqueued))}


def _did_not_come(ranks: Sequence[Evidence]) -> Failure:
    """The failure where NCCL's watchdog ended those that waited: of the one that did not, or had enqueued least."""
    said = "NCCL's watchdog ended the ranks that waited"
    came = [one for one in ranks if one.aborted]
    others = [one for one in ranks if not one.aborted]
    if len(others) == 1:
        return Failure("hang", others[0].rank, f"{said}: rank {others[0].rank} did not come to the collective")
    known = {one.rank: one.enqueued for one in came if one.enqueued is not None}
    behind = [rank for rank, number in known.items() if number == min(known.values())]
    if not others and len(known) == len(ranks) and len(behind) < len(ranks):
        return Failure("hang", behind[0], f"{said}: rank {behind[0]} had enqueued least, {known[behind[0]]} calls")
    return Failure("hang", None, f"{said}; none of the others stands out")


def explain_hang(ranks: Sequence[Evidence], timeout_s: float) -> Failure:
    """The failure of the rank that holds up the others: it is stopped, else not waiting, else an iteration behind."""
    said = f"no rank has gone on for {timeout_s:g} s"
    suspects: list[tuple[FailureKind, list[Evidence], str]] = [
        ("hang", [one for one in ranks if one.state == "stopped"], "is stopped (SIGSTOP or a debugger)"),
        (
            "hang",
            [one for one in ranks if one.is_elsewhere],
            "is not in the collective",
        ),
        ("hang", _behind(ranks), "is an iteration behind the others"),
    ]
    for kind, found, what in suspects:
        if 0 < len(found) < len(ranks):
            who = found[0]
            where = f", but {who.stack}" if who.stack and "not in" in what else ""
            also = "".join(f", so is rank {other.rank}" for other in found[1:])
            return Failure(kind, who.rank, f"{said}: rank {who.rank} {what}{where}{also}")
    return Failure("hang", None, f"{said}: all ranks wait for each other, none stands out")


def innermost_frame(dump: str) -> str | None:
    """`in function (file.py:12)` of the first frame in a faulthandler dump; None if there is none."""
    match = re.search(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)', dump)
    return f"in {match['function']} ({match['file']}:{match['line']})" if match else None


def _behind(ranks: Sequence[Evidence]) -> list[Evidence]:
    least = min(one.progress for one in ranks)
    return [one for one in ranks if one.progress == least]


def _signal_name(exit_code: int) -> str:
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"{name} (out of memory, or killed from outside)" if name == "SIGKILL" else name
