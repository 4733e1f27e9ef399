"""Every interval equals what scipy.stats gives by the published formula, and covers what it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.stats import intervals

SERIES = st.lists(st.integers(1, 50), min_size=7, max_size=80).map(lambda xs: np.array(xs, dtype=float))


@given(st.integers(6, 3000), st.sampled_from([0.025, 0.005, 0.05]))
def test_binomial_quantile_is_scipys(n, p):
    assert intervals._binomial_half_quantile(p, n) == stats.binom.ppf(p, n, 0.5)


@given(SERIES)
def test_rank_correlation_is_scipys_spearman(x):
    a, b = x[:-1], x[1:]
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert intervals.rank_correlation(a, b) == 0
    else:
        assert intervals.rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@given(st.lists(st.floats(1e-6, 10), min_size=2, max_size=12))
def test_launch_interval_is_students_t_on_logs(medians):
    m = np.array(medians)
    got = intervals.launch_interval(m)
    assert got.value == pytest.approx(stats.gmean(m))
    if np.ptp(np.log(m)) > 1e-9:
        want = np.exp(stats.ttest_1samp(np.log(m), 0).confidence_interval(0.95))
        assert (got.low, got.high) == pytest.approx(tuple(want), rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_median_interval_covers_the_true_median_of_autocorrelated_series(rho):
    rng = np.random.default_rng(7)
    hits = naive_hits = 0
    trials = 400
    for _ in range(trials):
        noise = rng.normal(size=220)
        x = np.empty(220)
        x[0] = noise[0]
        for i in range(1, 220):
            x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * noise[i]
        got = intervals.median_interval(np.exp(x))
        hits += got.low <= 1 <= got.high
        q = stats.binom.ppf(0.025, 220, 0.5) / 220
        low, high = np.quantile(np.exp(x), [q, 1 - q])
        naive_hits += low <= 1 <= high
    assert 0.92 <= hits / trials <= 0.995
    if rho == 0.6:  # the control: without the effective size the interval lies
        assert naive_hits / trials < 0.85


def test_too_few_samples_give_their_range_and_say_so():
    got = intervals.median_interval(np.array([1.0, 2.0, 9.0]))
    assert (got.value, got.low, got.high, got.kind) == (2.0, 1.0, 9.0, "range of too few")


def test_one_launch_a_side_combines_in_quadrature():
    a = intervals.Interval(1.0, 0.9, 1.1, "within-run")
    b = intervals.Interval(2.0, 1.8, 2.2, "within-run")
    got = intervals.ratio_of_intervals(a, b)
    assert got.value == pytest.approx(2)
    assert got.high == pytest.approx(2 * np.exp(np.hypot(np.log(1 / 0.9), np.log(1.1))))


def test_what_keeps_a_level_for_long_widens_the_interval():
    """Neighbours in each of five levels are independent: only the scatter of batches sees them."""
    rng = np.random.default_rng(12)
    noise = rng.normal(0, 0.2, 200)
    levels = np.repeat([0.0, 0.15, -0.15, 0.15, 0.0], 40)
    flat, stepped = intervals.effective_size(noise), intervals.effective_size(noise + levels)
    assert stepped < flat / 4


def test_ranks_share_ties_as_scipy_does():
    values = np.random.default_rng(1).integers(0, 9, 50).astype(float)
    assert intervals.average_ranks(values).tolist() == stats.rankdata(values).tolist()
    distinct = np.random.default_rng(1).normal(size=50)
    assert intervals.average_ranks(distinct).tolist() == stats.rankdata(distinct).tolist()


def test_quantiles_are_those_of_numpy():
    values = np.sort(np.random.default_rng(3).normal(size=37))
    shares = [0.0, 0.013, 0.25, 0.5, 0.9, 1.0]
    assert intervals.quantiles(values, shares) == pytest.approx(np.quantile(values, shares).tolist())


@pytest.mark.parametrize("count", [6, 7, 12])
def test_the_interval_of_few_samples_covers_what_it_says(count):
    """Share of 2000 skewed series whose interval holds the true median; chance allows 1 point below 95 %."""
    rng = np.random.default_rng(count)
    drawn = [intervals.median_interval(rng.lognormal(0, 0.5, count)) for _ in range(2000)]
    assert np.mean([one.low <= 1.0 <= one.high for one in drawn]) > 0.94
