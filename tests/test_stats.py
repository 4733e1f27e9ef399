"""Statistics equal those of scipy and of published tables; intervals cover, and verdicts and looks err as they claim.

Changes of level and second modes are found, and none where there is none.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from collbench.stats import intervals, spending, verdicts
from collbench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER, Levels

TRIALS = 400
BLOCKS, EACH = 5, 20


@given(st.lists(st.floats(1e-6, 10), min_size=2, max_size=12))
def test_launch_interval_is_students_t_on_logs(means):
    m = np.array(means)
    got = intervals.launch_interval(m)
    assert got.value == pytest.approx(stats.gmean(m))
    if np.ptp(np.log(m)) > 1e-9:
        want = np.exp(stats.ttest_1samp(np.log(m), 0).confidence_interval(0.95))
        assert (got.low, got.high) == pytest.approx(tuple(want), rel=1e-9)


def skewed(rng):
    """Return independent iterations with a long tail; their mean is 1."""
    return rng.lognormal(-0.125, 0.5, BLOCKS * EACH)


def two_modes(rng):
    """Return calls of which a third take six times as long; a mode lasts for four calls, and the mean is 1."""
    slow = np.repeat(rng.random(BLOCKS * EACH // 4) < 1 / 3, 4)
    return np.where(slow, 6.0, 1.0) * rng.lognormal(-0.005, 0.1, BLOCKS * EACH) / (8 / 3)


def levelled_blocks(rng):
    """Return blocks with a level each, so that iterations show little of the uncertainty of the mean."""
    return np.repeat(rng.lognormal(-0.02, 0.2, BLOCKS), EACH) * rng.lognormal(-0.005, 0.1, BLOCKS * EACH)


@pytest.mark.parametrize("series", [skewed, two_modes, levelled_blocks])
def test_the_intervals_within_a_launch_and_over_eight_launches_cover_the_mean(series):
    """Launches differ, so that the interval over launches covers the geometric mean of their means."""
    rng = np.random.default_rng(5)
    hits = over_launches = naive_hits = 0
    for _ in range(TRIALS):
        launches = [series(rng) for _ in range(8)]
        got = intervals.within_launch(launches[0], (EACH,) * BLOCKS)
        assert got.value == pytest.approx(launches[0].mean())
        hits += got.low <= 1 <= got.high
        naive = stats.ttest_1samp(launches[0], 0).confidence_interval(0.95)
        naive_hits += naive.low <= 1 <= naive.high
        over = intervals.launch_interval(np.array([times.mean() * np.exp(0.1 * rng.normal()) for times in launches]))
        over_launches += over.low <= 1 <= over.high
    assert 0.92 <= hits / TRIALS <= 0.98 and 0.92 <= over_launches / TRIALS <= 0.98
    if series is levelled_blocks:  # the control: iterations taken as independent
        assert naive_hits / TRIALS < 0.5


def chain(rng, correlation, cases=6, launches=8):
    """Return logarithms of launches, each correlated with the previous launch; their standard deviation is 0.1."""
    values = rng.normal(size=(cases, launches))
    for i in range(1, launches):
        values[:, i] = correlation * values[:, i - 1] + np.sqrt(1 - correlation**2) * values[:, i]
    return 0.1 * values


def covered(rng, draw):
    """Return shares of intervals that contain the mean: with the scatter of launches, and by Student's t."""
    hits = np.zeros(2)
    for _ in range(TRIALS):
        logs = draw(rng)
        scatters = intervals.launch_scatter(list(logs)), intervals.LOGNORMAL
        both = [intervals.launch_interval(np.exp(logs[0]), scatter) for scatter in scatters]
        hits += [interval.low <= 1 <= interval.high for interval in both]
    return hits / TRIALS


@pytest.mark.parametrize("sign", [1, -1])
def test_the_skewness_of_launches_equals_scipy_and_is_pooled(sign):
    cases = list(sign * np.random.default_rng(5).exponential(size=(6, 8)))
    skewness = intervals.launch_scatter(cases).skewness
    assert skewness == pytest.approx(np.mean(stats.skew(cases, axis=1, bias=False)))
    assert sign * skewness > 0


def test_launches_that_correlate_widen_the_interval_until_it_covers():
    corrected, by_t = covered(np.random.default_rng(6), lambda rng: chain(rng, 0.5))
    assert corrected > 0.89 > 0.82 > by_t


