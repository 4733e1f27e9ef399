"""The collective calls that a recorded job made, in one type for every format of recording.

    files of profilers ─▶ (importers) CallList ─▶ (store) X.calls.jsonl ─▶ CallList ─▶ (planning) Replay
                                                                                            └─▶ (analyze) RecordedJob

What a format leaves out or cuts off is None and counted in `unknown`; nothing is invented. Everything is frozen. Units
are elements and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bench.model.notices import Notice, NoticeKind
from bench.model.units import MOST_ELEMENTS, MOST_RANKS

# The error rate at which a rank is named.
NAMED_RATE = 0.04
# Operations of recorded calls between two ranks, and those in which each rank sends something else to each.
ONE_WAY = frozenset({"send", "recv"})
ALL_TO_ALL = frozenset({"all_to_all", "all_to_all_list", "all_to_all_uneven"})


class ReplayNotice(NoticeKind):
    """What a recording does not show."""

    NUMBERED_BY_FILES = "numbered-by-files"
    UNEQUAL_STEPS = "unequal-steps"
    ONE_STEP = "one-step"
    OUTSIDE_STEPS = "outside-steps"
    NO_DURATION = "no-duration"
    NO_STARTS = "no-starts"
    ONE_RANK = "one-rank"
    ONE_SIDED = "one-sided"
    UNKNOWN_GROUPS = "unknown-groups"
    PART_OF_GROUPS = "part-of-groups"
    UNEQUAL_CALLS = "unequal-calls"
    DIFFERENT_CALLS = "different-calls"
    BATCHED = "batched-calls"
    UNCLAIMED = "unclaimed-kernels"
    GAPS = "missing-calls"
    PART_OF_CALLS = "part-of-calls"
    FURTHER_REASONS = "further-reasons"
    GROUPS_BY_NAME = "groups-by-name"
    UNTOLD = "untold"
    LEFT_OUT = "recorded-left-out"
    NAMELESS = "calls-without-name"
    NO_CALLS = "lines-without-call"
    OPERATORS = "unsure-operators"
    NO_RECORDINGS = "files-no-recording"
    OTHER_FORMAT = "files-of-other-format"
    INCOMPLETE_CALLS = "incomplete-calls"


class Fact(StrEnum):
    """What a recording may not say of its calls."""

    DTYPE = "dtype"
    ELEMENTS = "elements"
    SPLITS = "splits"
    # Which ranks make a call together.
    GROUP = "group"
    START = "start"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call on one rank.

    Raises ValueError for numbers that no job has, because a reader of a list may count ranks and elements by them.
    """

    # Name in `catalog.collectives`; an operation that is not there keeps the format's own name.
    operation: str
    # Name in `catalog.dtypes`. None if the format does not record it; elements are then bytes.
    dtype: str | None
    # Elements of this rank's input and output.
    elements_in: int | None
    elements_out: int | None
    # Elements for each rank of the group (in) and from each rank (out). Empty if all are equal, None if unknown.
    splits_in: tuple[int, ...] | None = ()
    splits_out: tuple[int, ...] | None = ()
    # World ranks of the group. None if unknown.
    group: tuple[int, ...] | None = None
    # Number of ranks of the group. None if even that is unknown.
    group_size: int | None = None
    # Name of the group, which is the same on all its ranks, where the ranks are not recorded.
    communicator: str | None = None
    # World rank of the root of a rooted call.
    root: int | None = None
    # World rank of the peer of a send or receive.
    peer: int | None = None
    # Stream on which the call ran. Calls of different streams may overlap.
    stream: str | None = None
    # Time since the first call of the recording at which this call was made, that is, enqueued. It does not show when
    # the call ran.
    start_s: float | None = None
    # Time at which the call began to run, by the same clock, from a timeline of the device or of gloo's worker thread.
    # None without such a timeline.
    ran_s: float | None = None
    # Time that the call ran, with the wait for ranks that came late.
    duration_s: float | None = None
    # Part of duration_s in which nothing was computed; of calls that run at the same time, it is counted for the one
    # that ends first. None if computing was not recorded.
    exposed_s: float | None = None
    # True if the caller went on at once.
    asynchronous: bool | None = None
    # Number of the call within its group, by which calls of different ranks are joined. None if the format has none.
    sequence: int | None = None
    # Step of the job in which the call was made.
    step: int | None = None
    # NCCL's algorithm and protocol.
    chosen: str | None = None
    # True if the call ran in one kernel with others (torch's coalesced groups, batches of sends and receives). The time
    # of such a group is divided equally among its calls, one after the other, so it does not say who waited.
    batched: bool = False

    def __post_init__(self) -> None:
        for ranks in (self.group_size or 0, len(self.group or ())):
            if not 0 <= ranks <= MOST_RANKS:
                raise ValueError(f"a group of {ranks} ranks; at most {MOST_RANKS} are read")
        for elements in (self.elements_in or 0, self.elements_out or 0):
            if not 0 <= elements <= MOST_ELEMENTS:
                raise ValueError(f"a call of {elements} elements")


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The calls of one rank, in the order in which they were made."""

    source: str
    # None if the file does not name the rank.
    rank: int | None
    calls: tuple[RecordedCall, ...]
    # Time of the first call, in seconds since 1970. None if the file does not have it; a saved list never has it.
    began_s: float | None = field(default=None, compare=False)
    # Name of the host. None if the file does not have it; a saved list never has it.
    host: str | None = field(default=None, compare=False)
    # Time from began_s of the earliest rank to began_s, of a job on one host. None if they cannot be compared.
    offset_s: float | None = None
    # True if the rank is only in the name of the file.
    by_name: bool = field(default=False, compare=False)
    # Host and pid, where the file tells them. A saved list never has it.
    process: tuple[str, int] | None = field(default=None, compare=False)
    # Number of calls that were not complete; they are among the calls.
    incomplete: int = field(default=0, compare=False)
    # Kernels that communicate and belong to none of the calls: their number, and their time.
    unclaimed: int = 0
    unclaimed_s: float = 0.0

    @property
    def steps(self) -> int:
        """Number of steps in which the rank made calls; 1 if steps are not recorded."""
        return len({call.step for call in self.calls} - {None}) or 1


@dataclass(frozen=True, slots=True)
class Gaps:
    """Calls that are missing between the first and the last of a recording, by their numbers; of all ranks."""

    recorded: int
    # Calls from the first to the last number.
    made: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CallList:
    """The calls that a job recorded. Raises ValueError for a world that is too large."""

    # Name of the format.
    kind: str
    backend: str | None
    # None if the number of ranks is not recorded.
    world_size: int | None
    ranks: tuple[RankRecording, ...]
    # What was not recorded → in how many calls.
    unknown: dict[Fact, int] = field(default_factory=dict)
    # What was left out, such as waits, which are no calls that could be made again, and what speaks against the rest.
    notices: tuple[Notice, ...] = ()
    # What numbers of calls prove: not all were recorded. None if nothing is missing between the first and the last.
    gaps: Gaps | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.world_size or 0) <= MOST_RANKS:
            raise ValueError(f"a world of {self.world_size} ranks; at most {MOST_RANKS} are read")

    @property
    def steps(self) -> int:
        """Number of steps of the job in which calls were recorded; 1 if steps are not recorded."""
        return len({call.step for rank in self.ranks for call in rank.calls} - {None}) or 1

    @property
    def marked(self) -> bool:
        """Whether steps are recorded."""
        return any(call.step is not None for rank in self.ranks for call in rank.calls)
