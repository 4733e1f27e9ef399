"""Verdicts on arrays equal scipy's tests where those can do the same, are right as often as they say, and correct for
the number of cases only where that is needed.
"""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.stats import verdicts
from bench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER, Levels, moderated

LEVELS = Levels(change=0.05, same=0.05)


def test_of_one_case_p_and_interval_are_those_of_scipy():
    rng = np.random.default_rng(7)
    for sizes in ((4, 4), (5, 8), (10, 4)):
        before, after = (np.exp(rng.normal(0, 0.1, n)) for n in sizes)
        (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.0, LEVELS)
        test = scipy_stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
        interval = test.confidence_interval(0.95)
        assert judged.p == pytest.approx(test.pvalue) and judged.level == 0.95
        assert (judged.ratio.low, judged.ratio.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_intervals_exclude_1_exactly_where_the_corrected_p_says_so():
    rng = np.random.default_rng(14)
    for _ in range(100):
        before, after = (list(np.exp(rng.normal(0, 0.1, (12, 6)))) for _ in range(2))
        for case in range(rng.integers(0, 12)):
            after[case] *= 1.3
        for judgement in verdicts.judge(verdicts.unpaired(before, after), 0.0, LEVELS):
            assert (judgement.p <= 0.05) == (judgement.ratio.low > 1 or judgement.ratio.high < 1)
            assert (judgement.p <= 0.05) == (judgement.verdict in {SLOWER, FASTER})


def test_p_values_are_corrected_by_holms_procedure():
    """Smallest × 4, the next × 3, …, none below one before it."""
    assert verdicts._corrected(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_an_unchanged_case_is_not_named_beside_changed_ones():
    """16 of 33 cases are 20 % faster; Benjamini and Hochberg's procedure names one of the others in 13 % of runs."""
    rng = np.random.default_rng(16)
    named = found = 0
    for _ in range(200):
        before, after = (np.exp(rng.normal(0, 0.1, (33, 8))) for _ in range(2))
        after[:16] *= 0.8
        said = [one.verdict for one in verdicts.judge(verdicts.unpaired(list(before), list(after)), 0.0, LEVELS)]
        named += {SLOWER, FASTER} & set(said[16:]) != set()
        found += sum(verdict == FASTER for verdict in said[:16])
    assert named <= 16 and found >= 0.75 * 16 * 200


def test_same_is_what_two_one_sided_tests_of_scipy_show_and_other_cases_change_nothing_in_it():
    """All cases must be SAME, so that their number needs no correction; the interval beside is that of both tests."""
    rng = np.random.default_rng(18)
    limit = np.log1p(0.05)
    logs = rng.normal(rng.choice([0, 0.03], 40)[:, None], 0.05, (40, 8))
    others = list(rng.normal(0, 1, (4, 8)))
    found = []
    for log in logs:
        alone, *_ = verdicts.judge(verdicts.paired([log]), 0.05, LEVELS)
        among, *_ = verdicts.judge(verdicts.paired([log, *others]), 0.05, LEVELS)
        above = scipy_stats.ttest_1samp(log, -limit, alternative="greater").pvalue
        below = scipy_stats.ttest_1samp(log, limit, alternative="less").pvalue
        assert (alone.verdict == SAME) == (among.verdict == SAME) == (max(above, below) < 0.05)
        if alone.verdict == SAME:
            ends = scipy_stats.ttest_1samp(log, 0).confidence_interval(0.90)
            assert alone.ratio == among.ratio and alone.level == among.level == pytest.approx(0.90)
            assert (alone.ratio.low, alone.ratio.high) == pytest.approx((np.exp(ends.low), np.exp(ends.high)))
        found.append(alone.verdict == SAME)
    assert 5 < sum(found) < 35


def test_a_change_that_is_sure_but_smaller_than_what_matters_is_the_same():
    log = np.log(1.02) + 0.001 * np.random.default_rng(19).normal(size=8)
    assert verdicts.judge(verdicts.paired([log]), 0.05, LEVELS)[0].verdict == SAME
    assert verdicts.judge(verdicts.paired([log]), 0.01, LEVELS)[0].verdict == SLOWER


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


def test_no_variance_is_known_better_than_all_together():
    _, known = moderated(np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98]), np.full(6, 3.0))
    assert known.tolist() == [18] * 6


