"""Say what joining a group changed in a process for good, and what each further group costs it.

In: an `Observed` of each rank. Out: sentences. A process in which nothing changed for good gives none.
"""

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analyze.parts import AnalysisPart
from bench.init.model import BEFORE, CALLED, GROUPS, LEFT, STAGES, Observed
from bench.model.facts import Session
from bench.model.records import Run
from bench.model.units import counted, format_rounded_bytes

# The server of torch's TCPStore, which rank 0 of a job runs so that ranks find each other, keeps a pipe to its thread
# until the process ends: both ends are CollBench's own, and no backend left them.
STORE_FILES = {"pipe": 2}
# Less memory than this stays behind or comes with each group in any process that allocates.
LEFT_BYTES, GROUP_BYTES = 50 * 2**20, 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """What `run` keeps of a process."""

    affinity: tuple[int, ...]
    threads: dict[str, int]
    files: dict[str, int]


def remarks(ranks: Sequence[Observed]) -> list[str]:
    """The sentences, on all ranks that they hold for."""
    of_text: dict[str, list[int]] = {}
    for observed in ranks:
        for text in _of_rank(observed):
            of_text.setdefault(text, []).append(observed.rank)
    return [
        text if len(who) == len(ranks) else f"{'rank' if len(who) == 1 else 'ranks'} {', '.join(map(str, who))}: {text}"
        for text, who in of_text.items()
    ]


def _of_rank(observed: Observed) -> Iterator[str]:
    stages, before, after = observed.stages, observed.stages[BEFORE], observed.stages[LEFT]
    for name in STAGES[1:]:
        if lost := set(before.affinity) - set(stages[name].affinity):
            left = ", ".join(map(str, stages[name].affinity))
            count = len(stages[name].affinity)
            stays = " and stays so" if name != LEFT and lost.isdisjoint(after.affinity) else ""
            yield (
                f"the process may use fewer cores {name}{stays}: {count} of {len(before.affinity)} (core {left}); "
                "threads that it starts from then on inherit that"
            )
            break
    if threads := _more(before.threads, after.threads):
        yield f"{counted(sum(threads.values()), 'thread')} left after the end: {_named(threads)}"
    if files := _more(before.files, after.files):
        yield f"{counted(sum(files.values()), 'open file')} left after the end: {_named(files)}"
    policies = Counter(stages[GROUPS].policies) - Counter(before.policies)
    if changed := {name: count for name, count in policies.items() if name != "normal"}:
        yield f"threads have another scheduling than usual: {_named(changed)}"
    if set(after.variables) != set(before.variables):
        names = sorted(set(after.variables) ^ set(before.variables))
        yield f"environment variables were set or removed: {', '.join(names)}"
    if handled := sorted(set(after.signals) - set(before.signals)):
        yield f"handlers of signals stay: {', '.join(_signal(number) for number in handled)}"
    each = (stages[GROUPS].memory_bytes - stages[CALLED].memory_bytes) / max(1, observed.groups)
    if each > GROUP_BYTES:
        yield f"memory grows by {format_rounded_bytes(round(each))} with each further group"
    if (kept := after.memory_bytes - before.memory_bytes) > LEFT_BYTES:
        yield f"{format_rounded_bytes(kept)} of memory stay after the end"


def _seen(run: Run) -> Iterator[tuple[str, list[Kept]]]:
    """Backend, and what was seen in a rank before it joined, then, and when it had left; of each that tells all.

    Files of rank 0's store in a job are left out: they are no backend's.
    """
    for session in run.environment:
        for backend, states, rank in _of_launches(session):
            if rank == 0 and "job" in session:
                states = [states[0], *(replace(kept, files=_more(STORE_FILES, kept.files)) for kept in states[1:])]
            yield backend, states


def _of_launches(session: Session) -> Iterator[tuple[str, list[Kept], int | None]]:
    for launch in session.get("launches", []):
        for rank in launch.get("ranks", []):
            seen = rank.get("seen", {})
            with contextlib.suppress(LookupError, TypeError, ValueError):  # of another version, or damaged
                states = [
                    Kept(tuple(map(int, state["affinity"])), _counts(state["threads"]), _counts(state["files"]))
                    for state in (seen[stage]["init"] for stage in ("before", "joined", "left"))
                ]
                yield str(launch.get("backend")), states, rank.get("rank")


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError("no counts")
    return {str(name): int(count) for name, count in value.items()}


def warnings(run: Run) -> list[str]:
    """On the ranks of a run: fewer cores once they had joined, threads and files that stayed when they had left."""
    told: dict[str, None] = {}
    for backend, (before, joined, after) in _seen(run):
        if set(joined.affinity) < set(before.affinity):
            cores = ", ".join(map(str, joined.affinity))
            rest = f"{len(joined.affinity)} of {len(before.affinity)} left (core {cores})"
            told[f"{backend}: joining took cores from a rank: {rest}"] = None
        stayed = _more(before.threads, after.threads), _more(before.files, after.files)
        for what, kept in zip(("thread", "open file"), stayed, strict=True):
            if kept:
                some = counted(sum(kept.values()), what)
                told[f"{backend}: {some} of a rank stayed after the end ({_named(kept)})"] = None
    return list(told)


def facts(run: Run) -> dict[str, str]:
    """What `compare` and `ab` show where it differs, such as between two versions of a library."""
    values: dict[str, set[int]] = {}
    for backend, (_, joined, _) in _seen(run):
        values.setdefault(f"cores of a rank ({backend})", set()).add(len(joined.affinity))
        for what, counts in (("threads", joined.threads), ("open files", joined.files)):
            values.setdefault(f"{what} of a rank ({backend})", set()).add(sum(counts.values()))
    return {name: " to ".join(map(str, sorted({min(seen), max(seen)}))) for name, seen in values.items()}


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Name → how many more of it there are."""
    return dict(Counter(after) - Counter(before))


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


ANALYSIS = AnalysisPart(analyze=lambda run, summaries: (), warnings=warnings, facts=facts)
