"""A change of level at either end of a launch is reported, and a second mode with its share and size. Outliers and
stalls are not a change of level, and few outliers are not a mode. The search for changes is exact.
"""

from itertools import combinations

import numpy as np
import pytest

from collbench.stats.series import change_points, second_mode, steady


def levelled(*levels, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    return np.concatenate([level * rng.lognormal(0, noise, count) for level, count in levels])


@pytest.mark.parametrize(
    "levels",
    [
        [(3e-3, 12), (1e-3, 120)],  # a warm-up that had not ended
        [(0.3e-3, 12), (1e-3, 120)],
        [(1e-3, 120), (2e-3, 30)],
        [(1e-3, 1600), (2e-3, 400)],  # beyond the first hundreds
    ],
)
def test_a_change_at_an_end_is_not_steady(levels):
    assert not steady(levelled(*levels))


@pytest.mark.parametrize("count", [20, 150, 2000])
def test_a_flat_series_is_steady(count):
    assert sum(not steady(levelled((1e-3, count), seed=seed)) for seed in range(100)) <= 6


def test_stalls_are_not_a_change_of_level():
    rng = np.random.default_rng(3)
    assert steady(levelled((1e-3, 200)) * np.where(rng.random(200) < 0.2, 5, 1))


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_the_search_finds_the_least_of_all_partitions(shortest):
    """The result is compared with every partition of a short series."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=9) + 3 * (np.arange(9) >= rng.integers(1, 9)) * (seed % 3)
        penalty = float(rng.uniform(0.1, 6))

        def cost(changes, values=values, penalty=penalty):
            parts = np.split(values, changes)
            if min(map(len, parts)) < shortest:
                return np.inf
            return sum(((part - part.mean()) ** 2).sum() for part in parts) + penalty * len(changes)

        places = change_points(values, shortest, penalty)
        every = [list(chosen) for count in range(9) for chosen in combinations(range(1, 9), count)]
        assert cost(places) == pytest.approx(min(map(cost, every)))


def mixture(share, factor, n=400, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return 1e-3 * rng.lognormal(0, noise, n) * np.where(rng.random(n) < share, factor, 1)


@pytest.mark.parametrize(("share", "factor"), [(0.08, 4), (0.2, 6), (0.5, 3), (0.8, 5)])
def test_share_and_size_are_recovered(share, factor):
    stall = second_mode(mixture(share, factor))
    assert stall is not None
    assert stall.share == pytest.approx(share, abs=0.05)
    assert (stall.fast_s, stall.slow_s) == pytest.approx((1e-3, factor * 1e-3), rel=0.1)


def test_modes_and_their_shares_add_up_to_the_mean():
    times = mixture(0.3, 5)
    stall = second_mode(times)
    assert (1 - stall.share) * stall.fast_s + stall.share * stall.slow_s == pytest.approx(times.mean())


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_a_single_mode_is_not_split(noise):
    stalls = [second_mode(mixture(0, 1, n=200, noise=noise, seed=seed)) for seed in range(100)]
    assert sum(stall is not None for stall in stalls) <= 5


def test_a_few_outliers_are_not_a_mode():
    times = mixture(0, 1)
    times[::150] *= 20
    assert second_mode(times) is None
