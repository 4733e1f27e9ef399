"""Two sides in pairs of launches: cases find their partners, looks are paid for, an interrupted run goes on."""

import dataclasses
import json
import os
import signal
import sys
import time

import numpy as np
import pytest

from bench.analyze import pairs
from bench.analyze.compare import KEY
from bench.analyze.pairs import FirstLook, PairedCase, TimedCase
from bench.model.comparisons import Unpaired
from bench.model.errors import ConfigError
from bench.model.records import Case, Failure
from bench.planning import plan as planning
from bench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER
from bench.store import folders
from conftest import invented_run, samples
from test_measure import assert_nothing_left
from test_turns import IN_TURNS, assert_took_turns

CASE = Case("all_reduce", "gloo", 2, "float32", 1024)


def timed(name: str = "c", launches=None, **fields) -> TimedCase:
    return TimedCase(dataclasses.replace(CASE, **fields), name, launches or {})


def paired(log_ratios, name: str = "c", noise: float = 0.0, seed: int = 1) -> PairedCase:
    """Pairs whose sides share what their occasion was like."""
    common = np.exp(noise * np.random.default_rng(seed).normal(size=len(log_ratios)))
    a = {pair: np.full(9, level) for pair, level in enumerate(common, 1)}
    b = {pair: a[pair] * np.exp(log_ratio) for pair, log_ratio in enumerate(log_ratios, 1)}
    return PairedCase(name, timed(name, a), timed(name, b))


# ── which cases form a pair ──────────────────────────────────────────────────────────────────────
def test_equal_cases_are_partners_and_others_are_left_out():
    a = [timed(size_bytes=size) for size in (1024, 2048)]
    b = [timed(size_bytes=size) for size in (2048, 4096)]
    cases, only_a, only_b = pairs.matched(a, b)
    assert ([(case.a, case.b) for case in cases], only_a, only_b) == ([(a[1], b[0])], [a[0]], [b[1]])


def test_a_field_in_which_the_sides_differ_is_left_out_of_the_match():
    a = [timed(f"gloo · {size}", size_bytes=size) for size in (1024, 2048)]
    b = [timed(f"mpi · {size}", size_bytes=size, backend="mpi") for size in (1024, 2048)]
    assert [case.name for case in pairs.matched(a, b)[0]] == ["gloo → mpi · 1024", "gloo → mpi · 2048"]


