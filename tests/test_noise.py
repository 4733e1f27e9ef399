"""Every run adds its line to the noise ledger, and what occasions differ by follows from them. A pilot run says how
much more is needed, by Kalibera and Jones, and says when it cannot.
"""

import dataclasses
import math
import multiprocessing as mp
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import stdtrit

from bench.analyze.analysis import analyze
from bench.analyze.noise import entry_of, needs
from bench.analyze.occasions import occasions, smallest_changes
from bench.analyze.sessions import machine_of_sessions
from bench.analyze.summaries import summarize
from bench.catalog.backends import BACKENDS
from bench.cli.measuring import planned
from bench.config import models
from bench.machine import host
from bench.model.errors import StoreError
from bench.model.records import Case, Fault
from bench.store import ledger
from bench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity
from conftest import ROOT, SAMPLING, invented_run, samples

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
FACTS = {
    "hostname": "a",
    "cpu": {"model": "EPYC", "usable_cores": 2},
    "boot_id": "boot 1",
    "kernel": "6.1",
    "packages": {"torch": "2.8"},
}
HERE = machine_of_sessions([{"host": FACTS}], SAMPLING)


def entry(number: int, level: float = 1e-3, launch: float = 0.1, machine: MachineIdentity = HERE) -> LedgerEntry:
    noise = CaseNoise(8, level, launch, 0.05)
    return LedgerEntry(f"run-{number}", "2026-01-01T00:00:00+00:00", machine, {CASE.key: noise})


def append_many(root, first: int) -> None:
    for number in range(first, first + 50):
        ledger.append(root, entry(number))


