"""Choose how long the calls of each case are timed in the next pair of launches of `ab`.

In: the pairs so far. Out: seconds for each case on each side. The log ratio of a pair has variance from within its
launches, which falls with the timed length, and variance between launches, which only further pairs reduce; what is
done around the timed calls costs each pair the same time. The lengths that give the whole (the mean of all cases) the
narrowest interval for the time follow from these three (docs/develop/statistics.md, "How long a pair is").

Nothing here depends on the sign of a difference, so the choice favours no side; and the rule is fixed beforehand.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from collbench.analyze.pairs import Launches, PairedCase, in_all
from collbench.stats.intervals import Floats

# The first pairs are timed for `seconds_per_case`, the later ones as the rule says.
FEWEST_MEASURED = 2
# Later pairs change nothing: the lengths settle.
MOST_USED = 16
# Within the budget there is time for at least this many pairs: with fewer, an interval over pairs is wide.
FEWEST_PLANNED = 12
# Least and most timed seconds of a pair for each second around them: the variance between launches, which the lengths
# follow, is poorly known after a few pairs, and beyond these limits other lengths gain little.
LEAST, MOST = 2.0, 4.0
# Before it is measured, the variance between launches is taken as this share of the variance within them at
# `seconds_per_case`; this counts as much as the given number of pairs.
USUAL_SHARE, USUAL_PAIRS = 0.25, 4
# Parts of a launch whose means show the variance within it.
PARTS = 5


def seconds_of_next_pair(
    cases: Sequence[PairedCase], starts_s: Mapping[int, float], budget_s: float, least_s: float
) -> dict[str, float]:
    """Return seconds for the calls of each case on each side, by name of the pair of cases; {} if too little is known.

    starts_s: for each pair, the time at which its first timed calls began. least_s: shortest time for a case.
    """
    known = [case for case in cases if len(case.pairs) >= FEWEST_MEASURED]
    common = in_all(case.pairs for case in known) if known else []
    if len(common) < FEWEST_MEASURED:
        return {}
    timed_s = {number: sum(_timed_s(case, number) for case in known) for number in common}
    each_s = [(starts_s[b] - starts_s[a], timed_s[a]) for a, b in itertools.pairwise(common) if b == a + 1]
    around_s = [pair_s - calls_s for pair_s, calls_s in each_s if pair_s > calls_s]  # not if the clock was set back
    within = np.array([_within(case.a.launches, common) + _within(case.b.launches, common) for case in known])
    if not around_s or not within.all():
        return {}
    cost_s, share = float(np.median(around_s)), np.sqrt(within) / np.sqrt(within).sum()
    # Variance of the mean of all cases within launches if their calls take one second on each side, divided as `share`.
    one_second = float(np.sqrt(within).sum() ** 2) / len(known) ** 2
    best_s = math.sqrt(cost_s * one_second / 2 / _between(known, common, within, least_s))
    side_s = min(max(best_s, LEAST * cost_s / 2), MOST * cost_s / 2, (budget_s / FEWEST_PLANNED - cost_s) / 2)
    return {case.key: max(least_s, side_s * part) for case, part in zip(known, share.tolist(), strict=True)}


def _timed_s(case: PairedCase, number: int) -> float:
    return float(case.a.launches[number].sum() + case.b.launches[number].sum())


def _within(launches: Launches, numbers: Sequence[int]) -> float:
    """Return the variance of the logarithm of a launch's mean time, for one timed second."""
    variances = []
    for times in (launches[number] for number in numbers):
        parts = [part.mean() for part in np.array_split(times, min(PARTS, len(times)))]
        variances.append(np.var(np.log(parts), ddof=1) / len(parts) * times.sum() if len(parts) > 1 else 0.0)
    return float(np.mean(variances))


def _between(cases: Sequence[PairedCase], numbers: Sequence[int], within: Floats, least_s: float) -> float:
    """Return the variance between launches of the mean of all cases, from the scatter of these pairs."""
    observed = float(np.var(np.mean([case.log_ratios(numbers) for case in cases], axis=0), ddof=1))
    explained = [2 * w / _timed_s(case, n) for case, w in zip(cases, within.tolist(), strict=True) for n in numbers]
    usual = USUAL_SHARE * float(within.sum()) / least_s / len(cases) ** 2
    measured = max(0.0, observed - float(np.sum(explained)) / len(numbers) / len(cases) ** 2)
    weight = len(numbers) - 1
    return (USUAL_PAIRS * usual + weight * measured) / (USUAL_PAIRS + weight)
