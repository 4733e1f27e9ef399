"""Define the conclusions on recorded jobs: where their time in calls went, and what the same calls take here."""

from dataclasses import dataclass, field

from bench.model.conclusions import Analysis, Interval
from bench.model.notices import Notice, NoticeKind
from bench.model.records import Case
from bench.packages.replay.recorded_calls import NAME


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
    PART_OF_CALLS = "part-of-calls"
    FURTHER_REASONS = "further-reasons"
    GROUPS_BY_NAME = "groups-by-name"
    UNTOLD = "untold"
    LEFT_OUT = "recorded-left-out"
    NOTE = "recording-note"


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """Time in calls of a recorded job: seconds a step, mean over the recorded ranks.

    in_calls_s: in which a call was under way. moved_s: the part that moving the data took: as long as the call was on
    the rank where it was shortest, which nobody let wait. waited_s: the rest, waiting for others. unsplit_s: of calls
    that cannot be divided into the two. waited_for: world rank → seconds that the others waited for it. calls: a step.
    exposed_s: the part of in_calls_s in which nothing was computed; None where computing was not recorded.
    """

    calls: float
    in_calls_s: float
    moved_s: float
    waited_s: float
    unsplit_s: float
    waited_for: dict[int, float] = field(default_factory=dict)
    exposed_s: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedKind:
    """Calls that differ in nothing but when they were made, and by whom. elements: of the larger side.

    ranks: of a group; groups: how many groups make such calls. dtype, elements, ranks: None where not recorded.
    """

    operation: str
    dtype: str | None
    elements: int | None
    ranks: int | None
    groups: int
    time: RecordedTime


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Where the time in calls of a recorded job went. ranks: world ranks whose files were given.

    total: None where durations were not recorded. kinds, groups: the longest first, groups by their name. withheld:
    what is not told, and why. named: the rank that was waited for more than chance allows; None if there is none.
    ends_late: the rank that ends its calls late, and by how many seconds a step after the first rank, over all calls.
    """

    source: str
    backend: str | None
    world_size: int | None
    ranks: tuple[int, ...]
    steps: int
    total: RecordedTime | None
    kinds: tuple[RecordedKind, ...] = ()
    groups: tuple[tuple[str, RecordedTime], ...] = ()
    withheld: tuple[Notice, ...] = ()
    named: int | None = None
    ends_late: tuple[int, float] | None = None

    @property
    def late(self) -> tuple[int, float] | None:
        """The rank that is named, and its share of all waiting."""
        if self.total is None or self.named is None:
            return None
        return self.named, self.total.waited_for[self.named] / sum(self.total.waited_for.values())


@dataclass(frozen=True, slots=True)
class StepBar:
    """One call in the timeline of a step. kind: a case that stands for all calls like it. start_s: since the first."""

    kind: Case
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class ReplayedKind:
    """Calls of one kind in a step of a recorded job. case: stands for all of them. ranks: of a group.

    calls: a step, mean over ranks. recorded, time: of all of them in a step, mean over ranks; recorded is None where
    durations were not.
    """

    case: Case
    calls: float
    ranks: int
    recorded: RecordedTime | None
    time: Interval


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """The communication of one step of a recorded job, made again: seconds in which a call is under way, mean of ranks.

    stand_in: says whose calls are made where ranks make other calls than in the job; "" where each makes its own.
    bars: of the median step on rank 0; recorded_bars: of the rank whose calls it makes.
    """

    case: Case
    source: str
    recorded_world: int | None
    stand_in: str
    gaps: bool
    time: Interval
    recorded: RecordedTime | None
    kinds: tuple[ReplayedKind, ...]
    changes: tuple[str, ...]
    recorded_bars: tuple[StepBar, ...]
    bars: tuple[StepBar, ...]


@dataclass(frozen=True, slots=True)
class ReplayAnalysis:
    """What follows from a run of replays. recorded: the job, if the run has one. steps: its steps, made again."""

    recorded: RecordedJob | None = None
    steps: tuple[ReplayedStep, ...] = ()


def replays_of(analysis: Analysis) -> ReplayAnalysis:
    """What a run says of replays; nothing if it has none."""
    concluded = analysis.of_packages.get(NAME)
    return concluded if isinstance(concluded, ReplayAnalysis) else ReplayAnalysis()
