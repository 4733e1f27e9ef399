"""Every run adds its line to the noise ledger, and what occasions differ by follows from them."""

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
from bench.analyze.noise import entry_of
from bench.analyze.occasions import occasions, smallest_changes
from bench.analyze.sessions import machine_of_sessions
from bench.config import models
from bench.machine import host
from bench.model.errors import StoreError
from bench.model.records import Case, Fault
from bench.planning import plan
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
    here = machine_of_sessions([{"host": host.facts()}], plan.expand(smoke, host.machine(), 1).settings.sampling)
    ledger.append(tmp_path / "results", entry(1, machine=here))
    code = "import sys, run_bench; assert run_bench.main(['plan', 'smoke', '--set', 'launches=4']) == 0; "
    code += "heavy = {'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "two runs like this can typically tell changes of more than" in done.stdout
