"""Two sides whose ranks are alive at once: one side measures, the other sleeps, and a fault costs only its own side."""

import itertools
import random
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from collbench.launch import sweep
from collbench.launch.mpirun import MpiLauncher
from collbench.launch.ranks import RANK
from collbench.launch.supervisor import run_launch
from collbench.launch.turns import Turns, drive
from collbench.machine import host
from collbench.model.records import Case, Fault, Job, Launch, Plan, Samples, Settings
from collbench.report.notices import sentence
from conftest import SAMPLING, TINY

CASES = tuple(Case("all_reduce", "gloo", 2, "float32", size) for size in (4096, 65536))
# Enough iterations for four blocks of each case.
SETTINGS = Settings(replace(SAMPLING, warmup=1, iterations=24), 7, 60.0, 0)
IN_TURNS = TINY.replace("iterations: 8", "iterations: 24").replace("10s", "60s")


# ── order of turns ───────────────────────────────────────────────────────────────────────────────
class FakeSide:
    """Ranks that ask for turns; `has_turn` is true until they ask again."""

    def __init__(self, turns, name, alive=()):
        self.name, self.turn, self.alive = name, turns.of(name), alive
        self.has_turn, self.waits, self.turns_had = False, False, 0

    def ask(self):
        self.waits, self.has_turn = True, False
        self.turn.ask(self.granted)

    def granted(self):
        assert self.waits, "a side was granted a turn for which it did not ask"
        assert all(side.waits for side in self.alive), "a side was granted a turn while another was busy"
        self.waits, self.has_turn, self.turns_had = False, True, self.turns_had + 1

    def leave(self):
        self.waits = self.has_turn = False
        self.turn.leave()


@pytest.mark.parametrize("seed", range(20))
def test_one_side_measures_at_a_time_and_only_while_the_other_waits(seed):
    """This holds whatever the sides do, in any order: ask, end processes and start others, end."""
    dice = random.Random(seed)
    turns = Turns("ab", str(seed))
    alive: list[FakeSide] = []
    alive += [FakeSide(turns, name, alive) for name in "ab"]
    for _ in range(300):
        side, action = dice.choice(alive), dice.random()
        if action < 0.05:
            side.leave()
        elif action < 0.06 and len(alive) > 1:
            side.leave()
            alive.remove(side)
            turns.end(side.name)
        elif not side.waits:
            side.ask()
        assert sum(side.has_turn for side in alive) <= 1
        assert not all(side.waits for side in alive), "all wait, and nobody is granted a turn"
    assert all(side.turns_had for side in alive)


# ── for real ─────────────────────────────────────────────────────────────────────────────────────
def measured_in_turns(launcher, folder, **faults) -> dict[str, list[Samples]]:
    """Return the samples of two sides in one pair of launches. faults: by side."""
    turns, lines = Turns("ab", "1"), {"a": [], "b": []}

    def measure(side):
        settings = replace(SETTINGS, faults=faults.get(side, ()), timeout_s=2.0 if faults else 60.0)
        plan = Plan("turns", (Launch("gloo", 2, 1, CASES),), (), 1, settings)
        files, taken = folder / "log.txt", lines[side].append
        yield from sweep.sweep(plan, [], launcher, taken, files, lambda _: None, turn=turns.of(side))
        turns.end(side)

    drive(*map(measure, lines))
    return {side: [line.samples for line in side_lines] for side, side_lines in lines.items()}


def assert_took_turns(sides: dict[str, list[Samples]]) -> None:
    """Assert that blocks of the sides do not overlap, and that each pair of blocks has one block per side."""
    blocks = []
    for side, samples in sides.items():
        for sample in samples:
            starts = sample.base_ns + sample.timed.start_ns
            ends = starts + sample.timed.duration_ns
            for rows in np.split(np.arange(len(starts)), np.cumsum(sample.timed.blocks)[:-1]):
                blocks.append((starts[rows].min(), ends[rows].max(), side))
    blocks.sort()
    assert len(blocks) >= 16
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(blocks))
    order = "".join(side for _, _, side in blocks)
    assert {order[at : at + 2] for at in range(0, len(order), 2)} <= {"ab", "ba"}, order


def test_blocks_of_two_sides_alternate_and_never_overlap(launcher, tmp_path):
    sides = measured_in_turns(launcher, tmp_path)
    assert {len(sample.timed.blocks) for samples in sides.values() for sample in samples} == {4}
    assert_took_turns(sides)


@pytest.mark.slow
@pytest.mark.parametrize(("do", "kind"), [("kill", "killed"), ("stop", "hang")])
def test_a_fault_of_one_side_costs_its_case_and_the_other_side_nothing(launcher, tmp_path, do, kind):
    """A hang ends at the deadline; the other side, which waits all the time, is not a hang."""
    fault = Fault(do, rank=1, iteration=3, size_bytes=CASES[0].size_bytes)
    sides = measured_in_turns(launcher, tmp_path, b=(fault,))
    failures = {
        side: {s.case.size_bytes: s.failure and (s.failure.kind, s.failure.rank) for s in samples}
        for side, samples in sides.items()
    }
    assert failures == {"a": {4096: None, 65536: None}, "b": {4096: (kind, 1), 65536: None}}


class GrantedLate:
    """The turns of a side that waits a second for its first turn."""

    granted = None

    def ask(self, granted):
        if self.granted is None:
            self.granted = granted
        else:
            granted()

    def leave(self): ...

    def other_side(self, ranks):
        """Wait for a second after the ranks ask; return the CPU time that each rank used meanwhile."""
        while self.granted is None:
            yield []
        before, end = [cpu_s(rank) for rank in ranks.members], time.monotonic() + 1.0
        while time.monotonic() < end:
            yield []
        used = [cpu_s(rank) - earlier for rank, earlier in zip(ranks.members, before, strict=True)]
        self.granted()
        return used


def cpu_s(rank) -> float:
    times = psutil.Process(rank.process.pid).cpu_times()
    return times.user + times.system


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_ranks_that_wait_for_their_turn_use_no_cpu(launcher, tmp_path, backend):
    if (reason := host.machine().backends_missing.get(backend)) is not None:
        pytest.skip(sentence(reason))
    cases = tuple(replace(case, backend=backend) for case in CASES)
    job = Job(Launch(backend, 2, 1, cases), SETTINGS, in_turns_s=(0.05, 0.05))
    turn, starter = GrantedLate(), MpiLauncher(launcher) if backend == "mpi" else launcher
    ranks, took = starter.start(2, RANK, job, tmp_path / "log.txt"), []
    watching = run_launch(lambda: ranks, 60.0, sampled=lambda *line: took.append(line), turn=turn)
    outcome, used_s = drive(watching, turn.other_side(ranks))
    assert outcome.failure is None and len(took) == len(cases)
    assert max(used_s) < 0.2, "of a second"
