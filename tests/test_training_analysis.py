"""Effects planted in invented samples are found: exposed communication, its parts, noise, disturbed blocks."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.packages.training.analyze.steps import estimate, estimates
from collbench.packages.training.conclusions import training_of
from collbench.packages.training.step_records import StepDetail
from collbench.packages.training.synchronisation import Strategy, strategy_in
from collbench.report.notices import sentences
from conftest import with_value
from training_fixtures import FLAT_AND_NAIVE, NANO, block, case_of, run_of, run_with, samples_of, timeline

FLAT = Strategy("flat")


def analyzed(run):
    """Return the analysis of the only scenario, and its results by label."""
    (scenario,) = training_of(analyze(run)).scenarios
    return scenario, {result.label: result for result in scenario.results}


def results(run):
    return analyzed(run)[1]


def test_a_planted_wait_is_recovered_and_explained():
    scenario, by_name = analyzed(run_of({"flat": 0.005, "naive": 0.03}))
    assert by_name["flat"].exposed.value == pytest.approx(0.005, rel=0.1)
    assert by_name["naive"].exposed.low < 0.03 < by_name["naive"].exposed.high
    assert by_name["naive"].split.tail_s == pytest.approx(0.03) and by_name["naive"].adds_up
    assert by_name["naive"].share == pytest.approx(0.03 / 0.141, rel=0.05)
    assert by_name["none"].exposed is None and scenario.compute.value == pytest.approx(0.11, rel=0.1)
    assert by_name["none again"].exposed.low < 0 < by_name["none again"].exposed.high
    places = [by_name[name].place for name in ("none", "none again", "flat", "flat again", "naive")]
    assert places == [None, None, 1, None, 2] and by_name["naive"].resolved
    assert [pair.strategy.name for pair in scenario.aa_pairs] == ["none", "flat"] and 0 < scenario.noise_s < 2e-3


def test_the_order_of_tails_may_resolve_equal_steps():
    """Whole steps scatter by 5 ms; the wait after backward does not."""
    by_name = results(run_of({"flat": 0.0005, "naive": 0.0001}, noise_s=5e-3))
    assert not by_name["flat"].resolved and by_name["flat"].exposed.low < 0 < by_name["flat"].exposed.high
    assert (by_name["naive"].place, by_name["flat"].place) == (1, 2)


def test_waiting_for_a_late_rank_is_distinguished_from_waiting_for_gradients():
    """Rank 1 waits 4 ms for its gradients; rank 0, whose backward ended 6 ms earlier, waits 10 ms."""
    none_block, flat_block = block({"backward": 0.1}, 0.1), block({"backward": 0.1}, 0.11, tails_s=(10e-3, 4e-3))
    cases = [(case_of(Strategy("none"), NANO), none_block), (case_of(FLAT, NANO), flat_block)]
    split = results(run_with([samples_of(case, 1, [blocks] * 8) for case, blocks in cases]))["flat"].split
    assert (split.tail_s, split.late_s) == (pytest.approx(7e-3), pytest.approx(3e-3))


def test_calls_alone_give_the_hidden_share_and_the_first_detail_is_kept():
    """A resumed run records the detail in each of its launches."""
    run, own = run_of({"flat": 0.005}), timeline(FLAT)
    details = {1: StepDetail((4, 8), (0.02, 0.03), own), 2: StepDetail((4, 8), (), timeline(FLAT, ranks=1))}
    changed = [
        replace(s, detail=details.get(s.launch)) if strategy_in(s.case) == Strategy("flat") else s for s in run.samples
    ]
    by_name = results(replace(run, samples=changed))
    assert (by_name["flat"].calls, by_name["flat"].timeline, by_name["naive"].timeline) == ((4, 8), own, None)
    assert by_name["flat"].calls_alone_s == pytest.approx(0.025) and by_name["naive"].hidden is None
    assert by_name["flat"].hidden == pytest.approx(1 - by_name["flat"].exposed.value / 0.025)


# ── disturbed blocks ─────────────────────────────────────────────────────────────────────────────
def test_rounds_that_others_disturbed_are_left_out_and_counted():
    run = run_of({"flat": 0.005}, foreign=lambda strategy, number: 0.5 if number % 4 == 0 else 0.01)
    scenario, by_name = analyzed(run)
    dropped, blocks = (rounds * len(FLAT_AND_NAIVE) for rounds in (12, 48))
    assert (scenario.dropped, scenario.blocks, by_name["flat"].rounds) == (dropped, blocks, 36)
    (warning,) = [text for text in sentences(analyze(run).notices) if "other processes used the CPU" in text]
    assert f"{dropped} of {blocks} timed blocks left out" in warning
    assert warning.startswith("training_step · nano · sgd on gloo, 2 ranks")


def test_a_disturbed_block_costs_its_own_strategy_only():
    scenario, by_name = analyzed(
        run_of(
            {"flat": 0.005, "naive": 0.03},
            foreign=lambda strategy, number: 0.5 if strategy == FLAT and number % 3 == 0 else 0.0,
        )
    )
    assert (by_name["flat"].rounds, by_name["naive"].rounds, scenario.dropped) == (32, 48, 16)
    assert by_name["flat"].exposed.value == pytest.approx(0.005, rel=0.15)


# ── intervals ────────────────────────────────────────────────────────────────────────────────────
def test_strategies_share_the_variance_between_launches():
    """Three launches estimate a variance badly: in one series of many, launches agree by chance."""
    dice = np.random.default_rng(1)
    many = {n: {launch: dice.normal(0.01, 1e-3, 8) for launch in range(3)} for n in range(40)}
    alone = {n: estimate(series) for n, series in many.items()}
    together = estimates(many, dict.fromkeys(many, (0.1, 0.1)))
    assert all(together[n].value == pytest.approx(alone[n].value) for n in many)
    widths = [[interval.high - interval.low for interval in way.values()] for way in (alone, together)]
    assert np.ptp(np.log(widths[1])) < np.ptp(np.log(widths[0])) / 2
    assert np.median(widths[1]) < np.median(widths[0])


# ── without times ────────────────────────────────────────────────────────────────────────────────
def test_scenarios_keep_apart_and_one_that_was_not_begun_is_left_out():
    tiny = replace(NANO, case=with_value(NANO.case, "model", "tiny"))
    runs = [run_of({"flat": 0.005}), run_of({"flat": 0.03}, scenario=tiny)]
    plan = replace(runs[0].plan, order=(*runs[0].plan.order, *runs[1].plan.order))
    both = training_of(analyze(replace(runs[0], plan=plan, samples=runs[0].samples + runs[1].samples))).scenarios
    exposed = [{r.label: r.exposed for r in scenario.results}["flat"].value for scenario in both]
    assert exposed == [pytest.approx(0.005, rel=0.2), pytest.approx(0.03, rel=0.1)]
    assert [scenario.scenario for scenario in training_of(analyze(replace(runs[0], plan=plan))).scenarios] == [NANO]
