"""Moderate variances over cases: each is drawn towards what all cases have in common, as far as they have it.

In: variances of many cases, each from few launches. Out: moderated variances and their degrees of freedom. The
empirical Bayes method of limma: Smyth, "Linear models and empirical Bayes methods for assessing differential
expression", Statistical Applications in Genetics and Molecular Biology 3, 2004. With 4 launches a variance is known to
a factor of 5 only; a few that are small by chance would otherwise look like changes. If cases differ by more than
chance, little is gained and little is changed.
"""

import numpy as np
from scipy.special import digamma, polygamma

from bench.stats.intervals import Floats

# Degrees of freedom of the prior at most: as good as infinite, where all cases have one variance.
MOST_FREEDOM = 1e6
# With fewer variances, nothing can be learnt from their scatter.
FEWEST_CASES = 3


def moderated(variances: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """The moderated variances, and their degrees of freedom; both as they were with few cases.

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
