"""Define the types of conclusions from several runs, which `analyze` computes and `report` shows.

    Summary ─▶ Change ─▶ Comparison    two runs
    Summary ─▶ Trend                   many runs

Everything is frozen. Units: seconds, bytes per second. Nothing here reads or computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from collbench.model.conclusions import Interval
from collbench.model.notices import Kind, Notice
from collbench.model.records import Case, Ending, EndReason
from collbench.model.results import computed, fact

# Names of a ratio, of the limits of its interval, and of the interval's kind.
RATIO = ("ratio", "ratio_low", "ratio_high", "interval")

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
class Ratio:
    """A ratio with its interval, under the names of ratios."""

    ratio: Interval = fact("the ratio", limits=RATIO)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a time changed."""

    # Reason for the verdict.
    reason: Notice
    verdict: ChangeVerdict = fact("whether the time changed (docs/develop/statistics.md)")
    # With the interval that the verdict follows from, unless `at_verdict` has that.
    ratio: Interval = fact("time after over time before", limits=RATIO)
    # None if the variance between launches is unknown.
    p: float | None = fact("p-value of no change, corrected for the number of cases, as the rule used it", default=None)
    level: float | None = fact(
        "confidence level of the interval, such as 0.975: for SAME, of its two one-sided tests; for other verdicts "
        "corrected for the number of cases",
        default=None,
    )
    further_launches: int | None = fact(
        "launches to add on each side for a verdict at a power of 80 %, if ratio and scatter stay as they are; null if "
        "there is a verdict already, or if no reasonable number would suffice",
        default=None,
    )
    ratios: tuple[float, ...] = fact(
        "after over before of each pair of launches, if the sides took turns", name="pair_ratios", default=()
    )
    # The ratio that the verdict follows from, if `ratio` is over later pairs. A look ends measuring when a change looks
    # large, so this one then is too large; pairs measured after the verdict have no such bias.
    at_verdict: Interval | None = None
    verdict_ratio = computed(
        "ratio that the verdict follows from, if `ratio` is over the pairs after the verdict; else null",
        Ratio | None,
        lambda judged: judged.at_verdict and Ratio(judged.at_verdict),
        name="at_verdict",
    )
    reason_kind = computed("kind of the reason for the verdict", Kind, attrgetter("reason.kind"), name="reason")


@dataclass(frozen=True, slots=True)
class ExposedChange:
    """The time over the reference of one case in two runs, such as exposed communication."""

    before: Interval = fact("time over the reference on the side before", limits=("exposed_before_s",))
    after: Interval = fact("on the side after", limits=("exposed_after_s",))
    difference: Interval = fact(
        "after less before",
        limits=("exposed_difference_s", "exposed_difference_low_s", "exposed_difference_high_s"),
    )
    # By a test over all cases at once, because it is within the noise of the A/A pairs of either run, or because there
    # are too few launches to test it.
    resolved: bool = fact("false if the difference may be 0", name="exposed_resolved")


