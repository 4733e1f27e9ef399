"""Two invented runs of the training benchmark: what was planted is found, what is the same is not called changed."""

import csv
import io
import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.training import encoding
from bench.training.analyze.comparison import FEW_LAUNCHES
from bench.training.analyze.comparison import compare_runs as compare
from bench.training.report import comparison
from scipy import stats as scipy_stats

from bench.catalog.strategies import label
from bench.model.errors import UnmeasurableError
from bench.model.records import Failure, Scenario
from bench.model.training import (
    PARTS,
    InvariantCheck,
    LaunchFailure,
    Round,
    SkippedStrategy,
    Strategy,
    StrategyChecks,
    TimedBlock,
    TrainingLaunch,
    TrainingPlan,
    TrainingRun,
)
from bench.planning.training import with_controls
from bench.report.plots import training_steps as plots
from bench.stats import verdicts
from bench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER
from bench.store import folders
from bench.store.folders import Journal
from conftest import ROOT

SCENARIO = Scenario("nano", "gloo", 2, 2, 8)
STRATEGIES = with_controls([Strategy("flat"), Strategy("naive")])
EXTRA_S = {"flat": 0.02, "naive": 0.05}
STEPS, COMPUTE_S = 2, 0.1


def run_of(
    seed, slower=None, more_s=None, launches=5, rounds=4, scatter=0.02, name="before", strategies=STRATEGIES,
    scenario=SCENARIO, disturbed=lambda number: 0.0, environment=(),
):  # fmt: skip
    """slower: factor of a strategy's steps. more_s: seconds added to them. scatter: of launches, the same for all.

    disturbed: of a round, the share of others; such a round takes three times as long.
    """
    dice, facts = np.random.default_rng(seed), []
    for launch in range(1, launches + 1):
        whole = np.exp(dice.normal(0, scatter))
        own = {label(one): np.exp(dice.normal(0, scatter / 4)) for one in strategies}
        for number in range(1, rounds + 1):
            blocks = []
            for one in strategies:
                wall = (COMPUTE_S + EXTRA_S.get(one.name, 0.0)) * whole * own[label(one)]
                wall = wall * (slower or {}).get(one.name, 1.0) + (more_s or {}).get(one.name, 0.0)
                wall = (wall + dice.normal(0, 5e-4)) * (3 if disturbed(number) else 1)
                ns = {part: (int(STEPS * wall * 1e9 / len(PARTS)),) * 2 for part in PARTS}
                walls = (int(STEPS * wall * 0.9e9), int(STEPS * wall * 1e9))
                blocks.append(TimedBlock(label(one), walls, ns, disturbed(number)))
            facts.append(Round(scenario.key, launch, number, 0.0, STEPS, tuple(blocks)))
    order = tuple(TrainingLaunch(scenario, launch, strategies, rounds) for launch in range(1, launches + 1))
    plan = TrainingPlan("t", order, (), launches, STEPS, 3, 1, 60.0, 0.06)
    return TrainingRun(Path(name), {}, plan, list(environment), facts)


def without(run, name, *facts, skips=()):
    """The same run in which one strategy was never timed, with facts that say why."""
    kept = [
        replace(one, blocks=tuple(s for s in one.blocks if s.strategy != name)) if isinstance(one, Round) else one
        for one in run.facts
    ]
    return replace(run, facts=[*facts, *kept], plan=replace(run.plan, skips=tuple(skips)))


def of(result):
    return {change.label: change for change in result.changes}


