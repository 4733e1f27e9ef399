"""Decide whether cases changed: all cases at once, from the launches of two runs or from pairs of launches.

In: arrays of seconds, one per case and side (`unpaired`), or of log ratios, one per case (`paired`). Out: a `Judgement`
for each case, and for the run as a whole. Knows neither runs nor cases: `compare` and `pairs` match them.

SAME results from two one-sided tests (equivalence), each at its own level and uncorrected for the number of cases, as
all must be SAME for the whole to be SAME (intersection-union: Berger, Technometrics 24, 1982). SLOWER and FASTER: by
Student's t on logarithms with Holm's correction, because a run is SLOWER if any case is (docs/develop/statistics.md).
Tests compare the uncorrected results with the results of `scipy.stats.ttest_ind`, which is not used here: it can
neither predict the result of further launches nor take variances in parts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtr, stdtrit

from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    MOST_FURTHER_LAUNCHES,
    SAME,
    SLOWER,
    ChangeVerdict,
    Judgement,
)
from collbench.model.conclusions import Interval, IntervalKind
from collbench.model.notices import Kind, Notice
from collbench.stats.intervals import Floats, ratio_of_intervals

# Largest false-alarm rate by the tests' own assumptions. It is below the 5 % that are promised, because few launches
# that are not quite normal increase it (simulated, 3 cases: by a tenth to a half).
ERROR_RATE = 0.03
# Level of each of the two one-sided tests for SAME.
SAME_RATE = 0.05
# Fewest launches on a side for a decision: if launches have two modes, an interval over 2 or 3 of them contains the
# true value with a probability of only 46 to 75 %.
FEWEST_LAUNCHES = 4
# Smallest standard deviation of the logarithms of launches: closer means come from the resolution of the clock (GPU
# events have steps of up to 0.5 µs), not from a lack of variation.
SMALLEST_SCATTER = 1e-3
# Smallest standard deviation of values in seconds: one step of the clock.
TICK_S = 1e-9
# Probability with which the advised number of further launches decides, if ratio and scatter stay as they are.
POWER = 0.8
# Largest degrees of freedom of the prior of shrunk variances: practically infinite, if cases have one variance.
MOST_FREEDOM = 1e6
# Fewest variances to shrink: fewer do not show their common distribution. Shrinkage over 3 different cases
# raised the false-alarm rate of `ab` with identical sides from 3.2 % to 4.7 % of simulated runs.
FEWEST_CASES = 6
# Number of cases with similar times over which the variance of launches is averaged. Scatter falls with the time of a
# case, so one value for all cases would be the scatter of small messages.
NEIGHBOURS = 5
# Largest |log ratio|: an interval from two very different launches may overflow; beyond 10²¹, size makes no difference.
WIDEST_LOG = 50.0

Counts = int | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the variance of a difference: `variance` × (1 / `count` + `besides`). Arrays have an entry per case."""

    variance: Floats
    count: Floats
    # Degrees of freedom of `variance`.
    freedom: Floats
    # True if further launches add to `count` and `freedom`.
    grows: bool = True
    # Multiple of `variance` that launches do not reduce, such as a between-run variance as large as `variance`.
    besides: Floats | float = 0.0


@dataclass(frozen=True, slots=True)
class Estimates:
    """Differences between two sides, and their uncertainty."""

    # Log ratios after / before, one per case.
    difference: Floats
    # The sources of the uncertainty.
    parts: tuple[Part, ...]
    # Mean of each case, one array per side: cases with similar means scatter by a similar amount.
    levels: tuple[Floats, ...]


# ── from launches to estimates ───────────────────────────────────────────────────────────────────
def unpaired(before: Sequence[Floats], after: Sequence[Floats], shrink: bool = True) -> Estimates:
    """Estimate differences from the times of launches: 2 or more, in numbers that may differ between cases and sides.

    shrink: whether to shrink variances. False if values are runs: these move all cases, so more cases do not help.
    """
    sides = [[np.log(times) for times in side] for side in (before, after)]
    return _estimates(sides, SMALLEST_SCATTER, shrink)


def paired(ratios: Sequence[Floats]) -> Estimates:
    """Estimate differences from log ratios after / before, one per pair of launches; 2 or more per case."""
    return _estimates([ratios], SMALLEST_SCATTER)


def with_between_run(estimates: Estimates, scatter: Floats, freedom: Floats) -> Estimates:
    """Return the estimates with a between-run variance on each side, of standard deviation `scatter`."""
    part = Part(2 * scatter**2, np.ones_like(scatter), freedom, grows=False)
    return replace(estimates, parts=(*estimates.parts, part))


