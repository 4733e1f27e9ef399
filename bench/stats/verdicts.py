"""Decide whether cases changed: all cases at once, from the launches of two runs or from pairs of launches.

In: arrays of seconds, one per case and side (`unpaired`), or of log ratios, one per case (`paired`). Out: a `Judgement`
of each case, and of the run as a whole. Knows neither runs nor cases: `compare` and `pairs` match them.

Student's t on logarithms with variances moderated over the cases, and Benjamini and Hochberg's correction. Every
verdict follows from the interval that stands beside it, and the interval is corrected for the number of cases
(docs/method.md, "Comparing two runs"). Tests compare the uncorrected results with those of `scipy.stats.ttest_ind`,
which is not used here because it can neither predict the result of further launches nor moderate variances.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtr, stdtrit

from bench.model.comparisons import Judgement
from bench.model.conclusions import Interval
from bench.stats.intervals import Floats, ratio_of_intervals

SLOWER, FASTER, SAME, INCONCLUSIVE = "SLOWER", "FASTER", "SAME", "INCONCLUSIVE"
# Share of comparisons that may name a change where nothing changed. Where a verdict on the whole and verdicts on the
# cases stand side by side, each gets less than half: simulated with 18 cases of unlike scatter and 8 launches a side,
# 0.025 each named a change in 7 %, because variances are estimated from the same launches.
ERROR_RATE, ERROR_RATE_OF_EACH = 0.05, 0.02
# With fewer launches on a side nothing is decided: if launches have two modes, an interval over 2 or 3 of them holds
# the truth in 46 to 75 % only.
FEWEST_LAUNCHES = 4
# Smallest standard deviation of the logarithms of launches: closer medians come from the resolution of the clock (GPU
# events have steps of up to 0.5 µs), not from a lack of variation.
SMALLEST_SCATTER = 1e-3
# The same for values in seconds: one step of the clock.
TICK_S = 1e-9
# Upper limit of the advice: beyond it, measuring differently helps more than launching again.
MOST_FURTHER_LAUNCHES = 200
# Assignments of launches to sides that a permutation test tries: all, or so many at random.
MOST_PERMUTATIONS = 20_000
# Degrees of freedom of the prior of moderated variances at most: as good as infinite, where cases have one variance.
MOST_FREEDOM = 1e6
# With fewer variances, nothing can be learnt from their scatter.
FEWEST_CASES = 3
# Two launches that differ much leave an interval that no number can hold; beyond this factor (10²¹) all are alike.
WIDEST_LOG = 50.0

Texts = NDArray[np.str_]
Counts = int | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the variance of a difference, in arrays with one entry per case: `variance` / `count`.

    freedom: degrees of freedom of `variance`. grows: further launches add to `count` and `freedom`.
    """

    variance: Floats
    count: Floats
    freedom: Floats
    grows: bool = True


@dataclass(frozen=True, slots=True)
class Estimates:
    """Log ratios after / before, one per case, and where their uncertainty comes from."""

    difference: Floats
    parts: tuple[Part, ...]


# ── from launches to estimates ───────────────────────────────────────────────────────────────────
def unpaired(before: Sequence[Floats], after: Sequence[Floats]) -> Estimates:
    """From the times of launches; their number may differ between cases and sides, but is 2 or more."""
    sides = [[np.log(times) for times in side] for side in (before, after)]
    return _estimates(sides, SMALLEST_SCATTER)


def paired(ratios: Sequence[Floats]) -> Estimates:
    """From log ratios after / before, one per pair of launches; 2 or more of each case."""
    return _estimates([ratios], SMALLEST_SCATTER)


def with_occasions(estimates: Estimates, scatter: Floats, freedom: Floats) -> Estimates:
    """The estimates if each side also varies from occasion to occasion, by a standard deviation of `scatter`."""
    part = Part(2 * scatter**2, np.ones_like(scatter), freedom, grows=False)
    return replace(estimates, parts=(*estimates.parts, part))


