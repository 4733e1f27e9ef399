"""Verdicts on invented launches: changes are called changes, and nothing else is, over many repetitions.

Steps planted in a series of runs are found in their place; without a planted step, none is found.
"""

import dataclasses
import re
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from collbench.analyze import noise, trend
from collbench.analyze.analysis import analyze
from collbench.analyze.compare import BEYOND_LAUNCHES, TOO_FEW_LAUNCHES_ON_A_SIDE, compare, compare_runs
from collbench.catalog.collectives import OPERATIONS
from collbench.machine.host import NO_TORCH
from collbench.model.comparisons import FASTER, INCONCLUSIVE, SAME, SLOWER, Absence, EnvironmentDifference, Unpaired
from collbench.model.conclusions import Interval, Stall, Summary
from collbench.model.divisions import Splits
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import Case, Failure, Fault, Skip
from collbench.packages.training.synchronisation import Strategy
from collbench.report import comparison
from collbench.report.labels import on_both_sides
from collbench.report.notices import sentence, sentences
from collbench.report.wording import absence
from collbench.stats.intervals import launch_interval
from collbench.stats.verdicts import NOISE_FLOOR, ONE_LAUNCH_ON_A_SIDE
from conftest import invented_run, samples, with_value

CASE = Case("all_reduce", "gloo", 2, "float32", 10**6)
CASES = [dataclasses.replace(CASE, size_bytes=2**k) for k in range(10, 22)]
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


def unchanged_runs(seed: int, scatter: float, pairs: int = 40):
    """Return pairs of unchanged runs of 6 cases and 10 launches, with this between-run scatter."""
    dice = np.random.default_rng(seed)
    sides = simulated(dice, pairs, 6, 10, 0.1)
    return [side * np.exp(scatter * dice.normal(size=(pairs, 6, 1))) for side in sides]


def test_runs_that_vary_as_launches_do_are_no_change_and_a_large_change_is_found():
    before, after = unchanged_runs(13, 0.1)
    assert wrong(decided(before, after)) <= 0.05
    assert (decided(before[:10], after[:10] * 2)[:, -1] == SLOWER).mean() >= 0.95
    naive = scipy_stats.ttest_ind(np.log(after), np.log(before), axis=-1, equal_var=False)
    assert (naive.pvalue < 0.05 / 6).any(axis=1).mean() > 0.5  # the control: launches alone
    some = {case.key: (0.0, 50.0) for case in MANY[:5]}  # a ledger that lacks a case replaces nothing
    assert (decided(before[:10], after[:10], between_runs=some) == decided(before[:10], after[:10])).all()


def test_a_ledger_replaces_the_assumed_between_run_variance():
    before, after = unchanged_runs(14, 0.3)
    varying = {case.key: (0.3, 50.0) for case in MANY}
    assert wrong(decided(before, after)) > 0.2 and wrong(decided(before, after, between_runs=varying)) <= 0.05
    assert (decided(before[:10], after[:10] * 5, between_runs=varying)[:, -1] == SLOWER).mean() >= 0.95
    before, after = simulated(np.random.default_rng(15), 15, 6, 20, 0.04)
    calm = {case.key: (0.0, 50.0) for case in MANY}
    assert (decided(before, after)[:, :-1] == SAME).mean() <= 0.1
    assert (decided(before, after, between_runs=calm)[:, :-1] == SAME).mean() >= 0.8


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


def test_runs_of_a_side_that_differ_more_than_assumed_make_the_other_side_less_sure():
    rng = np.random.default_rng(19)
    calm, wild = (
        compare_runs(*[[measured_run(rng, f"{side}{n}", 1 + far * n, 0.02) for n in range(3)] for side in "ab"])
        for far in (0.0, 0.3)
    )
    assert wild.whole.ratio.high / wild.whole.ratio.value > 2 * calm.whole.ratio.high / calm.whole.ratio.value - 1


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


