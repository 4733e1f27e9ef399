"""The change-point check trims a warm-up that was not over, and nothing else; it sees a change at the end."""

import numpy as np
import pytest

from bench.analyze.series import _change_points, steadiness


def series(*levels, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    return np.concatenate([level * rng.lognormal(0, noise, count) for level, count in levels])


def test_a_slow_beginning_is_trimmed():
    state = steadiness(series((3e-3, 12), (1e-3, 120)))
    assert abs(state.trimmed - 12) <= 2
    assert state.steady


def test_a_fast_beginning_is_no_warm_up():
    assert steadiness(series((0.3e-3, 12), (1e-3, 120))).trimmed == 0


def test_a_change_at_the_end_is_not_steady():
    assert not steadiness(series((1e-3, 120), (2e-3, 30))).steady


def test_a_flat_series_is_left_alone():
    wrong = sum(steadiness(series((1e-3, 150), seed=seed)).trimmed > 0 for seed in range(200))
    unsteady = sum(not steadiness(series((1e-3, 150), seed=seed)).steady for seed in range(200))
    assert wrong <= 4 and unsteady <= 4


def test_stalls_are_not_taken_for_a_warm_up():
    rng = np.random.default_rng(3)
    times = series((1e-3, 200)) * np.where(rng.random(200) < 0.2, 5, 1)
    assert steadiness(times).trimmed == 0


@pytest.mark.parametrize("times", [np.ones(5), np.ones(100)])
def test_too_few_or_constant_times_say_nothing(times):
    state = steadiness(times)
    assert (state.trimmed, state.steady) == (0, True)


def test_the_search_is_that_of_pelt_with_its_step():
    """Against `ruptures.Pelt` itself, whose every step is in Python."""
    from ruptures import Pelt

    for seed in range(20):
        scores = series((1.0, 40), (1.0 + 0.1 * (seed % 4), 60), seed=seed)
        scores = (scores - scores.mean()) / scores.std()
        slow = Pelt(model="l2", min_size=5, jump=5).fit(scores).predict(pen=3 * np.log(100))[:-1]
        assert _change_points(scores) == slow
