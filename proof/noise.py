"""Measure the noise of real launches, for claims that real runs are too slow to test: ten sets, one after the other.

One set of launches, of any length, describes one period of time: sets of 64 launches gave 43, 87 and 120 of 2000 false
verdicts for the same unchanged code. So there are ten sets, and each rate is reported with the spread between sets.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.analyze import against
from collbench.analyze.round_series import Series
from collbench.model.records import Case, Run
from proof.rig import Rig, all_reduces, steps

SETS, QUICK_SETS, LAUNCHES = 10, 2, 16
# Seconds per case of one long launch; blocks of a stretch, which is as long as a default launch and fits several times.
LONG_S, STRETCH = 2.0, 5
STEPS_LAUNCHES = 8


@dataclass(frozen=True)
class Noise:
    """The scatter of the launches of one run."""

    # Logarithms of launch means, shape (cases, launches), minus their mean over launches.
    logs: np.ndarray
    run: Run

    def launches(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw launches at random, shape (cases, count); the cases of a launch stay together."""
        return self.logs[:, rng.integers(0, self.logs.shape[1], count)]

    def pairs(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw pairs of successive launches at random, shape (2, cases, count)."""
        first = rng.integers(0, self.logs.shape[1] - 1, count)
        return np.stack([self.logs[:, first], self.logs[:, first + 1]])


def sweep(scheduling: str = "normal", launches: int = LAUNCHES, seconds: float = 0.12) -> str:
    """Return the configuration of one set."""
    sampling = {"seconds_per_case": seconds}
    return all_reduces(launches=launches, sizes=["64KiB", "1MiB", "16MiB"], sampling=sampling, scheduling=[scheduling])


@functools.cache
def sets(rig: Rig) -> list[Noise]:
    """Measure the ten sets of launches; two in a quick proof."""
    noises = []
    for _ in range(QUICK_SETS if rig.quick else SETS):
        run = rig.measure(sweep())
        means = {(s.case, s.launch): s.timed.slowest_s.mean() for s in run.samples}
        logs = np.log([[means[case, launch] for launch in range(1, LAUNCHES + 1)] for case in run.plan.cases])
        noises.append(Noise(logs - logs.mean(axis=1, keepdims=True), run))
    return noises


def long_launches(rig: Rig, count: int) -> list[list[tuple[np.ndarray, tuple[int, ...]]]]:
    """Return, per long launch and size, the times of the iterations and the iterations per block."""
    runs = [rig.measure(sweep(launches=1, seconds=LONG_S)) for _ in range(count)]
    return [[(s.timed.slowest_s, s.timed.blocks) for s in run.samples] for run in runs]


Pair = tuple[Case, Case]


def differences_of_steps(rig: Rig, count: int) -> list[tuple[dict[Pair, Series], dict[Pair, tuple[float, float]]]]:
    """Return, per set of launches, step times minus reference times, round by round, and the levels of both."""
    two = {"strategies": ["flat", "naive"], "max_foreign_cpu": "99%"}
    text, differences = steps(STEPS_LAUNCHES, models=["nano"], rounds=6, steps=2, **two), []
    for _ in range(count):
        run = rig.measure(text)
        (shared,) = against.scenes_of(run)
        series = against.differences_of(run, shared).series
        differences.append((series, against.levels_of(against.rounds_of(run, shared), series)))
    return differences


def spread(rates: Sequence[float]) -> str:
    """Return a text such as `; by set 1.5% to 4.0%`."""
    return f"; by set {min(rates):.1%} to {max(rates):.1%}"


def by_set(
    rig: Rig, trials: int, seed: int, trial: Callable[[Noise, np.random.Generator], bool]
) -> tuple[int, int, str]:
    """Run equally many simulated trials on each set; return hits, trials, and the spread of the rates over sets."""
    rng, each = np.random.default_rng(seed), trials // len(sets(rig))
    hits = [sum(trial(noise, rng) for _ in range(each)) for noise in sets(rig)]
    return sum(hits), each * len(hits), spread([hit / each for hit in hits])
