"""Define the conclusions on modes: launches of two kinds, and whether gloo's small calls stall."""

from dataclasses import dataclass
from enum import Enum, StrEnum

from collbench.model.conclusions import Analysis, Interval
from collbench.model.records import Case

NAME = "bimodality"
# Gloo sends larger messages in several segments: moving their bytes takes so long that a wait of some ms is a small
# part of the time.
SMALL_BYTES = 2**20


class LaunchFact(Enum):
    """Facts that are recorded for each launch and may differ between the two kinds, with their words in a report."""

    CORES = "cores of rank {rank}"
    HOST = "host of rank {rank}"
    GPU = "GPU of rank {rank}"
    CHOICE = "what the library chose"
    OPEN_TO = "open to the network"
    TIME = "when it ran"
    PLACE = "its place in the order of the launch"
    OTHER_PROCESSES = "CPU time of other processes"
    STEAL = "CPU time that the hypervisor took"
    SEGMENTS_AGAIN = "TCP segments sent again"
    SESSION = "session of the run"


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


class StallVerdict(StrEnum):
    """Whether gloo's small calls stall on a lock: whether its loop threads should run under SCHED_BATCH."""

    # SCHED_BATCH makes small calls certainly faster, and nothing but gloo's lock explains it.
    STALLS = "stalls"
    # It certainly does not.
    NONE = "none"
    # Calls wait, and SCHED_BATCH was not measured.
    UNTESTED = "untested"
    # The interval is too wide, or calls wait for something else, too.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class GlooStalls:
    """Verdict on gloo's small calls, and the facts from which it follows."""

    verdict: StallVerdict
    # Numbers of ranks for which the verdict is true.
    ranks: tuple[int, ...]
    # Cases with two modes under normal scheduling.
    cases: tuple[Case, ...]
    # Share of the calls of these cases that wait.
    share: float
    # Time by which calls that wait take longer.
    wait_s: float
    # Time under normal scheduling / time under SCHED_BATCH, over all small cases that have both. None if untested.
    factor: Interval | None
    # True if calls wait about as often under SCHED_BATCH.
    batch_waits: bool
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
