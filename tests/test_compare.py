"""Verdicts on invented launches: changes are called changes, and nothing else is, over many repetitions.

Steps planted in a series of runs are found in their place; without a planted step, none is found.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from collbench.analyze import trend
from collbench.analyze.compare import compare, compare_runs
from collbench.catalog.collectives import OPERATIONS
from collbench.model.comparisons import FASTER, SAME, SLOWER, Absence, Unpaired
from collbench.model.conclusions import Interval, Summary
from collbench.model.divisions import Splits
from collbench.model.errors import ConfigError
from collbench.model.records import Case, Failure, Fault
from collbench.packages.training.synchronisation import Strategy
from collbench.report import comparison
from collbench.report.labels import on_both_sides
from collbench.report.notices import sentences
from collbench.stats.intervals import launch_interval
from conftest import invented_run, samples, with_value

CASE = Case("all_reduce", "gloo", 2, "float32", 10**6)
MANY = [dataclasses.replace(CASE, size_bytes=4 * k) for k in range(1, 501)]
ELSEWHERE = Path("elsewhere")


def summary(case: Case, means, within: float = 0.02) -> Summary:
    means = np.array(means, dtype=float)
    single = Interval(means[0], means[0] * (1 - within), means[0] * (1 + within), "within-run")
    return Summary(
        case, single if len(means) == 1 else launch_interval(means), tuple(means), launches=len(means), iterations=100
    )


def runs(**more):
    return invented_run([]), invented_run([], **more)


def comparison_of(before, after, **more):
    """Compare one case of two runs."""
    return compare(*runs(), [summary(CASE, before)], [summary(CASE, after)], **more)


def simulated(rng, repetitions: int, cases: int, launches: int, sigma: float, change: float = 0.0):
    """Return (times before, times after), arrays of shape (repetitions, cases, launches)."""
    shape = (repetitions, cases, launches)
    return np.exp(rng.normal(0, sigma, shape)), np.exp(rng.normal(np.log1p(change), sigma, shape))


def decided(before, after, smallest: float = 0.05, **more):
    """Return the verdicts of the cases and, in the last column, of all cases together, per repetition."""
    return np.array([verdicts_of(list(a), list(b), smallest, **more) for a, b in zip(before, after, strict=True)])


def verdicts_of(before, after, smallest, between_runs=None):
    old, new = ([summary(case, means) for case, means in zip(MANY, side, strict=False)] for side in (before, after))
    first, second = runs()
    result = compare(first, dataclasses.replace(second, path=ELSEWHERE), old, new, smallest, between_runs=between_runs)
    overall = result.whole.verdict if result.whole else result.verdict
    return [*(change.verdict for change in result.changes), overall]


def wrong(verdicts):
    """Return the share of repetitions in which something is called slower or faster."""
    return np.isin(verdicts, [SLOWER, FASTER]).any(axis=1).mean()


# ── over many repetitions: seeded, so that each count is the same in every run ───────────────────
def test_without_a_change_hardly_any_of_20_runs_of_60_cases_reports_a_change():
    before, after = simulated(np.random.default_rng(1), 20, 60, 5, 0.1)
    assert wrong(decided(before, after)) <= 0.05
    naive = (scipy_stats.ttest_ind(np.log(after), np.log(before), axis=-1, equal_var=False).pvalue < 0.05).any(axis=1)
    assert naive.mean() > 0.5  # the control: p < 0.05 per case gives false alarms


def test_cases_of_unlike_scatter_raise_no_more_false_alarms():
    dice = np.random.default_rng(11)
    sigma = np.exp(dice.normal(np.log(0.12), 0.6, (25, 18, 1)))
    before, after = (np.exp(sigma * dice.normal(size=(25, 18, 8))) for _ in range(2))
    assert wrong(decided(before, after)) <= 0.08


@pytest.mark.parametrize(
    ("seed", "launches", "sigma", "change", "verdict", "least", "most"),
    [
        (2, 6, 0.03, 0.20, SLOWER, 0.95, 1),
        (2, 6, 0.03, 1 / 1.2 - 1, FASTER, 0.95, 1),
        (4, 8, 0.02, 0.06, SAME, 0, 0.05),
        (4, 8, 0.02, 1 / 1.06 - 1, SAME, 0, 0.05),
        (5, 10, 0.01, 0.0, SAME, 0.8, 1),
    ],
)
def test_one_case_is_judged_as_it_changed(seed, launches, sigma, change, verdict, least, most):
    before, after = simulated(np.random.default_rng(seed), 50, 1, launches, sigma, change)
    assert least <= (decided(before, after) == verdict).mean() <= most


def test_one_slow_case_among_60_is_found_and_named():
    before, after = simulated(np.random.default_rng(3), 10, 60, 5, 0.03)
    after[:, 17] *= 1.3
    verdicts = decided(before, after)
    assert (verdicts[:, 17] == SLOWER).all()
    assert wrong(np.delete(verdicts, (17, 60), axis=1)) <= 0.1


def test_a_change_of_all_cases_is_found_by_the_index_before_any_case():
    """This holds on a machine without between-run variance; with it, two runs cannot show such a change."""
    before, after = simulated(np.random.default_rng(12), 20, 18, 8, 0.12, 0.10)
    verdicts = decided(before, after, between_runs={case.key: (0.0, 50.0) for case in MANY})
    assert (verdicts[:, -1] == SLOWER).mean() >= 0.9
    assert (verdicts[:, :-1] == SLOWER).mean() <= 0.3


@pytest.mark.parametrize("times", [0.5, 1.0])
def test_between_run_variance_of_all_cases_is_hardly_called_a_change(times):
    """The index of 20 cases averages the scatter of launches, but not the between-run variance."""
    rng = np.random.default_rng(17)
    before, after = simulated(rng, 25, 20, 8, 0.15)
    moved = np.exp(rng.normal(0, times * 0.15, (2, 25, 1, 1)))
    assert wrong(decided(before * moved[0], after * moved[1])) <= 0.08


def test_several_runs_on_a_side_show_a_change_that_two_runs_cannot():
    """All cases are 50 % slower; each run moves all cases equally, by as much as launches scatter."""
    rng = np.random.default_rng(18)
    one, four = ([compare_runs(*sides_of_runs(rng, each, 1.5, 0.1)) for _ in range(10)] for each in (1, 4))
    assert sum(result.verdict == SLOWER for result in one) <= 6 < 8 <= sum(result.verdict == SLOWER for result in four)
    undecided = next(result for result in one if result.verdict != SLOWER)
    assert "runs can only show changes of more than 1." in comparison.headline(undecided)
    assert (four[0].before, four[0].after) == ("a0 and 3 more", "b0 and 3 more")
    assert (four[0].runs_before, four[0].runs_after) == (("a0", "a1", "a2", "a3"), ("b0", "b1", "b2", "b3"))


@pytest.mark.parametrize("apart", [0.005, 0.1, 0.3])
def test_four_runs_on_a_side_are_the_unit_at_any_between_run_variance(apart):
    """Runs that vary little show a small change; runs that vary much name no change that is not there."""
    rng = np.random.default_rng(20)
    unchanged = [compare_runs(*sides_of_runs(rng, 4, 1.0, apart)) for _ in range(8)]
    assert sum(result.verdict in {SLOWER, FASTER} for result in unchanged) <= 1
    if apart < 0.01:
        assert sum(compare_runs(*sides_of_runs(rng, 4, 1.12, apart)).verdict == SLOWER for _ in range(4)) >= 3
        assert "intervals come from the variation of runs" in " ".join(sentences(unchanged[0].notices))
        assert {change.ratio.kind for change in unchanged[0].changes} == {"over runs"}


def sides_of_runs(rng, each, factor, apart):
    """Return two sides of runs, which vary by `apart`; side b takes `factor` times as long."""
    return [
        [measured_run(rng, f"{side}{n}", times * np.exp(apart * rng.normal()), 0.1) for n in range(each)]
        for side, times in (("a", 1.0), ("b", factor))
    ]


def measured_run(rng, name, factor, scatter):
    """Return a run of 4 cases with 5 launches."""
    launches = [
        samples(case, n, [[round(1e6 * factor * np.exp(scatter * rng.normal()))] * case.world_size] * 4)
        for case in MANY[:4]
        for n in range(1, 6)
    ]
    return invented_run(launches, path=Path(name))


# ── all cases together ───────────────────────────────────────────────────────────────────────────
def test_a_case_that_failed_in_one_launch_after_is_named_and_no_gate_passes_it():
    sides = [[summary(CASE, [1, 1.01, 1.0, 0.99, 1.01])] for _ in range(2)]
    sides[1][0] = dataclasses.replace(sides[1][0], failures=(Failure("wrong", 1, "not the sum"),))
    result = compare(*runs(), *sides)
    assert result.broken == (Unpaired(CASE, CASE, Absence.FAILED_ONCE, "not the sum"),) and result.failed
    assert len(result.changes) == 1
    assert comparison.headline(result).startswith("FAILED: 1 case that did not fail before; ")
    assert not compare(*runs(), *sides[::-1]).failed and not compare(*runs(), sides[1], sides[1]).failed


def test_planted_faults_and_another_sampling_are_warned_of():
    (before, after), faulty = runs(), runs(faults=[Fault("late", 1)])
    settings = after.plan.settings
    longer = dataclasses.replace(settings, sampling=dataclasses.replace(settings.sampling, seconds_per_case=9.0))
    other = dataclasses.replace(after, plan=dataclasses.replace(after.plan, settings=longer))
    for pair, words in (
        ((before, after), ()),
        (faulty, ("planted on purpose",)),
        (faulty[::-1], ("planted on purpose",)),
        ((before, other), ("sampled differently",)),
    ):
        said = " ".join(sentences(compare(*pair, *[[summary(CASE, [1, 1.01])]] * 2).notices))
        assert [part for part in ("planted on purpose", "sampled differently") if part in said] == [*words]


# ── across an axis ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("field", "a", "b", "name"),
    [("memory", "plain", "symmetric", "default → symmetric memory"), ("root", 1, 2, "root 1 → root 2"),
     ("splits", None, Splits("hot", 2.0), "default → parts hot:2"),
     ("strategy", Strategy("flat"), Strategy("ddp", cap_bytes=1024, options=("fp16",)), "flat → ddp 1 KiB fp16")],
)  # fmt: skip
def test_any_option_can_be_the_axis(field, a, b, name):
    first = "" if a is None else a
    op = {"root": "broadcast", "splits": "all_to_all", "strategy": "training_step"}.get(field, "all_reduce")
    case = dataclasses.replace(CASE, op=op, own=OPERATIONS[op].own())
    both = [summary(with_value(case, field, value), [time_s, 1.01 * time_s]) for value, time_s in ((a, 1), (b, 2))]
    (change,) = compare(*runs(), both, both, across=f"{field}={first},{b}").changes
    assert name in on_both_sides(change) and change.ratio.value == pytest.approx(2)
    with pytest.raises(ConfigError, match=re.escape(f"both {first} and ")):
        compare(*runs(), both, both, across=field)


def apart(before, after, **more):
    """Compare one case of two runs at different times."""
    sides = ([summary(CASE, before)], [summary(CASE, after)])
    return compare(invented_run([]), invented_run([], path=ELSEWHERE), *sides, **more)


def test_a_change_between_two_runs_states_its_assumption():
    words = "if the machine was as steady between the runs as between launches"
    calm, slow = np.array([1, 1.01, 1.02, 1.0]), np.array([3, 3.01, 3.02, 3.0])
    assert words in comparison.headline(apart(calm, slow))
    for result in (apart(calm, calm), comparison_of(calm, slow), apart(calm[:1], slow[:1], noise_floor=0.05)):
        assert words not in comparison.headline(result)


# ── a series of runs ─────────────────────────────────────────────────────────────────────────────
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
