"""Verdicts on invented launches: what changed is called changed, what did not is not, over many repetitions."""

import dataclasses
import time

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.analyze import verdicts
from bench.analyze.compare import compare
from bench.analyze.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER
from bench.conclusions import Interval, Summary
from bench.errors import ConfigError, UnmeasurableError
from bench.intervals import launch_interval
from bench.records import Case, Failure, Fault
from bench.report import comparison
from conftest import invented_run

CASE = Case("all_reduce", "gloo", 2, "float32", 10**6)
CASES = [dataclasses.replace(CASE, size_bytes=2**k) for k in range(10, 22)]


def summary(case: Case, medians, within: float = 0.02) -> Summary:
    medians = np.array(medians, dtype=float)
    one = Interval(medians[0], medians[0] * (1 - within), medians[0] * (1 + within), "within-run")
    return Summary(case, len(medians), 100, one if len(medians) == 1 else launch_interval(medians), tuple(medians))


def runs(**more):
    return invented_run([]), invented_run([], **more)


def of(before, after, **more):
    """The comparison of one case."""
    return compare(*runs(), [summary(CASE, before)], [summary(CASE, after)], **more)


def simulated(rng, repetitions: int, cases: int, launches: int, sigma: float, change: float = 0.0):
    """(medians before, medians after), arrays of shape (repetitions, cases, launches)."""
    shape = (repetitions, cases, launches)
    return np.exp(rng.normal(0, sigma, shape)), np.exp(rng.normal(np.log1p(change), sigma, shape))


def decided(before, after, smallest: float = 0.05):
    """Verdicts of every repetition, each a family of its own."""
    return np.array([verdicts.decide(verdicts.sides(a, b), smallest) for a, b in zip(before, after, strict=True)])


# ── over many repetitions ────────────────────────────────────────────────────────────────────────
def test_without_a_change_hardly_any_of_200_runs_of_60_cases_says_one():
    before, after = simulated(np.random.default_rng(1), 200, 60, 5, 0.1)
    found = decided(before, after)
    false_alarms = np.isin(found, [SLOWER, FASTER]).any(axis=1).mean()
    assert false_alarms <= 0.05
    naive = (scipy_stats.ttest_ind(np.log(after), np.log(before), axis=-1, equal_var=False).pvalue < 0.05).any(axis=1)
    assert naive.mean() > 0.5 > 10 * false_alarms  # the control: p < 0.05 a case cries wolf


def test_a_change_of_20_percent_is_found():
    before, after = simulated(np.random.default_rng(2), 400, 1, 5, 0.04, 0.20)
    assert (decided(before, after) == SLOWER).mean() >= 0.95
    assert (decided(after, before) == FASTER).mean() >= 0.95


def test_one_slow_case_among_60_is_found_and_named():
    before, after = simulated(np.random.default_rng(3), 100, 60, 5, 0.03)
    after[:, 17] *= 1.3
    found = decided(before, after)
    assert (found[:, 17] == SLOWER).mean() >= 0.95
    assert np.isin(np.delete(found, 17, axis=1), [SLOWER, FASTER]).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize(("change", "most"), [(0.05, 0.05), (1 / 1.05 - 1, 0.05), (0.10, 0.01)])
def test_what_is_not_the_same_is_hardly_ever_called_so(change, most):
    before, after = simulated(np.random.default_rng(4), 1000, 1, 8, 0.02, change)
    assert (decided(before, after) == SAME).mean() <= most + 0.02


def test_what_is_the_same_is_called_so_with_enough_launches():
    before, after = simulated(np.random.default_rng(5), 200, 1, 10, 0.03)
    assert (decided(before, after) == SAME).mean() >= 0.8


