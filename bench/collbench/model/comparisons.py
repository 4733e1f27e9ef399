"""Define the types of conclusions from several runs, which `analyze` computes and `report` shows.

    Summary ─▶ Change ─▶ Comparison    two runs
    Summary ─▶ Trend                   many runs

Everything is frozen. Units: seconds, bytes per second. Nothing here reads or computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.conclusions import Interval
from collbench.model.notices import Kind, Notice
from collbench.model.records import Case, Ending

# Smallest relative change of a time that matters by default: a smaller one is rarely worth tracing.
MIN_CHANGE = 0.05
# Largest number of further launches that is advised: beyond it, another way to measure helps more than more launches.
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
    """Whether a time changed."""

    # AFTER / BEFORE, with the interval that the verdict follows from.
    ratio: Interval
    # FASTER, SLOWER, SAME or INCONCLUSIVE (docs/develop/statistics.md).
    verdict: ChangeVerdict
    # Reason for the verdict.
    reason: Notice
    # P-value of no change, corrected for the number of cases, as the rule used it; None if the variance between
    # launches is unknown.
    p: float | None = None
    # Confidence level of the interval, such as 0.975: for SAME, the level of its two one-sided tests; for other
    # verdicts, a level corrected for the number of cases.
    level: float | None = None
    # Launches to add on each side for a verdict at a power of 80 %, if ratio and scatter stay as they are. None if
    # there is a verdict already, or if no reasonable number would suffice.
    further_launches: int | None = None


@dataclass(frozen=True, slots=True)
class ExposedChange:
    """The exposed communication of one case in two runs."""

    before: Interval
    after: Interval
    # After − before, with its interval.
    difference: Interval
    # False if the difference may be zero: by a test over all cases at once, because it is within the noise of the A/A
    # pairs of either run, or because there are too few launches to test it.
    resolved: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One case on two sides, which are two kept runs or two sides that took turns."""

    # The case on the side before.
    case: Case
    # The case on the side after.
    other: Case
    before: Interval
    after: Interval
    judgement: Judgement
    # AFTER / BEFORE of each pair of launches, if the sides took turns.
    ratios: tuple[float, ...] = ()
    # Change of the exposed communication, for cases that also compute.
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
    def further_launches(self) -> int | None:
        return self.judgement.further_launches


class Absence(StrEnum):
    """Reason why a run has no time for a case."""

    NOT_ASKED = "not asked for"
    NOT_YET = "not measured yet"
    SKIPPED = "skipped"
    FAILED = "failed"
    FAILED_ONCE = "failed in a launch"


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A case that has a time on one side only."""

    case: Case
    # The same case on the other side.
    other: Case
    why: Absence
    # Detail of a skip or failure.
    detail: str | Notice = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two sides: changes of common cases, differences of the environments, cases of one side only."""

    before: str
    after: str
    # The gravest of the verdicts on the cases and on the whole.
    verdict: ChangeVerdict
    min_change: float
    changes: tuple[Change, ...]
    # Names of the runs of each side.
    runs_before: tuple[str, ...] = ()
    runs_after: tuple[str, ...] = ()
    differences: tuple[tuple[str, str, str], ...] = ()
    only_before: tuple[Unpaired, ...] = ()
    only_after: tuple[Unpaired, ...] = ()
    # The cases among `only_before` that the second side was to measure.
    lost: tuple[Unpaired, ...] = ()
    # Cases that failed on the second side only, in some launch.
    broken: tuple[Unpaired, ...] = ()
    notices: tuple[Notice, ...] = ()
    # Field in which the sides differ on purpose, such as "backend"; None if both sides have the same cases.
    across: str | None = None
    # Values of that field on both sides, if the sides are of one run.
    values: tuple[str, str] | None = None
    # Judgement of all cases together, by an index over them; None with a single case or too few launches.
    whole: Judgement | None = None
    # Verdicts that are failures.
    fail_on: tuple[ChangeVerdict, ...] = (ChangeVerdict.SLOWER,)
    # True if a comparison without a decision has an exit code of its own.
    undecided_exits: bool = True
    # The fields from here to `alternate` are for sides that took turns. Number of pairs of launches that the verdict
    # rests on.
    pairs: int = 0
    # Number of pairs measured after the verdict.
    fresh_pairs: int = 0
    # Index over the fresh pairs. It has no selection bias: it was not chosen because it was large.
    fresh: Interval | None = None
    # Index AFTER / BEFORE of each pair.
    ratios: tuple[float, ...] = ()
    # Reason why measuring ended, within `budget_s`.
    ended: Ending | None = None
    budget_s: float | None = None
    # Rule by which the verdict was reached.
    rule: Notice | None = None
    # Reason why launches of A and B alternated, because the ranks of both could not be alive at once; None if A and B
    # took turns block by block.
    alternate: Notice | None = None
    # True if both sides ran on virtual GPUs, whose times follow a rule.
    virtual: bool = False
    # True if a change rests on the assumption that the between-run variance is like the between-launch variance.
    assumes_steady: bool = False
    # Notices to show next to the verdict.
    remarks: tuple[Notice, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether a verdict is a failure, or a case failed on the second side only."""
        verdicts = {self.verdict, *(change.verdict for change in self.changes)}
        return bool(self.broken) or not verdicts.isdisjoint(self.fail_on)

    @property
    def undecided(self) -> bool:
        """Return whether a decision was asked for and there is none, or there was nothing to decide."""
        return self.verdict == ChangeVerdict.INCONCLUSIVE and (self.undecided_exits or not self.changes)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a trend: consecutive runs in which a case takes `time_s`."""

    # Position of the first run of the level.
    first: int
    # Geometric mean of the runs of the level.
    time_s: float
    # Ratio to the level before; 1 for the first level.
    ratio: float


@dataclass(frozen=True, slots=True)
class Trend:
    """One case over many runs, oldest first, and its levels."""

    case: Case
    runs: tuple[str, ...]
    times_s: tuple[Interval, ...]
    # One level if nothing has changed.
    levels: tuple[Level, ...]

    @property
    def changed(self) -> tuple[Level, ...]:
        """Return all levels except the first."""
        return self.levels[1:]


# ── sessions of one run ─────────────────────────────────────────────────────────────────────────
SESSION_CHANGED = Kind("session-changed", "{fact} changed between sessions: {recorded} before, {here} in a later one")


@dataclass(frozen=True, slots=True)
class SessionDifference:
    """A fact in which two sessions differ."""

    # Name of the fact for the reader.
    fact: str
    recorded: str
    here: str
    # True if the difference makes times incomparable.
    blocking: bool

    @property
    def notice(self) -> Notice:
        """Return the notice for the report of a run with both sessions."""
        return SESSION_CHANGED(fact=self.fact, recorded=self.recorded, here=self.here)
