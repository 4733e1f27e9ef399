"""Define what is inspected in a process, and the job of the ranks that are inspected."""

from dataclasses import dataclass, field

from bench.model.notices import NoticeKind
from bench.model.records import Launch

# Stages of a process, in order; more groups are made after the first call.
BEFORE, JOINED, CALLED, GROUPS, LEFT = "before", "after init", "after a call", "more groups", "after the end"
STAGES = (BEFORE, JOINED, CALLED, GROUPS, LEFT)


class InitNotice(NoticeKind):
    """What was seen in ranks."""

    # In the ranks of a run.
    CORES_TAKEN = "cores-taken"
    THREADS_STAYED = "threads-stayed"
    FILES_STAYED = "files-stayed"
    # By the verb `init`.
    FEWER_CORES = "fewer-cores"
    FEWER_CORES_FOR_GOOD = "fewer-cores-for-good"
    THREADS_LEFT = "threads-left"
    FILES_LEFT = "files-left"
    SCHEDULING_CHANGED = "scheduling-changed"
    VARIABLES_CHANGED = "variables-changed"
    SIGNAL_HANDLERS = "signal-handlers"
    MEMORY_OF_GROUPS = "memory-of-groups"
    MEMORY_LEFT = "memory-left"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process at one moment.

    affinity: cores on which its first thread may run. threads, files, policies: name of a thread, kind of an open file,
    scheduling of a thread → how many. memory_bytes: resident. variables: names in its environment, as C sees it.
    signals: numbers of those that have a handler.
    """

    affinity: tuple[int, ...]
    threads: dict[str, int]
    files: dict[str, int]
    policies: dict[str, int]
    memory_bytes: int
    variables: tuple[str, ...]
    signals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InitJob:
    """What every rank is told. folder: where it writes its snapshots. groups: how many more it makes, of all ranks."""

    launch: Launch
    folder: str
    groups: int


@dataclass(frozen=True, slots=True)
class Observed:
    """One rank at all stages. versions: of the libraries. groups: made at the stage `GROUPS`."""

    rank: int
    stages: dict[str, ProcessState]
    groups: int
    versions: dict[str, str] = field(default_factory=dict)
