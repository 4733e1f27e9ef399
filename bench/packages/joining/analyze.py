"""Find permanent changes in a process that result from joining a group, and the memory cost of each further group.

In: an `Observed` per rank. Out: notices. A process without permanent changes gives no notices.
"""

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analyze.parts import AnalysisPart
from bench.model.facts import Session
from bench.model.notices import Notice, notice
from bench.model.records import Run
from bench.packages.joining.process_state import BEFORE, CALLED, GROUPS, LEFT, STAGES, InitNotice, Observed

# The server of torch's TCPStore, which rank 0 of a job runs so that ranks find each other, keeps a pipe to its thread
# until the process ends: both ends are CollBench's own, and no backend left them open.
STORE_FILES = {"pipe": 2}
# Any process that allocates may keep less memory than LEFT_BYTES, and grow by less than GROUP_BYTES per group.
LEFT_BYTES, GROUP_BYTES = 50 * 2**20, 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the state of a process that `run` keeps."""

    affinity: tuple[int, ...]
    threads: dict[str, int]
    files: dict[str, int]


def remarks(ranks: Sequence[Observed]) -> list[Notice]:
    """Return notices on permanent changes, with the ranks that changed; `only` is None if all ranks changed."""
    ranks_by_remark: dict[Notice, list[int]] = {}
    for observed in ranks:
        for remark in _changes_of_rank(observed):
            ranks_by_remark.setdefault(remark, []).append(observed.rank)
    return [
        replace(remark, values={**remark.values, "only": None if len(numbers) == len(ranks) else tuple(numbers)})
        for remark, numbers in ranks_by_remark.items()
    ]


def _changes_of_rank(observed: Observed) -> Iterator[Notice]:
    stages, before, after = observed.stages, observed.stages[BEFORE], observed.stages[LEFT]
    for name in STAGES[1:]:
        if lost := set(before.affinity) - set(stages[name].affinity):
            stays = name != LEFT and lost.isdisjoint(after.affinity)
            yield notice(
                InitNotice.FEWER_CORES_FOR_GOOD if stays else InitNotice.FEWER_CORES,
                stage=name,
                left=len(stages[name].affinity),
                before=len(before.affinity),
                cores=stages[name].affinity,
            )
            break
    if threads := _more(before.threads, after.threads):
        yield notice(InitNotice.THREADS_LEFT, count=sum(threads.values()), names=_named(threads))
    if files := _more(before.files, after.files):
        yield notice(InitNotice.FILES_LEFT, count=sum(files.values()), names=_named(files))
    policies = Counter(stages[GROUPS].policies) - Counter(before.policies)
    if changed := {name: count for name, count in policies.items() if name != "normal"}:
        yield notice(InitNotice.SCHEDULING_CHANGED, names=_named(changed))
    if set(after.variables) != set(before.variables):
        yield notice(InitNotice.VARIABLES_CHANGED, names=tuple(sorted(set(after.variables) ^ set(before.variables))))
    if handled := sorted(set(after.signals) - set(before.signals)):
        yield notice(InitNotice.SIGNAL_HANDLERS, signals=tuple(map(_signal, handled)))
    each = (stages[GROUPS].memory_bytes - stages[CALLED].memory_bytes) / max(1, observed.groups)
    if each > GROUP_BYTES:
        yield notice(InitNotice.MEMORY_OF_GROUPS, bytes=round(each))
    if (kept := after.memory_bytes - before.memory_bytes) > LEFT_BYTES:
        yield notice(InitNotice.MEMORY_LEFT, bytes=kept)


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


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


ANALYSIS = AnalysisPart(analyze=lambda run, summaries: (), notices=notices, facts=facts)
