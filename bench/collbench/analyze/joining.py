"""Find permanent changes in the ranks of a run that result from joining a group.

In: a run. Out: notices and facts. A process without permanent changes gives no notices.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from collbench.model.notices import Kind, Notice
from collbench.model.records import Json, Run

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
        for launch in session.get("launches", []):
            for rank in launch.get("ranks", []):
                seen = rank.get("seen", {})
                with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):  # a damaged record
                    states = [_kept(seen[stage]["joining"]) for stage in ("before", "joined", "left")]
                    if rank.get("rank") == 0 and "job" in session:
                        states[1:] = [replace(kept, files=_more(STORE_FILES, kept.files)) for kept in states[1:]]
                    yield str(launch.get("backend")), states


def _kept(state: Json) -> Kept:
    threads, files = ({str(k): int(count) for k, count in state[kind].items()} for kind in ("threads", "files"))
    return Kept(tuple(map(int, state["affinity"])), threads, files)


# A name with a larger count than before, and the increase; other notices contain these.
MORE = Kind("more", "{count} {name}")
CORES_TAKEN = Kind("cores-taken", "{backend}: joining took cores from a rank: {left} of {before} left (core {cores})")
THREADS_STAYED = Kind("threads-stayed", "{backend}: {count:count thread} of a rank stayed after the end ({names})")
FILES_STAYED = Kind("files-stayed", "{backend}: {count:count open file} of a rank stayed after the end ({names})")


def notices(run: Run) -> list[Notice]:
    """Return notices on cores that joining took, and on the most threads and files of a rank that stayed afterwards."""
    taken, most = list[Notice](), defaultdict[tuple[Kind, str], Counter[str]](Counter)
    for backend, (before, joined, after) in _states(run):
        if set(joined.affinity) < set(before.affinity):
            left, had = len(joined.affinity), len(before.affinity)
            taken.append(CORES_TAKEN(backend=backend, left=left, before=had, cores=joined.affinity))
        threads, files = _more(before.threads, after.threads), _more(before.files, after.files)
        for kind, counts in ((THREADS_STAYED, threads), (FILES_STAYED, files)):
            most[kind, backend] = max(most[kind, backend], counts, key=Counter.total)
    stayed = {
        key: tuple(MORE(count=counts[name], name=name) for name in sorted(counts)) for key, counts in most.items()
    }
    return [
        *dict.fromkeys(taken),
        *(kind(backend=at, count=most[kind, at].total(), names=names) for (kind, at), names in stayed.items() if names),
    ]


def facts(run: Run) -> dict[str, str]:
    """Return the facts that `compare` and `ab` show if they differ, such as between two versions of a library."""
    values: dict[str, set[int]] = defaultdict(set)
    for backend, (_, joined, _) in _states(run):
        values[f"cores of a rank ({backend})"].add(len(joined.affinity))
        values[f"threads of a rank ({backend})"].add(sum(joined.threads.values()))
        values[f"open files of a rank ({backend})"].add(sum(joined.files.values()))
    return {name: " to ".join(map(str, sorted({min(numbers), max(numbers)}))) for name, numbers in values.items()}


def _more(before: Mapping[str, int], after: Mapping[str, int]) -> Counter[str]:
    """Return name → increase of its count, only for counts that increased."""
    return Counter(after) - Counter(before)
