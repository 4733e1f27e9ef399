"""Training steps in the report of a run: numbers arrive unchanged, unknown values are marked, nothing appears twice.

The runs are invented; the pictures have their own tests.
"""

import csv
import io
import json
import math
from dataclasses import replace

import pandas as pd
import pytest

import training_fixtures as invented
from collbench.analyze.analysis import analyze
from collbench.model.conclusions import Analysis, Diagnosis
from collbench.model.records import Case
from collbench.model.results import columns
from collbench.packages.training.conclusions import ScenarioAnalysis, StrategyResult, training_of
from collbench.packages.training.report import steps as training
from collbench.packages.training.synchronisation import Strategy
from collbench.report import document, listings, machine_format, planned
from collbench.report.markdown import written
from collbench.report.view import View
from conftest import samples
from training_fixtures import with_training

RUN = invented.run()
NOTHING = Analysis((), (), Diagnosis(()))
CALL = Case("all_reduce", "gloo", 2, "float32", 4096)


@pytest.fixture(scope="module")
def analysis():
    return invented.analysis()


@pytest.fixture(scope="module")
def mixed():
    """Return a run of training steps and an all-reduce."""
    made = [samples(case, launch, [[1e6, 1.1e6]] * 8) for launch in (1, 2) for case in (CALL,)]
    order = tuple(replace(launch, cases=(*launch.cases, CALL)) for launch in RUN.plan.order)
    return replace(RUN, samples=[*RUN.samples, *made], plan=replace(RUN.plan, order=order))


def build(analysis, run=RUN):
    return written(document.build(View(run, analysis), [], "p"))


def result_of(scenario, name):
    return next(result for result in scenario.results if result.label == name)


def test_the_answer_is_the_best_strategy_and_controls_are_none(analysis):
    (scenario,) = training_of(analysis).scenarios
    again = replace(invented.result(Strategy("naive"), 1), case=invented.case_of(Strategy("naive", again=1)))
    scenario = replace(scenario, results=(*scenario.results, again))
    answered = with_training(analysis, scenarios=(scenario,))
    answer, trust = document.answer(View(RUN, answered))
    fastest = "**overlap_bucket 256 KiB, overlap_bucket 1 MiB are fastest, and none of them leads**: 20.9"
    assert answer.startswith(fastest)
    assert "; communication costs 1.67 " in answer and "low reading" not in answer
    (alone,) = training.answers([replace(scenario, results=(result_of(scenario, "flat"),))])
    assert alone.startswith("**flat** is fastest: ") and " ms] of it" in alone
    level = tuple(replace(r, place=1) for r in scenario.results if r.place == 2)
    (nothing,) = training.answers([replace(scenario, results=level)])
    assert nothing.startswith("**No strategy is faster than another here**: 20.9")
    assert "set a cap of" in answer
    for text in (written(document.terminal(View(RUN, answered))[0]), build(answered, RUN).partition("\n\n- ")[2]):
        assert text.startswith(answer) and "| strategy" in text
    assert "2 caveats" in trust


def test_the_csv_is_typed_and_has_the_fields_columns(mixed):
    text = machine_format.to_csv(View(mixed, analyze(mixed)))
    frame = pd.read_csv(io.StringIO(text))
    assert {
        "model", "backend", "world_size", "global_batch_size", "warmup_steps", "benchmark_steps", "step_time_avg",
        "step_time_std", "comm_time_avg", "comm_time_std", "comm_time_low", "comm_frac_avg", "comm_frac_std", "place",
    } < {*frame.columns}  # fmt: skip
    own = {column.fact.name for column in columns(StrategyResult) if column.fact.in_csv}
    assert own < {*frame.columns} and not {"checks", "call_bytes"} & {*frame.columns} and "splits" not in frame.columns
    flat = frame[frame.label == "flat"].iloc[0]
    result = result_of(training_of(analyze(mixed)).scenarios[0], "flat")
    assert flat.comm_time_avg == pytest.approx(result.exposed.value)
    assert flat.comm_time_low == pytest.approx(result.exposed.low)
    assert flat.step_time_avg == flat.time_s and flat.global_batch_size == 16
    assert flat.benchmark_steps == 60 and flat.warmup_steps == 3 and flat.strategy == "flat"
    parts = flat.tail_s + flat.pack_s + flat.interference_s + flat.residual_s + flat.gather_s + flat.update_s
    assert parts == pytest.approx(flat.comm_time_avg)
    assert frame[frame.label == "zero1"].step_time_avg.isna().all()
    assert frame[frame.op == "all_reduce"].comm_time_avg.isna().all() and (frame.op == "all_reduce").sum() == 1
    # The headline in a list of runs is the fastest that synchronises.
    rows = list(csv.DictReader(io.StringIO(text)))
    assert listings.headline(rows).endswith("ms: overlap_bucket 256 KiB, micro, gloo, 2 ranks")
    assert "GB/s: all_reduce" in listings.headline([row for row in rows if row["op"] == "all_reduce"])


def test_json_is_valid_even_if_a_number_is_infinite(analysis):
    broken = replace(training_of(analysis).scenarios[0], noise_s=math.inf)
    data = json.loads(machine_format.to_json(View(RUN, with_training(analysis, scenarios=(broken,)))))
    assert data["scenarios"][0]["noise_s"] is None and data["scenarios"][0]["advice"]["cap_bytes"]
    assert {case["label"] for case in data["cases"]} == {result.label for result in broken.results if result.step}
    assert any(check["invariant"] == "I1" and check["ok"] for case in data["cases"] for check in case["checks"])


def test_the_report_names_missing_cases_and_prints_no_nan(analysis):
    text = written(document.build(View(RUN, analysis), [("Step time", "training-steps")], "../../plots/r"))
    for part in ("zero1: the shares", "rank 1 was ended by SIGKILL", "](../../plots/r/training-steps.png)", "fsdp2"):
        assert part in text, part
    assert "nan" not in text.lower() and "None" not in text and " inf" not in text
    # A failed case and a left-out case appear once, with the reason.
    assert text.count("rank 1 was ended by SIGKILL") == text.count("carries all-reduces only") == 1
    assert "bandwidth" not in text and "What stands out" not in text


def test_an_empty_run_has_a_report():
    empty = with_training(NOTHING, scenarios=(ScenarioAnalysis(invented.SCENARIO, (), None, (), 0.0, 0, 0),))
    nothing = replace(RUN, samples=[])
    assert document.NOTHING_MEASURED in build(NOTHING, nothing)
    assert "No strategy was timed." in written(document.terminal(View(nothing, empty))[0])


def test_a_plan_lists_strategies_memory_and_what_is_left_out(mixed):
    text = written(planned.plan(mixed.plan))
    assert "11 cases" in text and "overlap_bucket 256 KiB" in text
    assert "fsdp2 makes other calls too: training_step · fsdp2 · micro · gloo · float32 · 2 ranks" in text
    assert "| all_reduce " in text and "rounds of 5 each" in text and "the calls on top" not in text
    assert "iterations" not in written(planned.plan(RUN.plan))
