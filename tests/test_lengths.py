"""The timed length of a pair follows from the noise of the first pairs, and favours no side."""

import numpy as np
import pytest

from collbench.analyze import lengths
from collbench.analyze.pairs import PairedCase, TimedCase
from collbench.model.records import Case

# Seconds for a case in the first pairs; and seconds that a pair takes around its timed calls.
FIRST_S, AROUND_S = 0.2, 1.2


def measured(within, between, made=16, slower=1.0, around_s=AROUND_S) -> tuple[list[PairedCase], dict[int, float]]:
    """Return a case for each entry, and when its pairs began. Calls of 1 ms, so a launch has 200.

    within: standard deviation of the logarithm of a launch's mean, from within it; between: from between launches.
    """
    rng, cases = np.random.default_rng(1), []
    for number, (own, apart) in enumerate(zip(within, between, strict=True)):
        sides = []
        for factor in (1.0, slower):
            blocks = np.repeat(own * np.sqrt(5) * rng.normal(size=(made, 5)), 40, axis=1)
            times = factor * 1e-3 * np.exp(blocks + apart * rng.normal(size=(made, 1)))
            case = Case("all_reduce", "gloo", 2, "float32", 1024 * (number + 1))
            sides.append(TimedCase(case, dict(enumerate(times, 1))))
        cases.append(PairedCase(*sides))
    began_s, starts_s = 0.0, {}
    for pair in range(1, made + 1):
        starts_s[pair] = began_s
        began_s += around_s + sum(case.a.launches[pair].sum() + case.b.launches[pair].sum() for case in cases)
    return cases, starts_s


def chosen(within, between, budget_s=1000.0, **more) -> np.ndarray:
    cases, starts_s = measured(within, between, **more)
    return np.array([*lengths.seconds_of_next_pair(cases, starts_s, budget_s, FIRST_S).values()])


def test_noise_between_launches_makes_pairs_short_and_noise_within_them_long():
    short, long = chosen([0.05] * 3, [0.2] * 3).sum(), chosen([0.2] * 3, [0.0] * 3).sum()
    assert (2 * short, 2 * long) == pytest.approx((lengths.LEAST * AROUND_S, lengths.MOST * AROUND_S), rel=0.01)


def test_the_length_between_the_limits_is_the_best_one():
    """Seconds x variance of a pair are least at sqrt(cost x within / between); many pairs, so that both are known."""
    within, between, cost_s = FIRST_S * 0.1**2 * 2, 0.05**2 * 2, 0.2
    (seconds,) = chosen([0.1], [0.05], made=4000, around_s=cost_s)
    tried = np.linspace(0.2, 0.4, 201)
    best = tried[np.argmin((cost_s + 2 * tried) * (within / tried + between))]
    assert 0.25 < best < 0.35 and seconds == pytest.approx(best, rel=0.15)


def test_the_choice_does_not_depend_on_which_side_is_slower():
    (a, b), starts_s = measured([0.2, 0.1], [0.1, 0.0], slower=1.3)
    turned = [PairedCase(case.b, case.a) for case in (a, b)]
    assert lengths.seconds_of_next_pair([a, b], starts_s, 90.0, FIRST_S) == pytest.approx(
        lengths.seconds_of_next_pair(turned, starts_s, 90.0, FIRST_S)
    )