# ── over many repetitions ────────────────────────────────────────────────────────────────────────
def test_a_step_that_takes_20_percent_longer_is_found_and_no_other_is_named():
    found = [of(compare(run_of(seed), run_of(1000 + seed, slower={"flat": 1.2}))) for seed in range(20)]
    assert np.mean([one["flat"].verdict == SLOWER for one in found]) >= 0.95
    assert np.mean([one["flat"].ratio.low < 1.2 < one["flat"].ratio.high for one in found]) >= 0.8
    others = [[c.verdict in {SLOWER, FASTER} for c in one.values() if not c.label.startswith("flat")] for one in found]
    assert np.mean([any(one) for one in others]) <= 0.05
    turned = [of(compare(run_of(1000 + seed, slower={"flat": 1.2}), run_of(seed)))["flat"].verdict for seed in range(5)]
    assert turned.count(FASTER) >= 4


def test_two_runs_of_the_same_are_hardly_ever_called_changed():
    """One in twenty is what the tests allow; of 40 that are drawn, 4 at most (of 300: docs/training.md)."""
    found = [compare(run_of(seed), run_of(1000 + seed)) for seed in range(40)]
    assert np.mean([one.verdict in {SLOWER, FASTER} for one in found]) <= 0.1
    assert np.mean([any(c.exposed and c.exposed.resolved for c in one.changes) for one in found]) <= 0.1
    assert np.mean([of(one)["flat"].verdict == SAME for one in found]) > 0.3  # the control: it is not all undecided


def test_more_exposed_communication_is_recovered():
    found = [of(compare(run_of(seed), run_of(1000 + seed, more_s={"naive": 0.02}))) for seed in range(20)]
    differences = [one["naive"].exposed.difference for one in found]
    assert np.mean([one.value for one in differences]) == pytest.approx(0.02, rel=0.1)
    assert np.mean([one.low < 0.02 < one.high for one in differences]) >= 0.8
    assert np.mean([one["naive"].exposed.resolved for one in found]) >= 0.9
    assert np.mean([one["none again"].exposed.resolved for one in found]) <= 0.05


def test_slower_computing_is_not_called_communication():
    all_slower = {one.name: 0.03 for one in STRATEGIES}
    result = compare(run_of(1), run_of(2, more_s=all_slower))
    assert {change.verdict for change in result.changes} == {SLOWER}
    assert not any(change.exposed and change.exposed.resolved for change in result.changes)
    assert of(result)["none"].exposed is None


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────
def test_differences_of_one_case_are_those_of_scipy():
    dice = np.random.default_rng(5)
    for n in (3, 5, 8):
        before, after = (dice.normal(mean, 1, n) for mean in (0, 1))
        test = scipy_stats.ttest_ind(after, before, equal_var=False)
        ((interval, sure),) = verdicts.differences([before], [after])
        ends = test.confidence_interval(0.95)
        assert interval.value == pytest.approx(after.mean() - before.mean()) and sure == (test.pvalue <= 0.05)
        assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert verdicts.differences([np.ones(3)], [np.ones(3)])[0][1] is False  # equal launches do not crash


def test_the_ratio_is_that_of_the_times_that_are_printed():
    change = of(compare(run_of(1), run_of(2, slower={"flat": 1.2})))["flat"]
    assert change.ratio.value == pytest.approx(change.after.value / change.before.value)
    moved = change.exposed
    assert moved.difference.value == pytest.approx(moved.after.value - moved.before.value)


@pytest.mark.parametrize("launches", [(2, 5), (5, 1)])
def test_too_few_launches_decide_nothing_and_it_is_said(launches):
    old, new = run_of(1, launches=launches[0]), run_of(2, slower={"flat": 2}, launches=launches[1])
    result = compare(old, new)
    change = of(result)["flat"]
    assert (change.verdict, change.note, change.ratio.kind) == (INCONCLUSIVE, FEW_LAUNCHES, "within-run")
    assert change.exposed.difference.kind == "within-run" and not change.exposed.resolved
    assert any("set launches: 5" in text for text in result.warnings)
    stated = of(compare(old, new, noise_floor=0.1))
    assert stated["flat"].verdict == SLOWER and "stated 10%" in stated["flat"].note
    assert stated["naive"].verdict == INCONCLUSIVE