def with_assumed(estimates: Estimates, runs: Sequence[float] = (1, 1)) -> Estimates:
    """Return the estimates with a between-run variance on each side that is like the between-launch variance.

    runs: number of runs on each side.
    """
    sides = zip(estimates.parts, _assumed_between_run(estimates), runs, strict=True)
    parts = tuple(replace(part, besides=variance / part.variance / count) for part, variance, count in sides)
    return replace(estimates, parts=parts)


def _assumed_between_run(estimates: Estimates) -> list[Floats]:
    """Return between-run variances that are like the between-launch variances, one array per side.

    A case has the larger of its own variance and the mean variance of the NEIGHBOURS cases that take about as long,
    because a run also moves cases with little scatter.
    """
    variances = []
    for part, levels in zip(estimates.parts, estimates.levels, strict=True):
        order, count = np.argsort(levels), min(NEIGHBOURS, len(levels))
        means = np.convolve(part.variance[order], np.full(count, 1 / count), mode="valid")
        common = np.empty_like(part.variance)
        common[order] = means[np.clip(np.arange(len(levels)) - count // 2, 0, len(levels) - count)]
        variances.append(np.maximum(part.variance, common))
    return variances


def index_with_assumed(index: Estimates, cases: Estimates, runs: Sequence[float] = (1, 1)) -> Estimates:
    """Return the index over cases with between-run variance: a run moves all cases one way, by the launches' scatter.

    The launches of the index do not show that variance: changes of single cases average out in the index. So each side
    also scatters by the mean of the cases' standard deviations, with the fewest degrees of freedom of any case.
    runs: number of runs on each side.
    """
    moved = tuple(
        Part(
            np.array([np.mean(np.sqrt(variance)) ** 2]), np.array([count]), np.array([part.freedom.min()]), grows=False
        )
        for part, variance, count in zip(cases.parts, _assumed_between_run(cases), runs, strict=True)
    )
    return replace(index, parts=(*index.parts, *moved))


def _estimates(sides: Sequence[Sequence[Floats]], smallest_scatter: float, shrink: bool = True) -> Estimates:
    """Return the estimates from one side of differences, or from two sides, whose difference is second minus first."""
    counts = [np.array([len(case) for case in side], dtype=float) for side in sides]
    means = [np.array([np.mean(case) for case in side], dtype=float) for side in sides]
    variances = np.array([max(float(np.var(case, ddof=1)), smallest_scatter**2) for side in sides for case in side])
    freedoms = np.concatenate(counts) - 1
    variances, freedoms = moderated(variances, freedoms) if shrink else (variances, freedoms)
    columns = zip(np.split(variances, len(sides)), counts, np.split(freedoms, len(sides)), strict=True)
    difference = means[-1] - (means[0] if len(sides) == 2 else 0)
    return Estimates(difference, tuple(itertools.starmap(Part, columns)), tuple(means))


# ── variances from few launches ──────────────────────────────────────────────────────────────────
def moderated(variances: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Return the shrunk variances, and their degrees of freedom; both unchanged with fewer than FEWEST_CASES cases.

    Each variance is shrunk towards the common variance of all cases, as far as the cases agree: empirical Bayes as in
    limma (Smyth, "Linear models and empirical Bayes methods for assessing differential expression", Statistical
    Applications in Genetics and Molecular Biology 3, 2004). With 4 launches a variance is known to a factor of 5 only;
    a few that are small by chance would otherwise look like changes.
    variances: positive. freedom: for each variance, the number of launches less one. No variance gets more degrees of
    freedom than all have together, as in limma.
    """
    if len(variances) < FEWEST_CASES:
        return variances, freedom
    prior, gained = _prior(variances, freedom)
    return (gained * prior + freedom * variances) / (gained + freedom), np.minimum(gained + freedom, freedom.sum())


def _prior(variances: Floats, freedom: Floats) -> tuple[float, float]:
    """Return the prior's variance and degrees of freedom, from mean and variance of logarithms (Smyth, section 6.2)."""
    centred = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)
    mean = float(np.mean(centred))
    excess = float(np.var(centred, ddof=1) - np.mean(polygamma(1, freedom / 2)))
    if excess <= 0:
        return float(np.exp(mean)), MOST_FREEDOM
    gained = min(2 * _inverse_trigamma(excess), MOST_FREEDOM)
    return float(np.exp(mean + digamma(gained / 2) - np.log(gained / 2))), gained


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is nearly a straight line."""
    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1 - now / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Levels:
    """Nominal levels of a test."""

    # Level of the test that names a change.
    change: float = ERROR_RATE
    # Level of each of the two one-sided tests for SAME.
    same: float = SAME_RATE

    @property
    def shared(self) -> "Levels":
        """Return the levels if the whole also gets a verdict: whole and cases share the error rate for changes equally.

        All of them must be SAME, so the level of SAME stays the same.
        """
        return replace(self, change=self.change / 2)


def judge(estimates: Estimates, smallest: float, levels: Levels) -> list[Judgement]:
    """Return the judgement of each case. smallest: the equivalence margin, as a relative change such as 0.05."""
    if not len(estimates.difference):
        return []
    error, freedom = _error(estimates, 0)
    p = holm(2 * stdtr(freedom, -np.abs(estimates.difference) / error))
    half, level = half_width(estimates, levels.change)
    narrow = stdtrit(freedom, 1 - levels.same) * error
    limit = np.log1p(smallest)
    low, high = estimates.difference - half, estimates.difference + half
    same = np.abs(estimates.difference) + narrow < limit
    verdicts = np.select([same, low > 0, high < 0], [SAME, SLOWER, FASTER], INCONCLUSIVE)
    further = np.where(verdicts == INCONCLUSIVE, _further(estimates, limit, levels), 0).tolist()
    # Each verdict is shown with the interval that it follows from.
    width = np.where(same, narrow, half)
    logs = estimates.difference + np.array([np.zeros_like(width), -width, width])
    ratios = np.exp(np.clip(logs, -WIDEST_LOG, WIDEST_LOG)).T.tolist()
    return [
        Judgement(
            ratio=Interval(value, low_end, high_end, IntervalKind.OVER_LAUNCHES),
            verdict=verdict,
            reason=_reason(verdict, smallest, levels),
            p=p_of_case,
            level=1 - 2 * levels.same if verdict == SAME else 1 - level,
            further_launches=more or None,
        )
        for (value, low_end, high_end), verdict, p_of_case, more in zip(
            ratios, map(ChangeVerdict, verdicts.tolist()), p.tolist(), further, strict=True
        )
    ]


CHANGED = Kind("changed", "p ≤ {change:.2g}")
SAME_WITHIN = Kind("same-within", "within ±{smallest:exact share} by two one-sided tests at {same:.2g}")
NEITHER = Kind(
    "neither",
    "neither changed at p ≤ {change:.2g} nor within ±{smallest:exact share} by two one-sided tests at {same:.2g}",
)


def _reason(verdict: ChangeVerdict, smallest: float, levels: Levels) -> Notice:
    """Return the reason for this verdict."""
    if verdict == INCONCLUSIVE:
        return NEITHER(change=levels.change, smallest=smallest, same=levels.same)
    if verdict == SAME:
        return SAME_WITHIN(smallest=smallest, same=levels.same)
    return CHANGED(change=levels.change)


def _further(estimates: Estimates, limit: float, levels: Levels) -> NDArray[np.int64]:
    """Return the fewest further launches per side that decide with a probability of POWER; 0 if no number does.

    All cases get them at once: launches are a setting of a run. Assumes that ratio and scatter stay as they are, and
    that no case is selected before, so that Holm's correction is strictest.
    """
    error, freedom = _error(estimates, np.arange(1, MOST_FURTHER_LAUNCHES + 1)[:, None])
    away = np.abs(estimates.difference)
    cases = len(estimates.difference)
    change_power = stdtr(freedom, away / error - stdtrit(freedom, 1 - levels.change / 2 / cases))
    needed = stdtrit(freedom, 1 - levels.same)
    same_power = stdtr(freedom, (limit - away) / error - needed) + stdtr(freedom, (limit + away) / error - needed) - 1
    enough = np.maximum(change_power, same_power) >= POWER
    return np.where(enough.any(axis=0), np.argmax(enough, axis=0) + 1, 0)


def with_enough(judgement: Judgement, units: int, fewest: int, too_few: Kind) -> Judgement:
    """Return the judgement, or an undecided one, for this reason, if it is from fewer units."""
    return judgement if units >= fewest else replace(judgement, verdict=INCONCLUSIVE, reason=too_few(fewest=fewest))


def gravest(verdicts: Sequence[ChangeVerdict], overall: Judgement | None = None, each: bool = False) -> ChangeVerdict:
    """Return the gravest verdict of all. If `overall` is SAME, undecided cases are ignored, unless `each`."""
    for grave in (SLOWER, FASTER, INCONCLUSIVE):
        if grave in verdicts:
            return SAME if grave == INCONCLUSIVE and overall and overall.verdict == SAME and not each else grave
    return SAME


def _error(estimates: Estimates, further: Counts) -> tuple[Floats, Floats]:
    """Return the standard error of the difference, and its degrees of freedom (Welch and Satterthwaite).

    further: number of further launches on each side.
    """
    total, spread = np.zeros(()), np.zeros(())
    for part in estimates.parts:
        more = further if part.grows else 0
        variance = part.variance * (1 / (part.count + more) + part.besides)
        total = total + variance
        spread = spread + variance**2 / (part.freedom + more)
    return np.sqrt(total), total**2 / spread


def half_width(estimates: Estimates, error_rate: float) -> tuple[Floats, float]:
    """Return half-widths of intervals that exclude 0 exactly if Holm's procedure selects the case; their error rate.

    With R of m cases selected, p ≤ error_rate / (m − R + 1) in exactly these cases: their intervals of confidence level
    1 − error_rate / (m − R + 1) exclude 0. They are at least as wide as intervals of level 1 − R error_rate / m, so
    that at most a share of error_rate of the selected intervals misses (Benjamini and Yekutieli, Journal of the
    American Statistical Association 100, 2005).
    """
    error, freedom = _error(estimates, 0)
    p = 2 * stdtr(freedom, -np.abs(estimates.difference) / error)
    selected = int(np.count_nonzero(holm(p) <= error_rate))
    level = error_rate / (len(p) - max(selected, 1) + 1)
    return np.asarray(stdtrit(freedom, 1 - level / 2) * error), level


def holm(p: Floats, tests: int | None = None) -> Floats:
    """Return p-values corrected over all tests (Holm, Scandinavian Journal of Statistics 6, 1979).

    tests: number of tests, if p has only the smallest of their p-values.
    """
    order = np.argsort(p)
    corrected = np.empty_like(p)
    factors = (len(p) if tests is None else tests) - np.arange(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return corrected


# ── the run as a whole ───────────────────────────────────────────────────────────────────────────
def index(before: Sequence[Floats], after: Sequence[Floats]) -> Estimates | None:
    """Return the geometric mean of all cases; None if cases have different numbers of launches on a side.

    It is formed within each launch, so that a change common to all cases of a launch is part of its scatter. All cases
    have the same weight: weights that are chosen on the tested launches increase the false-alarm rate.
    """
    if len({len(times) for times in before}) > 1 or len({len(times) for times in after}) > 1:
        return None
    sides = [np.exp(np.log(np.array(side)).mean(axis=0)) for side in (before, after)]
    return unpaired([sides[0]], [sides[1]])


# ── differences in seconds ───────────────────────────────────────────────────────────────────────
def differences(
    *sides: Sequence[Floats], fewest: int = 2, error_rate: float = ERROR_RATE, apart: bool = False
) -> list[tuple[Interval, bool] | None]:
    """Return AFTER − BEFORE per case, for values that may be negative, and whether it differs from zero.

    sides: launches before and after; or one side of differences, one per pair of launches. None for a case with fewer
    than `fewest` values on a side. The tests are as for verdicts, on the values themselves. apart: the sides are from
    different runs, which differ as launches do.
    """
    enough = [min(map(len, case)) >= fewest for case in zip(*sides, strict=True)]
    if not any(enough):
        return [None] * len(enough)
    estimates = _estimates([[*itertools.compress(side, enough)] for side in sides], TICK_S)
    if apart:
        estimates = with_assumed(estimates)
    half, _ = half_width(estimates, error_rate)
    ends = zip(*((estimates.difference + shift).tolist() for shift in (0, -half, half)), strict=True)
    tested = (
        (Interval(value, low, high, IntervalKind.OVER_LAUNCHES), low > 0 or high < 0) for value, low, high in ends
    )
    return [next(tested) if is_enough else None for is_enough in enough]


# ── one launch on a side ─────────────────────────────────────────────────────────────────────────
ONE_LAUNCH_ON_A_SIDE = Kind("one-launch-on-a-side", "one launch on a side does not show the variation of launches")
NOISE_FLOOR = Kind("noise-floor", "by the stated noise floor of {floor:share} and the intervals within the launches")


def by_noise_floor(before: Interval, after: Interval, smallest: float, floor: float | None) -> Judgement:
    """Return the judgement if a side has one launch, so that the between-launch variance is unknown.

    floor: the largest relative difference between two measurements of the same thing, as stated by the user. The
    ratio's interval then combines 1 + floor and the intervals within the launches, in quadrature. The verdict is
    INCONCLUSIVE without a floor.
    """
    within = ratio_of_intervals(before, after)  # without width if a side is another tool's single number
    if floor is None:
        return Judgement(ONE_LAUNCH_ON_A_SIDE(), INCONCLUSIVE, within)
    down, up = (
        float(np.hypot(np.log1p(floor), np.log(side)))
        for side in (within.value / within.low, within.high / within.value)
    )
    center, limit = float(np.log(within.value)), float(np.log1p(smallest))
    ratio = Interval(within.value, float(np.exp(center - down)), float(np.exp(center + up)), IntervalKind.NOISE_FLOOR)
    verdict = INCONCLUSIVE
    if center - down > -limit and center + up < limit:
        verdict = SAME
    elif center - down > 0 or center + up < 0:
        verdict = SLOWER if center > 0 else FASTER
    return Judgement(NOISE_FLOOR(floor=floor), verdict, ratio)
