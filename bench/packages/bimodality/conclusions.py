"""Define the conclusions on modes: launches of two kinds, and whether gloo's small calls stall."""

from dataclasses import dataclass

from bench.model.conclusions import Analysis, Interval
from bench.model.records import Case

NAME = "bimodality"


@dataclass(frozen=True, slots=True)
class LaunchModes:
    """A case whose launches are of two kinds.

    slow: numbers of the slower launches. launches: how many there are. fast_s, slow_s: geometric means of the launches'
    means. low, high: 95 % interval of the probability that a launch is slow (Clopper and Pearson). facts: what differs
    between the groups, in words.
    """

    case: Case
    slow: tuple[int, ...]
    launches: int
    fast_s: float
    slow_s: float
    low: float
    high: float
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GlooStalls:
    """Whether gloo's small calls stall here, and how much faster they are where its loop threads run under SCHED_BATCH.

    verdict: "stalls"; "none"; "undecided"; "other", where calls stall and SCHED_BATCH is no remedy; "harms", where it
    makes them slower; "untested", where calls stall that were not measured under it; or, where it makes them faster and
    why is not known, "disturbed", because other programs used the cores, or "both", because calls under it stall, too.
    ranks: numbers of ranks of which this holds. largest_bytes: of the small calls. cases: those with two modes under
    normal scheduling. share: of their calls that wait; wait_s: how much longer these take. factor: time under normal
    scheduling / under SCHED_BATCH, over all small cases that have both; None if untested. disturbed: whether other
    programs used the cores, for which calls wait, too.
    """

    verdict: str
    ranks: tuple[int, ...]
    largest_bytes: int
    cases: tuple[Case, ...]
    share: float
    wait_s: float
    factor: Interval | None
    disturbed: bool


@dataclass(frozen=True, slots=True)
class ModesAnalysis:
    """What a run says of modes."""

    launches: tuple[LaunchModes, ...] = ()
    stalls: tuple[GlooStalls, ...] = ()


def modes_of(analysis: Analysis) -> ModesAnalysis:
    """What a run says of modes; nothing if it was not asked."""
    concluded = analysis.of_packages.get(NAME)
    return concluded if isinstance(concluded, ModesAnalysis) else ModesAnalysis()
