"""A run of the training benchmark as tables and report: numbers arrive unchanged, and what is not known is said.

Invented runs; the pictures have tests of their own.
"""

import io
import json
import math
from dataclasses import replace

import pandas as pd
import pytest

import training_fixtures as invented
from bench.model.conclusions import NO_INTERVAL, AAPair, Interval, ScenarioAnalysis, TrainingAnalysis
from bench.model.training import InvariantCheck, Link, Strategy
from bench.report import markdown as pages
from bench.report import training, training_document, training_labels

RUN = invented.run()


@pytest.fixture(scope="module")
def analysis():
    return invented.analysis()


def row_of(table, *words):
    (found,) = [line for line in table.splitlines() if all(f"| {word} " in line for word in words)]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_the_customary_table_has_the_outcome(analysis):
    comparison = analysis.scenarios[0]
    flat = next(o for o in comparison.results if o.label == "flat")
    row = row_of(training.overview(comparison), "flat")
    assert row[:6] == ["micro", "gloo", "2", "16", "flat", str(flat.place)]
    assert row[6] == f"{flat.step.value * 1e3:.1f} ms ± 400 µs"
    assert row[7] == f"{flat.exposed.value * 1e3:.2f} ms ± 500 µs"
    assert row[9:] == [f"{100 * flat.share:.1f} ± 1.0", f"{100 * flat.hidden:.1f}"]


def test_equal_places_unresolved_and_refused_are_told_apart(analysis):
    text = training.overview(analysis.scenarios[0]) + training.refused(analysis.scenarios[0])
    assert row_of(text, "overlap_bucket 256 KiB", "2 =")[5] == "2 ="
    unresolved = row_of(text, "ddp noop", "1, not resolved")
    assert unresolved[7].startswith("-400 µs") and unresolved[8] == "[-700 – -100 µs]"
    assert "**zero1** got no times: I12 is violated" in text
    assert not [line for line in text.splitlines() if line.startswith("|") and "zero1" in line]
    assert row_of(text, "none")[5] == "reference"


def test_order_is_by_place_and_the_reference_is_first(analysis):
    found = training_labels.ordered(analysis.scenarios[0])
    assert training_labels.is_reference(found[0]) and found[-1].refused
    places = [o.place for o in found if o.place]
    assert places == sorted(places) and len(found) == len(analysis.scenarios[0].results)


def test_the_csv_is_typed_and_has_the_fields_columns(analysis):
    frame = pd.read_csv(io.StringIO(training.to_csv(RUN, analysis)))
    customary = [
        "model", "backend", "world_size", "global_batch_size", "warmup_steps", "benchmark_steps", "strategy",
        "step_time_avg", "step_time_std", "comm_time_avg", "comm_time_std", "comm_frac_avg", "comm_frac_std",
    ]  # fmt: skip
    assert [name for name in frame.columns if name in customary] == customary
    flat = frame[frame.strategy == "flat"].iloc[0]
    result = next(o for o in analysis.scenarios[0].results if o.label == "flat")
    assert flat.comm_time_avg == pytest.approx(result.exposed.value)
    assert flat.comm_time_low == pytest.approx(result.exposed.low)
    assert flat.benchmark_steps == 60 and flat.warmup_steps == 3
    assert flat.tail_s + flat.pack_s + flat.interference_s + flat.residual_s == pytest.approx(flat.comm_time_avg)
    assert frame[frame.strategy == "zero1"].step_time_avg.isna().all()
    assert frame[frame.strategy == "ddp noop"].comm_time_avg.iloc[0] < 0


def test_json_is_json_even_where_a_number_is_none(analysis):
    broken = replace(analysis.scenarios[0], noise_s=math.inf)
    data = json.loads(training.to_json(RUN, replace(analysis, scenarios=(broken,))))
    assert data["scenarios"][0]["noise_s"] is None
    assert {row["strategy"] for row in data["strategies"]} == {o.label for o in broken.results}
    assert data["failures"][0]["failure"]["rank"] == 1 and data["scenarios"][0]["advice"]["cap"]["cap"]
    assert any(check["strategy"] == "zero1" and check["ok"] is False for check in data["checks"])


def test_the_report_says_what_is_missing_and_no_number_is_none(analysis):
    text = training_document.build(RUN, analysis, [("Step time", "training-steps")], "../../plots/r")
    for part in ("**I12 violated** by zero1", "rank 1 was ended by SIGKILL", "](../../plots/r/training-steps.png)"):
        assert part in text, part
    assert "nan" not in text.lower() and "None" not in text and " inf" not in text


