"""Two sides in pairs of launches: cases are matched, looks are paid for, and an interrupted run goes on."""

import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import asdict

import numpy as np
import psutil
import pytest
from rich.console import Console

from collbench.analyze import pairs
from collbench.analyze.pairs import PairedCase, TimedCase
from collbench.cli import rounds, sides
from collbench.cli.rounds import RoundsInTurns
from collbench.model.comparisons import Absence, Judgement, Unpaired
from collbench.model.conclusions import Interval
from collbench.model.errors import ConfigError
from collbench.model.records import AbState, Case, Ending, EndReason, Failure, Side
from collbench.packages.training.synchronisation import StepOptions, Strategy
from collbench.planning import plan as planning
from collbench.planning.plan import EXCLUSIVE_GPU
from collbench.report.progress import PairProgress
from collbench.stats.verdicts import FASTER, INCONCLUSIVE, SAME, SLOWER, Levels
from collbench.store import encoding, folders
from conftest import ROOT, invented_run, samples
from test_faults import wait_for_samples
from test_measure import assert_nothing_left
from test_report import misfits
from test_turns import IN_TURNS, assert_took_turns

CASE = Case("all_reduce", "gloo", 2, "float32", 1024)


def timed(launches=None, **fields) -> TimedCase:
    return TimedCase(dataclasses.replace(CASE, **fields), launches or {})


def paired(log_ratios, number: int = 1, noise: float = 0.0, seed: int = 1) -> PairedCase:
    """Return a case in pairs of launches; the two sides of a pair share its noise."""
    common = np.exp(noise * np.random.default_rng(seed).normal(size=len(log_ratios)))
    a = {pair: np.full(9, level) for pair, level in enumerate(common, 1)}
    b = {pair: a[pair] * np.exp(log_ratio) for pair, log_ratio in enumerate(log_ratios, 1)}
    sides = (timed(side, size_bytes=1024 * number) for side in (a, b))
    return PairedCase(*sides)


# ── which cases form a pair ──────────────────────────────────────────────────────────────────────
def test_a_field_differs_among_the_operations_that_have_it():
    """Barriers have no batch, so they do not prevent a match of steps with different batches."""
    step, barrier = {"op": "training_step", "size_bytes": 0}, {"op": "barrier", "size_bytes": 0}
    a, b = (
        [timed(size_bytes=512 * batch), timed(**barrier), timed(**step, own=StepOptions(Strategy("flat"), batch=batch))]
        for batch in (2, 4)
    )
    assert {case.a.case.op for case in pairs.paired_cases(a, b)} == {"barrier", "training_step", "all_reduce"}


def test_cases_that_cannot_be_paired_are_refused():
    a = [timed(backend="gloo", dtype="float32"), timed(backend="gloo", dtype="float64")]
    with pytest.raises(ConfigError, match="not clear"):
        pairs.paired_cases(a, [timed(dtype="int8")])
    with pytest.raises(ConfigError, match="no case of side A"):
        pairs.paired_cases([timed(), timed(op="reduce", size_bytes=2048)], [timed(size_bytes=2048)])


# ── judging ──────────────────────────────────────────────────────────────────────────────────────
def at_the_end(case: PairedCase):
    """Return the judgement at a single look, which has the whole budget."""
    (judgement,) = pairs.look([case], [(len(case.pairs), 1.0)], 0.05).judgements.values()
    return judgement


def test_what_both_sides_share_cancels_out():
    dice = np.random.default_rng(2)
    judgement = at_the_end(paired(np.log(1.1) + 0.01 * dice.normal(size=8), noise=1.0))
    assert judgement.verdict == SLOWER and judgement.ratio.value == pytest.approx(1.1, rel=0.02)


@pytest.mark.slow
def test_many_looks_at_nothing_find_hardly_ever_something():
    dice = np.random.default_rng(3)
    counts = [n for n in pairs.LOOKS if n <= 48]
    looks = [[(n, n / 48) for n in counts[: made + 1]] for made in range(len(counts))]
    wrong = early = 0
    for _ in range(100):
        cases = [paired(sigma * dice.normal(size=48), number) for number, sigma in enumerate((0.05, 0.1, 0.3), 1)]
        wrong += any({SLOWER, FASTER} & set(pairs.look(cases, each, 0.02).verdicts) for each in looks)
        early += any({SLOWER, FASTER} & set(pairs.look(cases, [(n, 1.0)], 0.02).verdicts) for n in counts)
    assert wrong <= 6 < early  # 3 % are intended; the whole rate at each look gives about 15 %


