"""Decide whether cases changed, from the medians of their launches before and after; all cases at once.

In: arrays of seconds, one per case and side, two launches or more in each. Out: verdicts, ratios with intervals,
and how many further launches would decide. Knows neither runs nor cases: `compare` matches them.

Welch's t on logarithms, shifted by the smallest change that matters, Benjamini and Hochberg's correction over the
cases, and two one-sided tests for "the same" (docs/method.md, "Comparing two runs"). Tests compare the p-values with
those of `scipy.stats.ttest_ind`, which is not used here because it can neither predict the result of further launches
nor handle two launches that are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit
from scipy.stats import false_discovery_control

from bench.conclusions import Interval
from bench.intervals import CONFIDENCE, Floats, ratio_of_intervals

SLOWER, FASTER, SAME, INCONCLUSIVE = "SLOWER", "FASTER", "SAME", "INCONCLUSIVE"
# Share of verdicts that may be wrong where nothing changed: half of it SLOWER, half of it FASTER. With 0.05 on each
# side 3 of 40 pairs of real runs without a change got a verdict (docs/accuracy.md asks for 2 at most).
ERROR_RATE = 0.05
ONE_SIDED = ERROR_RATE / 2
# Smallest standard deviation of the logarithms of launches: closer medians come from the resolution of the clock (GPU
# events have steps of up to 0.5 µs), not from a lack of variation.
SMALLEST_SCATTER = 1e-3
# The same for values in seconds: one step of the clock.
TICK_S = 1e-9
# Upper limit of the advice: beyond it, measuring differently helps more than launching again.
MOST_FURTHER_LAUNCHES = 200

Texts = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Sides:
    """Mean and variance of the launches' medians (for times, of their logarithms), in arrays with one entry per case.

    difference: mean after minus mean before. variances: of one launch, on each side. launches: number on each side.
    """

    difference: Floats
    variances: tuple[Floats, Floats]
    launches: tuple[Floats, Floats]


def sides(before: Sequence[Floats], after: Sequence[Floats]) -> Sides:
    """Moments of the logarithms of each case; the number of launches may differ between cases and sides."""
    logs = [[np.log(medians) for medians in side] for side in (before, after)]
    return _moments(logs, SMALLEST_SCATTER)


def _moments(values: Sequence[Sequence[Floats]], smallest_scatter: float) -> Sides:
    means, variances, launches = (
        [np.array([of(case) for case in side], dtype=float) for side in values]
        for of in (np.mean, lambda case: max(float(np.var(case, ddof=1)), smallest_scatter**2), len)
    )
    return Sides(means[1] - means[0], (variances[0], variances[1]), (launches[0], launches[1]))


def ratios(cases: Sides) -> list[Interval]:
    """AFTER / BEFORE of each case with its interval, Welch's t on the logarithms."""
    half = _half_width(cases)
    low, middle, high = (np.exp(cases.difference + shift).tolist() for shift in (-half, 0, half))
    return [Interval(m, a, b, "over launches") for m, a, b in zip(middle, low, high, strict=True)]


def differences(before: Sequence[Floats], after: Sequence[Floats]) -> list[tuple[Interval, bool]]:
    """AFTER − BEFORE of each case, for values that may be negative, and whether it differs from zero.

    Welch's t on the values themselves, two-sided, with the same correction over the cases as for verdicts.
    """
    if not before:
        return []
    cases = _moments((before, after), TICK_S)
    error, freedom = _welch(cases, 0)
    p = 2 * stdtr(freedom, -np.abs(cases.difference) / error)
    half = _half_width(cases)
    sure = (false_discovery_control(p) <= ERROR_RATE).tolist()
    low, middle, high = ((cases.difference + shift).tolist() for shift in (-half, 0, half))
    found = [Interval(m, a, b, "over launches") for m, a, b in zip(middle, low, high, strict=True)]
    return list(zip(found, sure, strict=True))