def test_the_ratio_lies_in_its_interval_as_often_as_it_says():
    before, after = simulated(np.random.default_rng(6), 1, 4000, 5, 0.1, 0.2)
    intervals = verdicts.ratios(verdicts.sides(before[0], after[0]))
    covered = np.mean([interval.low <= 1.2 <= interval.high for interval in intervals])
    assert 0.935 <= covered <= 0.975


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────
def test_p_values_and_intervals_are_those_of_scipy():
    rng = np.random.default_rng(7)
    befores, afters = ([np.exp(rng.normal(0, 0.1, n)) for n in sizes] for sizes in ((3, 5, 8), (4, 5, 2)))
    found = verdicts.p_values(verdicts.sides(befores, afters), 0.05)
    ratios = verdicts.ratios(verdicts.sides(befores, afters))
    d = np.log1p(0.05)
    for i, (before, after) in enumerate(zip(befores, afters, strict=True)):
        a, b = np.log(before), np.log(after)

        def p(shift, alternative, a=a, b=b):
            return scipy_stats.ttest_ind(b + shift, a, equal_var=False, alternative=alternative).pvalue

        same = max(p(d, "greater"), p(-d, "less"))
        assert [q[i] for q in found] == pytest.approx([p(-d, "greater"), p(d, "less"), same])
        low, high = scipy_stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
        assert (ratios[i].low, ratios[i].high) == pytest.approx((np.exp(low), np.exp(high)))


def test_launches_that_agree_exactly_neither_crash_nor_prove_more_than_a_clock_can():
    assert of([1.0] * 3, [1.0] * 3).verdict == SAME
    assert of([1.0] * 5, [1.5] * 5).verdict == SLOWER
    (change,) = of([1.0] * 2, [1.05001] * 2).changes  # just beyond what matters: not from two launches
    assert change.verdict == INCONCLUSIVE and change.ratio.low < 1.05001 < change.ratio.high


def test_the_number_of_further_launches_is_the_smallest_that_decides():
    rng = np.random.default_rng(8)
    before, after = (np.exp(rng.normal(mean, 0.1, (20, 4))) for mean in (0, 0.15))
    cases = verdicts.sides(before, after)
    for i, further in enumerate(verdicts.further_launches(cases, 0.05)):
        if further is None:
            continue
        assert verdicts.decide(cases, 0.05, further)[i] != INCONCLUSIVE
        assert all(verdicts.decide(cases, 0.05, fewer)[i] == INCONCLUSIVE for fewer in range(further))
    exactly_at_the_limit = of([1.0, 1.1, 0.9], [1.05, 1.155, 0.945])
    assert exactly_at_the_limit.changes[0].further_launches is None


def test_500_cases_take_well_under_a_second():
    rng = np.random.default_rng(9)
    many = [dataclasses.replace(CASE, size_bytes=4 * k) for k in range(1, 501)]
    old, new = ([summary(case, np.exp(rng.normal(0, 0.1, 5))) for case in many] for _ in range(2))
    began = time.process_time()
    assert len(compare(*runs(), old, new).changes) == 500
    assert time.process_time() - began < 1.5  # about 0.4 s; what else runs on the machine does not count


# ── one launch on a side ─────────────────────────────────────────────────────────────────────────
def test_one_launch_decides_nothing():
    result = of([1.0], [3.0, 3.1])
    (change,) = result.changes
    assert (change.verdict, change.further_launches) == (INCONCLUSIVE, None) and "one launch" in change.note
    assert any("--noise-floor" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("after", "floor", "verdict"),
    [
        (1.30, 0.10, SLOWER),
        (0.70, 0.10, FASTER),
        (1.12, 0.10, INCONCLUSIVE),  # within noise and the change that matters
        (1.00, 0.03, SAME),
        (1.00, 0.10, INCONCLUSIVE),  # a change of 5 % could hide in noise of 10 %
    ],
)
def test_a_stated_noise_floor_decides_about_single_launches(after, floor, verdict):
    (change,) = of([1.0], [after], noise_floor=floor).changes
    assert change.verdict == verdict and "stated" in change.note


def test_a_stated_noise_floor_does_not_overrule_what_launches_show():
    assert of([1.0, 1.3, 0.8], [1.4, 1.1, 1.9], noise_floor=0.001).verdict == INCONCLUSIVE


# ── the whole ────────────────────────────────────────────────────────────────────────────────────
def test_the_gravest_case_gives_the_verdict():
    base = np.array([1.0, 1.01, 0.99, 1.005, 0.995])

    def verdict(*factors):
        old = [summary(case, base) for case in CASES[: len(factors)]]
        return compare(*runs(), old, [summary(s.case, base * f) for s, f in zip(old, factors, strict=True)])

    assert verdict(1, 1).verdict == SAME
    assert verdict(1, 0.5).verdict == FASTER
    mixed = verdict(0.5, 1.5, 1)
    assert mixed.verdict == SLOWER and any("1 case slower and 1 faster" in w for w in mixed.warnings)
    assert verdict(1, 1.05).verdict == INCONCLUSIVE


