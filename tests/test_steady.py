"""A change of level at either end of a launch is reported; outliers and stalls are none. The search is exact."""

from itertools import combinations

import numpy as np
import pytest

from bench.stats.series import change_points, steady


def series(*levels, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    return np.concatenate([level * rng.lognormal(0, noise, count) for level, count in levels])


@pytest.mark.parametrize(
    "levels",
    [
        [(3e-3, 12), (1e-3, 120)],  # a warm-up that was not over
        [(0.3e-3, 12), (1e-3, 120)],
        [(1e-3, 120), (2e-3, 30)],
        [(1e-3, 1600), (2e-3, 400)],  # beyond the first hundreds
    ],
)
def test_a_change_at_an_end_is_not_steady(levels):
    assert not steady(series(*levels))


@pytest.mark.parametrize("count", [20, 150, 2000])
def test_a_flat_series_is_steady(count):
    assert sum(not steady(series((1e-3, count), seed=seed)) for seed in range(200)) <= 8


def test_stalls_are_no_change_of_level():
    rng = np.random.default_rng(3)
    assert steady(series((1e-3, 200)) * np.where(rng.random(200) < 0.2, 5, 1))


@pytest.mark.parametrize("times", [np.ones(5), np.ones(100), series((1e-3, 10), (9e-3, 9))])
def test_too_few_or_constant_times_say_nothing(times):
    assert steady(times)


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_the_search_finds_the_least_of_all_partitions(shortest):
    """Against every partition of a short series."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=9) + 3 * (np.arange(9) >= rng.integers(1, 9)) * (seed % 3)
        penalty = float(rng.uniform(0.1, 6))

        def cost(changes, values=values, penalty=penalty):
            parts = np.split(values, changes)
            if min(map(len, parts)) < shortest:
                return np.inf
            return sum(((part - part.mean()) ** 2).sum() for part in parts) + penalty * len(changes)

        found = change_points(values, shortest, penalty)
        every = [list(chosen) for count in range(9) for chosen in combinations(range(1, 9), count)]
        assert cost(found) == pytest.approx(min(map(cost, every)))
