"""What is planted in invented rounds is found: exposed communication, its parts, what is noise, who disturbed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.analyze.training import DEFAULT_ADVISED, NOT_YET, analyze
from bench.analyze.training_rounds import estimate, estimates
from bench.catalog.strategies import label
from bench.model.records import Scenario
from bench.model.training import (
    PARTS,
    Advised,
    InvariantCheck,
    Round,
    Strategy,
    StrategyChecks,
    TimedBlock,
    TrainingLaunch,
    TrainingPlan,
    TrainingRun,
)
from bench.planning.training import with_controls
from bench.report import training_document
from training_fixtures import timeline

SCENARIO = Scenario("nano", "gloo", 2, 2, 8)
STRATEGIES = with_controls([Strategy("flat"), Strategy("naive")])
STEPS, COMPUTE_S = 2, 0.1


def run_of(extra_s, launches=4, rounds=12, noise_s=1e-3, foreign=lambda number: 0.0, hidden_s=0.0, failed=()):
    """extra_s: seconds that each strategy's tail adds to a step. hidden_s: added to steps, and to no part of them."""
    dice = np.random.default_rng(3)
    facts = [StrategyChecks(SCENARIO.key, 1, name, (InvariantCheck("I1", False, "differs"),)) for name in failed]
    for launch in range(1, launches + 1):
        for number in range(1, rounds + 1):
            drift = 0.02 * number / rounds  # the same for all: only pairing within rounds takes it out
            blocks = []
            for one in STRATEGIES:
                tail = extra_s.get(one.name, 0.0)
                wall = COMPUTE_S + drift + tail + (hidden_s if tail else 0.0) + dice.normal(0, noise_s)
                parts = dict.fromkeys(PARTS, 0.0) | {"backward": COMPUTE_S + drift, "tail": tail}
                ns = {name: (int(STEPS * s * 1e9),) * 2 for name, s in parts.items()}
                walls = (int(STEPS * wall * 0.9e9), int(STEPS * wall * 1e9))
                blocks.append(TimedBlock(label(one), walls, ns, foreign(number)))
            facts.append(Round(SCENARIO.key, launch, number, 0.0, STEPS, tuple(blocks)))
    order = tuple(TrainingLaunch(SCENARIO, launch, STRATEGIES, rounds) for launch in range(1, launches + 1))
    plan = TrainingPlan("t", order, (), launches, STEPS, 3, 1, 60.0, 0.06)
    return TrainingRun(Path("t"), {}, plan, [], facts)


def results(run):
    (comparison,) = analyze(run).scenarios
    return comparison, {one.label: one for one in comparison.results}


def test_a_planted_wait_is_recovered_and_explained():
    comparison, found = results(run_of({"flat": 0.005, "naive": 0.03}))
    assert found["flat"].exposed.value == pytest.approx(0.005, rel=0.1)
    assert found["naive"].exposed.low < 0.03 < found["naive"].exposed.high
    assert found["naive"].split.tail_s == pytest.approx(0.03) and found["naive"].adds_up
    assert found["none"].exposed is None and comparison.compute.value == pytest.approx(0.11, rel=0.1)
    assert found["none again"].exposed.low < 0 < found["none again"].exposed.high
    assert (found["none again"].place, found["flat"].place, found["flat again"].place) == (1, 3, 3)
    assert found["naive"].place == 5 and found["naive"].resolved


def test_what_steps_do_not_resolve_the_order_of_tails_may():
    """Whole steps scatter by 5 ms; what is left to wait for after backward does not."""
    _, found = results(run_of({"flat": 0.0005}, noise_s=5e-3))
    assert not found["flat"].resolved and found["flat"].exposed.low < 0 < found["flat"].exposed.high
    assert found["flat"].place > found["none again"].place == found["none"].place


def test_parts_that_do_not_add_up_are_said_so():
    """I8: 20 ms of a step of 150 ms are in no part of it."""
    _, found = results(run_of({"flat": 0.02}, hidden_s=0.02))
    assert found["flat"].adds_up is False and found["flat"].split.residual_s == pytest.approx(0.02, rel=0.1)
    assert found["none again"].adds_up


def test_rounds_that_others_disturbed_are_left_out_and_counted():
    run = run_of({"flat": 0.005}, foreign=lambda number: 0.5 if number % 4 == 0 else 0.01)
    comparison, found = results(run)
    left_out, every = (rounds * len(STRATEGIES) for rounds in (12, 48))
    assert (comparison.dropped, found["flat"].rounds) == (left_out, 36)
    assert any(f"{left_out} of {every} timed blocks left out" in text for text in analyze(run).warnings)


def test_a_disturbed_block_costs_its_own_strategy_only():
    run = run_of({"flat": 0.005, "naive": 0.03})
    run.facts[:] = [
        replace(
            one,
            blocks=tuple(
                replace(block, foreign_cpu=0.5, wall_ns=tuple(9 * ns for ns in block.wall_ns))
                if (block.strategy, one.round % 3) == ("flat", 0)
                else block
                for block in one.blocks
            ),
        )
        for one in run.facts
    ]
    comparison, found = results(run)
    assert (found["flat"].rounds, found["naive"].rounds, comparison.dropped) == (32, 48, 16)
    assert found["flat"].exposed.value == pytest.approx(0.005, rel=0.15)


