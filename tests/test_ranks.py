"""A late rank is named with its delay; its victims are not named, and no rank is named if chance explains the delay.

If ranks have different clocks, their offset is bounded, arrivals are on one clock, and uncertainty is respected.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clock_ranks import move_clock
from collbench.analyze import ranks
from collbench.analyze.analysis import diagnose
from collbench.launch.launcher import Launcher
from collbench.launch.ranks import NO_LOG
from collbench.model.records import Case
from conftest import TINY, invented_run, samples
from proof.rig import Rig

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)


def run_of(n, late=None, delay_s=0.0, seed=0, launches=3, count=60, share=1.0):
    """Return a run whose ranks arrive with 50 µs of jitter; an operation ends for all 1 ms after the last arrival."""
    rng = np.random.default_rng(seed)
    case = replace(CASE, world_size=n)
    made = []
    for launch in range(1, launches + 1):
        arrive = rng.exponential(50e3, (count, n))
        if late is not None:
            arrive[rng.random(count) < share, late] += delay_s * 1e9
        end = arrive.max(axis=1, keepdims=True) + 1e6 * rng.lognormal(0, 0.1, (count, 1))
        made.append(samples(case, launch, end - arrive, arrive))
    return invented_run(made, launches=launches)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_late_rank_is_named_with_its_delay(n):
    (finding,) = ranks.late_ranks(run_of(n, late=1, delay_s=2e-3))
    assert finding.rank == 1
    assert finding.cost_s == pytest.approx(2e-3, rel=0.05)
    assert finding.share > 0.95 and finding.p < 1e-6


def test_the_late_rank_is_also_named_without_a_common_clock():
    run = run_of(4, late=2, delay_s=2e-3)
    run.environment.append({"launches": [{"ranks": [{"clock": "a"}, {"clock": "b"}]}]})
    (finding,) = ranks.late_ranks(run)
    assert finding.rank == 2
    assert finding.cost_s == pytest.approx(2e-3, rel=0.05)


@pytest.mark.parametrize("n", [2, 4])
def test_without_a_fault_no_rank_is_named(n):
    named = [bool(ranks.late_ranks(run_of(n, seed=seed))) for seed in range(60)]
    assert sum(named) <= 1


# ── ranks with different clocks ──────────────────────────────────────────────────────────────────
AHEAD_S = 100
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


def test_a_late_rank_is_named_across_clocks(run):
    (finding,) = diagnose(run).findings
    assert finding.rank == 1
    assert finding.cost_s == pytest.approx(30e-3, rel=0.2)


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
