"""Steps planted in a series of runs are found in their place; without a planted step, none is found."""

import numpy as np
import pytest

from collbench.analyze import trend
from collbench.model.conclusions import Summary
from collbench.model.records import Case
from collbench.stats.intervals import launch_interval
from conftest import invented_run

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)


def series(rng, runs=12, launches=5, noise=0.05, step=0.0, at=6, between=0.0):
    """Return the medians of the launches per run; from run `at` on, they are slower by `step`."""
    levels = rng.normal(0, between, runs) + np.where(np.arange(runs) >= at, np.log1p(step), 0)
    return [np.exp(rng.normal(level, noise, launches)) for level in levels]


@pytest.mark.parametrize("launches", [1, 5])
def test_a_step_of_30_percent_is_found_within_one_run(launches):
    rng = np.random.default_rng(1)
    steps = [trend.steps(series(rng, launches=launches, step=0.3)) for _ in range(40)]
    often = 0.8 if launches == 1 else 0.95
    assert np.mean([any(abs(place - 6) <= 1 for place in places) for places in steps]) >= often
    assert np.mean([len(places) == 1 for places in steps]) >= often


@pytest.mark.parametrize(
    "flat",
    [{"launches": 1}, {"launches": 5}, {"runs": 6, "launches": 1}, {"runs": 5, "launches": 2}, {"runs": 30},
     {"noise": 0.02, "between": 0.05}],
    ids=str,
)  # fmt: skip
def test_a_flat_series_has_no_step(flat):
    rng = np.random.default_rng(2)
    assert np.mean([bool(trend.steps(series(rng, **flat), min_change=0)) for _ in range(50)]) <= 0.06


def test_a_family_of_cases_is_corrected_for():
    rng = np.random.default_rng(3)
    families = [any(trend.steps(series(rng), min_change=0, cases=20) for _ in range(20)) for _ in range(10)]
    assert np.mean(families) <= 0.10


def test_of_20_cases_over_runs_that_differ_hardly_any_gets_a_step():
    """Runs differ by more than launches. If each case were judged by its own noise, 12 to 18 % would get a step."""
    rng = np.random.default_rng(31)
    cases = [Case("all_reduce", "gloo", 2, "float32", 4 * k) for k in range(1, 21)]

    def runs_of_cases(step):
        times = {case: series(rng, 12, 8, 0.15, step if case == cases[0] else 0.0, between=0.1) for case in cases}
        for number in range(12):
            run = invented_run([])
            run.manifest["started"] = f"2026-01-{number + 1:02d}T00:00:00+00:00"
            means = {case: times[case][number] for case in cases}
            yield run, [Summary(case, launch_interval(m), means_s=tuple(m), launches=8) for case, m in means.items()]

    def stepped(step):
        return [bool(trend_of_case.changed) for trend_of_case in trend.trend([*runs_of_cases(step)])]

    assert sum(any(stepped(0.0)) for _ in range(40)) <= 4
    assert sum(stepped(1.0)[0] for _ in range(4)) >= 3


def test_steps_are_found_at_their_places_if_they_matter():
    rng = np.random.default_rng(4)
    bump = series(rng, noise=0.02, step=0.4, at=4)
    bump[8:] = series(rng, runs=4, noise=0.02, at=9)
    assert trend.steps(bump) == (4, 8)
    small = series(np.random.default_rng(5), noise=0.002, step=0.03)
    assert trend.steps(small) == () and trend.steps(small, min_change=0.01) == (6,)
    rng = np.random.default_rng(7)  # a new last run can be the first of a level
    last = [trend.steps(series(rng, noise=0.02, step=0.3, at=11)) for _ in range(30)]
    assert np.mean([places == (11,) for places in last]) >= 0.9
    # Runs that agree exactly do not crash; three are too few for two levels.
    assert trend.steps([np.array([1.0])] * 8) == trend.steps([np.array([1.0])] * 3) == ()
    assert trend.steps([np.array([1.0, 1.0])] * 4 + [np.array([2.0, 2.0])] * 4) == (4,)


def test_runs_come_oldest_first_and_cases_need_three_of_them():
    def measured(day, cases):
        run = invented_run([])
        run.manifest["started"] = f"2026-01-{day:02d}T00:00:00+00:00"
        times = np.array([day, day * 1.01])
        return run, [Summary(case, launch_interval(times), means_s=tuple(times), launches=2) for case in cases]

    rare = Case("all_reduce", "gloo", 4, "float32", 4096)
    (trend_of_case,) = trend.trend([measured(3, [CASE]), measured(1, [CASE, rare]), measured(2, [CASE, rare])])
    assert trend_of_case.case == CASE and trend_of_case.changed == ()
    assert [time.value for time in trend_of_case.times_s] == pytest.approx([1, 2, 3], rel=0.01)


def drifting(rng, runs: int, rho: float):
    """Return runs without any step, in which neighbours are correlated."""
    level = [rng.normal()]
    for _ in range(runs - 1):
        level.append(rho * level[-1] + np.sqrt(1 - rho**2) * rng.normal())
    return [np.exp(rng.normal(0.1 * value, 0.02, 5)) for value in level]


@pytest.mark.parametrize(("runs", "rho", "most"), [(12, 0.5, 0.12), (12, 0.8, 0.2), (30, 0.5, 0.2)])
def test_a_drift_is_rarely_taken_for_a_step(runs, rho, most):
    """If the correlation of neighbours were ignored, this would happen in 13, 35 and 44 %."""
    rng = np.random.default_rng(6)
    assert np.mean([bool(trend.steps(drifting(rng, runs, rho), min_change=0)) for _ in range(80)]) <= most