def judge(before: Sequence[Floats], after: Sequence[Floats], smallest: float) -> list[tuple[Interval, str, int | None]]:
    """The ratio and the verdict of each case, and how many further launches would decide."""
    if not before:
        return []
    cases = sides(before, after)
    further = further_launches(cases, smallest)
    return list(zip(ratios(cases), decide(cases, smallest).tolist(), further, strict=True))


def decide(cases: Sides, smallest: float, further: int | NDArray[np.int64] = 0) -> Texts:
    """A verdict a case. `smallest`: the relative change that matters, such as 0.05.

    further: additional launches on each side, with mean and scatter as they are; an array of shape
    (counts, 1) gives verdicts of shape (counts, cases).
    """
    slow, fast, same = p_values(cases, smallest, further)
    slow, fast = (false_discovery_control(p, axis=-1) for p in (slow, fast))
    return np.select([slow <= ONE_SIDED, fast <= ONE_SIDED, same <= ERROR_RATE], [SLOWER, FASTER, SAME], INCONCLUSIVE)


def p_values(cases: Sides, smallest: float, further: int | NDArray[np.int64] = 0) -> tuple[Floats, Floats, Floats]:
    """p-values of: slower by more than `smallest`, faster by more, within it (the larger of two one-sided tests)."""
    error, freedom = _welch(cases, further)
    above, below = ((cases.difference + shift) / error for shift in (-np.log1p(smallest), np.log1p(smallest)))
    slow, fast = stdtr(freedom, -above), stdtr(freedom, below)
    return slow, fast, np.maximum(stdtr(freedom, above), stdtr(freedom, -below))


def further_launches(cases: Sides, smallest: float) -> list[int | None]:
    """Smallest number of further launches on each side that would decide if mean and scatter stay as they are.

    All cases get the launches at once, since launches are a setting of a run. None: decided already, or more than
    MOST_FURTHER_LAUNCHES. An estimate: in simulations it sufficed in about 7 of 10 cases.
    """
    counts = np.arange(MOST_FURTHER_LAUNCHES + 1)[:, None]
    decided = decide(cases, smallest, counts) != INCONCLUSIVE
    first = np.argmax(decided, axis=0)  # 0 where decided now, and where never
    return [int(count) or None for count in first]


def by_noise_floor(before: Interval, after: Interval, smallest: float, floor: float | None) -> tuple[str, Interval]:
    """Verdict and ratio where a side has one launch, so that it is unknown how launches differ.

    floor: the largest relative difference between two measurements of the same thing, as stated by the user. The
    ratio's interval then combines 1 + floor and the intervals within the launches, in quadrature; there is a verdict
    if *all* of it lies on one side of the smallest change that matters, or within it. Without a floor: INCONCLUSIVE.
    """
    within = ratio_of_intervals(before, after)  # without width where a side is another tool's single number
    if floor is None:
        return INCONCLUSIVE, within
    down, up = (
        float(np.hypot(np.log1p(floor), np.log(side)))
        for side in (within.value / within.low, within.high / within.value)
    )
    center, limit = float(np.log(within.value)), float(np.log1p(smallest))
    ratio = Interval(within.value, float(np.exp(center - down)), float(np.exp(center + up)), "stated noise floor")
    if center - down > limit:
        return SLOWER, ratio
    if center + up < -limit:
        return FASTER, ratio
    return (SAME if center - down > -limit and center + up < limit else INCONCLUSIVE), ratio


def of_run(verdicts: Sequence[str]) -> str:
    """One verdict for all cases: the gravest of theirs; SAME only if all are SAME."""
    for grave in (SLOWER, FASTER, INCONCLUSIVE):
        if grave in verdicts:
            return grave
    return SAME


def _half_width(cases: Sides) -> Floats:
    error, freedom = _welch(cases, 0)
    half: Floats = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    return half


def _welch(cases: Sides, further: int | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Standard error of the difference, and Welch's degrees of freedom."""
    counts = [launches + further for launches in cases.launches]
    a, b = (variance / count for variance, count in zip(cases.variances, counts, strict=True))
    return np.sqrt(a + b), (a + b) ** 2 / (a**2 / (counts[0] - 1) + b**2 / (counts[1] - 1))
