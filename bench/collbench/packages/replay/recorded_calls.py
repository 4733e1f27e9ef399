"""Define the collective calls of a recorded job: one type for all formats of recordings.

    files of profilers ─▶ (importers) CallList ─▶ (store) X.calls.jsonl ─▶ CallList ─▶ (planning) Replay
                                                                                            └─▶ (analyze) RecordedJob

Facts that a format omits or truncates are None and counted in `unknown`; nothing is invented. All classes are frozen.
Units are elements and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from collbench.model.notices import Kind, Notice
from collbench.model.units import MOST_ELEMENTS, MOST_RANKS, NS

# False-alarm rate at which a rank is named as the straggler.
NAMED_RATE = 0.04
# Operations between two ranks, and operations in which each rank sends different data to every rank.
ONE_WAY = frozenset({"send", "recv"})
ALL_TO_ALL = frozenset({"all_to_all", "all_to_all_list", "all_to_all_uneven"})
# Kinds that several importers give, or that the report treats apart.
UNCLAIMED_KERNELS = Kind(
    "unclaimed-kernels",
    "kernels that communicate and belong to no recorded call: {kernels}, {seconds:seconds} per step, not counted",
)
UNSURE_KERNELS = Kind("unsure-kernels", "{count} × kernel {kernel}: it may communicate or compute")
MISSING_CALLS = Kind(
    "missing-calls",
    "how long all calls took: {recorded} of {made} calls of a rank were recorded (numbers {first} to {last})",
)
RECORDED_LEFT_OUT = Kind("recorded-left-out", "{count} × {what}: left out")
INCOMPLETE_CALLS = Kind("incomplete-calls", "{count} of the calls were not complete")
CALLS_WITHOUT_NAME = Kind("calls-without-name", "{count} × calls without a name: left out")
UNSURE_OPERATORS = Kind("unsure-operators", "{count} × operators of torch that may be further calls: left out")
# Notices on communication that may be missing from the time in calls.
NOT_IN_CALLS = frozenset({UNCLAIMED_KERNELS, UNSURE_KERNELS, UNSURE_OPERATORS, CALLS_WITHOUT_NAME})
# Operations without data: a size or dtype is never missing.
WITHOUT_DATA = {"barrier"}
# Fact that a recording may lack → its value in a call.
FACTS: Mapping[str, Callable[[RecordedCall], object]] = {
    "dtype": attrgetter("dtype"),
    "elements": lambda call: call.elements_in if call.elements_in is not None else call.elements_out,
    "splits": attrgetter("splits_in"),
    "group": attrgetter("group"),
    "start": attrgetter("start_s"),
    "duration": attrgetter("duration_s"),
}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call on one rank.

    Raises ValueError for impossible numbers of ranks or elements, because later code may enumerate them, and for a
    duration that is not a number.
    """

    # Name in `catalog.collectives`; an operation that is not there keeps the format's own name.
    operation: str
    # Name in `catalog.dtypes`. None if the format does not record it; elements are then bytes.
    dtype: str | None
    # Elements of this rank's input and output.
    elements_in: int | None
    elements_out: int | None
    # Elements sent to each rank of the group. Empty if equal, None if unknown.
    splits_in: tuple[int, ...] | None = ()
    # World ranks of the group. None if unknown.
    group: tuple[int, ...] | None = None
    # Number of ranks of the group. None if unknown.
    group_size: int | None = None
    # Name of the group, equal on all its ranks; identifies the group if its ranks are not recorded.
    communicator: str | None = None
    # World rank of the root of a rooted call.
    root: int | None = None
    # World rank of the peer of a send or receive.
    peer: int | None = None
    # Time at which this call was enqueued, since the first call of the recording. It does not show when the call ran.
    start_s: float | None = None
    # Time at which the call began to run, by the same clock, from a timeline of the device or of gloo's worker thread.
    # None without such a timeline.
    ran_s: float | None = None
    # Duration of the call, including the wait for late ranks (stragglers).
    duration_s: float | None = None
    # Exposed communication: part of duration_s in which nothing was computed. If calls overlap, it is counted for the
    # call that ends first. None if computing was not recorded.
    exposed_s: float | None = None
    # True if the caller continued without waiting for the end of the call.
    asynchronous: bool | None = None
    # Number of the call within its group, by which calls of different ranks are matched. None if the format has none.
    sequence: int | None = None
    # Step of the job in which the call was made.
    step: int | None = None
    # True if the host's clock measured `duration_s`, from the call until its end was seen, not a GPU's.
    by_host: bool = False
    # True if the call ran in one kernel with other calls (torch's coalesced groups, batches of sends and receives). The
    # time of the kernel is divided equally among its calls, in sequence, so it does not show which rank waited.
    batched: bool = False

    def __post_init__(self) -> None:
        for ranks in (self.group_size or 0, len(self.group or ())):
            if not 0 <= ranks <= MOST_RANKS:
                raise ValueError(f"a group of {ranks} ranks; at most {MOST_RANKS} are read")
        for elements in (self.elements_in or 0, self.elements_out or 0):
            if not 0 <= elements <= MOST_ELEMENTS:
                raise ValueError(f"a call of {elements} elements")
        if not math.isfinite((self.duration_s or 0.0) / NS):
            raise ValueError(f"a call of {self.duration_s} s")


