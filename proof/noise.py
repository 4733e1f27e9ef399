"""Noise of real launches, for claims that real runs are too slow to show: ten sets that were measured one by one.

One set of launches, however long, says what one stretch of time was like: sets of 64 launches gave 43, 87 and 120 of
2000 false verdicts for one unchanged code. So there are ten, and the spread between them stands beside each rate.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.model.records import Case, Run
from bench.packages.training.analyze import steps as training
from proof.rig import Rig

SETS, QUICK_SETS, LAUNCHES = 10, 2, 16
SWEEP = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: {launches}
sizes: [64KiB, 1MiB, 16MiB]
sampling: {{seconds_per_case: {seconds}}}
timeout: 60s
"""
# One launch of so many seconds a case, in which a launch of the default length fits several times.
LONG_S, STRETCH = 2.0, 5
STEPS_LAUNCHES = 8
STEPS = """
backends: [gloo]
world_sizes: [2]
launches: {launches}
training:
  models: [nano]
  batch: 1
  rounds: 6
  steps: 2
  max_foreign_cpu: 99%
  strategies: [flat, naive]
"""


@dataclass(frozen=True)
class Noise:
    """logs: of the means of launches, shape (cases, launches), less their mean over launches. run: that they are of."""

    logs: np.ndarray
    run: Run

    def launches(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(cases, count): launches at random, all cases of a launch together."""
        return self.logs[:, rng.integers(0, self.logs.shape[1], count)]

    def pairs(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(2, cases, count): launches that followed each other."""
        first = rng.integers(0, self.logs.shape[1] - 1, count)
        return np.stack([self.logs[:, first], self.logs[:, first + 1]])


def sweep(scheduling: str) -> str:
    """The configuration of one set."""
    return SWEEP.format(launches=LAUNCHES, seconds=0.12) + f"scheduling: [{scheduling}]\n"


@functools.cache
def sets(rig: Rig) -> list[Noise]:
    """The ten sets of launches; a quick proof has two."""
    found = []
    for _ in range(QUICK_SETS if rig.quick else SETS):
        run = rig.measure(sweep("normal"))
        means = {(s.case, s.launch): s.timed.slowest_s.mean() for s in run.samples}
        logs = np.log([[means[case, launch] for launch in range(1, LAUNCHES + 1)] for case in run.plan.cases])
        found.append(Noise(logs - logs.mean(axis=1, keepdims=True), run))
    return found


def long_launches(rig: Rig, count: int) -> list[list[tuple[np.ndarray, tuple[int, ...]]]]:
    """Of each long launch, for each size: times of the iterations, and iterations in each block."""
    runs = [rig.measure(SWEEP.format(launches=1, seconds=LONG_S)) for _ in range(count)]
    return [[(s.timed.slowest_s, s.timed.blocks) for s in run.samples] for run in runs]


Pair = tuple[Case, Case]


def differences_of_steps(
    rig: Rig, count: int
) -> list[tuple[dict[Pair, training.Series], dict[Pair, tuple[float, float]]]]:
    """Of each set of launches: by what steps of each strategy take longer than its reference, and the levels of both.

    Differences are taken round by round.
    """
    found = []
    for _ in range(count):
        run = rig.measure(STEPS.format(launches=STEPS_LAUNCHES))
        ((scenario, cases),) = training.scenarios_of(run).items()
        rounds = training.rounds_of(run, scenario)
        differences_s = training.differences_of(rounds, cases)
        found.append((differences_s, training.levels_of(rounds, differences_s)))
    return found


def spread(rates: Sequence[float]) -> str:
    """Such as `; by set 1.5% to 4.0%`."""
    return f"; by set {min(rates):.1%} to {max(rates):.1%}"


def by_set(
    rig: Rig, trials: int, seed: int, trial: Callable[[Noise, np.random.Generator], bool]
) -> tuple[int, int, str]:
    """Hits of a simulated trial on the sets, trials that were made, equally many on each, and the spread of rates."""
    rng, each = np.random.default_rng(seed), trials // len(sets(rig))
    hits = [sum(trial(noise, rng) for _ in range(each)) for noise in sets(rig)]
    return sum(hits), each * len(hits), spread([hit / each for hit in hits])
