"""A second mode is found with its share and size where there is one, and not where there is none."""

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from bench.stats import series
from bench.stats.series import second_mode


def mixture(share, factor, n=400, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return 1e-3 * rng.lognormal(0, noise, n) * np.where(rng.random(n) < share, factor, 1)


@pytest.mark.parametrize(("share", "factor"), [(0.08, 4), (0.2, 6), (0.5, 3), (0.8, 5)])
def test_share_and_size_are_recovered(share, factor):
    stall = second_mode(mixture(share, factor))
    assert stall is not None
    assert stall.share == pytest.approx(share, abs=0.05)
    assert stall.extra_s == pytest.approx((factor - 1) * 1e-3, rel=0.1)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_one_mode_is_one_mode(noise):
    found = [second_mode(mixture(0, 1, n=200, noise=noise, seed=seed)) for seed in range(100)]
    assert sum(stall is not None for stall in found) <= 5


def test_a_few_outliers_are_no_mode():
    times = mixture(0, 1)
    times[::150] *= 20
    assert second_mode(times) is None


def test_the_density_is_scipys_up_to_a_factor():
    rng = np.random.default_rng(6)
    values, grid = rng.normal(size=80), np.linspace(-2, 2, 30)
    ratio = series._density(values, grid) / gaussian_kde(values, bw_method=series.BANDWIDTH)(grid)
    assert ratio == pytest.approx(ratio[0])