def test_rounds_that_others_disturbed_are_left_out():
    quiet = run_of(2, rounds=8)
    loud = run_of(2, rounds=8, disturbed=lambda number: 0.5 if number > 5 else 0.0)
    cut = replace(quiet, facts=[one for one in quiet.facts if one.round <= 5])
    result = compare(run_of(1), loud)
    assert [c.ratio for c in result.changes] == [c.ratio for c in compare(run_of(1), cut).changes]
    left_out, every = (rounds * len(STRATEGIES) for rounds in (15, 40))
    assert any(f"{left_out} of {every} timed blocks left out" in text for text in result.warnings)
    all_loud = run_of(2, disturbed=lambda number: 0.5)
    assert any("all of those kept" in text for text in compare(run_of(1), all_loud).warnings)


# ── what has no partner ──────────────────────────────────────────────────────────────────────────
REFUSED = StrategyChecks(SCENARIO.key, 1, "flat", (InvariantCheck("I2", False, "trains another model"),))
KILLED = LaunchFailure(SCENARIO.key, 1, "flat", Failure("killed", 1, "rank 1 was ended by SIGKILL"))


@pytest.mark.parametrize(("fact", "reason"), [(REFUSED, "I2: trains another model"), (KILLED, "ended by SIGKILL")])
def test_who_is_refused_or_fails_after_is_broken(fact, reason):
    result = compare(run_of(1), without(run_of(2), "flat", fact))
    ((one,),) = [result.broken]
    assert one.label == "flat" and reason in one.reason and "flat" not in of(result)
    assert any("1 case measured before failed after" in text for text in result.warnings)
    turned = compare(without(run_of(2), "flat", fact), run_of(1))
    assert turned.broken == () and [one.label for one in turned.only_after] == ["flat"]


def test_who_was_not_tried_after_is_listed_with_the_reason():
    old = run_of(1)
    (pending,) = compare(old, without(run_of(2), "flat")).only_before
    assert (pending.label, pending.reason) == ("flat", "not measured yet")
    fewer = with_controls([Strategy("naive")])
    found = {one.label: one.reason for one in compare(old, run_of(2, strategies=fewer)).only_before}
    assert found == {"flat": "not asked for", "flat again": "not asked for"}
    left = SkippedStrategy(SCENARIO, Strategy("flat"), "needs a GPU")
    skipped = without(run_of(2, strategies=fewer), "flat", skips=[left])
    assert {one.label: one.reason for one in compare(old, skipped).only_before}["flat"] == "needs a GPU"


def test_where_all_failed_after_all_is_broken_and_nothing_in_common_is_said():
    after = replace(run_of(2), facts=[replace(KILLED, strategy=None)])
    result = compare(run_of(1), after)
    assert (result.verdict, result.changes, len(result.broken)) == (INCONCLUSIVE, (), len(STRATEGIES))
    with pytest.raises(UnmeasurableError, match="no timed strategy in common"):
        compare(run_of(1), run_of(2, scenario=replace(SCENARIO, batch=4)))


def test_what_differs_around_the_numbers_is_listed():
    def session(torch, threads):
        ranks = [{"rank": 0, "threads": threads, "nccl": None}]
        return {"host": {"packages": {"torch": torch}, "cpu": {"model": "x"}}, "launches": [{"ranks": ranks}]}

    old, new = run_of(1, environment=[session("2.12", 1)]), run_of(2, environment=[session("2.13", 4)], rounds=9)
    assert set(compare(old, new).differences) == {
        ("packages.torch", "2.12", "2.13"), ("threads a rank", "1", "4"), ("rounds", "4", "9"),
    }  # fmt: skip


# ── as text and picture ──────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def result():
    slower = run_of(2, slower={"flat": 1.2}, name="after")
    return compare(run_of(1), without(slower, "naive", replace(REFUSED, strategy="naive")))


