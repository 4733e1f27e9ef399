"""Compare two training runs: did a strategy's step change, and its exposed communication?

In: two `TrainingRun`. Out: a `TrainingComparison`, with its warnings. A verdict comes from the median step of each
launch, by the rule of `bench/stats/verdicts.py`, for all strategies at once. With fewer than three launches on a side
the rounds of all launches are pooled; that is within-run and decides nothing without a stated noise floor. Blocks that
others disturbed are left out as in a run's own report (`rounds.kept`). For `ab`, whose sides take turns, out come the
`TimedCase`s of a side. Prints nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress

import numpy as np

from bench.analyze.compare import MIN_CHANGE, counted, verdict_warnings
from bench.analyze.pairs import TimedCase
from bench.analyze.sessions import Facts, differences, distinct, of_ranks, of_sessions
from bench.analyze.training import NOT_YET, analyze
from bench.analyze.training_rounds import (
    LAUNCHES_FOR_INTERVAL,
    Series,
    differences_of,
    estimate,
    kept,
    medians,
    steps_of,
)
from bench.catalog.strategies import label, reference_of
from bench.model.conclusions import (
    ExposedChange,
    StepChange,
    StrategyResult,
    TrainingAnalysis,
    TrainingComparison,
    Unpaired,
)
from bench.model.errors import UnmeasurableError
from bench.model.records import Scenario
from bench.model.training import Fact, Round, TrainingPlan, TrainingRun
from bench.stats import intervals, verdicts
from bench.stats.intervals import Floats

FEW_LAUNCHES = f"fewer than {LAUNCHES_FOR_INTERVAL} launches on a side: within-run only"
NOT_ASKED = "not asked for"
# Scenario and label of a strategy.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Side:
    """A strategy in one run: its result, its scenario's noise, and its series. exposed: empty for a reference."""

    scenario: Scenario
    result: StrategyResult
    noise_s: float
    steps: Series
    exposed: Series


Pair = tuple[Side, Side]


def compare_runs(
    before: TrainingRun,
    after: TrainingRun,
    min_change: float = MIN_CHANGE,
    noise_floor: float | None = None,
    across: None = None,
    ledger: object = None,
) -> TrainingComparison:
    """The changes of the strategies that both runs timed. Raises UnmeasurableError where there is none.

    If all that was timed before failed after, it does not raise: there are no changes, and all are in `broken`.
    min_change, noise_floor: as in `bench/analyze/compare.py`; the noise floor is used where a side has fewer than three
    launches. across, ledger: not used, they are for runs of collectives only.
    """
    old, new = analyze(before), analyze(after)
    olds, news = _sides(before, old), _sides(after, new)
    pairs = [(olds[key], news[key]) for key in olds if key in news and olds[key].steps and news[key].steps]
    broken, only_before = _lost(olds, news, after)
    if not pairs and not broken:
        raise UnmeasurableError(
            f"{before.name} and {after.name} have no timed strategy in common: the same model, backend, world size, "
            "batch, sequence, dtype, optimizer, link and threads are needed"
        )
    changes = _changes(pairs, min_change, noise_floor)
    return TrainingComparison(
        before=before.name,
        after=after.name,
        verdict=verdicts.of_run([change.verdict for change in changes] or [verdicts.INCONCLUSIVE]),
        min_change=min_change,
        changes=tuple(changes),
        differences=differences(_facts_of(before), _facts_of(after)),
        only_before=tuple(only_before),
        only_after=tuple(unpaired for part in _lost(news, olds, before) for unpaired in part),
        broken=tuple(broken),
        warnings=tuple(_warnings(((before, old), (after, new)), changes, broken, min_change)),
    )


def _facts_of(run: TrainingRun) -> Facts:
    """Machine, software and settings of a run."""
    plan = run.plan
    return {
        **of_sessions(run.environment),
        "threads a rank": distinct(of_ranks(run.environment, lambda rank: rank.get("threads"))),
        "launches": str(plan.launches),
        "rounds": distinct(launch.rounds for launch in plan.order),
        "steps": str(plan.steps),
        "warmup": str(plan.warmup),
        "max_foreign_cpu": f"{plan.max_foreign_cpu:g}",
    }


# ── which strategies form a pair ─────────────────────────────────────────────────────────────────
def _sides(run: TrainingRun, analysis: TrainingAnalysis) -> dict[Key, Side]:
    """The strategies of a run in the order of its plan, also those without times."""
    sides = {}
    for measured in analysis.scenarios:
        rounds = kept(run, measured.scenario)
        for result in measured.results:
            steps: Series = {}
            exposed: Series = {}
            if result.step is not None:
                steps, reference = steps_of(rounds, result.label), label(reference_of(result.strategy))
                exposed = {} if result.label == reference else differences_of(rounds, result.label, reference)
            key = measured.scenario.key, result.label
            sides[key] = Side(measured.scenario, result, measured.noise_s, steps, exposed)
    return sides


