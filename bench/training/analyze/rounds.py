"""Turn the rounds of a training run into series of values, and select the timed blocks that count.

In: a run's facts. Out: for each launch one value a round, or an interval over launches. Draws no conclusion. The time
of a step is that of the slowest rank; differences are taken within rounds.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bench.model.conclusions import Interval
from bench.stats import intervals
from bench.stats.intervals import Floats
from bench.stats.moderation import moderated
from bench.training.records import REFERENCE, Round, Scenario, TimedBlock, TrainingRun

# Fewer launches than this say little of how launches differ: Student's t of one degree of freedom is 12.7.
LAUNCHES_FOR_INTERVAL = 3
# Seconds squared: below the resolution of clocks. Variances of invented or emulated times may be 0.
LEAST_VARIANCE = 1e-18
# Launch → one value a round.
Series = dict[int, Floats]
K = TypeVar("K", bound=Hashable)
F = TypeVar("F")


def facts_of(run: TrainingRun, what: type[F], scenario: Scenario | None = None) -> list[F]:
    """The facts of one kind; of one scenario, if one is named."""
    found: list[F] = [fact for fact in run.facts if isinstance(fact, what)]
    return found if scenario is None else [f for f in found if getattr(f, "scenario", None) == scenario.key]


def kept(run: TrainingRun, scenario: Scenario) -> list[Round]:
    """The rounds without the timed blocks in which others used more than `max_foreign_cpu` of the machine.

    Only these blocks are left out: with 17 strategies, hardly half of all rounds are free of any. A strategy keeps all
    of its blocks if more than half of them would go, and all strategies do if one would share no round with the
    reference (`disturbed`).
    """
    return _without_loud(run, scenario, set(disturbed(run, scenario)))


def disturbed(run: TrainingRun, scenario: Scenario) -> list[str]:
    """Labels of the strategies whose timed blocks others disturbed so often that they are kept nonetheless."""
    blocks = [block for one in facts_of(run, Round, scenario) for block in one.blocks]
    every = Counter(block.strategy for block in blocks)
    loud = Counter(block.strategy for block in blocks if _loud(block, run.plan.max_foreign_cpu))
    most = [name for name, number in every.items() if 2 * loud[name] > number]
    beside = {
        block.strategy
        for one in _without_loud(run, scenario, set(most))
        if any(block.strategy == REFERENCE for block in one.blocks)
        for block in one.blocks
    }
    return most if beside == set(every) or REFERENCE not in every else list(every)


def _without_loud(run: TrainingRun, scenario: Scenario, most: set[str]) -> list[Round]:
    """The rounds without disturbed blocks, but for those of the strategies in `most`."""
    allowed = run.plan.max_foreign_cpu
    return [
        replace(one, blocks=tuple(b for b in one.blocks if b.strategy in most or not _loud(b, allowed)))
        for one in facts_of(run, Round, scenario)
    ]


def _loud(block: TimedBlock, allowed: float) -> bool:
    return block.foreign_cpu is not None and block.foreign_cpu > allowed


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


def of_parts(*names: str) -> Callable[[TimedBlock, int], float]:
    """A value for `by_launch`: seconds a step in these parts together, mean over ranks."""

    def value(block: TimedBlock, steps: int) -> float:
        return sum(float(np.mean(block.parts_ns.get(name, (0,)))) for name in names) / steps / 1e9

    return value


def steps_of(rounds: list[Round], name: str) -> Series:
    """Seconds a step of strategy `name`."""
    return by_launch(rounds, name, step_s)


def differences_of(rounds: list[Round], name: str, minus: str) -> Series:
    """Seconds by which a step of strategy `name` is longer than one of `minus`."""
    return by_launch(rounds, name, step_s, minus)


def medians(series: Series) -> Floats:
    """The median of each launch."""
    return np.array([float(np.median(values)) for values in series.values()])


def pooled_median(series: Series) -> float:
    """The median over the rounds of all launches."""
    return float(np.median(np.concatenate(list(series.values()))))


def estimate(series: Series) -> Interval:
    """The interval of one series, as by `estimates`."""
    return estimates({"": series})[""]


def estimates(many: Mapping[K, Series]) -> dict[K, Interval]:
    """Mean of the launches' medians of each, with Student's t; with too few launches, the median of all rounds.

    Five launches know a variance to a factor of 3 only, so variances are moderated over all of `many`, which differ by
    the same launches (`bench.stats.moderation`).
    """
    of_launches = {name: medians(one) for name, one in many.items() if len(one) >= LAUNCHES_FOR_INTERVAL}
    freedom = np.array([len(values) - 1.0 for values in of_launches.values()])
    variances = np.array([max(float(np.var(values, ddof=1)), LEAST_VARIANCE) for values in of_launches.values()])
    known = zip(*moderated(variances, freedom), strict=True) if of_launches else iter(())
    over = {name: intervals.mean_interval(values, *next(known)) for name, values in of_launches.items()}
    return {name: over[name] if name in over else _over_rounds(series) for name, series in many.items()}


def _over_rounds(series: Series) -> Interval:
    """Of too few launches: it does not include how launches differ, and of very few rounds it is only their range."""
    return intervals.median_interval(np.concatenate(list(series.values())))
