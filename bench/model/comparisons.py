"""Define the types of conclusions from several runs, which `analyze` computes and `report` shows.

    Summary ─▶ Change ─▶ Comparison    two runs
    Summary ─▶ Trend                   many runs

Everything is frozen. Units: seconds, bytes per second. Nothing here reads or computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bench.model.conclusions import Interval
from bench.model.notices import Notice
from bench.model.records import Case, Ending

# Smallest relative change of a time that matters by default: a smaller one is rarely worth tracing.
MIN_CHANGE = 0.05
# Most further launches that are advised: beyond, measuring differently helps more than launching again.
MOST_FURTHER_LAUNCHES = 200


class ChangeVerdict(StrEnum):
    """Whether a time changed (docs/develop/statistics.md, "Comparing two runs")."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


SLOWER, FASTER, SAME, INCONCLUSIVE = ChangeVerdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a time changed. ratio: AFTER / BEFORE, with the interval that the verdict follows from.

    verdict: FASTER, SLOWER, SAME or INCONCLUSIVE (docs/develop/statistics.md). reason: why. p: of no change,
        corrected for the number of cases, as the rule used it; None if it is unknown how launches differ. level: of the
        interval, such as 0.975; of SAME that of its two one-sided tests, of others corrected for the number of cases.
    further_launches: launches to add on each side for a verdict at a power of 80 %, if ratio and scatter stay as they
        are; None if there is a verdict already, or if no reasonable number would suffice.
    """

    ratio: Interval
    verdict: ChangeVerdict
    reason: Notice
    p: float | None = None
    level: float | None = None
    further_launches: int | None = None


@dataclass(frozen=True, slots=True)
class ExposedChange:
    """Exposed communication of one case in two runs. difference: after − before, with its interval.

    resolved: False where the difference may be zero: by a test over all cases at once, because it is within the
    noise of the A/A pairs of either run, or because there are too few launches to test it.
    """

    before: Interval
    after: Interval
    difference: Interval
    resolved: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One case on two sides: of two kept runs, or of two sides that took turns.

    case: on the side before; other: after. ratios: AFTER / BEFORE of each pair of launches, where sides took turns.
    exposed: how exposed communication changed, of cases that compute, too.
    """

    case: Case
    other: Case
    before: Interval
    after: Interval
    judgement: Judgement
    ratios: tuple[float, ...] = ()
    exposed: ExposedChange | None = None

    @property
    def ratio(self) -> Interval:
        return self.judgement.ratio

    @property
    def verdict(self) -> ChangeVerdict:
        return self.judgement.verdict

    @property
    def reason(self) -> Notice:
        return self.judgement.reason

    @property
    def p(self) -> float | None:
        return self.judgement.p

    @property
    def level(self) -> float | None:
        return self.judgement.level

    @property
    def further_launches(self) -> int | None:
        return self.judgement.further_launches


class Absence(StrEnum):
    """Why a run has no time of a case."""

    NOT_ASKED = "not asked for"
    NOT_YET = "not measured yet"
    SKIPPED = "skipped"
    FAILED = "failed"
    FAILED_ONCE = "failed in a launch"


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A case that has a time on one side only. other: the same case on the other side. detail: of a skip or failure."""

    case: Case
    other: Case
    why: Absence
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides compared: changes of the common cases, differences of the environments, cases of one side only.

    whole: the judgement of all cases together, by an index over them; None with a single case or too few launches.
    verdict: the gravest of the cases' verdicts and that of the whole. broken: cases that failed on the
        second side only, in some launch. lost: those of `only_before` that the second was to measure. fail_on: the
        verdicts that are failures. undecided_exits: whether no decision has an exit code of its own.
    across: the field in which the sides differ on purpose, such as "backend"; None where the same cases are compared.
    values: of that field on both sides, where they are of one run.
    Where sides took turns: pairs: of launches that the verdict rests on. ratios: the index AFTER / BEFORE of each pair.
    fresh_pairs: measured after the verdict. fresh: the index over them, which was not chosen for being large.
    ended: why measuring ended, within budget_s. rule: by which the verdict was reached. alternate: why launches of A
        and B alternated, because the ranks of both could not be alive at once; None if they took turns block by block.
    virtual: both ran on virtual GPUs, whose times follow a rule. remarks: what belongs beside the verdict.
    """

    before: str
    after: str
    verdict: ChangeVerdict
    min_change: float
    changes: tuple[Change, ...]
    differences: tuple[tuple[str, str, str], ...] = ()
    only_before: tuple[Unpaired, ...] = ()
    only_after: tuple[Unpaired, ...] = ()
    lost: tuple[Unpaired, ...] = ()
    broken: tuple[Unpaired, ...] = ()
    notices: tuple[Notice, ...] = ()
    across: str | None = None
    values: tuple[str, str] | None = None
    whole: Judgement | None = None
    fail_on: tuple[ChangeVerdict, ...] = (ChangeVerdict.SLOWER,)
    undecided_exits: bool = True
    pairs: int = 0
    fresh_pairs: int = 0
    fresh: Interval | None = None
    ratios: tuple[float, ...] = ()
    ended: Ending | None = None
    budget_s: float | None = None
    rule: Notice | None = None
    alternate: str | None = None
    virtual: bool = False
    remarks: tuple[Notice, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a verdict is a failure, or a case failed after."""
        verdicts = {self.verdict, *(change.verdict for change in self.changes)}
        return bool(self.broken) or not verdicts.isdisjoint(self.fail_on)

    @property
    def undecided(self) -> bool:
        """Whether a decision was asked for and there is none; also if there was nothing to decide."""
        return self.verdict == ChangeVerdict.INCONCLUSIVE and (self.undecided_exits or not self.changes)


@dataclass(frozen=True, slots=True)
class Level:
    """From the run at position `first` on, a case takes `time_s` (geometric mean of its runs).

    ratio: to the level before; 1 for the first one.
    """

    first: int
    time_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Trend:
    """One case over many runs, oldest first, and its levels: one level if nothing has changed."""

    case: Case
    runs: tuple[str, ...]
    times_s: tuple[Interval, ...]
    levels: tuple[Level, ...]

    @property
    def changed(self) -> tuple[Level, ...]:
        """Every level but the first."""
        return self.levels[1:]


# ── sessions of one run ─────────────────────────────────────────────────────────────────────────
class SessionFact(StrEnum):
    """What two sessions can differ in; the value is the fact's name for the reader."""

    LAUNCHER = "launcher"
    RANKS = "ranks of the job"
    HOSTS = "hosts"
    PLACEMENT = "ranks on each host"
    CPU = "CPU"
    CORES = "usable cores"
    GPUS = "GPUs"
    TORCH = "torch"
    NCCL = "NCCL"
    MPI = "MPI"
    KERNEL = "kernel"
    SUITE = "CollBench"
    VARIABLES = "environment variables"


NOTED = frozenset({SessionFact.KERNEL, SessionFact.SUITE, SessionFact.VARIABLES})
BLOCKING = frozenset(SessionFact) - NOTED


@dataclass(frozen=True, slots=True)
class SessionDifference:
    """A fact in which two sessions differ."""

    fact: SessionFact
    recorded: str
    here: str

    @property
    def blocking(self) -> bool:
        """Whether the difference makes times incomparable."""
        return self.fact in BLOCKING