def test_two_sides_of_one_run_have_no_between_run_variance():
    before, after = simulated(np.random.default_rng(16), 1, 1, 6, 0.03, 0.2)
    old, new = ([summary(CASE, side[0, 0])] for side in (before, after))
    here = runs()
    apart = here[0], dataclasses.replace(here[1], path=ELSEWHERE)
    narrow, wide = (compare(*pair, old, new).changes[0].ratio for pair in (here, apart))
    assert narrow.high / narrow.low < 0.9 * wide.high / wide.low


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("before", "after", "floor", "verdict", "reason"),
    [
        ([1.0] * 4, [1.0] * 4, None, SAME, None),  # launches that agree exactly neither crash
        ([1.0] * 5, [1.5] * 5, None, SLOWER, None),  # nor prove more than a clock can
        ([1.0, 1.01, 0.99], [2.0, 2.01, 1.99, 2.0], None, INCONCLUSIVE, TOO_FEW_LAUNCHES_ON_A_SIDE),
        ([1.0, 1.01, 0.99, 1.0], [2.0, 2.01, 1.99, 2.0], None, SLOWER, None),
        ([1.0], [3.0, 3.1], None, INCONCLUSIVE, ONE_LAUNCH_ON_A_SIDE),
        ([1.0], [1.30], 0.10, SLOWER, NOISE_FLOOR),
        ([1.0], [0.70], 0.10, FASTER, NOISE_FLOOR),
        ([1.0], [1.12], 0.10, SLOWER, NOISE_FLOOR),
        ([1.0], [1.08], 0.10, INCONCLUSIVE, NOISE_FLOOR),  # within noise
        ([1.0], [1.00], 0.03, SAME, NOISE_FLOOR),
        ([1.0], [1.00], 0.10, INCONCLUSIVE, NOISE_FLOOR),  # a change of 5 % could hide in noise of 10 %
        # A stated noise floor does not overrule what launches show.
        ([1.0, 1.3, 0.8], [1.4, 1.1, 1.9], 0.001, INCONCLUSIVE, None),
    ],
)
def test_few_launches_decide_as_far_as_they_and_a_stated_noise_floor_can(before, after, floor, verdict, reason):
    result = comparison_of(before, after, noise_floor=floor)
    (change,) = result.changes
    assert result.verdict == change.verdict == verdict
    assert reason is None or change.judgement.reason.kind is reason
    if reason is ONE_LAUNCH_ON_A_SIDE:
        assert change.judgement.further_launches is None
        assert any("--noise-floor" in warning for warning in sentences(result.notices))


def test_cases_with_two_modes_are_compared_by_their_means():
    two = Stall(0.4, 1.0, 4.0)
    old = dataclasses.replace(summary(CASE, [1.0, 5.0, 1.0, 5.0]), means_s=(2.0, 2.01, 1.99, 2.0), stall=two)
    new = dataclasses.replace(
        summary(CASE, [5.0, 5.0, 1.0, 5.0]), means_s=(3.0, 3.01, 2.99, 3.0), stall=dataclasses.replace(two, share=0.7)
    )
    (change,) = compare(*runs(), [old], [new]).changes
    assert change.verdict == SLOWER and change.ratio.value == pytest.approx(1.5, rel=0.01)


# ── all cases together ───────────────────────────────────────────────────────────────────────────
def test_the_gravest_case_gives_the_verdict():
    base = np.array([1.0, 1.01, 0.99, 1.005, 0.995])

    def verdict(*factors):
        old = [summary(case, base) for case in CASES[: len(factors)]]
        return compare(*runs(), old, [summary(s.case, base * f) for s, f in zip(old, factors, strict=True)])

    assert verdict(1, 1).verdict == SAME
    assert verdict(1, 0.5).verdict == FASTER
    mixed = verdict(0.5, 1.5, 1)
    assert mixed.verdict == SLOWER and any("1 case slower and 1 faster" in w for w in sentences(mixed.notices))
    wide = [summary(CASE, base * np.array([1, 1.3, 0.8, 1.1, 0.9]))]
    assert compare(*runs(), [summary(CASE, base)], wide).verdict == INCONCLUSIVE


