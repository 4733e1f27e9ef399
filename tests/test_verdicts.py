"""Verdicts on arrays equal scipy's tests if scipy has the same test, are right as often as they claim, and correct for
the number of cases only if this is needed.
"""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from collbench.stats import verdicts
from collbench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER, Levels, moderated

LEVELS = Levels(change=0.05, same=0.05)


def test_p_and_interval_of_one_case_equal_those_of_scipy():
    rng = np.random.default_rng(7)
    for sizes in ((4, 4), (5, 8), (10, 4)):
        before, after = (np.exp(rng.normal(0, 0.1, n)) for n in sizes)
        (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.0, LEVELS)
        test = scipy_stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
        interval = test.confidence_interval(0.95)
        assert judged.p == pytest.approx(test.pvalue) and judged.level == 0.95
        assert (judged.ratio.low, judged.ratio.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_intervals_exclude_1_exactly_if_the_corrected_p_is_significant():
    rng = np.random.default_rng(14)
    for _ in range(40):
        before, after = (list(np.exp(rng.normal(0, 0.1, (12, 6)))) for _ in range(2))
        for case in range(rng.integers(0, 12)):
            after[case] *= 1.3
        for judgement in verdicts.judge(verdicts.unpaired(before, after), 0.0, LEVELS):
            assert (judgement.p <= 0.05) == (judgement.ratio.low > 1 or judgement.ratio.high < 1)
            assert (judgement.p <= 0.05) == (judgement.verdict in {SLOWER, FASTER})


def test_p_values_are_corrected_by_holms_procedure():
    """The smallest p is multiplied by 4, the next by 3, …; no p is below the one before it."""
    assert verdicts.holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert verdicts.holm(np.array([0.01, 0.04]), 30) == pytest.approx([0.3, 1])  # the smallest two of 30


def test_an_unchanged_case_is_not_named_among_changed_cases():
    """16 of 33 cases are 20 % faster; Benjamini and Hochberg's procedure names an unchanged case in 13 % of runs."""
    rng = np.random.default_rng(16)
    named = detected = 0
    for _ in range(60):
        before, after = (np.exp(rng.normal(0, 0.1, (33, 8))) for _ in range(2))
        after[:16] *= 0.8
        results = [case.verdict for case in verdicts.judge(verdicts.unpaired(list(before), list(after)), 0.0, LEVELS)]
        named += {SLOWER, FASTER} & set(results[16:]) != set()
        detected += sum(verdict == FASTER for verdict in results[:16])
    assert named <= 5 and detected >= 0.75 * 16 * 60


def test_same_agrees_with_two_one_sided_tests_of_scipy_and_does_not_depend_on_other_cases():
    """All cases must be SAME, so their number needs no correction; the interval that is shown is that of both tests."""
    rng = np.random.default_rng(18)
    limit = np.log1p(0.05)
    logs = rng.normal(rng.choice([0, 0.03], 40)[:, None], 0.05, (40, 8))
    other_logs = list(rng.normal(0, 1, (4, 8)))
    same = []
    for log in logs:
        alone, *_ = verdicts.judge(verdicts.paired([log]), 0.05, LEVELS)
        among, *_ = verdicts.judge(verdicts.paired([log, *other_logs]), 0.05, LEVELS)
        above = scipy_stats.ttest_1samp(log, -limit, alternative="greater").pvalue
        below = scipy_stats.ttest_1samp(log, limit, alternative="less").pvalue
        assert (alone.verdict == SAME) == (among.verdict == SAME) == (max(above, below) < 0.05)
        if alone.verdict == SAME:
            bounds = scipy_stats.ttest_1samp(log, 0).confidence_interval(0.90)
            assert alone.ratio == among.ratio and alone.level == among.level == pytest.approx(0.90)
            assert (alone.ratio.low, alone.ratio.high) == pytest.approx((np.exp(bounds.low), np.exp(bounds.high)))
        same.append(alone.verdict == SAME)
    assert 5 < sum(same) < 35


def test_a_change_that_is_sure_but_smaller_than_what_matters_is_the_same():
    log = np.log(1.02) + 0.001 * np.random.default_rng(19).normal(size=8)
    assert verdicts.judge(verdicts.paired([log]), 0.05, LEVELS)[0].verdict == SAME
    assert verdicts.judge(verdicts.paired([log]), 0.01, LEVELS)[0].verdict == SLOWER


def test_variances_are_shrunk_only_as_far_as_they_are_similar():
    rng = np.random.default_rng(17)
    freedom = np.full(2000, 4.0)
    similar = rng.chisquare(4, 2000) / 4
    shrunk, shrunk_freedom = moderated(similar, freedom)
    assert np.all(shrunk_freedom > 100) and np.ptp(shrunk) < 0.5
    # a prior of 6 degrees of freedom, as in Smyth's model
    different = 6 / rng.chisquare(6, 2000) * rng.chisquare(4, 2000) / 4
    _, shrunk_freedom = moderated(different, freedom)
    assert np.all((shrunk_freedom > 8.5) & (shrunk_freedom < 12))


def test_no_variance_is_known_better_than_all_together():
    _, shrunk_freedom = moderated(np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98]), np.full(6, 3.0))
    assert shrunk_freedom.tolist() == [18] * 6


