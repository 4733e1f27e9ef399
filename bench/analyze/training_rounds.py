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
from bench.model.records import Scenario
from bench.model.training import REFERENCE, Round, TimedBlock, TrainingRun
from bench.stats import intervals
from bench.stats.intervals import Floats
from bench.stats.moderation import moderated

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
    facts: list[F] = [fact for fact in run.facts if isinstance(fact, what)]
    return (
        facts if scenario is None else [fact for fact in facts if getattr(fact, "scenario", None) == scenario.case.key]
    )


def kept(run: TrainingRun, scenario: Scenario) -> list[Round]:
    """The rounds without the timed blocks in which others used more than `max_foreign_cpu` of the machine.

    Only these blocks are left out: with 17 strategies, hardly half of all rounds are free of any. A strategy keeps all
    of its blocks if more than half of them would go, and all strategies do if one would share no round with the
    reference (`disturbed`).
    """
    return _without_loud(run, scenario, set(disturbed(run, scenario)))


def disturbed(run: TrainingRun, scenario: Scenario) -> list[str]:
    """Labels of the strategies whose timed blocks others disturbed so often that they are kept nonetheless."""
    blocks = [block for timed in facts_of(run, Round, scenario) for block in timed.blocks]
    measured = Counter(block.strategy for block in blocks)
    loud = Counter(block.strategy for block in blocks if _loud(block, run.plan.max_foreign_cpu))
    mostly_loud = [name for name, number in measured.items() if 2 * loud[name] > number]
    beside_reference = {
        block.strategy
        for timed in _without_loud(run, scenario, set(mostly_loud))
        if any(block.strategy == REFERENCE for block in timed.blocks)
        for block in timed.blocks
    }
    return mostly_loud if beside_reference == set(measured) or REFERENCE not in measured else list(measured)


def _without_loud(run: TrainingRun, scenario: Scenario, exempt: set[str]) -> list[Round]:
    """The rounds without disturbed blocks; strategies in `exempt` keep theirs."""
    allowed = run.plan.max_foreign_cpu
    return [
        replace(timed, blocks=tuple(b for b in timed.blocks if b.strategy in exempt or not _loud(b, allowed)))
        for timed in facts_of(run, Round, scenario)
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
    launches: dict[int, list[float]] = {}
    for timed in rounds:
        blocks = {block.strategy: block for block in timed.blocks}
        if name not in blocks or (minus is not None and minus not in blocks):
            continue
        own = value(blocks[name], timed.steps)
        other = value(blocks[minus], timed.steps) if minus is not None else 0.0
        launches.setdefault(timed.launch, []).append((own - other) / own if share else own - other)
    return {launch: np.array(values) for launch, values in launches.items()}


def parts_s(*names: str) -> Callable[[TimedBlock, int], float]:
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
    the same launches (`bench.stats.moderation`). The interval of a median of rounds does not include how launches
    differ, and with very few rounds it is only their range.
    """
    per_launch = {name: medians(series) for name, series in many.items() if len(series) >= LAUNCHES_FOR_INTERVAL}
    freedom = np.array([len(values) - 1.0 for values in per_launch.values()])
    variances = np.array([max(float(np.var(values, ddof=1)), LEAST_VARIANCE) for values in per_launch.values()])
    priors = zip(*moderated(variances, freedom), strict=True) if per_launch else iter(())
    over_launches = {name: intervals.mean_interval(values, *next(priors)) for name, values in per_launch.items()}
    return {
        name: over_launches[name]
        if name in over_launches
        else intervals.median_interval(np.concatenate(list(series.values())))
        for name, series in many.items()
    }