def test_cases_without_a_partner_are_listed():
    old, new = ([summary(case, [1, 1.01]) for case in cases] for cases in (CASES[:3], CASES[1:4]))
    dead = Summary(CASES[1], 0, 0, None, failures=(Failure("hang", 0, "nothing"),))
    result = compare(*runs(), old, [dead, *new[1:]])
    assert (result.only_before, result.only_after, result.broken) == ((CASES[0],), (CASES[3],), (CASES[1],))
    assert any("failed after" in warning for warning in result.warnings)


def test_runs_without_a_common_case_cannot_be_compared():
    other = dataclasses.replace(CASE, metric="pipelined", depth=8)
    with pytest.raises(UnmeasurableError, match="no measured case in common"):
        compare(*runs(), [summary(CASE, [1, 1])], [summary(other, [1, 1])])


def test_planted_faults_are_warned_of_on_either_side():
    one = [summary(CASE, [1, 1.01])]
    for pair in (runs(faults=[Fault("late", 1)]), reversed(runs(faults=[Fault("late", 1)]))):
        assert any("planted on purpose" in warning for warning in compare(*pair, one, one).warnings)


def test_what_differs_around_the_numbers_is_listed():
    def session(gpu, nccl, algorithm):
        ranks = [{"rank": i, "device_name": gpu, "nccl": nccl} for i in range(2)]
        host = {"hostname": "a", "gpus": [{"name": gpu, "driver": "1"}] * 2, "variables": {"NCCL_ALGO": algorithm}}
        return {"host": host, "launches": [{"ranks": ranks}]}

    before, after = (
        dataclasses.replace(run, environment=[facts])
        for run, facts in zip(runs(), (session("H100", "2.27", "Ring"), session("H200", "2.28", "Tree")), strict=True)
    )
    found = {name: (old, new) for name, old, new in compare(before, after, *[[summary(CASE, [1, 1])]] * 2).differences}
    assert found["gpus"] == ("2 × H100", "2 × H200") and found["nccl"] == ("2.27", "2.28")
    assert found["NCCL_ALGO"] == ("Ring", "Tree") and "hostname" not in found and "gpu driver" not in found


# ── across an axis ───────────────────────────────────────────────────────────────────────────────
def both_backends():
    nccl = dataclasses.replace(CASE, backend="nccl")
    return [summary(CASE, [2, 2.01, 1.99, 2]), summary(nccl, [1, 1.01, 0.99, 1])]


def test_across_a_backend():
    gloo, nccl = both_backends()
    (change,) = compare(*runs(), [gloo], [nccl], across="backend").changes
    assert change.verdict == FASTER and change.note == "backend: gloo → nccl"
    (turned,) = compare(*runs(), both_backends(), both_backends(), across="backend=nccl,gloo").changes
    assert compare(*runs(), [gloo], [nccl], across="backend").across == "backend"
    assert turned.verdict == SLOWER


@pytest.mark.parametrize(
    ("across", "words"),
    [("backend", "both gloo and nccl"), ("size_bytes", "write one of op, backend"), ("backend=gloo", "for each side"),
     ("backend=gloo,gloo", "the same backend")],
)  # fmt: skip
def test_an_axis_that_leaves_the_match_open_is_refused(across, words):
    with pytest.raises(ConfigError, match=words):
        compare(*runs(), both_backends(), both_backends(), across=across)


def test_another_cpu_is_named_in_the_first_line():
    before, after = runs()
    same = compare(before, after, *(both_backends(),) * 2)
    other = dataclasses.replace(same, differences=(("kernel", "5", "6"), ("cpu.model", "EPYC", "Xeon")))
    assert "CPU" not in comparison.headline(same)
    assert comparison.headline(other).endswith("; another CPU: EPYC → Xeon")
    unknown = dataclasses.replace(same, differences=(("cpu.model", "-", "Xeon"), ("gpus", "none", "none")))
    assert "CPU" not in comparison.headline(unknown)