def test_ranks_and_quantiles_equal_scipy_and_numpy():
    dice = np.random.default_rng(1)
    for values in (dice.integers(0, 9, 50).astype(float), dice.normal(size=50)):  # with ties and without
        assert intervals.average_ranks(values).tolist() == stats.rankdata(values).tolist()
    shares = [0.0, 0.013, 0.25, 0.5, 0.9, 1.0]
    assert intervals.quantiles(np.sort(values), shares) == pytest.approx(np.quantile(values, shares).tolist())
    assert intervals.of_share(0, 8)[0] == 0.0 and intervals.of_share(8, 8)[1] == 1.0
    assert intervals.of_share(2, 8) == pytest.approx((0.0319, 0.6509), abs=1e-4)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
LEVELS = Levels(change=0.05, same=0.05)


def test_p_and_interval_of_one_case_equal_those_of_scipy():
    rng = np.random.default_rng(7)
    for sizes in ((4, 4), (5, 8), (10, 4)):
        before, after = (np.exp(rng.normal(0, 0.1, n)) for n in sizes)
        (judged,) = verdicts.judge(verdicts.unpaired([before], [after]), 0.0, LEVELS)
        test = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
        interval = test.confidence_interval(0.95)
        assert judged.p == pytest.approx(test.pvalue) and judged.level == 0.95
        assert (judged.ratio.low, judged.ratio.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


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
        above = stats.ttest_1samp(log, -limit, alternative="greater").pvalue
        below = stats.ttest_1samp(log, limit, alternative="less").pvalue
        assert (alone.verdict == SAME) == (among.verdict == SAME) == (max(above, below) < 0.05)
        if alone.verdict == SAME:
            bounds = stats.ttest_1samp(log, 0).confidence_interval(0.90)
            assert alone.ratio == among.ratio and alone.level == among.level == pytest.approx(0.90)
            assert (alone.ratio.low, alone.ratio.high) == pytest.approx((np.exp(bounds.low), np.exp(bounds.high)))
        same.append(alone.verdict == SAME)
    assert 5 < sum(same) < 35


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


def test_assumed_between_run_variance_follows_the_scatter_of_cases_that_take_as_long():
    """Widely scattered small messages leave large ones decidable; a calm small message counts as its neighbours do.

    With one case, the assumed variance counts as one more launch per side.
    """
    rng = np.random.default_rng(21)
    level, scatter = np.geomspace(1e-4, 1e-1, 20), np.geomspace(0.4, 0.04, 20)
    scatter[3] = 0.01
    before, after = ([*np.exp(np.log(level) + scatter * rng.normal(size=(8, 20))).T] for _ in range(2))
    after[-1] = 1.7 * after[-1]
    assumed = verdicts.with_assumed(verdicts.unpaired(before, after))
    error, _ = verdicts._error(assumed, 0)
    assert error[3] > error[10] > error[-1]
    alone, _ = verdicts._error(verdicts.with_assumed(verdicts.unpaired(before[:1], after[:1])), 0)
    variance = np.var(np.log(before[0]), ddof=1) + np.var(np.log(after[0]), ddof=1)
    assert alone[0] ** 2 == pytest.approx(variance * (1 + 1 / 8))
    judged = verdicts.judge(assumed, 0.05, LEVELS)
    assert [judgement.verdict for judgement in judged] == [INCONCLUSIVE] * 19 + [SLOWER]


def test_the_index_weighs_all_cases_equally():
    assert Levels(0.03, 0.05).shared == Levels(0.015, 0.05)  # of all cases together; SAME has all of the error rate
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
    limits = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((limits.low, limits.high)) and sure == (limits.low > 0)
    ((paired, _),) = verdicts.differences([after - before], error_rate=0.05)
    limits = stats.ttest_1samp(after - before, 0).confidence_interval(0.95)
    assert (paired.low, paired.high) == pytest.approx((limits.low, limits.high))
    ((wider, _),) = verdicts.differences([before], [after], error_rate=0.05, apart=True)
    assert wider.low < interval.low < interval.high < wider.high


def test_looks_together_have_the_error_rate_of_their_share_of_the_budget():
    """The reference is Genz's integral of the joint distribution of all looks."""
    shares = (0.2, 0.4, 0.6, 0.8, 1.0)
    bounds = stats.norm.isf(spending.levels(shares, shares, 0.05, two_sided=True) / 2)
    joint = np.sqrt(np.minimum.outer(shares, shares) / np.maximum.outer(shares, shares))
    for made, share in enumerate(shares, 1):
        inside = stats.multivariate_normal(cov=joint[:made, :made]).cdf(bounds[:made], lower_limit=-bounds[:made])
        assert 1 - inside == pytest.approx(0.05 * share**2, abs=1e-4)
