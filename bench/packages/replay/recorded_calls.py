"""The collective calls that a recorded job made, in one type for every format of recording.

    files of profilers ─▶ (importers) CallList ─▶ (store) X.calls.jsonl ─▶ CallList ─▶ (planning) Replay
                                                                                            └─▶ (analyze) RecordedJob

What a format leaves out or cuts off is None and counted in `unknown`; nothing is invented. Everything is frozen. Units
are elements and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.model.units import MOST_ELEMENTS, MOST_RANKS

# Of the package, its operation, its section and its verb.
NAME = "replay"
# What a recording may not say of its calls: which ranks make them together.
GROUP = "ranks of the group"
# The error rate at which a rank is named.
NAMED_RATE = 0.04
# Operations of recorded calls between two ranks, and those in which each rank sends something else to each.
ONE_WAY = frozenset({"send", "recv"})
ALL_TO_ALL = frozenset({"all_to_all", "all_to_all_list", "all_to_all_uneven"})


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call on one rank.

    operation: as `operations` names it; what it does not know keeps the format's own name. dtype: as `dtypes` names it;
    None if the format does not tell, elements are then bytes. elements_in, elements_out: of this rank. splits_in,
    splits_out: elements for and from each rank of the group; empty where all are alike, None if they are not known.
    group: ranks of the world; None if it is not known. group_size: None if not even that is known. root: of the world,
    of a rooted call. peer: of the world, of a send or receive. communicator: a name of the group that is the same on
    all its ranks, where the ranks are not told. start_s: when the call was made, which is when it was enqueued, since
    the first one of the recording. It says nothing of when the call ran. stream: on which it ran; calls of different
    streams may overlap. ran_s: when it began to run, by the same clock, from a timeline of the device or of gloo's
    worker thread; None without such a timeline. duration_s: how long it ran, with the wait for others that came late.
    exposed_s: the part of duration_s in which nothing was computed; of calls that run at the same time, it is counted
    for the one that ends first. None where computing was not recorded. asynchronous: whether the caller went on at
    once. sequence: number of the call within its group, by which the calls of different ranks belong together; None if
    the format has none. step: of the job, in which the call was made. chosen: NCCL's algorithm and protocol.

    Raises ValueError for numbers that no job has: whoever reads a list may count ranks and elements by them.
    """

    operation: str
    dtype: str | None
    elements_in: int | None
    elements_out: int | None
    splits_in: tuple[int, ...] | None = ()
    splits_out: tuple[int, ...] | None = ()
    group: tuple[int, ...] | None = None
    group_size: int | None = None
    communicator: str | None = None
    root: int | None = None
    peer: int | None = None
    stream: str | None = None
    start_s: float | None = None
    ran_s: float | None = None
    duration_s: float | None = None
    exposed_s: float | None = None
    asynchronous: bool | None = None
    sequence: int | None = None
    step: int | None = None
    chosen: str | None = None

    def __post_init__(self) -> None:
        for ranks in (self.group_size or 0, len(self.group or ())):
            if not 0 <= ranks <= MOST_RANKS:
                raise ValueError(f"a group of {ranks} ranks; at most {MOST_RANKS} are read")
        for elements in (self.elements_in or 0, self.elements_out or 0):
            if not 0 <= elements <= MOST_ELEMENTS:
                raise ValueError(f"a call of {elements} elements")


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The calls of one rank, in the order in which they were made. rank: None if the file does not tell.

    began_s: when the first one was made, in seconds since 1970; host: its name; None if the file does not tell. A saved
    list has neither. offset_s: began_s after the earliest rank of a job on one host; None if they cannot be compared.
    """

    source: str
    rank: int | None
    calls: tuple[RecordedCall, ...]
    began_s: float | None = field(default=None, compare=False)
    host: str | None = field(default=None, compare=False)
    offset_s: float | None = None

    @property
    def steps(self) -> int:
        """Steps in which it made calls; 1 where steps are not told."""
        return len({call.step for call in self.calls} - {None}) or 1


@dataclass(frozen=True, slots=True)
class CallList:
    """What a job recorded. kind: of the format. world_size: None if it is not told.

    unknown: what was not told → of how many calls. left_out: events that are no calls that could be made again, such as
    waits, with their number. notes: sentences on what a reader must know. Raises ValueError for a world that is too
    large.
    """

    kind: str
    backend: str | None
    world_size: int | None
    ranks: tuple[RankRecording, ...]
    unknown: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= (self.world_size or 0) <= MOST_RANKS:
            raise ValueError(f"a world of {self.world_size} ranks; at most {MOST_RANKS} are read")

    @property
    def steps(self) -> int:
        """Steps of the job in which calls were recorded; 1 where steps are not told."""
        return len({call.step for rank in self.ranks for call in rank.calls} - {None}) or 1