def test_a_look_knows_no_later_pairs():
    """A resumed run already has later pairs, which an earlier look must not use."""
    case = paired([0.0, 0.01, -0.01, 0.0, 0.02, 0.01, 0.5, 0.5])
    sides = (timed({n: side[n] for n in range(1, 7)}) for side in (case.a.launches, case.b.launches))
    first, again = (pairs.look([each], [(6, 0.5)], 0.05) for each in (case, PairedCase(*sides)))
    assert first.ratios[case.key].tolist() == again.ratios[case.key].tolist()


# ── when to end ──────────────────────────────────────────────────────────────────────────────────
ENDED = Ending(EndReason.BUDGET, 6)


@pytest.mark.parametrize(
    ("cases", "whole", "made", "each", "reason"),
    [
        ([INCONCLUSIVE, SAME], None, 8, False, None),
        ([INCONCLUSIVE, SLOWER], None, 8, False, EndReason.DECIDED),
        ([INCONCLUSIVE, FASTER], INCONCLUSIVE, 8, False, EndReason.DECIDED),
        ([INCONCLUSIVE, SAME], SLOWER, 8, False, EndReason.DECIDED),
        ([SAME, SAME], SAME, 8, False, EndReason.SAME),
        ([SAME, SAME], INCONCLUSIVE, 8, False, None),
        ([], None, 8, False, None),
        ([INCONCLUSIVE], None, pairs.LOOKS[-1], False, EndReason.MOST_PAIRS),
        # Until each case is decided.
        ([INCONCLUSIVE, FASTER], None, 8, True, None),
        ([], None, 8, True, None),
        ([SAME, FASTER], INCONCLUSIVE, 8, True, EndReason.DECIDED),
    ],
)
def test_it_ends_when_there_is_an_answer(cases, whole, made, each, reason):
    judged = {verdict: Judgement("", verdict, Interval(1.0, 0.9, 1.1, "over launches")) for verdict in (*cases, whole)}
    look = pairs.Look(
        {str(n): judged[case] for n, case in enumerate(cases)}, judged[whole] if whole else None, {}, None, Levels()
    )
    assert pairs.why_end(look, made, each) == (None if reason is None else Ending(reason, made))


