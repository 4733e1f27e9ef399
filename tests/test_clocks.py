"""If ranks have different clocks, their offset is bounded, arrivals are on one clock, and uncertainty is respected."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clock_ranks import move_clock
from collbench.analyze.analysis import diagnose
from collbench.analyze.sessions import Clocks
from collbench.analyze.summaries import summarize
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import NO_LOG
from collbench.model.records import Case
from conftest import TINY, invented_run, samples
from proof.rig import Rig

AHEAD_S = 100
CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
SWEEP = TINY.replace("warmup: 1", "warmup: 2").replace("iterations: 8", "iterations: 60")


@dataclass
class Elsewhere:
    """A launcher whose ranks, except the first, read another clock."""

    launcher: Launcher

    def start(self, world_size: int, target: str, job: Any, log: Path = NO_LOG) -> Any:
        return self.launcher.start(world_size, "clock_ranks:enter", (AHEAD_S, target, job), log)


@pytest.fixture(scope="module")
def run(tmp_path_factory, launcher):
    """Return a run in which rank 1 has a clock that is ahead, and is late for the larger size."""
    child = os.fork()
    if child == 0:
        os._exit(1 if move_clock(1) else 0)
    if os.waitpid(child, 0)[1]:
        pytest.skip("time namespaces are refused here")
    rig = Rig(launcher, tmp_path_factory.mktemp("clocks"))
    return rig.measure(SWEEP + "faults: [{do: late, rank: 1, delay: 30ms, size: 64KiB}]\n", Elsewhere(launcher))


def test_a_clock_that_is_ahead_is_bounded_and_taken_off(run):
    (launch,) = run.environment[0]["launches"]
    for side in launch["clocks"]:
        (_, low, high) = side[1]
        assert low <= AHEAD_S * 10**9 <= high
        assert high - low < 50e6
    (in_time,) = [s for s in run.samples if s.case.size_bytes == 4096]
    raw = np.median(np.ptp(in_time.timed.start_ns, axis=1)) / 1e9
    assert raw == pytest.approx(AHEAD_S, rel=0.01)
    aligned = Clocks(run).aligned(in_time)
    assert np.median(np.ptp(aligned.timings.start_ns, axis=1)) / 1e9 < aligned.uncertainty_s + 0.05
    (summary,) = [summary for summary in summarize(run) if summary.case.size_bytes == 4096]
    assert summary.skew_s is None or summary.skew_s < 0.05


def test_a_late_rank_is_named_across_clocks(run):
    (finding,) = diagnose(run).findings
    assert finding.rank == 1
    assert finding.cost_s == pytest.approx(30e-3, rel=0.2)


def test_one_clock_has_no_uncertainty():
    run = invented_run([samples(CASE, 1, [[1e6, 1e6]] * 8)])
    assert Clocks(run).aligned(run.samples[0]).uncertainty_s == 0


def run_with(low_ns, high_ns, late_ns):
    rng = np.random.default_rng(1)
    arrive = rng.exponential(20e3, (80, 2))
    arrive[:, 1] += late_ns
    end = arrive.max(axis=1, keepdims=True) + 1e6
    run = invented_run([samples(CASE, 1, end - arrive, arrive + np.array([0, 5e9]))])
    sides = [[[0, 0, 0], [at, 5 * 10**9 + low_ns, 5 * 10**9 + high_ns]] for at in (0, 10**9)]
    ranks = [{"rank": 0, "clock": "a"}, {"rank": 1, "clock": "b"}]
    run.environment.append(
        {"launches": [{"backend": "gloo", "world_size": 2, "launch": 1, "ranks": ranks, "clocks": sides}]}
    )
    return run


def test_nobody_is_late_by_less_than_the_uncertainty():
    assert [f.rank for f in diagnose(run_with(-(10**4), 10**4, 5e5)).findings] == [1]
    assert not diagnose(run_with(-(10**6), 10**6, 5e5)).findings


def test_after_a_failure_nothing_is_known_of_the_clocks():
    run = run_with(-(10**4), 10**4, 5e5)
    run.environment[0]["launches"] *= 2
    assert Clocks(run).aligned(run.samples[0]) is None
    (summary,) = summarize(run)
    assert summary.skew_s is None
