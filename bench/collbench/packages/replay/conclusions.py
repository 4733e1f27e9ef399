"""Define the conclusions on recorded jobs: where their time in calls went, and how long the same calls take here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from collbench.model.conclusions import Analysis, Interval
from collbench.model.notices import Notice
from collbench.model.records import Case
from collbench.packages.replay.replayed_calls import NAME


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """The time that a recorded job spent in calls, in seconds per step, as the mean over the recorded ranks."""

    # Number of calls per step.
    calls: float
    # Time in which a call was in progress; None if no duration was recorded.
    in_calls_s: float | None
    # Part for moving data: the time after the last rank began the call; without a common clock, the shortest duration.
    moved_s: float
    # Rest of the same calls: waiting for other ranks.
    waited_s: float
    # Time of calls that cannot be divided into moving and waiting.
    unsplit_s: float
    # World rank → seconds that the other ranks waited for it.
    waited_for: dict[int, float] = field(default_factory=dict)
    # Exposed communication: part of in_calls_s in which nothing was computed. None if computing was not recorded.
    exposed_s: float | None = None
    # Number of calls per step whose duration was not recorded.
    untimed: float = 0.0


def together(chosen: Sequence[RecordedTime]) -> RecordedTime:
    """Return the sum of several times; `in_calls_s` is None if all are unknown, `exposed_s` if any is unknown."""
    waited_for: Counter[int] = Counter()
    for time in chosen:
        waited_for.update(time.waited_for)
    exposed = [time.exposed_s for time in chosen]
    in_calls = [time.in_calls_s for time in chosen if time.in_calls_s is not None]
    added = ("calls", "untimed", "moved_s", "waited_s", "unsplit_s")
    return RecordedTime(
        **{name: sum(getattr(time, name) for time in chosen) for name in added},
        in_calls_s=sum(in_calls) if in_calls or not chosen else None,
        waited_for=dict(waited_for),
        exposed_s=None if None in exposed else sum(filter(None, exposed)),
    )


@dataclass(frozen=True, slots=True)
class RecordedKind:
    """Calls of one kind: equal in operation, dtype, size and number of ranks."""

    operation: str
    # None if the dtype was not recorded.
    dtype: str | None
    # Elements of the larger side. None if not recorded.
    elements: int | None
    # Number of ranks of a group. None if not recorded.
    ranks: int | None
    # Number of groups that make such calls.
    groups: int
    time: RecordedTime
    # Size of a call, as `list operations` defines it. None if the dtype or the elements were not recorded.
    size_bytes: int | None = None
    # Bus bandwidth in bytes/s while data moved, or while calls ran if the moving time is unknown. None if unknown.
    busbw: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """An account of where the time in calls of a recorded job went."""

    source: str
    backend: str | None
    world_size: int | None
    # World ranks of the recorded ranks; only numbers of files if `files` is not empty.
    ranks: tuple[int, ...]
    steps: int
    # None if durations were not recorded.
    total: RecordedTime | None
    # Kinds of calls, and groups as (name, time); the longest time first.
    kinds: tuple[RecordedKind, ...] = ()
    groups: tuple[tuple[str, RecordedTime], ...] = ()
    # Notices on withheld conclusions, with reasons.
    withheld: tuple[Notice, ...] = ()
    # Time per step in which kernels communicated that belong to no recorded call, as the mean over ranks.
    unclaimed_s: float = 0.0
    # Straggler: rank that the other ranks waited for longer than chance allows. None if there is none.
    named: int | None = None
    # Whether steps were marked.
    marked: bool = False
    # Names of the files if they do not record their ranks; `ranks` are then only numbers of files.
    files: tuple[str, ...] = ()
    # Rank that ends its calls late, and its delay after the first rank in seconds per step, summed over all calls.
    ends_late: tuple[int, float] | None = None

    @property
    def late(self) -> tuple[int, float] | None:
        """Return the straggler (`named`) and its share of the total waiting time; None if there is none."""
        if self.total is None or self.named is None:
            return None
        return self.named, self.total.waited_for[self.named] / sum(self.total.waited_for.values())


@dataclass(frozen=True, slots=True)
class StepBar:
    """One call in the timeline of a step."""

    # Case that represents all calls of the same kind.
    kind: Case
    # Time since the start of the first call.
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class ReplayedKind:
    """Calls of one kind in a step of a recorded job."""

    # Case that represents all these calls.
    case: Case
    # Number of calls per step, mean over ranks.
    calls: float
    # Number of ranks of a group.
    ranks: int
    # Recorded time of all these calls in a step, mean over ranks. None if durations were not recorded.
    recorded: RecordedTime | None
    # Time of all these calls in a step of the replay, mean over ranks.
    time: Interval


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """The replay of the communication in one step of a recorded job.

    Times are seconds in which at least one call is in progress, as the mean over ranks.
    """

    case: Case
    source: str
    # Sentence that states whose calls are made, if ranks do not make their own recorded calls; else "".
    stand_in: str
    time: Interval
    recorded: RecordedTime | None
    kinds: tuple[ReplayedKind, ...]
    changes: tuple[Notice, ...]
    # Recorded calls of the rank whose calls rank 0 makes.
    recorded_bars: tuple[StepBar, ...]
    # Calls of the median step on rank 0.
    bars: tuple[StepBar, ...]


@dataclass(frozen=True, slots=True)
class ReplayAnalysis:
    """The conclusions from a run of replays."""

    # The recorded job, if the run has one.
    recorded: RecordedJob | None = None
    # Replayed steps of the recorded job.
    steps: tuple[ReplayedStep, ...] = ()


def replays_of(analysis: Analysis) -> ReplayAnalysis:
    """Return the conclusions on replays in an analysis; empty conclusions if there are none."""
    concluded = analysis.of_packages.get(NAME)
    return concluded if isinstance(concluded, ReplayAnalysis) else ReplayAnalysis()
