"""An error rate that is spent over several looks holds for all looks together, whenever they are taken."""

import numpy as np
import pytest
from scipy.stats import norm

from collbench.stats.spending import levels

FIVE = [0.2, 0.4, 0.6, 0.8, 1.0]


def test_levels_equal_published_levels():
    """The source is Lan & DeMets: Pocock's type, two-sided 5 %, five looks at equal distances."""
    nominal = levels(FIVE, FIVE, 0.05, two_sided=True)
    assert norm.isf(np.array(nominal) / 2) == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=2e-3)


def test_one_look_at_the_end_spends_the_whole_rate():
    for two_sided in (True, False):
        assert levels([1.0], [6], 0.05, two_sided) == pytest.approx([0.05], rel=1e-6)


@pytest.mark.parametrize("two_sided", [True, False])
def test_all_looks_together_cross_at_the_rate(two_sided):
    """The looks are those of `ab`; the check is independent and simulates sums of pairs."""
    counts, shares = [6, 8, 12, 16, 24, 37], [0.15, 0.21, 0.33, 0.44, 0.65, 1.0]
    sums = np.random.default_rng(1).normal(size=(20_000, counts[-1])).cumsum(axis=1)
    scores = sums[:, np.array(counts) - 1] / np.sqrt(counts)
    nominal = np.array(levels(shares, counts, 0.05, two_sided))
    p = 2 * norm.sf(np.abs(scores)) if two_sided else norm.sf(scores)
    crossed = (p <= nominal).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.006)  # 4 standard errors
    assert (p <= 0.05).any(axis=1).mean() > 0.08  # the control: a fixed level at each look


def test_the_level_of_a_look_does_not_depend_on_later_looks():
    early = levels(FIVE[:2], [6, 12], 0.03, two_sided=True)
    assert levels(FIVE, [6, 12, 18, 24, 30], 0.03, two_sided=True)[:2] == pytest.approx(early, rel=1e-4)


def test_a_look_that_comes_when_nothing_was_spent_finds_nothing():
    first, last = levels([0.0, 1.0], [6, 12], 0.05, two_sided=True)
    assert first < 1e-10 and last == pytest.approx(0.05, rel=1e-3)
