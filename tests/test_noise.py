"""Every run adds its line to the noise ledger, and what occasions differ by follows from them. A pilot run says how
much more is needed, by Kalibera and Jones, and says when it cannot.
"""

import dataclasses
import multiprocessing as mp

import numpy as np
import pytest

from bench.analyze.analysis import analyze
from bench.analyze.noise import entry_of, needs, occasions, smallest_changes
from bench.analyze.summaries import summarize
from bench.model.errors import StoreError
from bench.model.records import Case, Fault
from bench.store import ledger
from bench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity
from conftest import invented_run, samples

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
HERE = MachineIdentity("a", "EPYC", "2", "none", "boot 1")
FACTS = {"hostname": "a", "cpu": {"model": "EPYC", "usable_cores": 2}, "boot_id": "boot 1"}


def entry(number: int, level: float = 1e-3, launch: float = 0.1, machine: MachineIdentity = HERE) -> LedgerEntry:
    noise = CaseNoise(8, level, level, launch, launch, 0.05, 0.2)
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
    assert one.cases[CASE.key].median_s == 2e-3


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
    assert 0.1 < noise.launch < 0.4 and 0.07 < noise.block < 0.13 and noise.iteration > noise.block
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
    assert not occasions(entries, dataclasses.replace(HERE, cpu="Xeon"))
    assert not occasions(entries, HERE, without={"run-3"})


def test_the_smallest_change_shrinks_with_launches_but_not_below_what_occasions_differ_by():
    alike = [entry(number) for number in range(8)]
    few, many = (smallest_changes(alike, HERE, launches, [CASE.key])[CASE.key] for launches in (4, 32))
    assert 0.15 < few < 0.22 and few / many > 2.5
    apart = [entry(number, 1e-3 * (1 + 0.2 * (number % 2))) for number in range(8)]
    assert smallest_changes(apart, HERE, 10_000, [CASE.key])[CASE.key] > 0.2


# ── a pilot run ──────────────────────────────────────────────────────────────────────────────────
def run_of(launches, between, within=0.05, count=60, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for launch in range(1, launches + 1):
        times = 1e6 * np.exp(between * rng.normal()) * rng.lognormal(0, within, (count, 1))
        made.append(samples(CASE, launch, np.repeat(times, 2, axis=1)))
    return invented_run(made, launches=launches)


def need_of(run, precision):
    (need,) = needs(run, summarize(run), precision)
    return need


def test_more_precision_needs_more_launches():
    run = run_of(10, 0.1)
    assert need_of(run, 0.10).launches < need_of(run, 0.05).launches < need_of(run, 0.02).launches


def test_what_it_asks_for_reaches_the_precision():
    """New runs of the size that it asks for are as narrow as wanted in the middle of them."""
    need = need_of(run_of(30, 0.1), 0.05)
    widths = []
    for seed in range(1, 40):
        (summary,) = summarize(run_of(need.launches, 0.1, count=max(6, need.iterations), seed=seed))
        widths.append(summary.time_s.relative_half_width)
    assert np.median(widths) == pytest.approx(0.05, rel=0.35)


def test_launches_that_differ_want_few_iterations_each():
    assert need_of(run_of(10, 0.2), 0.05).iterations < need_of(run_of(10, 0.005, within=0.3), 0.05).iterations


def test_one_launch_cannot_tell():
    need = need_of(run_of(1, 0.1), 0.05)
    assert need.launches is None and "one launch" in need.note
