"""Find permanent changes in the ranks of a run that result from joining a group.

In: a run. Out: notices and facts. A process without permanent changes gives no notices.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from collbench.analyze.parts import AnalysisPart
from collbench.model.facts import Session
from collbench.model.notices import Notice, notice
from collbench.model.records import Run
from collbench.packages.joining.conclusions import InitNotice

# The server of torch's TCPStore, which rank 0 of a job runs so that ranks find each other, keeps a pipe to its thread
# until the process ends: both ends are CollBench's own, and no backend left them open.
STORE_FILES = {"pipe": 2}


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the state of a process that `run` keeps."""

    affinity: tuple[int, ...]
    threads: dict[str, int]
    files: dict[str, int]


def _states(run: Run) -> Iterator[tuple[str, list[Kept]]]:
    """Yield backend and states of a rank before joining, after joining and after leaving, for each complete record.

    Files of rank 0's store in a job are left out: they do not belong to a backend.
    """
    for session in run.environment:
        for backend, states, rank in _states_in_session(session):
            if rank == 0 and "job" in session:
                states = [states[0], *(replace(kept, files=_more(STORE_FILES, kept.files)) for kept in states[1:])]
            yield backend, states


def _states_in_session(session: Session) -> Iterator[tuple[str, list[Kept], int | None]]:
    for launch in session.get("launches", []):
        for rank in launch.get("ranks", []):
            recorded = rank.get("seen", {})
            with contextlib.suppress(LookupError, TypeError, ValueError):  # records of another version, or damaged
                states = [
                    Kept(tuple(map(int, state["affinity"])), _counts(state["threads"]), _counts(state["files"]))
                    for state in (recorded[stage]["joining"] for stage in ("before", "joined", "left"))
                ]
                yield str(launch.get("backend")), states, rank.get("rank")


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError("no counts")
    return {str(name): int(count) for name, count in value.items()}


def notices(run: Run) -> list[Notice]:
    """Return notices on the ranks of a run: fewer cores after joining, threads and files that stayed after leaving."""
    return list(dict.fromkeys(remark for backend, states in _states(run) for remark in _changes(backend, *states)))


def _changes(backend: str, before: Kept, joined: Kept, after: Kept) -> Iterator[Notice]:
    if set(joined.affinity) < set(before.affinity):
        left, had = len(joined.affinity), len(before.affinity)
        yield notice(InitNotice.CORES_TAKEN, backend=backend, left=left, before=had, cores=joined.affinity)
    for kind, kept in (
        (InitNotice.THREADS_STAYED, _more(before.threads, after.threads)),
        (InitNotice.FILES_STAYED, _more(before.files, after.files)),
    ):
        if kept:
            yield notice(kind, backend=backend, count=sum(kept.values()), names=_named(kept))


def facts(run: Run) -> dict[str, str]:
    """Return the facts that `compare` and `ab` show if they differ, such as between two versions of a library."""
    values: dict[str, set[int]] = {}
    for backend, (_, joined, _) in _states(run):
        values.setdefault(f"cores of a rank ({backend})", set()).add(len(joined.affinity))
        for resource, counts in (("threads", joined.threads), ("open files", joined.files)):
            values.setdefault(f"{resource} of a rank ({backend})", set()).add(sum(counts.values()))
    return {name: " to ".join(map(str, sorted({min(numbers), max(numbers)}))) for name, numbers in values.items()}


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return name → increase of its count, only for counts that increased."""
    return dict(Counter(after) - Counter(before))


def _named(counts: Mapping[str, int]) -> tuple[Notice, ...]:
    return tuple(notice(InitNotice.MORE, count=count, name=name) for name, count in sorted(counts.items()))


ANALYSIS = AnalysisPart(analyze=lambda run, summaries: (), notices=notices, facts=facts)