class FakePairs:
    """Two sides that measure one case; a pair takes 10 s by a clock that does not advance otherwise."""

    def __init__(self, monkeypatch, path, log_ratios, complete=0):
        self.made, self.now_s, self.path, self.log_ratios = complete, 0.0, path, log_ratios
        self.state = AbState(0.05, 0.0, False, "3", seed=1)
        monkeypatch.setattr(rounds.time, "monotonic", lambda: self.now_s)

    def complete(self, side, number):
        return number <= self.made

    def cases(self):
        return [paired(self.log_ratios[: self.made])]

    def measure_pair(self, missing, number):
        if missing:
            assert number == self.made + 1
            self.made, self.now_s = number, self.now_s + 10

    def until_decided(self, budget_s, earlier_s=0.0):
        self.state.budget_s = budget_s
        made = RoundsInTurns(None, None, earlier_s, {}, None)
        with PairProgress(Console(file=io.StringIO()), budget_s, 0.0) as progress:
            return sides._until_decided(self.path, self, self.state, made, self.measure_pair, progress)


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a run of two sides, with a manifest."""
    run = invented_run([samples(CASE, 1, [[1] * 2] * 4)])
    return folders.create_sides(tmp_path, (run.plan, run.plan), (b"", b""), {})


OPEN = [0.3, -0.3] * 8


def test_looks_are_kept_and_the_end_of_the_budget_is_the_last_one(monkeypatch, folder):
    fake = FakePairs(monkeypatch, folder, OPEN)
    assert fake.until_decided(145.0) == Ending(EndReason.BUDGET, 14)
    kept = folders.read_manifest(folder)["ab"]["looks"]
    assert kept == [[6, 0.4138], [8, 0.5517], [12, 0.8276], [14, 1.0]] == [list(look) for look in fake.state.looks]


def test_a_run_that_is_resumed_goes_on_with_its_looks(monkeypatch, folder):
    """No look is repeated: a second look at the same pairs would be a second chance."""
    fake = FakePairs(monkeypatch, folder, OPEN, complete=9)
    fake.state.looks = [(6, 0.4138), (8, 0.5517)]
    fake.until_decided(145.0, earlier_s=90.0)
    assert fake.state.looks == [(6, 0.4138), (8, 0.5517), (12, 0.8276), (14, 1.0)]


def test_it_stops_at_the_first_look_that_decides(monkeypatch, folder):
    dice = np.random.default_rng(4)
    changed = FakePairs(monkeypatch, folder, 0.5 + 0.01 * dice.normal(size=16))
    assert changed.until_decided(1000.0) == Ending(EndReason.DECIDED, 6)
    assert (changed.made, changed.state.looks) == (12, [(6, 0.06)])  # 6 fresh pairs follow, without a look
    short = FakePairs(monkeypatch, folder, 0.5 + 0.01 * dice.normal(size=16))
    assert short.until_decided(85.0) == Ending(EndReason.DECIDED, 6)
    assert short.made == 8  # as far as the budget suffices
    same = FakePairs(monkeypatch, folder, 0.005 * dice.normal(size=16))
    assert same.until_decided(100.0) == Ending(EndReason.SAME, 6)


def test_fresh_pairs_do_not_exaggerate_as_the_deciding_pairs_do():
    """The true change is +5 % and pairs scatter by 13 %: a look decides when the change appears large."""
    rng, ended, fresh = np.random.default_rng(8), [], []
    for _ in range(60):
        ratios = np.log1p(0.05) + 0.13 * rng.normal(size=96)
        looks = ()
        for count in (6, 8, 12, 16, 24, 32, 48):
            looks = (*looks, (count, count / 48))
            look = pairs.look([paired(ratios[:count])], looks, 0.05)
            (judgement,) = look.judgements.values()
            if judgement.verdict == SLOWER:
                ended.append(judgement.ratio.value - 1)
                case = paired(ratios[: 2 * count])
                later = pairs.after_verdict([case], count)
                assert len(later) == count
                fresh.append(np.exp(case.log_ratios(later).mean()) - 1)
                break
    assert len(ended) > 20 and np.mean(ended) > 0.065 > 0.06 > np.mean(fresh) > 0.04


def side_of(failures: dict[Case, set[int]], launches=6, cases=(CASE,)):
    """Return a side of a run; a case has failed in these launches."""
    times = [samples(case, n, [[10**6 + n] * 2] * 9) for case in cases for n in range(1, launches + 1)]
    dead = {"timed": None, "failure": Failure("wrong", 0, "not the sum")}
    return invented_run([dataclasses.replace(s, **dead) if s.launch in failures.get(s.case, ()) else s for s in times])


def sides_compared(a, b, pairs_made=6):
    return pairs.compare_sides(a, b, ("A", "B"), 0.05, ENDED, [(pairs_made, 1.0)] if pairs_made else [])


@pytest.mark.parametrize("failed", [{1, 2, 3, 4, 5, 6}, {3}])
def test_a_case_that_failed_on_side_b_only_is_broken_even_in_one_launch(failed):
    cases = (CASE, dataclasses.replace(CASE, size_bytes=2048))
    sound, broken = (side_of(failures, cases=cases) for failures in ({}, {CASE: failed}))
    result = sides_compared(sound, broken)
    why = Absence.FAILED if len(failed) == 6 else Absence.FAILED_ONCE
    assert result.broken == (Unpaired(CASE, CASE, why, "not the sum"),) and result.failed
    assert cases[1] in [change.case for change in result.changes]
    turned = sides_compared(broken, sound)
    assert not turned.broken and not turned.failed
    assert turned.only_after == (result.broken if len(failed) == 6 else ())
    assert not sides_compared(broken, broken).broken


def test_no_pair_decides_nothing():
    nothing = sides_compared(side_of({}, 1), side_of({}, 1), 0)
    assert dataclasses.replace(nothing, undecided_exits=False).undecided


# ── the exit code ────────────────────────────────────────────────────────────────────────────────
def kept(place, log_ratios, undecided="3", fresh=()) -> str:
    """Write the folder of a run of two sides that has ended; return its name. fresh: pairs after the verdict."""
    looks, log_ratios = [(len(log_ratios), 1.0)], [*log_ratios, *fresh]
    dice = np.random.default_rng(5)
    a_ns = 1e6 * np.exp(0.1 * dice.normal(size=len(log_ratios)))
    times_by_side = {"a": a_ns, "b": a_ns * np.exp(log_ratios)}
    measured = {
        side: [samples(CASE, n, [[round(time_ns)] * 2] * 9) for n, time_ns in enumerate(times_ns, 1)]
        for side, times_ns in times_by_side.items()
    }
    plan = invented_run(measured["a"], launches=len(log_ratios)).plan
    state = AbState(0.05, 60.0, False, undecided, 1, spent_s=60.0, looks=looks, ended=ENDED)
    side = asdict(Side("c", (), {}, None, "c"))
    facts = {"sides": {"a": side, "b": side}, "ab": asdict(state)}
    path = folders.create_sides(place / "results", (plan, plan), (b"backends: [gloo]\n",) * 2, facts)
    with folders.Journal(path) as journal:
        for letter in "ab":
            for launch_samples in measured[letter]:
                journal.append(folders.with_side(encoding.samples_to_line(launch_samples), letter))
    return path.name


@pytest.mark.parametrize(
    ("log_ratios", "undecided", "code", "verdict"),
    [
        (OPEN, "3", 3, INCONCLUSIVE),
        (OPEN, "pass", 0, INCONCLUSIVE),
        (OPEN, "fail", 1, INCONCLUSIVE),
        ([0.5, 0.51] * 4, "3", 1, SLOWER),
        ([-0.5, -0.51] * 4, "3", 0, FASTER),
        ([0.01, -0.01] * 4, "3", 0, SAME),
        ([0.5, 0.51], "3", 3, INCONCLUSIVE),  # too few pairs
    ],
)
def test_the_exit_code_says_whether_anything_was_decided(warm, log_ratios, undecided, code, verdict):
    name = kept(warm.folder, log_ratios, undecided)
    done = warm("resume", name, "--no-plots")
    assert (done.returncode, verdict_of(done)) == (code, verdict), done.stdout + done.stderr
    quiet = warm("resume", name, "--no-plots", "--quiet")
    assert quiet.returncode == code and quiet.stdout in done.stdout and quiet.stdout.startswith(verdict)


@pytest.mark.parametrize(
    ("fresh", "size", "shown"),
    [
        ([0.2, 0.21] * 4, " by 23 % overall [22 – 23 %], over 8 pairs after the verdict", "1.23 [1.22 – 1.23]"),
        ([0.2, -0.2] * 4, ": time +0 % overall [-16 – +20 %], over 8 pairs after the verdict", "1.00 [0.84 – 1.20]"),
        ([0.2] * 5, " by at least 65 % overall", "at least 1.65"),
    ],
)
def test_a_change_has_one_size_which_its_selection_did_not_make_larger(warm, fresh, size, shown):
    """The size at the verdict, 1.66, is in the document only, if later pairs show the size."""
    name = kept(warm.folder, [0.5, 0.51] * 4, fresh=fresh)
    done = warm("resume", name, "--no-plots")
    assert f"SLOWER{size}; 1 case slower" in done.stdout and shown in done.stdout, done.stdout
    at_verdict = "ratio 1.657" in (warm.folder / "results" / name / "report.md").read_text()
    assert "1.66" not in done.stdout and at_verdict == (len(fresh) > 5)


def test_sides_of_one_run_are_compared_as_ab_compared_them(warm):
    # The pairs agree, but launches of a side scatter: without pairs nothing would be decided.
    name = kept(warm.folder, [0.1, 0.11] * 4)
    reported = warm("report", name, "--no-plots", "--format", "json").stdout
    schema = json.loads((ROOT / "docs/comparison-schema.json").read_text())
    document = json.loads(reported)
    assert (document["pairs"], document["runs_after"]) == (8, [f"{name}:b"]) and not misfits(document, schema, schema)
    for words in ([name], [f"{name}:a", f"{name}:b"]):
        done = warm("compare", *words)
        assert (done.returncode, verdict_of(done)) == (1, SLOWER), done.stdout + done.stderr
        assert done.stdout.rstrip().endswith(f"plots/{name}/comparison.png")
        assert warm("compare", *words, "--format", "json").stdout == reported
        refused = warm("compare", *words, "--min-change", "1%")
        assert refused.returncode == 2 and refused.stderr.startswith("error: --min-change: ")
    swapped = warm("compare", f"{name}:b", f"{name}:a")
    assert swapped.returncode == 2 and "B with A, in pairs" in swapped.stderr


def test_documents_of_a_side_outside_results_are_with_its_pictures(warm):
    shutil.copytree(warm.folder / "results" / kept(warm.folder, OPEN), warm.folder / "elsewhere")
    assert warm("report", "elsewhere:a").returncode == 0
    assert [path.name for path in (warm.folder / "plots").iterdir()] == ["elsewhere-a"]
    assert {"report.md", "modes.png"} <= {path.name for path in (warm.folder / "plots/elsewhere-a").iterdir()}


def test_a_report_that_cannot_be_written_changes_no_exit_code(warm):
    name = kept(warm.folder, [0.5, 0.51] * 4)
    (warm.folder / "results" / name / "report.md").mkdir()
    done = warm("resume", name, "--no-plots", "--quiet")
    assert (done.returncode, verdict_of(done)) == (1, SLOWER)
    assert re.fullmatch(r"note: no report: .*report\.md: is a directory\n", done.stderr), done.stderr


# The exit code of a real `ab`, by its verdict.
CODES = {SLOWER: 1, FASTER: 0, SAME: 0, INCONCLUSIVE: 3}


def verdict_of(done) -> str:
    """Return the last verdict that begins a line of the output."""
    return re.findall(r"^(SLOWER|FASTER|SAME|INCONCLUSIVE)\b", done.stdout, re.MULTILINE)[-1]


def assert_ended(done) -> None:
    """Check that a command printed a verdict and ended with its exit code."""
    assert done.returncode == CODES.get(verdict_of(done)), done.stdout + done.stderr


# ── for real ─────────────────────────────────────────────────────────────────────────────────────
def test_two_sizes_are_distinguished_and_the_sides_are_runs(warm):
    done = warm("ab", warm.config(), "--b", "sizes=[256KiB, 4MiB]", "--budget", "250s", timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdict_of(done) == SLOWER and "64 KiB → 4 MiB" in done.stdout
    (path,) = warm.runs()
    assert (warm.folder / "plots" / path.name / "comparison.png").stat().st_size > 5000
    sides = [folders.read(path / side) for side in "ab"]
    assert [sorted({c.size_bytes for c in run.plan.cases}) for run in sides] == [[4096, 65536], [2**18, 2**22]]
    assert len({len(run.samples) for run in sides}) == 1 and sides[0].name == f"{path.name}:a"
    assert warm("report", f"{path.name}:b", "--format", "csv").stdout.startswith("key,")
    assert verdict_of(warm("report", path.name)) == SLOWER
    assert "SLOWER" in warm("list").stdout
    assert warm("report", path.name, "--format", "csv").stdout.startswith("key,")
    refused = warm("report", path.name, "--format", "nccl-tests")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1) and f"{path.name}:a" in refused.stderr
    assert warm("compare", path.name, path.name).returncode == 2
    assert warm("report", "tiny:c").returncode == 2


@pytest.mark.slow
def test_a_budget_ends_it_and_resume_adds_nothing(warm):
    done = warm("ab", warm.config(), "--aa", "--budget", "20s", "--min-change", "0.1%", "--no-plots")
    assert_ended(done)
    (path,) = warm.runs()
    lines = (path / "samples.jsonl").read_bytes()
    recorded = folders.read_manifest(path)["ab"]
    assert recorded["ended"]
    if looks := recorded["looks"]:
        assert looks[0][0] == pairs.FEWEST_PAIRS and f"{looks[-1][0]} pairs" in (path / "report.md").read_text()
    else:  # a busy machine: a line for each of two cases on two sides
        assert "fewer than 6 pairs" in done.stdout or "no pair of launches was completed" in done.stdout
        assert len(lines.splitlines()) < 2 * 2 * pairs.FEWEST_PAIRS
    assert warm("resume", path.name, "--no-plots").returncode == done.returncode
    assert (path / "samples.jsonl").read_bytes() == lines


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(cli, warm):
    config = cli.config()
    options = ("--min-change", "0.01%", "--no-plots")
    process = cli.start("ab", config, "--aa", "--budget", "60s", *options, start_new_session=True)
    while not (cli.runs() and (cli.runs()[0] / "samples.jsonl").read_bytes().count(b"\n") >= 6):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130 and "collbench resume" in err and "Traceback" not in err
    assert_nothing_left(cli)
    (path,) = cli.runs()
    kept = (path / "samples.jsonl").read_bytes()
    manifest = folders.read_manifest(path)
    assert 0 < manifest["ab"]["spent_s"] < 60
    folders.update_manifest(path, ab={**manifest["ab"], "budget_s": manifest["ab"]["spent_s"] + 2})
    assert_ended(warm("resume", path.name, "--no-plots"))
    again = (path / "samples.jsonl").read_bytes()
    assert again.startswith(kept) and len(again) > len(kept)


@pytest.mark.slow
def test_a_side_can_have_variables_and_an_interpreter_of_its_own(cli):
    variables = ("--b", "GLOO_LOG_LEVEL=WARN", "--b", "OMP_NUM_THREADS=2")
    options = ("--budget", "7s", "--a", f"python={sys.executable}", "--no-plots")
    done = cli("ab", cli.config(IN_TURNS), "--aa", *variables, *options)
    assert_ended(done)
    (path,) = cli.runs()
    assert_took_turns({side: [s for s in folders.read(path / side).samples if s.launch == 1] for side in "ab"})
    a, b = (folders.read(path / side).environment[0]["launches"][0]["ranks"] for side in "ab")
    assert {rank["variables"].get("GLOO_LOG_LEVEL") for rank in a} == {None}
    assert {rank["variables"].get("GLOO_LOG_LEVEL") for rank in b} == {"WARN"}
    assert {rank["variables"]["OMP_NUM_THREADS"] for rank in b} == {"2"}
    assert "GLOO_LOG_LEVEL" in done.stdout
    assert_nothing_left(cli)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGKILL, 2, "side [AB]: .* was ended by SIGKILL"), (signal.SIGTERM, 130, "")]
)
def test_the_end_of_a_sides_process_ends_the_run_which_can_be_resumed(cli, number, code, words):
    process = cli.start("ab", cli.config(), "--aa", "--b", "OMP_NUM_THREADS=2", "--no-plots")
    wait_for_samples(cli, 2)
    sides = [child for child in psutil.Process(process.pid).children() if "side_worker" in "".join(child.cmdline())]
    sides[0].send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and re.search(words, err) and "go on with: collbench resume" in err, err
    assert_nothing_left(cli)


@pytest.mark.slow
def test_sides_whose_ranks_cannot_be_alive_at_once_alternate_and_the_reason_is_reported(warm, monkeypatch):
    monkeypatch.setattr(planning, "reason_to_alternate", lambda *_: EXCLUSIVE_GPU())
    done = warm("ab", warm.config(), "--aa", "--budget", "6s", "--no-plots")
    assert_ended(done)
    (path,) = warm.runs()
    (first_a, last_a), (first_b, last_b) = (
        [ends([s.base_ns + s.timed.start_ns.min() for s in folders.read(path / side).samples if s.launch == 1])
         for ends in (min, max)]
        for side in "ab"
    )  # fmt: skip
    assert last_a < first_b or last_b < first_a
    assert "exclusive mode" in done.stderr and "exclusive mode" in (path / "report.md").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--b", "nonsense"], "=VALUE"),
        (["--b", "python=/nowhere/python"], "cannot be started"),
        (["--budget", "soon"], "--budget"),
        (["--budget", "0s"], "a verdict needs 6 pairs"),
        (["--budget", "10s", "--set", "sampling.seconds_per_case=10", "--set", "sampling.iterations=null"], "6 pairs"),
        (["--min-change", "5"], "--min-change"),
        (["--b", "benchmark=training"], "unknown key"),
        (["--b", "budget=5s"], "a budget of its own"),
        (["--b", "sizes=[1KiB]"], "not clear"),
    ],
)
def test_nonsense_is_refused_in_one_line_before_anything_is_measured(warm, options, words):
    done = warm("ab", warm.config(), "--aa", *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr and not warm.runs()


@pytest.mark.slow
def test_training_has_sides_too(warm, monkeypatch):
    monkeypatch.setattr(pairs, "LOOKS", (2,))  # two pairs suffice for a table
    monkeypatch.setattr(pairs, "FEWEST_PAIRS", 2)
    text = "\n".join(
        ["backends: [gloo]", "world_sizes: [2]", "training: {models: [nano], strategies: [flat], rounds: 3, steps: 2}"]
    )
    done = warm("ab", warm.config(text), "--b", "training.batch=2", "--budget", "250s", "--no-plots", timeout=300)
    assert_ended(done)
    assert "flat" in done.stdout and "nano" in done.stdout and "batch 4 a rank → batch 2 a rank" in done.stdout