def test_a_field_differs_among_the_operations_that_have_it():
    """Calls of a ladder have no batch: they are no reason why steps of another batch could not be partners."""
    step, barrier = {"op": "training_step", "strategy": "flat", "size_bytes": 0}, {"op": "barrier", "size_bytes": 0}
    a, b = ([timed(size_bytes=size), timed(**barrier), timed(**step, batch=size // 512)] for size in (1024, 2048))
    cases, only_a, only_b = pairs.matched(a, b)
    assert [case.a.case.op for case in cases] == ["barrier", "training_step", "all_reduce"]
    assert not only_a and not only_b


def test_sizes_that_all_differ_pair_in_their_order():
    a = [timed(f"x · {size}", size_bytes=size) for size in (9000, 1024)]
    b = [timed(f"x · {size}", size_bytes=size) for size in (1280, 10000)]
    assert [case.name for case in pairs.matched(a, b)[0]] == ["x · 1024 → 1280", "x · 9000 → 10000"]


def test_what_cannot_be_paired_is_refused():
    a = [timed(backend="gloo", dtype="float32"), timed(backend="gloo", dtype="float64")]
    with pytest.raises(ConfigError, match="not clear"):
        pairs.matched(a, [timed(dtype="int8")])
    with pytest.raises(ConfigError, match="no case of side A"):
        pairs.matched([timed(), timed(op="reduce", size_bytes=2048)], [timed(size_bytes=2048)])


# ── judging ──────────────────────────────────────────────────────────────────────────────────────
def test_what_both_sides_share_cancels_out():
    dice = np.random.default_rng(2)
    case = paired(np.log(1.1) + 0.01 * dice.normal(size=8), noise=1.0)
    (judged,) = pairs.look([case], 99, 0.05, FirstLook()).judgements.values()
    assert judged.verdict == SLOWER and judged.ratio.value == pytest.approx(1.1, rel=0.02)


def test_no_verdict_before_the_first_look():
    case = paired([0.5, 0.5001, 0.4999])
    (judged,) = pairs.look([case], 99, 0.05, FirstLook()).judgements.values()
    assert judged.verdict == INCONCLUSIVE and "fewer than 4 pairs" in judged.reason


def test_many_looks_at_nothing_find_hardly_ever_something():
    dice = np.random.default_rng(3)
    wrong = 0
    for _ in range(80):
        cases = [paired(sigma * dice.normal(size=48), str(sigma)) for sigma in (0.05, 0.1, 0.3)]
        first = FirstLook()
        looks = [pairs.look(cases, n, 0.02, first) for n in pairs.LOOKS if n <= 48]
        wrong += any(verdict in {SLOWER, FASTER} for look in looks for verdict in look.verdicts)
    assert wrong <= 9  # 5 % are meant; a fixed level of 5 % at each look gives about 20 %


def test_the_index_is_of_pairs_that_have_all_cases_and_its_weights_stay():
    first = FirstLook()
    quiet, loud = paired([0.01, -0.01, 0.02, 0.0], "quiet"), paired([1, -1, 0.5, -0.4], "loud")
    found = pairs.look([quiet, loud], 4, 0.05, first)
    assert first.weights["quiet"] > 10 * first.weights["loud"]
    weights = dict(first.weights)
    del loud.b.launches[2]
    again = pairs.look([quiet, loud], 4, 0.05, first)
    assert (len(found.index), len(again.index)) == (4, 3) and first.weights == weights


def test_a_look_knows_no_later_pairs():
    """A resumed run has pairs already that the first look, made again, must not see."""
    case = paired([0.0, 0.01, -0.01, 0.0, 0.5, 0.5, 0.5, 0.5])
    sides = (timed("c", {n: side[n] for n in range(1, 5)}) for side in case.launches)
    first, again = (pairs.look([one], 4, 0.05, FirstLook()) for one in (case, PairedCase("c", *sides)))
    assert first.ratios["c"].tolist() == again.ratios["c"].tolist()


# ── when to end ──────────────────────────────────────────────────────────────────────────────────
def look_of(*cases: str, whole: str | None = None):
    judgements = {str(i): judged(verdict) for i, verdict in enumerate(cases)}
    return pairs.Look(judgements, judged(whole) if whole else None, {}, None)


def judged(verdict):
    (one,) = pairs.look([paired([0.1, 0.1, 0.1, 0.1])], 4, 0.05, FirstLook()).judgements.values()
    return dataclasses.replace(one, verdict=verdict)


@pytest.mark.parametrize(
    ("found", "made", "decided_at", "why"),
    [
        (look_of(INCONCLUSIVE, SAME), 8, None, None),
        (look_of(INCONCLUSIVE, SLOWER), 8, None, "decided after 8"),
        (look_of(INCONCLUSIVE, FASTER, whole=INCONCLUSIVE), 8, None, "decided after 8"),
        (look_of(SAME, SAME, whole=SAME), 8, None, "all are the same"),
        (look_of(SAME, SAME, whole=INCONCLUSIVE), 8, None, None),
        (look_of(INCONCLUSIVE, SAME, whole=SLOWER), 8, 8, None),  # it goes on to name the case
        (look_of(INCONCLUSIVE, SAME, whole=SLOWER), 16, 8, "no case by 16"),
        (look_of(INCONCLUSIVE), pairs.LOOKS[-1], None, "are the most"),
    ],
)
def test_it_ends_when_there_is_an_answer(found, made, decided_at, why):
    said = pairs.why_end(found, made, decided_at)
    assert said is None if why is None else why in said


def test_a_case_that_failed_on_side_b_only_is_broken():
    other = dataclasses.replace(CASE, size_bytes=2048)

    def side(failed):
        dead = [dataclasses.replace(samples(CASE, 1, [[0]]), timed=None, failure=Failure("hang", 0, "stuck"))]
        times = [samples(case, n, [[10**6 + n] * 2] * 9) for case in (CASE, other)[failed:] for n in range(1, 5)]
        return invented_run([*times, *dead * failed])

    result = pairs.compare_sides(side(False), side(True), ("A", "B"), KEY, 0.05, "")
    assert result.broken == (Unpaired(CASE.key, CASE, "stuck"),) and result.failed
    assert [change.case for change in result.changes] == [other] and result.pairs == 4
    turned = pairs.compare_sides(side(True), side(False), ("A", "B"), KEY, 0.05, "")
    assert turned.only_after == result.broken and not turned.broken


# ── for real ─────────────────────────────────────────────────────────────────────────────────────
def test_two_sizes_are_told_apart_and_the_sides_are_runs(warm):
    done = warm("ab", warm.config(), "--b-set", "sizes=[256KiB, 4MiB]", "--budget", "250s", timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("SLOWER") and "64 KiB → 4 MiB" in done.stdout
    (path,) = warm.runs()
    assert (warm.folder / "plots" / path.name / "comparison.png").stat().st_size > 5000
    sides = [folders.read(path / side) for side in "ab"]
    assert [sorted({c.size_bytes for c in run.plan.cases}) for run in sides] == [[4096, 65536], [2**18, 2**22]]
    assert len({len(run.samples) for run in sides}) == 1 and sides[0].name == f"{path.name}:a"
    assert warm("report", f"{path.name}:b", "--format", "csv").stdout.startswith("key,")
    assert warm("report", path.name).stdout.startswith("SLOWER")
    assert "SLOWER" in warm("list").stdout
    assert warm("report", path.name, "--format", "csv").stdout.startswith("key,")
    refused = warm("report", path.name, "--format", "nccl-tests")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1) and f"{path.name}:a" in refused.stderr
    assert warm("compare", path.name, path.name).returncode == 2
    assert warm("report", "tiny:c").returncode == 2


def test_a_budget_ends_it_and_resume_adds_nothing(warm):
    done = warm("ab", warm.config(), "--budget", "3s", "--min-change", "0.1%", "--no-plots")
    assert done.returncode in {0, 1}, done.stderr
    (path,) = warm.runs()
    lines = (path / "samples.jsonl").read_bytes()
    assert json.loads((path / "manifest.json").read_text())["ab"]["ended"]
    assert warm("run", "--resume", path.name, "--no-plots").returncode == done.returncode
    assert (path / "samples.jsonl").read_bytes() == lines


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(cli, warm):
    config = cli.config()
    options = ("--min-change", "0.01%", "--no-plots")
    process = cli.start("ab", config, "--budget", "60s", *options, start_new_session=True)
    while not (cli.runs() and (cli.runs()[0] / "samples.jsonl").read_bytes().count(b"\n") >= 6):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130 and "run --resume" in err and "Traceback" not in err
    assert_nothing_left(cli)
    (path,) = cli.runs()
    kept = (path / "samples.jsonl").read_bytes()
    manifest = folders.read_manifest(path)
    assert 0 < manifest["ab"]["spent_s"] < 60
    folders.update_manifest(path, ab={**manifest["ab"], "budget_s": manifest["ab"]["spent_s"] + 2})
    assert warm("run", "--resume", path.name, "--no-plots").returncode in {0, 1}
    again = (path / "samples.jsonl").read_bytes()
    assert again.startswith(kept) and len(again) > len(kept)


def test_a_side_can_have_variables_and_an_interpreter_of_its_own(cli):
    variables = ("--b-env", "GLOO_DUMMY=1", "--b-env", "OMP_NUM_THREADS=2")
    options = ("--budget", "2s", "--a-python", sys.executable, "--no-plots")
    done = cli("ab", cli.config(IN_TURNS), *variables, *options)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    (path,) = cli.runs()
    assert_took_turns({side: [s for s in folders.read(path / side).samples if s.launch == 1] for side in "ab"})
    a, b = (folders.read(path / side).environment[0]["launches"][0]["ranks"] for side in "ab")
    assert {rank["variables"].get("GLOO_DUMMY") for rank in a} == {None}
    assert {rank["variables"].get("GLOO_DUMMY") for rank in b} == {"1"}
    assert {rank["variables"]["OMP_NUM_THREADS"] for rank in b} == {"2"}
    assert "GLOO_DUMMY" in done.stdout
    assert_nothing_left(cli)


def test_sides_whose_ranks_cannot_be_alive_at_once_alternate_and_it_is_said(warm, monkeypatch):
    monkeypatch.setattr(planning, "reason_to_alternate", lambda *_: "there is no room")
    done = warm("ab", warm.config(), "--budget", "1s", "--no-plots")
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    (path,) = warm.runs()
    (first_a, last_a), (first_b, last_b) = (
        [ends([s.base_ns + s.timed.start_ns.min() for s in folders.read(path / side).samples if s.launch == 1])
         for ends in (min, max)]
        for side in "ab"
    )  # fmt: skip
    assert last_a < first_b or last_b < first_a
    assert "there is no room" in done.stderr and "there is no room" in (path / "report.md").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--b-env", "nonsense"], "write NAME=VALUE"),
        (["--b-python", "/nowhere/python"], "cannot be started"),
        (["--budget", "soon"], "--budget"),
        (["--min-change", "5"], "--min-change"),
        (["--b-set", "benchmark=training"], "unknown key"),
        (["--b-set", "budget=5s"], "a budget of its own"),
        (["--b-set", "sizes=[1KiB]"], "not clear"),
    ],
)
def test_what_makes_no_sense_is_one_line_before_anything_is_measured(warm, options, words):
    done = warm("ab", warm.config(), *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr and not warm.runs()


def test_a_missing_file_is_one_line(warm):
    done = warm("ab", warm.config(), "absent.yaml")
    assert (done.returncode, done.stderr) == (2, "error: absent.yaml: No such file or directory\n")


def test_training_has_sides_too(warm, monkeypatch):
    monkeypatch.setattr(pairs, "LOOKS", (2,))  # two pairs suffice for a table
    text = "\n".join(
        ["backends: [gloo]", "world_sizes: [2]", "training: {models: [nano], strategies: [flat], rounds: 3, steps: 2}"]
    )
    done = warm("ab", warm.config(text), "--b-set", "training.batch=2", "--budget", "250s", "--no-plots", timeout=300)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert "flat" in done.stdout and "nano" in done.stdout and "batch 4 → batch 2" in done.stdout