def test_the_page_renders_it(analysis, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    text = training_document.build(RUN, analysis, [("Step time", "a")], "p")
    page = pages.page(text, "t", {"p/a.png": tmp_path / "a.png"})
    assert "data:image/png;base64," in page and page.count("<table>") >= 6


def test_an_empty_run_has_a_report():
    nothing = TrainingAnalysis((), (), (), (), ())
    assert "0 scenarios" in training_document.build(RUN, nothing, [], "p")
    assert training_document.summary_tables(RUN, nothing) == "Nothing was measured."
    empty = ScenarioAnalysis(invented.SCENARIO, None, (), (), 0.0, 0, 0, 0)
    assert "No strategy was timed." in training_document.summary_tables(RUN, replace(nothing, scenarios=(empty,)))


def test_invariants_count_strategies_and_name_offenders(analysis):
    table = training.invariants(analysis)
    assert row_of(table, "I1")[2:] == ["9", "-", "1 × noop does not synchronise"]
    assert row_of(table, "I12")[2] == "0" and "zero1: the shares" in row_of(table, "I12")[3]
    assert row_of(table, "I2")[2] == "not checked"


def test_what_is_violated_in_one_launch_does_not_hold(analysis):
    comparison = analysis.scenarios[0]
    both = replace(
        comparison.results[1], checks=(InvariantCheck("I1", True, "x"), InvariantCheck("I1", False, "a | b\nc"))
    )
    table = training.invariants(invented.analysis((replace(comparison, results=(both,)),)))
    assert row_of(table, "I1")[2:3] == ["0"] and "a \\| b c" in table


def test_advice_lays_measured_beside_predicted(analysis):
    text = training.advice(analysis.scenarios[0])
    row = row_of(text, "plan")
    plan = next(o for o in analysis.scenarios[0].results if o.strategy == invented.PLAN)
    tail = f"{(plan.split.tail_s - plan.split.late_s) * 1e3:.2f} ms"
    assert row[2:5] == ["1.20 ms", "300 µs", tail] and row[5].startswith(f"{plan.exposed.value * 1e3:.2f} ms [")
    assert text.startswith("**Set the plan.**")


def test_a_pair_that_differs_is_shouted(analysis):
    pair = AAPair("flat", Interval(2e-3, 1e-3, 3e-3, "over launches"))
    unknown = AAPair("naive", Interval(2e-3, 2e-3, 2e-3, NO_INTERVAL))
    table = training.aa_pairs(replace(analysis.scenarios[0], aa_pairs=(pair, unknown)))
    assert row_of(table, "flat")[3].startswith("NO") and row_of(table, "naive")[2:] == ["-", "-"]


def test_long_labels_are_cut_and_stay_distinct():
    many = [Strategy("plan", buckets=(2**20, 2**21, size, *[2**22] * 40)) for size in (2**10, 2**11)]
    found = training_labels.short_names([invented.label(strategy) for strategy in many])
    assert list(found.values()) == ["plan [1 MiB, 2 MiB, … 43 buckets]", "plan [1 MiB, 2 MiB, … 43 buckets] #2"]


def test_the_call_size_sweep_pools_launches(analysis):
    rows = training.call_sizes(analysis).splitlines()[2:]
    assert len(rows) == 8 and "| 600 |" in rows[3].replace("  ", "")
    assert rows[0].rstrip(" |").endswith("1.0")


def test_intervals_that_say_nothing_are_no_numbers(analysis):
    wide = Interval(1e-3, -math.inf, math.inf, "over launches")
    comparison = analysis.scenarios[0]
    result = replace(comparison.results[1], exposed=wide, exposed_std=math.nan)
    odd = replace(comparison, results=(result,), noise_s=math.inf, aa_pairs=())
    text = training_document.build(RUN, invented.analysis((odd,)), [], "p")
    assert "no strategy was measured twice" in text
    assert " inf" not in text and "nan" not in text and "| 1.00 ms |" in text.replace("  ", "")


def test_without_a_pair_no_limit_is_claimed_and_a_copy_of_the_reference_is_compared(analysis):
    comparison = analysis.scenarios[0]
    copy = invented.result(Strategy("naive"), 4)
    copy = replace(copy, strategy=Strategy("none", again=1), label="none again")
    odd = replace(comparison, noise_s=0.0, aa_pairs=(), results=(*comparison.results, copy))
    text = training_document.summary_tables(RUN, invented.analysis((odd,)))
    assert "no strategy was measured twice" in text and "two copies" not in text
    assert row_of(text, "none again")[1] == "4 =" and row_of(text, "none", "reference")[0] == "none"


def test_who_shares_the_place_of_the_reference_is_not_alone(analysis):
    comparison = analysis.scenarios[0]
    first = tuple(replace(o, place=1) for o in comparison.results[:2])
    shared = replace(comparison, results=first)
    assert [training_labels.place_text(o, shared) for o in training_labels.ordered(shared)] == ["reference", "1 ="]


def test_where_cores_are_shared_buckets_that_cannot_be_told_apart_are_no_ranking():
    """On gloo itself; on an emulated link, which takes no core, the sentence would be false."""
    strategies = (Strategy("none"), Strategy("overlap_bucket", cap_bytes=2**18), Strategy("overlap_param"))
    for scenario, said in ((invented.SCENARIO, True), (replace(invented.SCENARIO, link=Link(1e-3, 1e9)), False)):
        # flat, which sends after backward, shares their place.
        measured = (*strategies, Strategy("flat"))
        results = tuple(invented.result(one, place=1 if one.name == "none" else 2) for one in measured)
        comparison = replace(invented.comparison(scenario, strategies), results=results)
        assert ("share cores here" in training.ranking(comparison)) is said