def test_cases_without_a_partner_are_listed():
    old, new = ([summary(case, [1, 1.01]) for case in cases] for cases in (CASES[:3], CASES[1:4]))
    dead = Summary(CASES[1], failures=(Failure("hang", 0, "nothing"),))
    skipped = dataclasses.replace(CASES[2], size_bytes=1)
    missing = NO_TORCH()
    before, after = invented_run([]), invented_run([], skips=[Skip(skipped, missing)])
    result = compare(before, after, [*old, summary(skipped, [1, 1])], [dead, *new[1:]])
    unpaired = [(case.case, absence(case)) for case in (*result.only_before, *result.only_after)]
    assert unpaired == [
        (CASES[0], "not asked for"), (skipped, sentence(missing)), (CASES[3], "not asked for"),
    ]  # fmt: skip
    assert result.broken == (Unpaired(CASES[1], CASES[1], Absence.FAILED, "nothing"),) and result.failed
    assert any("failed after" in warning for warning in sentences(result.notices))
    turned = compare(after, before, [dead, *new[1:]], old)
    assert [case.case for case in turned.only_after] == [CASES[1], CASES[0]] and not turned.broken
    rounded = [[summary(dataclasses.replace(CASE, asked_bytes=size), [1, 1])] for size in (2048, 0)]
    assert compare(before, after, *rounded).changes  # a file of another tool has no requested size
    all_dead = compare(before, after, old[1:2], [dead])
    assert (all_dead.verdict, all_dead.changes, len(all_dead.broken)) == (INCONCLUSIVE, (), 1)


def test_a_case_that_failed_in_one_launch_after_is_named_and_no_gate_passes_it():
    sides = [[summary(CASE, [1, 1.01, 1.0, 0.99, 1.01])] for _ in range(2)]
    sides[1][0] = dataclasses.replace(sides[1][0], failures=(Failure("wrong", 1, "not the sum"),))
    result = compare(*runs(), *sides)
    assert result.broken == (Unpaired(CASE, CASE, Absence.FAILED_ONCE, "not the sum"),) and result.failed
    assert len(result.changes) == 1
    assert comparison.headline(result).startswith("FAILED: 1 case that did not fail before; ")
    assert not compare(*runs(), *sides[::-1]).failed and not compare(*runs(), sides[1], sides[1]).failed


def test_runs_without_a_common_case_cannot_be_compared():
    other = dataclasses.replace(CASE, metric="pipelined", depth=8)
    with pytest.raises(UnmeasurableError, match="no measured case in common"):
        compare(*runs(), [summary(CASE, [1, 1])], [summary(other, [1, 1])])


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


def test_differences_of_the_environment_are_listed():
    def session(gpu, nccl, algorithm):
        ranks = [{"rank": i, "device_name": gpu, "nccl": nccl} for i in range(2)]
        host = {"hostname": "a", "gpus": [{"name": gpu, "driver": "1"}] * 2, "variables": {"NCCL_ALGO": algorithm}}
        return {"host": host, "launches": [{"ranks": ranks}]}

    before, after = (
        dataclasses.replace(run, environment=[facts])
        for run, facts in zip(runs(), (session("H100", "2.27", "Ring"), session("H200", "2.28", "Tree")), strict=True)
    )
    listed = {d.fact: (d.before, d.after) for d in compare(before, after, *[[summary(CASE, [1, 1])]] * 2).differences}
    assert listed["gpus.name"] == ("2 × H100", "2 × H200") and listed["nccl"] == ("2.27", "2.28")
    assert listed["NCCL_ALGO"] == ("Ring", "Tree") and "hostname" not in listed and "gpu driver" not in listed


# ── across an axis ───────────────────────────────────────────────────────────────────────────────
def both_backends():
    nccl = dataclasses.replace(CASE, backend="nccl")
    return [summary(CASE, [2, 2.01, 1.99, 2]), summary(nccl, [1, 1.01, 0.99, 1])]


