"""Judge measurements by their intervals, not by points."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.stats.intervals import of_share

HOLDS, MISSED, UNDECIDED, LIMIT = "holds", "MISSED", "undecided", "limit"


@dataclass(frozen=True)
class Line:
    """The finding on one statement of a claim."""

    says: str
    demanded: str
    measured: str
    outcome: str
    # Numbers of single trials, if they show more than their sum.
    numbers: dict[str, Any] = field(default_factory=dict)
    # Why the method cannot reach the demand, and what a user should do. Empty if the method should reach the demand.
    limit: str = ""
    # For an undecided line: how many times as many trials would decide it, if the figure stayed as it is.
    more: float | None = None


def judged(low: float, high: float, least: float, most: float) -> str:
    """Return the outcome: holds if the whole interval is within the bounds, missed if all of it is outside."""
    if least <= low and high <= most:
        return HOLDS
    return MISSED if high < least or low > most else UNDECIDED


def further(value: float, low: float, high: float, least: float, most: float) -> float | None:
    """Return how many times as many trials would decide an undecided line; None if it is decided, or none would."""
    room = min(abs(value - least), abs(value - most))
    undecided = judged(low, high, least, most) == UNDECIDED
    return round((max(high - value, value - low) / room) ** 2, 1) if undecided and room else None


def counted(hits: int, trials: int) -> str:
    """Return a text such as `19 of 20 (95.0% [75.1% – 99.9%])`; the interval is by Clopper and Pearson."""
    low, high = of_share(hits, trials)
    return f"{hits} of {trials} ({hits / trials:.1%} [{low:.1%} – {high:.1%}])"


@dataclass(frozen=True)
class Limit:
    """A demand that the method cannot reach, with the share of trials that it is still expected to reach."""

    # Why the method cannot reach the demand, and what a user should do.
    why: str
    least: float = 0.0
    most: float = 1.0


def rate(
    title: str,
    hits: int,
    trials: int,
    least: float = 0.0,
    most: float = 1.0,
    note: str = "",
    limit: Limit | None = None,
) -> Line:
    """Judge a share of many trials by its interval. With a limit, it is MISSED only if it is also outside the limit."""
    demanded = f"{least:.0%} to {most:.0%}" if least else f"at most {most:.0%}"
    interval = of_share(hits, trials)
    more = further(hits / trials, *interval, least, most)
    line = Line(title, demanded, counted(hits, trials) + note, judged(*interval, least, most), more=more)
    if limit is None or line.outcome == HOLDS:
        return line
    expected = judged(*interval, limit.least, limit.most)
    return replace(line, limit=limit.why, outcome=MISSED if expected == MISSED else LIMIT)


def at_least(title: str, hits: int, trials: int, share: float, note: str = "", **numbers: Any) -> Line:
    """Judge a count of few trials, which should reach a share; the interval shows how much so few trials can show."""
    needed = round(share * trials)
    outcome = HOLDS if hits >= needed else MISSED
    return Line(title, f"{needed} of {trials}", counted(hits, trials) + note, outcome, numbers)


def at_most(title: str, hits: int, trials: int, share: float, note: str = "", **numbers: Any) -> Line:
    """Judge a count of unwanted results in few trials, which should not exceed a share."""
    allowed = math.floor(share * trials + 1e-9)
    outcome = HOLDS if hits <= allowed else MISSED
    demanded = f"at most {allowed} of {trials}" if allowed else "never"
    return Line(title, demanded, counted(hits, trials) + note, outcome, numbers)


def within(title: str, value: float, low: float, high: float, allowed: float, note: str = "") -> Line:
    """Judge a ratio that should be 1: its interval has to be within the allowed deviation."""
    measured = f"{value - 1:+.1%} [{low - 1:+.1%} to {high - 1:+.1%}]"
    numbers = {"ratio": [round(float(bound), 5) for bound in (value, low, high)]}
    bounds = (1 - allowed, 1 + allowed)
    outcome, more = judged(low, high, *bounds), further(value, low, high, *bounds)
    return Line(title, f"within ±{allowed:.0%}", measured + note, outcome, numbers, more=more)