def _estimates(sides: Sequence[Sequence[Floats]], smallest_scatter: float) -> Estimates:
    """One side of differences, or two sides, whose difference is the second less the first."""
    counts = [np.array([len(case) for case in side], dtype=float) for side in sides]
    means = [np.array([np.mean(case) for case in side], dtype=float) for side in sides]
    variances = np.array([max(float(np.var(case, ddof=1)), smallest_scatter**2) for side in sides for case in side])
    variances, freedoms = moderated(variances, np.concatenate(counts) - 1)
    columns = zip(np.split(variances, len(sides)), counts, np.split(freedoms, len(sides)), strict=True)
    return Estimates(means[-1] - (means[0] if len(sides) == 2 else 0), tuple(itertools.starmap(Part, columns)))


# ── variances from few launches ──────────────────────────────────────────────────────────────────
def moderated(variances: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """The moderated variances, and their degrees of freedom; both as they were with few cases.

    Each variance is drawn towards what all cases have in common, as far as they have it: the empirical Bayes method of
    limma (Smyth, "Linear models and empirical Bayes methods for assessing differential expression", Statistical
    Applications in Genetics and Molecular Biology 3, 2004). With 4 launches a variance is known to a factor of 5 only;
    a few that are small by chance would otherwise look like changes.
    variances: positive. freedom: of each; number of launches less one. No variance gets more degrees of freedom than
    all have together, as in limma: without this limit, three cases of 4 pairs often seem to know their variance
    exactly, and `ab` of identical sides named a change in 5.9 % of 2000 simulated runs; with it, in 4.2 %.
    """
    if len(variances) < FEWEST_CASES:
        return variances, freedom
    prior, gained = _prior(variances, freedom)
    return (gained * prior + freedom * variances) / (gained + freedom), np.minimum(gained + freedom, freedom.sum())


def _prior(variances: Floats, freedom: Floats) -> tuple[float, float]:
    """Variance and degrees of freedom of the prior, from mean and variance of the logarithms (Smyth, section 6.2)."""
    centred = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)
    mean = float(np.mean(centred))
    excess = float(np.var(centred, ddof=1) - np.mean(polygamma(1, freedom / 2)))
    if excess <= 0:
        return float(np.exp(mean)), MOST_FREEDOM
    gained = min(2 * _inverse_trigamma(excess), MOST_FREEDOM)
    return float(np.exp(mean + digamma(gained / 2) - np.log(gained / 2))), gained


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is nearly a straight line."""
    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1 - now / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def judge(estimates: Estimates, smallest: float, error_rate: float = ERROR_RATE) -> list[Judgement]:
    """The judgement of each case; smallest: the relative change that matters, such as 0.05."""
    if not len(estimates.difference):
        return []
    error, freedom = _error(estimates, 0)
    p = _corrected(2 * stdtr(freedom, -np.abs(estimates.difference) / error))
    half = half_width(estimates, error_rate)
    verdicts = _verdicts(estimates.difference, half, smallest)
    # The fewest further launches on each side that would decide if mean and scatter stay as they are: an estimate,
    # which sufficed in about 7 of 10 simulated cases. All cases get them at once: launches are a setting of a run.
    counts = np.arange(MOST_FURTHER_LAUNCHES + 1)[:, None]
    later = _verdicts(estimates.difference, half_width(estimates, error_rate, counts), smallest) != INCONCLUSIVE
    further = np.argmax(later, axis=0).tolist()  # 0 where decided now, and where never
    logs = estimates.difference + np.array([np.zeros_like(half), -half, half])
    ratios = np.exp(np.clip(logs, -WIDEST_LOG, WIDEST_LOG)).T.tolist()
    return [
        Judgement(
            Interval(ratio, low, high, "over launches"), verdict, reason_of(verdict, smallest), p_of_case, more or None
        )
        for (ratio, low, high), verdict, p_of_case, more in zip(
            ratios, verdicts.tolist(), p.tolist(), further, strict=True
        )
    ]


def reason_of(verdict: str, smallest: float) -> str:
    """Why the interval gives this verdict."""
    return {
        SLOWER: "the interval lies above 1",
        FASTER: "the interval lies below 1",
        SAME: f"the interval lies within ±{smallest * 100:g} %",
        INCONCLUSIVE: f"the interval holds 1 and exceeds ±{smallest * 100:g} %",
    }[verdict]


def undecided(judgement: Judgement, reason: str) -> Judgement:
    """The judgement without its verdict."""
    return replace(judgement, verdict=INCONCLUSIVE, reason=reason)


def decided(judgement: Judgement, before: Floats, after: Floats) -> Judgement:
    """The judgement, unless launches are too few, or a permutation test does not support a change.

    before, after: seconds, one for each launch. The test makes no assumption on how launches are distributed.
    """
    if min(len(before), len(after)) < FEWEST_LAUNCHES:
        return undecided(judgement, f"fewer than {FEWEST_LAUNCHES} launches on a side")
    if judgement.verdict in {SLOWER, FASTER} and (p := permutation_p(np.log(before), np.log(after))) > ERROR_RATE:
        return undecided(judgement, f"a permutation test of the launches does not support it (p = {p:.2f})")
    return judgement


def of_run(verdicts: Sequence[str]) -> str:
    """One verdict for all: the gravest; SAME only if all are SAME."""
    for grave in (SLOWER, FASTER, INCONCLUSIVE):
        if grave in verdicts:
            return grave
    return SAME


def _verdicts(difference: Floats, half: Floats, smallest: float) -> Texts:
    low, high, limit = difference - half, difference + half, np.log1p(smallest)
    return np.select([(low > -limit) & (high < limit), low > 0, high < 0], [SAME, SLOWER, FASTER], INCONCLUSIVE)


def _error(estimates: Estimates, further: Counts) -> tuple[Floats, Floats]:
    """Standard error of the difference, and its degrees of freedom (Welch and Satterthwaite).

    further: launches to come on each side.
    """
    total, spread = np.zeros(()), np.zeros(())
    for part in estimates.parts:
        more = further if part.grows else 0
        variance = part.variance / (part.count + more)
        total = total + variance
        spread = spread + variance**2 / (part.freedom + more)
    return np.sqrt(total), total**2 / spread


def half_width(estimates: Estimates, error_rate: float, further: Counts = 0) -> Floats:
    """Half-widths of intervals of which those exclude 0 whose case Benjamini and Hochberg's method selects.

    With R of m cases selected, p ≤ R error_rate / m in each of them, which is to say that the interval of confidence
    1 − R error_rate / m excludes 0 (Benjamini and Yekutieli, Journal of the American Statistical Association 100,
    2005).
    """
    error, freedom = _error(estimates, further)
    p = 2 * stdtr(freedom, -np.abs(estimates.difference) / error)
    cases = p.shape[-1]
    selected = np.count_nonzero(_corrected(p) <= error_rate, axis=-1, keepdims=True)
    level = error_rate * np.maximum(selected, 1) / cases
    return np.asarray(stdtrit(freedom, 1 - level / 2) * error)


def _corrected(p: Floats) -> Floats:
    """p-values corrected over the last axis: `scipy.stats.false_discovery_control`, whose import takes too long."""
    cases = p.shape[-1]
    order = np.argsort(p, axis=-1)
    scaled = np.take_along_axis(p, order, -1) * cases / np.arange(1, cases + 1)
    least = np.minimum(np.minimum.accumulate(scaled[..., ::-1], axis=-1)[..., ::-1], 1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, least, -1)
    return corrected


# ── the run as a whole ───────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Index:
    """The run as a whole: weighted geometric means over the cases. before, after: one for each launch, in seconds."""

    before: Floats
    after: Floats
    weights: Floats
    estimates: Estimates


def index(before: Sequence[Floats], after: Sequence[Floats], weights: Floats) -> Index | None:
    """The index of all cases; None unless all have the same number of launches on each side.

    It is formed within each launch, so that what moves all cases of a launch alike is part of its scatter.
    """
    if len({len(times) for times in before}) > 1 or len({len(times) for times in after}) > 1:
        return None
    sides = [np.exp(weights @ np.log(np.array(side))) for side in (before, after)]
    return Index(sides[0], sides[1], weights, unpaired([sides[0]], [sides[1]]))


def weights(estimates: Estimates) -> Floats:
    """Weights of the cases in the index of the whole, which sum to 1: the reciprocals of their standard errors.

    A case with two modes, which scatters by more than all others together, would otherwise drown them. Reciprocals of
    variances would do more of this than few launches allow: simulated with 18 cases and 4 launches a side, the index
    then named a change in 6 % in place of 3 %, and found one of 8 % in 95 % in place of 92 % (8 launches).
    """
    error, _ = _error(estimates, 0)
    return np.asarray(1 / error / np.sum(1 / error))


# ── permutation tests ────────────────────────────────────────────────────────────────────────────
def permutation_p(before: Floats, after: Floats) -> float:
    """Two-sided p-value of the difference of means if launches were assigned to the sides at random."""
    launches = np.concatenate([before, after])
    means = launches[_assignments(len(before), len(after))].mean(axis=1)
    seen = abs(before.mean() - launches.mean())
    return float(np.mean(np.abs(means - launches.mean()) >= seen * (1 - 1e-9)))


@functools.cache
def _assignments(first: int, second: int) -> NDArray[np.int64]:
    total = first + second
    if math.comb(total, first) <= MOST_PERMUTATIONS:
        return np.array(list(itertools.combinations(range(total), first)))
    dice = np.random.default_rng(total)  # the same on every call, so that a verdict never changes
    orders = [np.arange(first), *(dice.permutation(total)[:first] for _ in range(MOST_PERMUTATIONS - 1))]
    return np.array(orders)


# ── differences in seconds ───────────────────────────────────────────────────────────────────────
def differences(*sides: Sequence[Floats], error_rate: float = ERROR_RATE) -> list[tuple[Interval, bool]]:
    """AFTER − BEFORE of each case, for values that may be negative, and whether it differs from zero.

    sides: of launches before and after; or one of differences, one for each pair of launches. As for verdicts, on the
    values themselves.
    """
    if not sides[0]:
        return []
    estimates = _estimates(sides, TICK_S)
    half = half_width(estimates, error_rate)
    ends = zip(*((estimates.difference + shift).tolist() for shift in (0, -half, half)), strict=True)
    return [(Interval(value, low, high, "over launches"), low > 0 or high < 0) for value, low, high in ends]


# ── one launch on a side ─────────────────────────────────────────────────────────────────────────
def by_noise_floor(before: Interval, after: Interval, smallest: float, floor: float | None) -> Judgement:
    """The judgement where a side has one launch, so that it is unknown how launches differ.

    floor: the largest relative difference between two measurements of the same thing, as stated by the user. The
    ratio's interval then combines 1 + floor and the intervals within the launches, in quadrature. Without a floor:
    INCONCLUSIVE.
    """
    within = ratio_of_intervals(before, after)  # without width where a side is another tool's single number
    if floor is None:
        return Judgement(within, INCONCLUSIVE, "one launch on a side says nothing of how launches differ")
    down, up = (
        float(np.hypot(np.log1p(floor), np.log(side)))
        for side in (within.value / within.low, within.high / within.value)
    )
    center, limit = float(np.log(within.value)), float(np.log1p(smallest))
    ratio = Interval(within.value, float(np.exp(center - down)), float(np.exp(center + up)), "stated noise floor")
    verdict = INCONCLUSIVE
    if center - down > -limit and center + up < limit:
        verdict = SAME
    elif center - down > 0 or center + up < 0:
        verdict = SLOWER if center > 0 else FASTER
    return Judgement(ratio, verdict, reason_of(verdict, smallest))