def whole_ns(seconds: float | None) -> int:
    """Return a recorded time in whole ns (None is 0): their sums and differences are exact, so that a zero is a 0."""
    return round((seconds or 0.0) / NS)


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The calls of one rank, in the order in which they were made."""

    source: str
    # None if the file does not name the rank.
    rank: int | None
    calls: tuple[RecordedCall, ...]
    # Time of the first call, in ns since 1970. None if the file does not have it; a saved list never has it.
    began_ns: int | None = field(default=None, compare=False)
    # Name of the host. None if the file does not have it; a saved list never has it.
    host: str | None = field(default=None, compare=False)
    # Time from began_ns of the earliest rank to began_ns, for a job on one host. None if clocks cannot be compared.
    offset_s: float | None = None
    # True if only the name of the file contains the rank.
    by_name: bool = field(default=False, compare=False)
    # Host and pid, if the file records them. A saved list never does.
    process: tuple[str, int] | None = field(default=None, compare=False)
    # Backends as the file names them; "" if it does not. A saved list never does.
    backend: str = field(default="", compare=False)
    # Number of calls that the recorder dropped, or None if it does not record this. A saved list never has it.
    dropped: int | None = field(default=None, compare=False)
    # Number of ranks of the job that the file states, and the most that its groups prove. A saved list has neither.
    stated_world: int | None = field(default=None, compare=False)
    proven_world: int = field(default=0, compare=False)
    # Number of communication kernels that belong to no recorded call, and the time in which at least one of them ran.
    unclaimed: int = 0
    unclaimed_s: float = 0.0

    @property
    def steps(self) -> int:
        """Return the number of steps in which the rank made calls; 1 if steps are not recorded."""
        return len({call.step for call in self.calls} - {None}) or 1


@dataclass(frozen=True, slots=True)
class CallList:
    """The calls that a job recorded. Raises ValueError for a world that is too large."""

    # Name of the format.
    kind: str
    backend: str | None
    # None if the number of ranks is not recorded.
    world_size: int | None
    ranks: tuple[RankRecording, ...]
    # Notices on events that were left out (such as waits, which cannot be replayed), and on doubts about the calls.
    notices: tuple[Notice, ...] = ()
    # Values of MISSING_CALLS for the rank that lacks the most calls, as sequence numbers or the recorder's own count
    # prove. None if no call is known to be missing.
    gaps: dict[str, int] | None = None
    # True if the job may have had more ranks than `world_size`: no file has their number, and groups prove as many.
    world_is_least: bool = False

    def __post_init__(self) -> None:
        if not 0 <= (self.world_size or 0) <= MOST_RANKS:
            raise ValueError(f"a world of {self.world_size} ranks; at most {MOST_RANKS} are read")

    @property
    def steps(self) -> int:
        """Return the number of steps of the job in which calls were recorded; 1 if steps are not recorded."""
        return len({call.step for rank in self.ranks for call in rank.calls} - {None}) or 1

    @property
    def unknown(self) -> dict[str, int]:
        """Return fact that was not recorded → number of calls without it."""
        calls = [call for rank in self.ranks for call in rank.calls if call.operation not in WITHOUT_DATA]
        missing = {fact: sum(value_of(call) is None for call in calls) for fact, value_of in FACTS.items()}
        return {fact: count for fact, count in missing.items() if count}

    @property
    def marked(self) -> bool:
        """Return whether steps are recorded."""
        return any(call.step is not None for rank in self.ranks for call in rank.calls)