def test_the_numbers_arrive_in_every_format(result):
    change = of(result)["flat"]
    text = comparison.document(result)
    assert text.startswith("SLOWER: 2 of 4 cases slower")
    step, moved = [line for line in text.splitlines() if line.split("|")[1:2] and line.split("|")[1].strip() == "flat"]
    assert f"{change.ratio.value:.3f}" in step and f"[{change.ratio.low:.3f} – {change.ratio.high:.3f}]" in step
    assert f"+{1e3 * change.exposed.difference.value:.1f} ms" in moved and "| more " in moved
    assert "Measured before, refused or failed after:\n\n- naive" in text
    rows = {row["strategy"]: row for row in csv.DictReader(io.StringIO(comparison.to_csv(result)))}
    assert float(rows["flat"]["ratio"]) == change.ratio.value and rows["none"]["exposed_before_s"] == ""
    assert float(rows["flat"]["exposed_difference_low_s"]) == change.exposed.difference.low
    whole = json.loads(comparison.to_json(result))
    assert whole["verdict"] == SLOWER and whole["cases"][0].keys() == rows["flat"].keys()
    assert whole["broken"] == [{"scenario": SCENARIO.key, "strategy": "naive", "reason": "I2: trains another model"}]
    suite = ET.fromstring(comparison.to_junit(result)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "2", "1")


def test_the_picture_is_drawn(result, tmp_path):
    path = plots.draw_comparison(result, tmp_path / "a-vs-b")
    assert path.stat().st_size > 10_000
    drawn = path.with_suffix(".svg").read_text()
    for word in ("flat again", "nano · gloo", "intervals, corrected", "slower", "too small to matter"):
        assert word.replace(" ", "") in drawn.replace(" ", "").replace("\N{NO-BREAK SPACE}", "")


# ── on the command line ──────────────────────────────────────────────────────────────────────────
def kept(folder: Path, run: TrainingRun, name: str) -> str:
    """A run as a results folder below `results`."""
    header = b"benchmark: training\n"
    path = folders.create(folder / "results", replace(run.plan, name=name), header, {})
    with Journal(path) as journal:
        for fact in run.facts:
            journal.append(encoding.fact_to_line(fact))
    folders.update_manifest(path, status="complete")
    return name


def test_runs_are_compared_on_the_command_line(warm):
    old, same = kept(warm.folder, run_of(1), "old"), kept(warm.folder, run_of(2), "same")
    slow = kept(warm.folder, run_of(3, slower={"naive": 1.2}), "slow")
    broken = kept(warm.folder, without(run_of(2), "flat", REFUSED), "broken")
    done = warm("compare", old, slow)
    assert done.returncode == 1 and done.stdout.startswith("SLOWER: "), done.stderr
    assert list((warm.folder / "plots").glob("*-old-vs-*-slow/comparison.png"))
    assert warm("compare", slow, old).returncode == 0
    done = warm("compare", old, same, "--min-change", "20%", "--format", "markdown")
    assert done.returncode == 0 and done.stdout.startswith("SAME: ")
    assert warm("compare", old, broken, "--format", "json").returncode == 1
    for form, start in (("json", "{"), ("csv", "key,verdict"), ("junit", "<?xml")):
        assert warm("compare", old, same, "--format", form).stdout.startswith(start)
    assert warm("compare", old, same).returncode == 0
    shutil.copytree(ROOT / "docs/example/before", warm.folder / "collectives")
    table = warm.config("expect: []\n", "table.yaml")
    for arguments, words in (
        ((old, "collectives"), f"{old} is of the training benchmark and collectives is of the collectives benchmark"),
        ((old, same, slow), "comparing more than two runs is for runs of collectives"),
        ((old, "--against", table), "--against is for runs of collectives"),
        ((old, same, "--across", "backend"), "--across is for runs of collectives"),
        (("--across", "backend=gloo,nccl"), "--across is for runs of collectives"),
    ):
        done = warm("compare", *arguments)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