def _lost(here: dict[Key, Side], there: dict[Key, Side], other: TrainingRun) -> tuple[list[Unpaired], list[Unpaired]]:
    """Strategies with times `here` and none `there`: those that were refused or failed there, and those not tried."""
    failed, untried = [], []
    planned = {(launch.scenario.key, label(wanted)) for launch in other.plan.order for wanted in launch.strategies}
    for key, side in here.items():
        partner = there.get(key)
        if not side.steps or (partner is not None and partner.steps):
            continue
        refused = partner.result.refused if partner is not None else None
        if refused is not None and refused != NOT_YET:
            failed.append(Unpaired(side.scenario, side.result.label, refused))
            continue
        skipped = (
            skip.reason
            for skip in other.plan.skips
            if skip.scenario.key == key[0] and (skip.strategy is None or label(skip.strategy) == key[1])
        )
        reason = next(skipped, NOT_YET if key in planned else NOT_ASKED)
        untried.append(Unpaired(side.scenario, side.result.label, reason))
    return failed, untried


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def _changes(pairs: Sequence[Pair], min_change: float, noise_floor: float | None) -> list[StepChange]:
    enough = [min(len(side.steps) for side in pair) >= LAUNCHES_FOR_INTERVAL for pair in pairs]
    several = list(compress(pairs, enough))
    before, after = ([medians(pair[side].steps) for pair in several] for side in (0, 1))
    judged = verdicts.judge(verdicts.unpaired(before, after), min_change) if several else []
    tested = iter(zip(before, after, judged, strict=True))
    changes = []
    for (old, new), over_launches, exposed in zip(pairs, enough, _exposed(pairs), strict=True):
        note = ""
        if over_launches:
            a, b, judgement = next(tested)
            # geometric means, as for collectives, so that their quotient is the reported ratio
            steps = intervals.launch_interval(a), intervals.launch_interval(b)
            judgement = verdicts.decided(judgement, a, b)
        else:
            steps = estimate(old.steps), estimate(new.steps)
            judgement = verdicts.by_noise_floor(*steps, min_change, noise_floor)
            note = FEW_LAUNCHES + ("" if noise_floor is None else f"; rests on the stated {noise_floor:.0%}")
        changes.append(StepChange(old.scenario, old.result.label, *steps, judgement, exposed, note))
    return changes


def _exposed(pairs: Sequence[Pair]) -> list[ExposedChange | None]:
    """The change of each pair's exposed communication; None where a side has none."""
    enough = [min(len(side.exposed) for side in pair) >= LAUNCHES_FOR_INTERVAL for pair in pairs]
    several = list(compress(pairs, enough))
    olds, news = ([medians(pair[side].exposed) for pair in several] for side in (0, 1))
    tested = iter(verdicts.differences(olds, news))
    changes: list[ExposedChange | None] = []
    for (old, new), over_launches in zip(pairs, enough, strict=True):
        if not (old.exposed and new.exposed):
            changes.append(None)
            continue
        before, after = estimate(old.exposed), estimate(new.exposed)
        if over_launches:
            difference, significant = next(tested)
            resolved = significant and abs(difference.value) > max(old.noise_s, new.noise_s)
        else:
            difference, resolved = intervals.difference_of_intervals(before, after), False
        changes.append(ExposedChange(before, after, difference, resolved))
    return changes


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────
def _warnings(
    runs: Iterable[tuple[TrainingRun, TrainingAnalysis]],
    changes: Sequence[StepChange],
    broken: Sequence[Unpaired],
    min_change: float,
) -> Iterable[str]:
    for run, analysis in runs:
        yield from (f"{run.name}: {text}" for text in analysis.warnings)
        for broke in analysis.failures:
            strategy = broke.strategy or "every strategy"
            yield f"{run.name}: {broke.scenario}: {strategy} broke in launch {broke.launch}: {broke.failure.text}"
    if broken:
        yield f"{counted(len(broken), 'case')} measured before failed after: no time to compare, and that is worse"
    few = sum(change.note == FEW_LAUNCHES for change in changes)
    if few:
        yield (
            f"{counted(few, 'case')} with fewer than {LAUNCHES_FOR_INTERVAL} launches on a side, whose intervals are "
            "within-run only: set launches: 5, or state with --noise-floor by how much two measurements of the same "
            "thing differ"
        )
    yield from verdict_warnings([change.verdict for change in changes], few, min_change)


# ── two sides that take turns ─────────────────────────────────────────────────────────────────────
def timed_cases(facts: Sequence[Fact], plan: TrainingPlan) -> list[TimedCase]:
    """The strategies of a side, measured or not yet; the times of a launch are those of its rounds, a step each.

    Left out are second copies of a strategy, which show the noise of a run, and strategies whose buckets a run finds
    out itself, which could be others on the other side.
    """
    cases = []
    for scenario in dict.fromkeys(launch.scenario for launch in plan.order):
        rounds = [fact for fact in facts if isinstance(fact, Round) and fact.scenario == scenario.key]
        fields = {name: str(value) for name, value in asdict(scenario).items()}
        strategies = [s for launch in plan.order if launch.scenario == scenario for s in launch.strategies]
        for name in dict.fromkeys(label(strategy) for strategy in strategies if not (strategy.again or strategy.open)):
            launches: dict[int, Floats] = {n: np.asarray(values) for n, values in steps_of(rounds, name).items()}
            shown = " · ".join([name, *scenario.key.split("/")])
            cases.append(TimedCase({**fields, "strategy": name}, shown, launches))
    return cases
