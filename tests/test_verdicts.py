"""Verdicts on arrays equal scipy's tests where those can do the same. They are corrected for the number of cases, and
variances are moderated only as far as they are alike.
"""

import dataclasses

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.model.comparisons import Judgement
from bench.model.conclusions import Interval
from bench.stats import verdicts
from bench.stats.verdicts import INCONCLUSIVE, SAME, SLOWER, moderated


def test_of_one_case_p_and_interval_are_those_of_scipy():
    rng = np.random.default_rng(7)
    for sizes in ((4, 4), (5, 8), (10, 4)):
        before, after = (np.exp(rng.normal(0, 0.1, n)) for n in sizes)
        (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.05)
        test = scipy_stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
        interval = test.confidence_interval(0.95)
        assert judged.p == pytest.approx(test.pvalue)
        assert (judged.ratio.low, judged.ratio.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_intervals_exclude_1_exactly_where_the_corrected_p_says_so():
    rng = np.random.default_rng(14)
    for _ in range(100):
        before, after = (list(np.exp(rng.normal(0, 0.1, (12, 6)))) for _ in range(2))
        for case in range(rng.integers(0, 12)):
            after[case] *= 1.3
        for judgement in verdicts.judge(verdicts.unpaired(before, after), 0.0):
            assert (judgement.p <= 0.05) == (judgement.ratio.low > 1 or judgement.ratio.high < 1)


def test_p_values_are_corrected_as_by_scipy():
    p = np.random.default_rng(15).random((5, 9))
    assert verdicts._corrected(p) == pytest.approx(scipy_stats.false_discovery_control(p, axis=-1))


def test_permutation_p_is_that_of_scipy():
    rng = np.random.default_rng(16)
    before, after = rng.normal(size=5), rng.normal(0.8, 1, 6)
    wanted = scipy_stats.permutation_test(
        (before, after), lambda a, b: abs(a.mean() - b.mean()), alternative="greater", n_resamples=np.inf
    )
    assert verdicts.permutation_p(before, after) == pytest.approx(wanted.pvalue)


def test_variances_are_drawn_together_only_as_far_as_they_are_alike():
    rng = np.random.default_rng(17)
    freedom = np.full(2000, 4.0)
    alike = rng.chisquare(4, 2000) / 4
    squeezed, known = moderated(alike, freedom)
    assert np.all(known > 100) and np.ptp(squeezed) < 0.5
    # a prior of 6 degrees of freedom, as in Smyth's model
    unlike = 6 / rng.chisquare(6, 2000) * rng.chisquare(4, 2000) / 4
    _, known = moderated(unlike, freedom)
    assert np.all((known > 8.5) & (known < 12))
    assert moderated(np.array([1.0, 2.0]), np.array([3.0, 3.0]))[1].tolist() == [3, 3]


def test_no_variance_is_known_better_than_all_together():
    _, known = moderated(np.array([1.0, 1.01, 0.99]), np.full(3, 3.0))
    assert known.tolist() == [9, 9, 9]


def test_the_number_of_further_launches_is_the_smallest_that_decides():
    rng = np.random.default_rng(8)
    before, after = (list(np.exp(rng.normal(mean, 0.1, (20, 4)))) for mean in (0, 0.15))
    estimates = verdicts.unpaired(before, after)
    for i, judged in enumerate(verdicts.judge(estimates, 0.05)):
        if judged.further_launches is None:
            continue
        half = verdicts.half_width(estimates, 0.05, np.arange(judged.further_launches + 1)[:, None])
        found = verdicts._verdicts(estimates.difference, half, 0.05)[:, i]
        assert found[-1] != INCONCLUSIVE and set(found[:-1]) == {INCONCLUSIVE}


def test_what_permutations_do_not_support_is_undecided():
    judgement = Judgement(Interval(2, 1.5, 3, "over launches"), SLOWER, "")
    alike, unlike = np.array([1.0, 1.1, 0.9, 1.05]), np.array([2.0, 2.2, 1.8, 2.1])
    assert verdicts.permutation_p(np.log(alike), np.log(unlike)) <= verdicts.ERROR_RATE
    assert verdicts.decided(judgement, alike, unlike).verdict == SLOWER
    assert verdicts.decided(judgement, alike, alike[::-1]).verdict == INCONCLUSIVE
    same = dataclasses.replace(judgement, verdict=SAME)
    assert verdicts.decided(same, alike, alike[::-1]).verdict == SAME


def test_two_launches_that_differ_beyond_measure_leave_an_interval_without_a_warning():
    """An exponent of a thousand is no number; the verdict is that nothing is known."""
    (found,) = verdicts.judge(verdicts.paired([np.array([0.0, 300.0])]), 0.05)
    assert found.verdict == INCONCLUSIVE and 0 < found.ratio.low < 1e-20 and 1e20 < found.ratio.high < float("inf")
