"""Did a case change? Launches' medians of many cases, twice → a verdict on each, all cases at once.

In: arrays of seconds, one a case and side, two launches or more in each. Out: verdicts, ratios with intervals,
and how many further launches would decide. Knows no runs and no cases: `compare` does.

Welch's t on logarithms, shifted by the smallest change that matters, Benjamini and Hochberg's correction over the
cases, and two one-sided tests for "the same" (docs/method.md, "Comparing two runs"). Tests hold the p-values
against `scipy.stats.ttest_ind`, which can neither be asked about launches that were not made nor bear two
launches that are equal.
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
# Standard deviation of logarithms below which launches are not believed to agree: two medians are equal because
# a clock ticks (GPU events in steps of up to 0.5 µs), not because nothing varies.
SMALLEST_SCATTER = 1e-3
# The same of seconds: launches do not agree better than their clock ticks.
TICK_S = 1e-9
# A user who would need more has to change the measurement instead.
MOST_FURTHER_LAUNCHES = 200

Texts = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Sides:
    """Cases as moments of their launches' medians, of times their logarithms. Arrays with one entry a case.

    difference: mean after less mean before. variances: of one launch, on each side. launches: on each side.
    """

    difference: Floats
    variances: tuple[Floats, Floats]
    launches: tuple[Floats, Floats]


def sides(before: Sequence[Floats], after: Sequence[Floats]) -> Sides:
    """Moments of each case; numbers of launches may differ between cases and sides."""
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
    """Of values that may be negative: AFTER − BEFORE of each case, and whether it is anything but nothing.

    Welch's t on the values as they are, two-sided, with the same correction over the cases as verdicts have.
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
    """Of each case the ratio, the verdict, and how many further launches would decide."""
    if not before:
        return []
    cases = sides(before, after)
    further = further_launches(cases, smallest)
    return list(zip(ratios(cases), decide(cases, smallest).tolist(), further, strict=True))


def decide(cases: Sides, smallest: float, further: int | NDArray[np.int64] = 0) -> Texts:
    """A verdict a case. `smallest`: the relative change that matters, such as 0.05.

    further: launches that each side would have in addition, with mean and scatter as they are; an array of shape
    (counts, 1) gives verdicts of shape (counts, cases).
    """
    slow, fast, same = p_values(cases, smallest, further)
    slow, fast = (false_discovery_control(p, axis=-1) for p in (slow, fast))
    return np.select([slow <= ONE_SIDED, fast <= ONE_SIDED, same <= ERROR_RATE], [SLOWER, FASTER, SAME], INCONCLUSIVE)


def p_values(cases: Sides, smallest: float, further: int | NDArray[np.int64] = 0) -> tuple[Floats, Floats, Floats]:
    """Of: slower by more than `smallest`, faster by more, within it (the larger of two one-sided tests)."""
    error, freedom = _welch(cases, further)
    above, below = ((cases.difference + shift) / error for shift in (-np.log1p(smallest), np.log1p(smallest)))
    slow, fast = stdtr(freedom, -above), stdtr(freedom, below)
    return slow, fast, np.maximum(stdtr(freedom, above), stdtr(freedom, -below))


def further_launches(cases: Sides, smallest: float) -> list[int | None]:
    """Smallest number of further launches on each side at which mean and scatter as they are would decide.

    For all cases at once, since launches are a setting of a run. None: decided already, or more than
    MOST_FURTHER_LAUNCHES. An estimate from what was seen: in simulations it sufficed in about 7 of 10 cases.
    """
    counts = np.arange(MOST_FURTHER_LAUNCHES + 1)[:, None]
    decided = decide(cases, smallest, counts) != INCONCLUSIVE
    first = np.argmax(decided, axis=0)  # 0 where decided now, and where never
    return [int(count) or None for count in first]


def by_noise_floor(before: Interval, after: Interval, smallest: float, floor: float | None) -> tuple[str, Interval]:
    """Verdict and ratio where a side has one launch, so that nothing is known of how launches differ.

    floor: what the user states, that two measurements of the same thing differ by no more than this share. The
    ratio's interval is then that factor and the intervals within the launches, in quadrature, and the verdict says
    on which side of the smallest change that matters *all* of it lies. Without a floor: INCONCLUSIVE.
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
    """One verdict for all cases: the gravest that any has; SAME only if all are."""
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