@dataclass(frozen=True, slots=True)
class Change:
    """One case on two sides, which are two kept runs or two sides that took turns."""

    # The case on the side before.
    case: Case
    # The case on the side after.
    other: Case
    before: Interval = fact("time before", limits=("before_s",))
    after: Interval = fact("time after", limits=("after_s",))
    judgement: Judgement = fact(flat=True)
    # For cases that also compute.
    exposed: ExposedChange | None = fact(flat=True, default=None)

    @property
    def ratio(self) -> Interval:
        return self.judgement.ratio

    @property
    def verdict(self) -> ChangeVerdict:
        return self.judgement.verdict


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
    why: Absence = fact("kind of the reason why one side has no time")
    # Detail of a skip or failure.
    detail: str | Notice = ""


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """A fact in which the environments of two sides differ."""

    fact: str
    # "-" if the side does not have the fact.
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class InTurns:
    """How two sides took turns, and when measuring them ended."""

    # Within `budget_s`.
    ended: Ending
    pairs: int = fact("pairs of launches that the verdict rests on")
    fresh_pairs: int = fact("pairs after the verdict; 0 if they are too few to estimate a change")
    rule: Notice = fact("rule by which the verdict was reached")
    budget_s: float | None = None
    # Reason why launches of A and B alternated, because the ranks of both could not be alive at once; None if A and B
    # took turns block by block.
    alternate: Notice | None = None

    end_reason = computed("why measuring ended", EndReason, attrgetter("ended.reason"), name="ended")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two sides: changes of common cases, differences of the environments, cases of one side only."""

    before: str = fact("name of the side")
    after: str = fact("name of the side")
    verdict: ChangeVerdict = fact("the gravest of the verdicts on the cases and on the whole")
    min_change: float = fact("smallest relative change that matters")
    changes: tuple[Change, ...] = fact("the common cases", name="cases")
    runs_before: tuple[str, ...] = fact("names of the runs of the side", default=())
    runs_after: tuple[str, ...] = fact("names of the runs of the side", default=())
    differences: tuple[EnvironmentDifference, ...] = fact("facts in which the environments differ", default=())
    only_before: tuple[Unpaired, ...] = fact("cases that have a time on this side only", default=())
    only_after: tuple[Unpaired, ...] = fact("cases that have a time on this side only", default=())
    # The cases among `only_before` that the second side was to measure.
    lost: tuple[Unpaired, ...] = ()
    broken: tuple[Unpaired, ...] = fact("cases that failed on the second side only, in some launch", default=())
    notices: tuple[Notice, ...] = ()
    across: str | None = fact(
        "field in which the sides differ on purpose, such as backend; null if both have the same cases", default=None
    )
    # Values of that field on both sides, if the sides are of one run.
    values: tuple[str, str] | None = None
    # By an index over the cases.
    whole: Judgement | None = fact(
        "judgement of all cases together; null with a single case or too few launches", default=None
    )
    # Verdicts that are failures.
    fail_on: tuple[ChangeVerdict, ...] = (ChangeVerdict.SLOWER,)
    # True if a comparison without a decision has an exit code of its own.
    undecided_exits: bool = True
    # For sides that took turns.
    in_turns: InTurns | None = fact(flat=True, default=None)
    # True if both sides ran on virtual GPUs, whose times follow a rule.
    virtual: bool = False
    # True if a change rests on the assumption that the between-run variance is like the between-launch variance.
    assumes_steady: bool = False
    # Notices to show next to the verdict.
    remarks: tuple[Notice, ...] = ()

    all_notices = computed(
        "what a reader must know in addition",
        tuple[Notice, ...],
        lambda result: (*result.remarks, *result.notices),
        name="notices",
    )

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
    run: str = fact("name of the first run of the level")
    ratio: float = fact("to the level before; 1 for the first level")


@dataclass(frozen=True, slots=True)
class Point:
    """The time of a case in one run."""

    run: str = fact("name of the run")
    time_s: Interval = fact("time of the case", limits=("time_s", "time_low_s", "time_high_s", "interval"))
    step: bool = fact("whether a new level begins with it")


@dataclass(frozen=True, slots=True)
class Trend:
    """One case over many runs, oldest first, and its levels."""

    runs: tuple[str, ...]
    times_s: tuple[Interval, ...]
    # One level if nothing has changed.
    levels: tuple[Level, ...]
    case: Case = fact("of the first run", name="key")
    steps = computed("all levels except the first", tuple[Level, ...], attrgetter("changed"))
    times = computed("of all runs, the oldest first", tuple[Point, ...], attrgetter("points"))

    @property
    def changed(self) -> tuple[Level, ...]:
        """Return all levels except the first."""
        return self.levels[1:]

    @property
    def points(self) -> tuple[Point, ...]:
        """Return the time in each run."""
        begins = {level.first for level in self.changed}
        times = zip(self.runs, self.times_s, strict=True)
        return tuple(Point(run, time_s, place in begins) for place, (run, time_s) in enumerate(times))


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
