"""Two invented runs with training steps, and two sides in turns: planted changes are found, and no others."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collbench.analyze.compare import compare_runs
from collbench.analyze.pairs import compare_sides
from collbench.model.comparisons import FASTER, SAME, SLOWER
from collbench.model.records import Ending, EndReason, Failure, InvariantCheck
from collbench.packages.training.synchronisation import (
    Strategy,
    strategy_in,
)
from collbench.packages.training.synchronisation import label as name_of
from collbench.report import comparison, junit, machine_format
from collbench.report.markdown import written
from collbench.report.plots.comparison import draw_comparison
from collbench.store import encoding, folders
from collbench.store.folders import Journal
from training_fixtures import NANO, case_of, draw_as_text, run_of

EXTRA_S = {"flat": 0.02, "naive": 0.05}
FLAT = case_of(Strategy("flat"), NANO)


def planted(seed, more_s=None, launches=6, rounds=4, name="r", **more):
    """Return an invented run. more_s: seconds added to the steps of strategies, by name."""
    extra_s = {name: EXTRA_S.get(name, 0.0) + (more_s or {}).get(name, 0.0) for name in ("none", "flat", "naive")}
    settings = {"launch_scatter": 0.02, "noise_s": 5e-4, **more}
    return run_of(extra_s, seed=seed, launches=launches, rounds=rounds, name=name, **settings)


def compare(before, after, **more):
    """Compare two separate runs."""
    return compare_runs(before, replace(after, path=Path("after")), **more)


def turns(a, b):
    looks = [(min(run.plan.launches for run in (a, b)), 1.0)]
    return compare_sides(a, b, ("A: a", "B: b"), 0.05, Ending(EndReason.BUDGET, 6), looks)


def by_name(result):
    return {name_of(strategy_in(change.case)): change for change in result.changes}


def without(run, case, *samples, skips=()):
    """Return the run without times of one case, with samples or skips that give the reason."""
    kept = [s for s in run.samples if s.case != case]
    return replace(run, samples=[*kept, *samples], plan=replace(run.plan, skips=tuple(skips)))


def failed(run, case, failure, checks=()):
    """Return the run in which a case failed in the first launch."""
    first = next(s for s in run.samples if s.case == case)
    return without(run, case, replace(first, timed=None, failure=failure, checks=checks))


# ── two kept runs ────────────────────────────────────────────────────────────────────────────────
def test_a_longer_step_and_more_exposed_communication_are_found_and_nothing_else_is_named():
    """Flat takes 20 % longer, and naive 20 ms more, all of them communication."""
    after = [planted(1000 + seed, {"naive": 0.02}, factors={"flat": 1.2}) for seed in range(6)]
    compared = [by_name(compare(planted(seed), run)) for seed, run in enumerate(after)]
    for name in ("flat", "flat again"):
        assert all(changes[name].verdict == SLOWER for changes in compared)
        assert np.mean([changes[name].ratio.low < 1.2 < changes[name].ratio.high for changes in compared]) >= 0.8
    differences = [changes["naive"].exposed.difference for changes in compared]
    assert np.mean([interval.value for interval in differences]) == pytest.approx(0.02, rel=0.1)
    assert np.mean([interval.low < 0.02 < interval.high for interval in differences]) >= 0.8
    assert np.mean([changes["naive"].exposed.resolved for changes in compared]) >= 0.9
    assert not any(changes["none"].verdict in {SLOWER, FASTER} for changes in compared)
    assert not any(changes["none again"].exposed.resolved for changes in compared)
    turned = by_name(compare(after[0], planted(0)))
    assert turned["flat"].verdict == FASTER


def test_two_equal_runs_are_hardly_ever_called_changed():
    kept = [compare(planted(seed), planted(1000 + seed)) for seed in range(6)]
    sides = [turns(planted(seed), planted(500 + seed)) for seed in range(8)]
    assert sum(result.verdict in {SLOWER, FASTER} for result in kept) <= 1
    assert sum(any(c.exposed and c.exposed.resolved for c in result.changes) for result in (*kept, *sides)) <= 1
    calm = [compare(*(planted(n, launch_scatter=0.005) for n in (seed, 1000 + seed))) for seed in range(4)]
    assert sum(by_name(result)["flat"].verdict == SAME for result in calm) >= 3  # the control: not all undecided


def test_slower_computing_is_not_called_communication():
    result = compare(planted(1), planted(2, dict.fromkeys(("none", "flat", "naive"), 0.03)))
    assert {change.verdict for change in result.changes} == {SLOWER}
    assert not any(change.exposed and change.exposed.resolved for change in result.changes)
    assert by_name(result)["none"].exposed is None


def test_one_launch_resolves_no_exposed_communication():
    change = by_name(compare(planted(1), planted(2, {"flat": 0.1}, launches=1)))["flat"]
    assert change.exposed.difference.kind == "within-run" and not change.exposed.resolved


# ── without a partner ────────────────────────────────────────────────────────────────────────────
REFUSED = Failure("wrong", None, "I2: trains another model"), (InvariantCheck("I2", False, "trains another model"),)


# ── as text and picture ──────────────────────────────────────────────────────────────────────────
@pytest.fixture(params=[compare, turns])
def result(request):
    after = planted(1, {"flat": 0.05}, name="after")
    return request.param(planted(1), failed(after, case_of(Strategy("naive"), NANO), *REFUSED))


def test_the_numbers_arrive_in_every_format(result):
    changes, change = by_name(result), by_name(result)["flat"]
    text = written(comparison.document(result))
    assert text.startswith("FAILED: 1 case that did not fail before; SLOWER")
    assert ("6 pairs of launches, A and B" in text) is bool(result.in_turns)
    step, moved = [line for line in text.splitlines() if line.split("|")[1:2] and line.split("|")[1].strip() == "flat"]
    low, high = (f"{limit:.2f}" for limit in (change.ratio.low, change.ratio.high))
    shown = f"at least {low}" if result.in_turns else f"{change.ratio.value:.2f} [{low} – {high}]"
    assert shown in step
    assert f"+{1e3 * change.exposed.difference.value:.1f} ms" in moved and "| more " in moved
    assert "Measured before, failed after:\n\n- training_step · naive" in text and ": I2: trains another" in text
    rows = {row["key"]: row for row in csv.DictReader(io.StringIO(machine_format.comparison_csv(result)))}
    row, none = rows[FLAT.key], rows[changes["none"].case.key]
    assert float(row["ratio"]) == change.ratio.value and none["exposed_before_s"] == ""
    assert float(row["exposed_difference_low_s"]) == change.exposed.difference.low
    assert tuple(map(float, row["pair_ratios"].split())) == change.judgement.ratios
    assert float(row["level"]) == change.judgement.level and 0.9 <= change.judgement.level < 1
    document = json.loads(machine_format.comparison_json(result))
    assert (
        document["whole"]["level"] == result.whole.level
        and document["verdict"] == SLOWER
        and document["cases"][0].keys() == row.keys()
    )
    assert [case["reason"] for case in document["broken"]] == ["I2: trains another model"]
    suite = ET.fromstring(junit.comparison_junit(result)).find("testsuite")
    slower = sum(change.verdict == SLOWER for change in (*result.changes, result.whole))
    assert (suite.get("failures"), suite.get("errors")) == (str(slower), "1") and slower
    assert int(suite.get("tests")) == len(result.changes) + 2


def test_the_picture_shows_exposed_communication(tmp_path, monkeypatch):
    draw_as_text(monkeypatch)
    sides = turns(planted(1), planted(1, {"flat": 0.05}, name="after"))
    drawn = draw_comparison(sides, tmp_path / "a-vs-b").read_text()
    for word in (
        "nano · gloo", "intervals, corrected", "slower", "too small to matter", "over the reference",
        "a pair of launches",
    ):  # fmt: skip
        assert word in drawn, word


# ── on the command line ──────────────────────────────────────────────────────────────────────────
def kept(folder, run, name):
    """Write a run as a folder below `results`, and return its name."""
    path = folders.create(folder / "results", replace(run.plan, name=name), b"backends: [gloo]\n", {})
    with Journal(path) as journal:
        for samples in run.samples:
            journal.append(encoding.samples_to_line(samples))
    folders.update_manifest(path, status="complete")
    return name


def test_runs_are_compared_on_the_command_line(warm):
    old, slow = kept(warm.folder, planted(1), "old"), kept(warm.folder, planted(3, factors={"naive": 1.2}), "slow")
    broken = kept(warm.folder, failed(planted(2), FLAT, *REFUSED), "broken")
    done = warm("compare", old, slow)
    assert done.returncode == 1 and "\nSLOWER: " in done.stdout, done.stderr
    assert list((warm.folder / "plots").glob("*-old-vs-*-slow/comparison.png"))
    assert warm("compare", slow, old, "--format", "json").returncode == 0
    assert warm("compare", old, broken, "--format", "json").returncode == 1
    done = warm("compare", old, "--across", "strategy=naive,flat")
    assert done.returncode == 0 and "\nFASTER" in done.stdout, done.stderr