def test_across_a_backend():
    gloo, nccl = both_backends()
    result = compare(*runs(), [gloo], [nccl], across="backend")
    (change,) = result.changes
    assert (result.across, change.verdict) == ("backend", FASTER)
    assert on_both_sides(change) == "all_reduce · gloo → nccl · float32 · 2 ranks · 1 MB"
    (turned,) = compare(*runs(), both_backends(), both_backends(), across="backend=nccl,gloo").changes
    assert turned.verdict == SLOWER


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


@pytest.mark.parametrize(
    ("across", "words"),
    [("backend", "both gloo and nccl"), ("size_bytes", "write one of op, backend"), ("backend=gloo", "for each side"),
     ("backend=gloo,gloo", "the same backend")],
)  # fmt: skip
def test_an_axis_that_leaves_the_match_open_is_refused(across, words):
    with pytest.raises(ConfigError, match=words):
        compare(*runs(), both_backends(), both_backends(), across=across)


def test_another_cpu_is_named_in_the_first_line():
    same = compare(*runs(), *(both_backends(),) * 2)
    shown = []
    for cpu in (("EPYC", "Xeon"), ("-", "Xeon")):
        facts = ("kernel", "5", "6"), ("cpu.model", *cpu), ("gpus", "none", "none")
        other = dataclasses.replace(same, differences=tuple(starmap(EnvironmentDifference, facts)))
        shown.append(comparison.headline(other))
    assert "CPU" not in comparison.headline(same) + shown[1] and shown[0].endswith("; another CPU: EPYC → Xeon")


def test_the_history_before_an_upgrade_gives_the_between_run_variance():
    def measured(name, torch, times_ns):
        facts = {"hostname": "a", "cpu": {"model": "EPYC"}, "packages": {"torch": torch}}
        run = invented_run([samples(CASE, n, [[t] * 2] * 9) for n, t in enumerate(times_ns, 1)], path=Path(name))
        return dataclasses.replace(run, environment=[{"host": facts}])

    dice = np.random.default_rng(30)
    before, after = (measured(name, torch, np.round(1e6 * np.exp(0.02 * dice.normal(size=8))).astype(int))
                     for name, torch in (("before", "2.8"), ("after", "2.9")))  # fmt: skip

    def history(torch, count=8):
        runs_then = [measured(f"{torch}-{n}", torch, np.full(8, 10**6 + n)) for n in range(count)]
        return [noise.entry_of(run, analyze(run)) for run in runs_then]

    def uses_ledger(ledger):
        return "(its noise ledger)" in " ".join(sentences(compare_runs(before, after, ledger=ledger).notices))

    assert uses_ledger(history("2.8")) and not uses_ledger(history("2.9")) and not uses_ledger(history("2.8", 7))


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


def test_cases_that_no_number_of_launches_decides_are_counted():
    """Launches do not reduce between-run variance: a small difference that it hides stays hidden."""

    def beyond(result):
        return [entry.values["count"] for entry in result.notices if entry.kind is BEYOND_LAUNCHES]

    assert beyond(apart([1, 1.3, 0.8, 1.1], [1.06, 1.2, 0.9, 1.15])) == [1]
    few, calm = [1, 1.01, 1.02], [1, 1.01, 0.99, 1.0]
    # Not counted: cases that further launches or a noise floor decide, and a verdict withdrawn for lack of launches.
    assert beyond(comparison_of(calm, [1.02, 1.09, 1.0, 1.05])) == beyond(apart(few, np.multiply(10, few))) == []
    assert beyond(apart([1.0], [1.06], noise_floor=0.1)) == []


# ── a series of runs ─────────────────────────────────────────────────────────────────────────────
SMALL = dataclasses.replace(CASE, size_bytes=4096)


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
    (trend_of_case,) = trend.trend([measured(3, [SMALL]), measured(1, [SMALL, rare]), measured(2, [SMALL, rare])])
    assert trend_of_case.case == SMALL and trend_of_case.changed == ()
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