@pytest.mark.parametrize("ratio", [1.0, 1.08, 1.1])
def test_so_many_further_launches_decide_in_four_of_five_runs(ratio):
    """Simulated: runs of the advised size, whose ratio and scatter are those that the advice was drawn from."""
    rng = np.random.default_rng(8)
    first = rng.normal(size=(2, 6))
    scaled = 0.1 * (first - first.mean(axis=1, keepdims=True)) / first.std(axis=1, ddof=1, keepdims=True)
    before, after = np.exp(scaled[0]), ratio * np.exp(scaled[1])
    (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.05, LEVELS)
    assert judged.verdict == INCONCLUSIVE and judged.further_launches
    launches = 6 + judged.further_launches
    decided = 0
    for _ in range(300):
        sides = np.exp(0.1 * rng.normal(size=(2, launches))) * [[1], [ratio]]
        (again,) = verdicts.judge(verdicts.unpaired(sides[:1], sides[1:]), 0.05, LEVELS)
        decided += again.verdict != INCONCLUSIVE
    assert 0.68 < decided / 300 < 0.92


def test_no_number_of_launches_is_advised_where_occasions_hide_the_answer():
    """Launches get more, occasions do not."""
    base = np.exp(0.05 * np.array([-1.0, 1, -1, 1, -1, 1]))
    estimates = verdicts.unpaired([base], [base * 1.02])
    widened = verdicts.with_occasions(estimates, np.array([0.05]), np.array([9.0]))
    (free,), (bound,) = (verdicts.judge(each, 0.05, LEVELS) for each in (estimates, widened))
    assert (free.verdict, bound.verdict) == (INCONCLUSIVE, INCONCLUSIVE)
    assert free.further_launches and bound.further_launches is None


def test_an_occasion_that_is_assumed_counts_as_one_more_launch_of_each_side():
    rng = np.random.default_rng(20)
    before, after = (np.exp(rng.normal(0, 0.1, 8)) for _ in range(2))
    estimates = verdicts.unpaired([before], [after])
    widened = verdicts.occasions_as_launches(estimates)
    variance = np.var(np.log(before), ddof=1) + np.var(np.log(after), ddof=1)
    error, _ = verdicts._error(widened, 0)
    assert error[0] ** 2 == pytest.approx(variance * (1 + 1 / 8))


def test_an_occasion_moves_a_case_as_cases_that_take_as_long_scatter():
    """Small messages that scatter widely leave large ones decidable; a calm small one counts as its neighbours do."""
    rng = np.random.default_rng(21)
    level, scatter = np.geomspace(1e-4, 1e-1, 20), np.geomspace(0.4, 0.04, 20)
    scatter[3] = 0.01
    before, after = ([*np.exp(np.log(level) + scatter * rng.normal(size=(8, 20))).T] for _ in range(2))
    after[-1] = 1.7 * after[-1]
    assumed = verdicts.occasions_as_launches(verdicts.unpaired(before, after))
    error, _ = verdicts._error(assumed, 0)
    assert error[3] > error[10] > error[-1]
    judged = verdicts.judge(assumed, 0.05, LEVELS)
    assert [one.verdict for one in judged] == [INCONCLUSIVE] * 19 + [SLOWER]


def test_the_whole_has_its_share_of_what_may_be_wrong_and_same_all_of_it():
    assert Levels(0.03, 0.05).shared == Levels(0.015, 0.05)


def test_the_index_weighs_all_cases_alike():
    rng = np.random.default_rng(21)
    before, after = ([np.exp(sigma * rng.normal(size=5)) for sigma in (0.01, 0.5)] for _ in range(2))
    index = verdicts.index(before, after)
    wanted = np.mean(np.log(np.array(after))) - np.mean(np.log(np.array(before)))
    assert index.difference[0] == pytest.approx(wanted)
    assert verdicts.index([before[0], before[1][:4]], after) is None


def test_the_interval_of_differences_in_seconds_is_that_of_scipy():
    rng = np.random.default_rng(22)
    before, after = rng.normal(0, 1, 6), rng.normal(2, 1, 6)
    ((interval, sure),) = verdicts.differences([before], [after], error_rate=0.05)
    ends = scipy_stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high)) and sure == (ends.low > 0)
    ((wider, _),) = verdicts.differences([before], [after], error_rate=0.05, occasions=True)
    assert wider.low < interval.low < interval.high < wider.high


def test_two_launches_that_differ_beyond_measure_leave_an_interval_without_a_warning():
    """An exponent of a thousand is no number; the verdict is that nothing is known."""
    (found,) = verdicts.judge(verdicts.paired([np.array([0.0, 300.0])]), 0.05, LEVELS)
    assert found.verdict == INCONCLUSIVE and 0 < found.ratio.low < 1e-20 and 1e20 < found.ratio.high < float("inf")