@pytest.mark.parametrize("ratio", [1.0, 1.08, 1.1])
def test_the_advised_number_of_launches_decides_in_four_of_five_runs(ratio):
    """Runs of the advised size are simulated, with the ratio and the scatter that the advice was derived from."""
    rng = np.random.default_rng(8)
    first = rng.normal(size=(2, 6))
    scaled = 0.1 * (first - first.mean(axis=1, keepdims=True)) / first.std(axis=1, ddof=1, keepdims=True)
    before, after = np.exp(scaled[0]), ratio * np.exp(scaled[1])
    (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.05, LEVELS)
    assert judged.verdict == INCONCLUSIVE and judged.further_launches
    launches = 6 + judged.further_launches
    decided = 0
    for _ in range(120):
        sides = np.exp(0.1 * rng.normal(size=(2, launches))) * [[1], [ratio]]
        (again,) = verdicts.judge(verdicts.unpaired(sides[:1], sides[1:]), 0.05, LEVELS)
        decided += again.verdict != INCONCLUSIVE
    assert 0.68 < decided / 120 < 0.92


def test_no_number_of_launches_is_advised_if_between_run_variance_hides_the_answer():
    """Further launches do not reduce the variance between runs."""
    base = np.exp(0.05 * np.array([-1.0, 1, -1, 1, -1, 1]))
    estimates = verdicts.unpaired([base], [base * 1.02])
    widened = verdicts.with_between_run(estimates, np.array([0.05]), np.array([9.0]))
    (free,), (bound,) = (verdicts.judge(each, 0.05, LEVELS) for each in (estimates, widened))
    assert (free.verdict, bound.verdict) == (INCONCLUSIVE, INCONCLUSIVE)
    assert free.further_launches and bound.further_launches is None


def test_assumed_between_run_variance_counts_as_one_more_launch_per_side():
    rng = np.random.default_rng(20)
    before, after = (np.exp(rng.normal(0, 0.1, 8)) for _ in range(2))
    estimates = verdicts.unpaired([before], [after])
    widened = verdicts.with_assumed(estimates)
    variance = np.var(np.log(before), ddof=1) + np.var(np.log(after), ddof=1)
    error, _ = verdicts._error(widened, 0)
    assert error[0] ** 2 == pytest.approx(variance * (1 + 1 / 8))


def test_assumed_between_run_variance_follows_the_scatter_of_cases_that_take_as_long():
    """Widely scattered small messages leave large ones decidable; a calm small message counts as its neighbours do."""
    rng = np.random.default_rng(21)
    level, scatter = np.geomspace(1e-4, 1e-1, 20), np.geomspace(0.4, 0.04, 20)
    scatter[3] = 0.01
    before, after = ([*np.exp(np.log(level) + scatter * rng.normal(size=(8, 20))).T] for _ in range(2))
    after[-1] = 1.7 * after[-1]
    assumed = verdicts.with_assumed(verdicts.unpaired(before, after))
    error, _ = verdicts._error(assumed, 0)
    assert error[3] > error[10] > error[-1]
    judged = verdicts.judge(assumed, 0.05, LEVELS)
    assert [judgement.verdict for judgement in judged] == [INCONCLUSIVE] * 19 + [SLOWER]


def test_the_overall_verdict_has_a_share_of_the_error_rate_and_same_has_all_of_it():
    assert Levels(0.03, 0.05).shared == Levels(0.015, 0.05)


def test_the_index_weighs_all_cases_equally():
    rng = np.random.default_rng(21)
    before, after = ([np.exp(sigma * rng.normal(size=5)) for sigma in (0.01, 0.5)] for _ in range(2))
    index = verdicts.index(before, after)
    wanted = np.mean(np.log(np.array(after))) - np.mean(np.log(np.array(before)))
    assert index.difference[0] == pytest.approx(wanted)
    assert verdicts.index([before[0], before[1][:4]], after) is None


def test_the_interval_of_differences_in_seconds_equals_the_interval_of_scipy():
    rng = np.random.default_rng(22)
    before, after = rng.normal(0, 1, 6), rng.normal(2, 1, 6)
    ((interval, sure),) = verdicts.differences([before], [after], error_rate=0.05)
    limits = scipy_stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((limits.low, limits.high)) and sure == (limits.low > 0)
    ((paired, _),) = verdicts.differences([after - before], error_rate=0.05)
    limits = scipy_stats.ttest_1samp(after - before, 0).confidence_interval(0.95)
    assert (paired.low, paired.high) == pytest.approx((limits.low, limits.high))
    ((wider, _),) = verdicts.differences([before], [after], error_rate=0.05, apart=True)
    assert wider.low < interval.low < interval.high < wider.high


def test_two_launches_that_differ_beyond_measure_leave_an_interval_without_a_warning():
    """An exponent of a thousand overflows; the verdict is that nothing is known."""
    (judged,) = verdicts.judge(verdicts.paired([np.array([0.0, 300.0])]), 0.05, LEVELS)
    assert judged.verdict == INCONCLUSIVE and 0 < judged.ratio.low < 1e-20 and 1e20 < judged.ratio.high < float("inf")
