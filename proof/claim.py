"""What a claim of the proof is, and how what was measured is judged: by intervals, not by points."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scipy.stats import binomtest

from proof.code import fingerprint
from proof.rig import Rig

HOLDS, MISSED, UNDECIDED, NOT_TRIED, LIMIT = "holds", "MISSED", "undecided", "not tried", "limit"


@dataclass(frozen=True)
class Line:
    """The finding on one sentence."""

    says: str
    demanded: str
    measured: str
    outcome: str
    # Numbers of the trials, where they say more than their sum.
    numbers: dict[str, Any] = field(default_factory=dict)
    # Why the method cannot reach the demand, and what a user should do. Empty where it should reach the demand.
    limit: str = ""


@dataclass(frozen=True)
class Claim:
    """A protocol that is fixed before it is run."""

    run: Callable[[Rig, int], list[Line]]
    # `run` in short.
    protocol: str
    # Trials of a full and of a quick proof; 0 for none.
    trials: int
    quick: int
    # Of a full proof, alone on two cores.
    minutes: float
    # What the outcome depends on, more and less than what `run` names (`proof.code.rests_on`).
    more: Sequence[str] = ()
    without: Sequence[str] = ()
    # True if nothing is timed, so that several such claims can run at once.
    simulated: bool = False
    # True if the claim takes too long for `make prove`; `make prove-weekly` runs it.
    weekly: bool = False
    # Goes up when the protocol changes.
    version: int = 1
    # For each earlier version, what was wrong with it.
    replaced: Mapping[int, str] = field(default_factory=dict)

    def code(self) -> str:
        """The fingerprint of the code that the outcome depends on."""
        return fingerprint(self.run, self.more, self.without)


def judged(low: float, high: float, least: float, most: float) -> str:
    """The outcome of an interval: it holds if all of it lies within the bounds, is missed if all of it lies outside."""
    if least <= low and high <= most:
        return HOLDS
    return MISSED if high < least or low > most else UNDECIDED


def counted(hits: int, trials: int) -> str:
    """Such as `19 of 20 (95.0 % [75.1 – 99.9])`, by Clopper and Pearson."""
    low, high = exact(hits, trials)
    return f"{hits} of {trials} ({hits / trials:.1%} [{low:.1%} – {high:.1%}])"


def exact(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a rate, by Clopper and Pearson."""
    interval = binomtest(hits, trials).proportion_ci(method="exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Limit:
    """A demand that the method cannot reach, with the share of trials that is expected of it all the same."""

    # Why, and what a user should do.
    why: str
    least: float = 0.0
    most: float = 1.0


def rate(
    says: str,
    hits: int,
    trials: int,
    least: float = 0.0,
    most: float = 1.0,
    beside: str = "",
    limit: Limit | None = None,
) -> Line:
    """A share of many trials, judged by its interval. With a limit it is MISSED only if it is outside that, too."""
    demanded = f"{least:.0%} to {most:.0%}" if least else f"at most {most:.0%}"
    interval = exact(hits, trials)
    line = Line(says, demanded, counted(hits, trials) + beside, judged(*interval, least, most))
    if limit is None or line.outcome == HOLDS:
        return line
    expected = judged(*interval, limit.least, limit.most)
    return replace(line, limit=limit.why, outcome=MISSED if expected == MISSED else LIMIT)


def at_least(says: str, hits: int, trials: int, share: float, beside: str = "", **numbers: Any) -> Line:
    """A count of few trials; their interval shows how much they can say."""
    needed = round(share * trials)
    outcome = HOLDS if hits >= needed else MISSED
    return Line(says, f"{needed} of {trials}", counted(hits, trials) + beside, outcome, numbers)


def at_most(says: str, hits: int, trials: int, share: float, beside: str = "", **numbers: Any) -> Line:
    """The same of what should not be."""
    allowed = math.floor(share * trials + 1e-9)
    outcome = HOLDS if hits <= allowed else MISSED
    demanded = f"at most {allowed} of {trials}" if allowed else "never"
    return Line(says, demanded, counted(hits, trials) + beside, outcome, numbers)


def within(says: str, value: float, low: float, high: float, allowed: float, beside: str = "") -> Line:
    """A ratio that should be 1: its interval has to lie within what is allowed."""
    told = f"{value - 1:+.1%} [{low - 1:+.1%} to {high - 1:+.1%}]"
    numbers = {"ratio": [round(float(one), 5) for one in (value, low, high)]}
    return Line(says, f"within ±{allowed:.0%}", told + beside, judged(low, high, 1 - allowed, 1 + allowed), numbers)


def not_tried(reason: str, *says: str) -> list[Line]:
    return [Line(one, "", reason, NOT_TRIED) for one in says]
