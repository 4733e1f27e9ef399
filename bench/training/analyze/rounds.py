"""Turn the rounds of a training run into series of values, and select the rounds that count.

In: a run's facts. Out: for each launch one value a round, or an interval over launches. Draws no conclusion. The time
of a step is that of the slowest rank; differences are taken within rounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bench import intervals
from bench.conclusions import Interval
from bench.intervals import Floats
from bench.training.records import Round, Scenario, TimedBlock, TrainingRun

# Fewer launches than this say little of how launches differ: Student's t of one degree of freedom is 12.7.
LAUNCHES_FOR_INTERVAL = 3
# Launch → one value a round.
Series = dict[int, Floats]
F = TypeVar("F")


def facts_of(run: TrainingRun, what: type[F], scenario: Scenario | None = None) -> list[F]:
    """The facts of one kind; of one scenario, if one is named."""
    found: list[F] = [fact for fact in run.facts if isinstance(fact, what)]
    return found if scenario is None else [f for f in found if getattr(f, "scenario", None) == scenario.key]


def kept(run: TrainingRun, scenario: Scenario) -> list[Round]:
    """Rounds in which others used at most `max_foreign_cpu` of the machine; all rounds if those are less than half."""
    every = facts_of(run, Round, scenario)
    quiet = [one for one in every if not _loud(one, run.plan.max_foreign_cpu)]
    return quiet if len(quiet) * 2 >= len(every) else every


def disturbed(run: TrainingRun, scenario: Scenario) -> int:
    """Number of rounds in which others used more than `max_foreign_cpu` of the machine."""
    return sum(_loud(one, run.plan.max_foreign_cpu) for one in facts_of(run, Round, scenario))


def _loud(one: Round, allowed: float) -> bool:
    return any(block.foreign_cpu is not None and block.foreign_cpu > allowed for block in one.blocks)


def step_s(block: TimedBlock, steps: int) -> float:
    """Seconds a step of the slowest rank."""
    return max(block.wall_ns) / steps / 1e9


def by_launch(
    rounds: list[Round],
    name: str,
    value: Callable[[TimedBlock, int], float],
    minus: str | None = None,
    share: bool = False,
) -> Series:
    """For each launch, the `value` of strategy `name` in each round.

    minus: a strategy whose value in the same round is subtracted. share: divide the difference by the value of `name`.
    """
    found: dict[int, list[float]] = {}
    for one in rounds:
        blocks = {block.strategy: block for block in one.blocks}
        if name not in blocks or (minus is not None and minus not in blocks):
            continue
        mine = value(blocks[name], one.steps)
        other = value(blocks[minus], one.steps) if minus is not None else 0.0
        found.setdefault(one.launch, []).append((mine - other) / mine if share else mine - other)
    return {launch: np.array(values) for launch, values in found.items()}


def steps_of(rounds: list[Round], name: str) -> Series:
    """Seconds a step of strategy `name`."""
    return by_launch(rounds, name, step_s)


def differences_of(rounds: list[Round], name: str, minus: str) -> Series:
    """Seconds by which a step of strategy `name` is longer than one of `minus`."""
    return by_launch(rounds, name, step_s, minus)


def medians(series: Series) -> Floats:
    """The median of each launch."""
    return np.array([float(np.median(values)) for values in series.values()])


def estimate(series: Series) -> Interval:
    """Mean of the launches' medians; with too few launches, the median of all rounds, marked within-run."""
    if len(series) >= LAUNCHES_FOR_INTERVAL:
        return intervals.mean_interval(medians(series))
    return replace(intervals.median_interval(np.concatenate(list(series.values()))), kind="within-run")
