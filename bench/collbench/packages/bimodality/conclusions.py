"""Define the conclusions on modes: launches of two kinds, and whether gloo's small calls stall."""

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.conclusions import Analysis, Interval
from collbench.model.records import Case

NAME = "bimodality"


class LaunchFact(StrEnum):
    """Facts that are recorded for each launch and may differ between the two kinds."""

    CORES = "cores"
    HOST = "host"
    GPU = "gpu"
    CHOICE = "library-choice"
    OPEN_TO = "open-to-network"
    TIME = "time"
    PLACE = "place-in-launch"
    OTHER_PROCESSES = "other-processes"
    STEAL = "steal"
    SEGMENTS_AGAIN = "segments-sent-again"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Companion:
    """Facts that differ between the two kinds of launches, and divide the launches in the same way."""

    # Each fact with its rank; None for a fact of the whole launch.
    facts: tuple[tuple[LaunchFact, int | None], ...]
    # True if the mean value is larger in slower launches; None for facts that are not numbers.
    more: bool | None = None
    # Values in the slower launches and in the other launches; only the first values if there are many.
    slow: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchModes:
    """A case whose launches are of two kinds."""

    case: Case
    # Numbers of the slower launches.
    slow: tuple[int, ...]
    # Number of all launches.
    launches: int
    # Geometric means of the means of the faster launches, and of the slower launches.
    fast_s: float
    slow_s: float
    # Limits of the 95 % interval of the probability that a launch is slow (Clopper and Pearson).
    low: float
    high: float
    # Facts that differ between the groups, most certain first.
    companions: tuple[Companion, ...] = ()
    # Facts that were compared.
    compared: tuple[LaunchFact, ...] = ()


@dataclass(frozen=True, slots=True)
class GlooStalls:
    """Verdict on gloo's small calls: whether they stall, and the speed-up if its loop threads run under SCHED_BATCH."""

    # One of "stalls", "none", "undecided"; "other": calls stall, and SCHED_BATCH is not a remedy; "harms": SCHED_BATCH
    # makes calls slower; "untested": calls stall, and SCHED_BATCH was not measured. If SCHED_BATCH makes calls faster
    # for an unknown reason: "disturbed": other programs used the cores; "both": calls under SCHED_BATCH stall, too.
    verdict: str
    # Numbers of ranks for which the verdict is true.
    ranks: tuple[int, ...]
    # Largest size of the small calls.
    largest_bytes: int
    # Cases with two modes under normal scheduling.
    cases: tuple[Case, ...]
    # Share of the calls of these cases that wait.
    share: float
    # Time by which calls that wait take longer.
    wait_s: float
    # Time under normal scheduling / time under SCHED_BATCH, over all small cases that have both. None if untested.
    factor: Interval | None
    # True if other programs used the cores; calls wait for these programs, too.
    disturbed: bool


@dataclass(frozen=True, slots=True)
class ModesAnalysis:
    """The conclusions from a run on modes of launches and of calls."""

    launches: tuple[LaunchModes, ...] = ()
    stalls: tuple[GlooStalls, ...] = ()


def modes_of(analysis: Analysis) -> ModesAnalysis:
    """Return a run's conclusions on modes; empty if the run was not analysed for modes."""
    concluded = analysis.of_packages.get(NAME)
    return concluded if isinstance(concluded, ModesAnalysis) else ModesAnalysis()
