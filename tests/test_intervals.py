"""Every interval equals the result of scipy.stats for the published formula, and covers the mean as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from collbench.stats import intervals

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


def levels(rng):
    """Return blocks with a level each, so that iterations show little of the uncertainty of the mean."""
    return np.repeat(rng.lognormal(-0.02, 0.2, BLOCKS), EACH) * rng.lognormal(-0.005, 0.1, BLOCKS * EACH)


@pytest.mark.parametrize("series", [skewed, two_modes, levels])
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
    if series is levels:  # the control: iterations taken as independent
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


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_autocorrelation_of_launches_is_estimated(correlation):
    rng = np.random.default_rng(5)
    estimate = np.mean([intervals.launch_scatter(list(chain(rng, correlation, 40))).autocorrelation for _ in range(30)])
    assert estimate == pytest.approx(correlation, abs=0.08)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_skewness_of_launches_equals_scipy_and_is_pooled(sign):
    cases = list(sign * np.random.default_rng(5).exponential(size=(6, 8)))
    skewness = intervals.launch_scatter(cases).skewness
    assert skewness == pytest.approx(np.mean(stats.skew(cases, axis=1, bias=False)))
    assert sign * skewness > 0


def test_launches_that_correlate_widen_the_interval_until_it_covers():
    corrected, by_t = covered(np.random.default_rng(6), lambda rng: chain(rng, 0.5))
    assert corrected > 0.89 > 0.82 > by_t


@pytest.mark.parametrize("sign", [1, -1])
def test_skewed_launches_widen_the_interval_on_the_side_of_rare_launches(sign):
    def draw(rng):
        return 0.2 * sign * (rng.exponential(size=(20, 8)) - 1)

    corrected, by_t = covered(np.random.default_rng(6), draw)
    assert 0.94 < corrected < 0.975 and by_t < 0.92
    logs = draw(np.random.default_rng(7))
    interval = intervals.launch_interval(np.exp(logs[0]), intervals.launch_scatter(list(logs)))
    up, down = np.log(interval.high / interval.value), np.log(interval.value / interval.low)
    assert sign * (up - down) > 0 < down


def test_skewness_that_is_almost_zero_gives_students_t():
    means = np.exp(np.random.default_rng(8).normal(size=8))
    near, exact = (intervals.launch_interval(means, intervals.LaunchScatter(skewness=g)) for g in (2e-6, 0.0))
    assert (near.low, near.high) == pytest.approx((exact.low, exact.high), rel=1e-5)


def test_too_few_launches_or_none_that_scatter_show_no_scatter():
    for cases in ([], [np.arange(4.0)], [np.ones(8)]):
        assert intervals.launch_scatter(cases) == intervals.LOGNORMAL
    assert 0 < intervals.launch_scatter([np.arange(8.0)]).autocorrelation <= intervals.MOST_CORRELATED
    assert intervals.launch_scatter([np.array([1.0, -1.0] * 4)]).autocorrelation == 0


def test_with_three_blocks_no_interval_is_known():
    got = intervals.within_launch(np.array([1.0, 2.0, 9.0]), (1, 1, 1))
    assert (got.value, got.known, got.relative_half_width) == (4.0, False, np.inf)


def test_one_launch_prints_no_interval_from_few_calls():
    rng = np.random.default_rng(4)
    few, many = rng.normal(1, 0.1, 60), rng.normal(1, 0.1, 300)
    assert intervals.within_launch(few, (12,) * 5).known and not intervals.of_one_launch(few, (12,) * 5).known
    assert intervals.of_one_launch(few, (12,) * 5).value == few.mean()
    assert intervals.of_one_launch(many, (60,) * 5) == intervals.within_launch(many, (60,) * 5)


def test_blocks_of_unequal_length_have_their_own_means():
    assert intervals.block_means(np.array([1.0, 3.0, 5.0, 6.0, 7.0]), (2, 3)).tolist() == [2.0, 6.0]


def test_one_launch_per_side_combines_in_quadrature():
    a = intervals.Interval(1.0, 0.9, 1.1, "within-run")
    b = intervals.Interval(2.0, 1.8, 2.2, "within-run")
    got = intervals.ratio_of_intervals(a, b)
    assert got.value == pytest.approx(2)
    assert got.high == pytest.approx(2 * np.exp(np.hypot(np.log(1 / 0.9), np.log(1.1))))
    alone = intervals.without_interval(2.0)
    assert not intervals.ratio_of_intervals(a, alone).known
    assert not intervals.difference_of_intervals(alone, b).known


def test_ranks_share_ties_as_scipy_does():
    values = np.random.default_rng(1).integers(0, 9, 50).astype(float)
    assert intervals.average_ranks(values).tolist() == stats.rankdata(values).tolist()
    distinct = np.random.default_rng(1).normal(size=50)
    assert intervals.average_ranks(distinct).tolist() == stats.rankdata(distinct).tolist()


def test_quantiles_equal_numpy():
    values = np.sort(np.random.default_rng(3).normal(size=37))
    shares = [0.0, 0.013, 0.25, 0.5, 0.9, 1.0]
    assert intervals.quantiles(values, shares) == pytest.approx(np.quantile(values, shares).tolist())
