"""Every run adds a line to the noise ledger; the between-run variance follows from these lines."""

import math
import multiprocessing as mp
import os
import subprocess
import sys

import pytest
from scipy.special import stdtrit

from collbench.analyze.between_run import smallest_changes
from collbench.analyze.comparability import machine_of_sessions
from collbench.config import models
from collbench.machine import environment, host
from collbench.model.records import Case
from collbench.planning import plan
from collbench.store import ledger
from collbench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity
from conftest import ROOT, SAMPLING

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
CPU = {"model": "EPYC", "usable_cores": 2}
FACTS = {"hostname": "a", "cpu": CPU, "boot_id": "boot 1", "kernel": "6.1", "packages": {"torch": "2.8"}}
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
    assert sorted(line.run for line in ledger.read(tmp_path)) == sorted(f"run-{number}" for number in range(100))


def test_torn_and_later_lines_are_skipped_and_a_resumed_run_counts_once(tmp_path):
    for level in (1e-3, 2e-3):
        ledger.append(tmp_path, entry(1, level))
    with (tmp_path / ledger.FILE).open("ab") as file:
        file.write(b'{"run": "later"}\n{"run": "torn')
    (line,) = ledger.read(tmp_path)
    assert line.run == "run-1" and line.cases[CASE.key].mean_s == 2e-3
    assert ledger.read(tmp_path / "nowhere") == []


def test_the_smallest_change_shrinks_with_launches_but_not_below_between_run_scatter():
    equal_entries = [entry(number) for number in range(8)]
    few, many = (smallest_changes(equal_entries, HERE, launches, [CASE.key])[CASE.key] for launches in (4, 32))
    assert few == pytest.approx(math.expm1(stdtrit(6, 0.975) * 0.1 * math.sqrt(2 / 4)), rel=1e-3)
    assert few / many > 2.5
    assert smallest_changes(equal_entries, HERE, 1, [CASE.key]) == {}
    # With too few runs, the between-run variance is assumed to equal the variance of launches.
    unknown = smallest_changes(equal_entries[:7], HERE, 4, [CASE.key])[CASE.key]
    assert unknown == pytest.approx(math.expm1(stdtrit(6, 0.975) * 0.1 * math.sqrt(2 / 4 + 2)), rel=1e-3)
    apart = [entry(number, 1e-3 * (1 + 0.2 * (number % 2))) for number in range(8)]
    assert smallest_changes(apart, HERE, 10_000, [CASE.key])[CASE.key] > 0.2


def test_planning_with_a_ledger_loads_no_large_package(tmp_path, monkeypatch):
    """`plan` answers in half a second: numpy and scipy would double the time."""
    clean = {**os.environ}
    monkeypatch.setattr(os, "environ", {**clean})
    environment.prepare_process()
    (tmp_path / "results").mkdir()
    smoke = models.parse((ROOT / "configs" / "smoke.yaml").read_bytes(), "smoke.yaml", [], "smoke")
    here = machine_of_sessions([{"host": host.facts()}], plan.expand(smoke, host.machine(), 1).settings.sampling)
    ledger.append(tmp_path / "results", entry(1, machine=here))
    code = (
        "import sys; from collbench.__main__ import main; assert not main(['plan', 'smoke', '--set', 'launches=4'])\n"
    )
    code += "heavy = {'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules); assert not heavy, heavy"
    environ = {**clean, "PYTHONPATH": str(ROOT / "bench")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two runs like this can typically detect changes of more than" in done.stdout