def test_where_most_were_disturbed_all_are_kept_and_that_is_said():
    run = run_of({"flat": 0.005}, foreign=lambda number: 0.5)
    comparison, _ = results(run)
    assert comparison.dropped == 0
    assert any(
        "too much of all strategies disturbed to leave it out, so all of those kept" in text
        for text in analyze(run).warnings
    )


def test_two_launches_claim_nothing_of_how_launches_differ():
    _, found = results(run_of({"flat": 0.005}, launches=2))
    assert found["flat"].exposed.kind == "within-run"
    _, found = results(run_of({"flat": 0.005}, launches=1, rounds=4))
    assert found["flat"].exposed.kind == "range of too few"


def test_strategies_learn_from_each_other_how_launches_differ():
    """Three launches know a variance badly: one series in many has launches that agree by chance."""
    dice = np.random.default_rng(1)
    many = {n: {launch: dice.normal(0.01, 1e-3, 8) for launch in range(3)} for n in range(40)}
    alone = {n: estimate(series) for n, series in many.items()}
    together = estimates(many)
    assert all(together[n].value == pytest.approx(alone[n].value) for n in many)
    widths = [[one.high - one.low for one in found.values()] for found in (alone, together)]
    assert np.ptp(np.log(widths[1])) < np.ptp(np.log(widths[0])) / 2
    assert np.median(widths[1]) < np.median(widths[0])


def test_what_shards_cost_and_save_is_set_apart():
    """A rank gathers for 7 ms what others updated, and updates its share in 2 ms less."""
    run = run_of({"flat": 0.005})
    gather, update = ({"none": 0.0, "flat": value} for value in (7e-3, -2e-3))

    def changed(block):
        more = {"gather": gather.get(block.strategy, 0.0), "update": 4e-3 + update.get(block.strategy, 0.0)}
        parts = block.parts_ns | {name: (int(STEPS * s * 1e9),) * 2 for name, s in more.items()}
        return replace(block, parts_ns=parts)

    run.facts[:] = [replace(one, blocks=tuple(map(changed, one.blocks))) for one in run.facts]
    split = results(run)[1]["flat"].split
    assert (split.gather_s, split.update_s) == (pytest.approx(7e-3), pytest.approx(-2e-3))
    assert abs(split.interference_s) < 1e-9


def test_parts_of_older_runs_are_read():
    run = run_of({"flat": 0.005})
    old = ("forward", "backward", "pack", "tail", "update")
    run.facts[:] = [
        replace(one, blocks=tuple(replace(b, parts_ns={n: b.parts_ns[n] for n in old}) for b in one.blocks))
        for one in run.facts
    ]
    assert results(run)[1]["flat"].split.gather_s == 0


def test_a_run_that_advised_torchs_default_leaves_that_out_with_the_reason():
    run = run_of({"flat": 0.005})
    asked = Strategy("ddp", called="advised")
    order = tuple(replace(launch, strategies=(*launch.strategies, asked)) for launch in run.plan.order)
    run = replace(run, plan=replace(run.plan, order=order))
    assert results(run)[1]["ddp advised"].refused == NOT_YET
    run.facts.append(Advised(SCENARIO.key, 2, None, ()))
    assert "ddp advised" not in results(run)[1]
    assert [(one.strategy, one.reason) for one in analyze(run).skips] == [(asked, DEFAULT_ADVISED)]
    run.facts[-1] = Advised(SCENARIO.key, 2, None, (4096, 8192))
    assert results(run)[1]["ddp advised"].strategy.buckets == (4096, 8192)


def test_who_fails_a_check_in_any_launch_gets_no_number():
    _, found = results(run_of({}, failed=["flat"]))
    assert found["flat"].refused == "I1: differs" and found["flat"].step is None and found["naive"].step is not None


def test_a_report_says_each_warning_once():
    run = run_of({"flat": 0.005}, foreign=lambda number: 0.5 if number % 4 == 0 else 0.01)
    text = training_document.build(run, analyze(run), [], "plots")
    assert text.count("timed blocks left out") == 1 and text.count("other processes used the CPU") == 1


def test_the_first_timeline_of_each_strategy_is_kept():
    """A resumed run records a timeline in each of its launches."""
    run = run_of({"flat": 0.005})
    first = timeline(Strategy("flat"), scenario=SCENARIO)
    run.facts.extend([first, replace(first, launch=2)])
    comparison, _ = results(run)
    assert comparison.timelines == (first,)


def test_a_check_that_fails_in_one_launch_is_not_hidden_by_the_others_that_pass():
    run = run_of({"flat": 0.005})
    for launch, ok in enumerate((True, False, True), start=1):
        run.facts.append(StrategyChecks(SCENARIO.key, launch, "flat", (InvariantCheck("I4", ok, "calls"),)))
    _, found = results(run)
    assert [check.ok for check in found["flat"].checks] == [False] and found["flat"].refused == "I4: calls"


def test_a_strategy_that_shares_no_calm_round_with_the_reference_is_kept():
    """Of two rounds the reference was disturbed in one and flat in the other: without them there is no difference."""
    run = run_of({"flat": 0.005}, launches=3, rounds=2)
    run.facts[:] = [
        replace(
            one,
            blocks=tuple(
                replace(block, foreign_cpu=0.5) if (block.strategy, one.round) in {("none", 1), ("flat", 2)} else block
                for block in one.blocks
            ),
        )
        for one in run.facts
    ]
    comparison, found = results(run)
    assert found["flat"].exposed is not None and comparison.dropped == 0
    assert any("too much of all strategies" in text for text in analyze(run).warnings)