def test_two_runs_that_end_together_lose_no_line(tmp_path):
    writers = [mp.get_context("fork").Process(target=append_many, args=(tmp_path, first)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(one.run for one in ledger.read(tmp_path)) == sorted(f"run-{number}" for number in range(100))


def test_a_torn_line_and_one_of_a_later_version_are_passed_over(tmp_path):
    ledger.append(tmp_path, entry(1))
    with (tmp_path / ledger.FILE).open("ab") as file:
        file.write(b'{"run": "later"}\n{"run": "torn')
    assert [one.run for one in ledger.read(tmp_path)] == ["run-1"]
    assert ledger.read(tmp_path / "nowhere") == []


def test_a_run_that_was_resumed_counts_once(tmp_path):
    for level in (1e-3, 2e-3):
        ledger.append(tmp_path, entry(1, level))
    (one,) = ledger.read(tmp_path)
    assert one.cases[CASE.key].mean_s == 2e-3


def test_a_full_disk_is_one_line_and_leaves_whole_lines(small_disk):
    with pytest.raises(StoreError, match="the disk is full"):
        for number in range(10_000):
            ledger.append(small_disk, entry(number))
    assert (small_disk / ledger.FILE).read_bytes().endswith(b"\n")


def test_the_line_of_a_run_has_what_scatters_at_each_level():
    dice = np.random.default_rng(1)
    made = []
    for launch in range(1, 9):
        level = 1e6 * np.exp(0.2 * dice.normal())
        blocks = level * np.exp(0.1 * dice.normal(size=(6, 1)) + 0.05 * dice.normal(size=(6, 30)))
        one = samples(CASE, launch, np.stack([blocks.ravel()] * 2, axis=1))
        made.append(dataclasses.replace(one, timed=dataclasses.replace(one.timed, blocks=(30,) * 6)))
    run = dataclasses.replace(invented_run(made, launches=8), environment=[{"host": FACTS}])
    found = entry_of(run, analyze(run))
    noise = found.cases[CASE.key]
    assert found.machine == HERE
    assert 0.1 < noise.launch < 0.4 and 0.07 < noise.block < 0.13
    settings = dataclasses.replace(run.plan.settings, faults=(Fault("late", 1),))
    faulty = dataclasses.replace(run, plan=dataclasses.replace(run.plan, settings=settings))
    assert entry_of(faulty, analyze(faulty)) is None


def test_what_occasions_differ_by_is_found_beside_what_launches_do():
    dice = np.random.default_rng(2)
    found = []
    for _ in range(200):
        levels = 1e-3 * np.exp(0.2 * dice.normal(size=8) + 0.1 / np.sqrt(8) * dice.normal(size=8))
        entries = [entry(number, level) for number, level in enumerate(levels)]
        scatter, freedom = occasions(entries, HERE)[CASE.key]
        assert 1 <= freedom < 7  # what launches explain has been subtracted
        found.append(scatter**2)
    assert 0.17 < np.sqrt(np.mean(found)) < 0.23


def test_only_enough_runs_of_the_same_machine_count():
    entries = [entry(number) for number in range(8)]
    assert CASE.key in occasions(entries, dataclasses.replace(HERE, boot="boot 2"))
    for field in dataclasses.fields(HERE):
        changed = occasions(entries, dataclasses.replace(HERE, **{field.name: "another"}))
        assert (CASE.key in changed) is (field.name in {"boot", "nccl"}), field.name
    assert not occasions(entries, HERE, without={"run-3"})


def test_an_upgrade_of_nccl_is_no_noise_but_plan_need_not_know_its_version():
    old, new = (dataclasses.replace(HERE, nccl=version) for version in ("2.27", "2.28"))
    assert old.is_same(HERE) and HERE.is_same(new) and not old.is_same(new)


def test_the_smallest_change_shrinks_with_launches_but_not_below_what_occasions_differ_by():
    alike = [entry(number) for number in range(8)]
    few, many = (smallest_changes(alike, HERE, launches, [CASE.key])[CASE.key] for launches in (4, 32))
    assert few == pytest.approx(math.expm1(stdtrit(6, 0.975) * 0.1 * math.sqrt(2 / 4)), rel=1e-3)
    assert few / many > 2.5
    assert smallest_changes(alike, HERE, 1, [CASE.key]) == {}
    # Too few runs to tell what occasions differ by: as much as launches do.
    unknown = smallest_changes(alike[:7], HERE, 4, [CASE.key])[CASE.key]
    assert unknown == pytest.approx(math.expm1(stdtrit(6, 0.975) * 0.1 * math.sqrt(2 / 4 + 2)), rel=1e-3)
    apart = [entry(number, 1e-3 * (1 + 0.2 * (number % 2))) for number in range(8)]
    assert smallest_changes(apart, HERE, 10_000, [CASE.key])[CASE.key] > 0.2


def test_planning_with_a_ledger_loads_no_large_package(tmp_path):
    """`plan` answers in half a second: numpy and scipy would double that."""
    (tmp_path / "results").mkdir()
    smoke = models.parse((ROOT / "configs" / "smoke.yaml").read_bytes(), "smoke.yaml", [], "smoke")
    here = machine_of_sessions([{"host": host.facts()}], planned(smoke, host.machine(), 1, None).settings.sampling)
    ledger.append(tmp_path / "results", entry(1, machine=here))
    code = "import sys, run_bench; assert run_bench.main(['plan', 'smoke', '--set', 'launches=4']) == 0; "
    code += "heavy = {'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "two such runs would show a change of" in done.stdout


# ── a pilot run ──────────────────────────────────────────────────────────────────────────────────
BLOCK_S, LAUNCH_S, START_S = 0.01, 0.05, BACKENDS["gloo"].start_s
EACH = 10


def run_of(launches, between, of_blocks, blocks=6, seed=0):
    """Launches of which the variances are known, and of which each takes LAUNCH_S besides its blocks.

    An hour of other cases lies between two blocks, and costs this one nothing.
    """
    rng = np.random.default_rng(seed)
    made = []
    for launch in range(1, launches + 1):
        levels = np.exp(between * rng.normal() + of_blocks * rng.normal(size=blocks))
        durations = np.repeat(np.round(BLOCK_S / EACH * 1e9 * levels), EACH)[:, None] * np.ones(2)
        starts = np.cumsum(durations, axis=0) - durations + np.repeat(np.arange(blocks), EACH)[:, None] * 3600e9
        one = samples(CASE, launch, durations, starts)
        usage = dataclasses.replace(one.usage, wall_s=LAUNCH_S + float(durations[:, 0].sum()) / 1e9)
        timed = dataclasses.replace(one.timed, blocks=(EACH,) * blocks)
        made.append(dataclasses.replace(one, timed=timed, usage=usage))
    return invented_run(made, launches=launches)


def need_of(run, precision):
    ((need,), _) = needs(run, summarize(run), precision)
    return need


def test_more_precision_needs_more_launches():
    run = run_of(10, 0.1, 0.1)
    assert need_of(run, 0.10).launches < need_of(run, 0.05).launches < need_of(run, 0.02).launches


@pytest.mark.parametrize(("between", "of_blocks"), [(0.1, 0.05), (0.1, 0.4), (0.0, 0.4)])
def test_what_it_asks_for_reaches_the_precision_in_the_time_that_it_says(between, of_blocks):
    """New runs of the size that it asks for are as narrow as wanted in the middle of them."""
    need = need_of(run_of(40, between, of_blocks), 0.05)
    blocks = round(need.iterations / EACH)
    runs = [run_of(need.launches, between, of_blocks, blocks, seed) for seed in range(1, 40)]
    widths = [summarize(run)[0].time_s.relative_half_width for run in runs]
    assert np.median(widths) == pytest.approx(0.05, rel=0.35)
    seconds = [sum(one.usage.wall_s for one in run.samples) for run in runs]
    assert need.seconds == pytest.approx(np.mean(seconds) + need.launches * START_S, rel=0.15)


def test_nothing_cheaper_would_do():
    """Against what is known of the variances: Kalibera and Jones' best division, and Student's quantile of it."""
    need = need_of(run_of(200, 0.1, 0.4), 0.02)
    best = math.sqrt((LAUNCH_S + START_S) / BLOCK_S * 0.4**2 / 0.1**2)
    launches = 1.96**2 * (0.1**2 + 0.4**2 / best) / math.log(1.02) ** 2
    seconds = launches * (LAUNCH_S + START_S + best * BLOCK_S * math.exp((0.1**2 + 0.4**2) / 2))
    assert need.seconds == pytest.approx(seconds, rel=0.15)


def test_launches_that_differ_want_few_blocks_each():
    assert need_of(run_of(10, 0.2, 0.05), 0.05).iterations < need_of(run_of(10, 0.005, 0.3), 0.05).iterations


def test_one_setting_for_all_suffices_for_the_worst_case():
    small, large = run_of(20, 0.05, 0.2), run_of(20, 0.2, 0.2, seed=1)
    other = dataclasses.replace(CASE, size_bytes=8192)
    both = invented_run([*small.samples, *(dataclasses.replace(s, case=other) for s in large.samples)], launches=20)
    of_cases, together = needs(both, summarize(both), 0.05)
    assert together.seconds == pytest.approx(sum(need.seconds for need in of_cases))
    assert together.launches >= max(need.launches for need in of_cases) * 0.7
    assert together.uniform_s > together.seconds


def test_one_launch_cannot_tell_nor_can_launches_of_few_blocks():
    need = need_of(run_of(1, 0.1, 0.1), 0.05)
    assert need.launches is None and "one launch" in need.note
    need = need_of(run_of(8, 0.1, 0.1, blocks=3), 0.05)
    assert need.launches is None and "fewer than 4 blocks" in need.note
