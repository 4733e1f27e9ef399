"""Define the state of a process that is inspected, and the job of the inspected ranks."""

from dataclasses import dataclass, field

from bench.model.notices import NoticeKind
from bench.model.records import Launch

# Stages of a process, in order; more groups are made after the first call.
BEFORE, JOINED, CALLED, GROUPS, LEFT = "before", "after init", "after a call", "more groups", "after the end"
STAGES = (BEFORE, JOINED, CALLED, GROUPS, LEFT)


class InitNotice(NoticeKind):
    """Changes that were seen in ranks."""

    # A name with a larger count than before, and the increase; other notices contain these.
    MORE = "more"
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
    """The state of a process at one moment."""

    # Cores on which the first thread may run.
    affinity: tuple[int, ...]
    # Counts by name of a thread, by kind of an open file, and by scheduling policy of a thread.
    threads: dict[str, int]
    files: dict[str, int]
    policies: dict[str, int]
    # Resident memory.
    memory_bytes: int
    # Names of variables in the environment, as C sees it.
    variables: tuple[str, ...]
    # Numbers of the signals that have a handler.
    signals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InitJob:
    """The job that every rank receives."""

    launch: Launch
    # Folder where a rank writes its snapshots.
    folder: str
    # Number of further groups that a rank makes, each of all ranks.
    groups: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of one rank at all stages."""

    rank: int
    stages: dict[str, ProcessState]
    # Number of groups that were made at the stage `GROUPS`.
    groups: int
    # Versions of the libraries.
    versions: dict[str, str] = field(default_factory=dict)
