"""Analyse training steps: the cost of each strategy per step, with intervals, and the ranking of strategies.

In: a `Run` whose samples contain the operation `training_step`, and its summaries. Out: a `ScenarioAnalysis` for each
scenario. Iteration i of every strategy of a launch is round i: differences are taken within rounds, and averaged
over the rounds of each launch, then over launches (docs/training.md). With fewer than three launches, the rounds of
all launches are pooled, and the interval is marked within-run. The time of a step is the time of the slowest
rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import combinations

import numpy as np

from collbench.analyze.against import (
    Rounds,
    Value,
    by_launch,
    call_s,
    differences_of,
    levels_of,
    rounds_of,
    samples_of,
    scenes_of,
)
from collbench.analyze.round_series import Series, estimate, estimates, pooled, pooled_mean
from collbench.model.conclusions import Interval, Summary
from collbench.model.projection import RANKS
from collbench.model.records import Case, InvariantCheck, Run, Samples, Timings
from collbench.packages.training.catalog.strategies import competes, kind
from collbench.packages.training.conclusions import AAPair, ScalingPoint, ScenarioAnalysis, Split, StrategyResult
from collbench.packages.training.planning.memory import alone_bytes
from collbench.packages.training.step_records import RankMemory, detail_of
from collbench.packages.training.synchronisation import (
    REFERENCE,
    TAILS,
    TRAINING_STEP,
    Scenario,
    Strategy,
    options_of,
    reference_of,
    scenario_of,
    step_settings,
    strategy_in,
    with_strategy,
)
from collbench.stats import intervals
from collbench.stats.intervals import ERROR_RATE, Floats

NOT_YET = "not measured yet"

# Share of a step: the report warns if the parts of exposed communication leave more than this unexplained (I8).
UNEXPLAINED = 0.05


def scenarios_of(run: Run) -> dict[Scenario, tuple[Case, ...]]:
    """Return the scenarios of a run's plan, and the cases of each scenario, in the order of the plan."""
    scenes = {shared: cases for shared, cases in scenes_of(run).items() if shared.op == TRAINING_STEP}
    return {scenario_of(run.plan.settings, shared): cases for shared, cases in scenes.items()}


# ── one value per round ──────────────────────────────────────────────────────────────────────────
def parts_s(*names: str) -> Value:
    """Return a value for `by_launch`: seconds per step in the named `synchronisation.PARTS`, mean over ranks."""
    return lambda timings: np.sum([timings.inner_ns[name] for name in names], axis=0).mean(axis=1) / timings.calls / 1e9


def last_tail_s(timings: Timings) -> Floats:
    """Return seconds per step of the shortest tail of any rank: the tail of the rank whose backward ended last."""
    return np.asarray(timings.inner_ns[TAILS].min(axis=1).sum(axis=1) / timings.calls / 1e9)


def left_s(timings: Timings) -> Floats:
    """Return seconds per step of the last rank's tail plus packing (mean over ranks)."""
    return last_tail_s(timings) + parts_s("pack")(timings)


def late_s(timings: Timings) -> Floats:
    """Return seconds per step that ranks wait for the last rank, a straggler; mean over ranks."""
    return parts_s("tail")(timings) - last_tail_s(timings)


# ── the scenarios ────────────────────────────────────────────────────────────────────────────────
def scenarios(run: Run, summaries: Sequence[Summary]) -> tuple[ScenarioAnalysis, ...]:
    """Return the results of all scenarios with a tried case, in the order of the plan."""
    steps = {summary.case: summary.time_s for summary in summaries if summary.time_s is not None}
    return tuple(
        _scenario(run, scenario, cases, steps)
        for scenario, cases in scenarios_of(run).items()
        if samples_of(run, scenario.case)
    )


def _scenario(run: Run, scenario: Scenario, cases: Sequence[Case], steps: Mapping[Case, Interval]) -> ScenarioAnalysis:
    rounds, tries = rounds_of(run, scenario.case), samples_of(run, scenario.case)
    differences = differences_of(run, scenario.case)
    exposed = {case: differences.intervals[pair] for case, pair in differences.over_reference.items()}
    blank = StrategyResult(
        scenario.case, link=scenario.link, warmup_steps=step_settings(run.plan.settings).warmup_steps
    )
    results = [
        _result(replace(blank, case=case), tries.get(case, []), rounds, steps.get(case), exposed.get(case))
        for case in cases
    ]
    aa_pairs = (AAPair(strategy_in(first), copies) for (_, first), copies in differences.copies.items())
    return ScenarioAnalysis(
        scenario=scenario,
        compute=steps.get(with_strategy(scenario.case, Strategy(REFERENCE))),
        results=tuple(_placed(results, rounds, differences.noise_s)),
        aa_pairs=tuple(aa_pairs),
        noise_s=differences.noise_s,
        blocks=rounds.blocks,
        dropped=rounds.dropped,
    )


def _result(
    blank: StrategyResult, tries: Sequence[Samples], rounds: Rounds, step: Interval | None, exposed: Interval | None
) -> StrategyResult:
    """Return the result of the case of `blank`. exposed: None for a reference, and if no round has both cases."""
    case = blank.case
    reference = with_strategy(case, reference_of(strategy_in(case)))
    details = [detail for samples in tries if (detail := detail_of(samples)) is not None]
    checks = _distinct(check for samples in tries for check in samples.checks)
    timelines, mean_s = [d.timeline for d in details if d.timeline is not None], step.value if step else 0.0
    result = replace(
        blank,
        calls=next((detail.calls for detail in details if detail.calls is not None), None),
        checks=checks,
        # Launches of a resumed run record a timeline again. The nearest to the mean is typical.
        timeline=min(timelines, key=lambda timeline: abs(timeline.step_s - mean_s), default=None),
        memory=next((_most(detail.memory) for detail in details if detail.memory), None),
        computed_bytes=alone_bytes(case, strategy_in(case)),
    )
    if failed := [check for check in checks if check.ok is False]:
        return replace(result, refused="; ".join(f"{check.invariant}: {check.text}" for check in failed))
    all_steps = by_launch(rounds, case)
    if step is None or not all_steps:
        failures = (samples.failure.text for samples in tries if samples.failure is not None)
        return replace(result, refused=next(failures, NOT_YET))
    result = replace(result, rounds=len(pooled(all_steps)), step=step, step_std=_std(all_steps))
    if exposed is None:
        return result
    split = _split(rounds, case, exposed.value)
    alone = [time_s for detail in details for time_s in detail.alone_s]
    alone_s = float(np.mean(alone)) if alone else None
    return replace(
        result,
        exposed=exposed,
        exposed_std=_std(by_launch(rounds, case, call_s, reference)),
        share=exposed.value / step.value,
        share_std=_std(by_launch(rounds, case, call_s, reference, share=True)),
        split=split,
        calls_alone_s=alone_s,
        hidden=1 - exposed.value / alone_s if alone_s else None,
        resolved=_resolved(exposed),
        adds_up=abs(split.residual_s) <= UNEXPLAINED * step.value,
    )


def _most(memory: Sequence[RankMemory]) -> RankMemory:
    """Return the maximum over ranks, at each instant."""
    return RankMemory(*(max(sizes) for sizes in zip(*map(astuple, memory), strict=True)))


def _distinct(checks: Iterable[InvariantCheck]) -> tuple[InvariantCheck, ...]:
    """Return checks without repetitions of invariant and text, failures first: a failure in any launch counts."""
    first: dict[tuple[str, str], InvariantCheck] = {}
    for check in sorted(checks, key=lambda check: check.ok is not False):
        first.setdefault((check.invariant, check.text), check)
    return tuple(first.values())


def _std(series: Series) -> float:
    values = pooled(series)
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _resolved(difference: Interval) -> bool:
    """Return whether the interval of a difference excludes zero."""
    return difference.known and (difference.low > 0 or difference.high < 0)


def _split(rounds: Rounds, case: Case, exposed_s: float) -> Split:
    strategy = strategy_in(case)
    own, reference = kind(strategy).own, with_strategy(case, reference_of(strategy))

    def part(*names: str) -> float:
        """Return seconds per step by which these parts exceed the reference: mean over ranks and rounds."""
        return pooled_mean(by_launch(rounds, case, parts_s(*names), reference))

    split = Split(
        tail_s=part("tail"),
        pack_s=part("pack") if own else None,
        gather_s=part("gather"),
        update_s=part("clip", "update"),
        interference_s=part("forward", "backward"),
        residual_s=0.0,
        late_s=pooled_mean(by_launch(rounds, case, late_s)),
    )
    explained = split.tail_s + (split.pack_s or 0.0) + split.gather_s + split.update_s + split.interference_s
    return replace(split, residual_s=exposed_s - explained)


def _placed(results: list[StrategyResult], rounds: Rounds, noise_s: float) -> list[StrategyResult]:
    """Return the results with places: strategies that cannot be distinguished from the first of a place share it.

    Controls have no place. If all packing is visible, strategies are ordered by tail plus packing, which repeats far
    better than whole steps; otherwise by step time. noise_s: A/A noise; steps that differ by less share a place.
    """
    timed = [result for result in results if result.step and competes(result.strategy)]
    value = left_s if all(kind(result.strategy).own for result in timed) else call_s
    least_s = noise_s if value is call_s else 0.0
    values_s = {result.case: estimate(by_launch(rounds, result.case, value)).value for result in timed}
    ranked = sorted(values_s, key=lambda case: values_s[case])
    pairs = [(slow, fast) for fast, slow in combinations(ranked, 2)]
    # Tail plus packing also scatters in proportion to the step: a rank that computes for longer waits for less.
    # Bonferroni: at most 5 % false alarms over all pairs. Else, 81 % of runs ranked one of 16 equal strategies lower.
    series = {pair: by_launch(rounds, pair[0], value, pair[1]) for pair in pairs}
    intervals = estimates(series, levels_of(rounds, pairs), ERROR_RATE / max(1, len(pairs)))
    places: dict[Case, int] = {}
    leader = None
    for place, case in enumerate(ranked, start=1):
        slower = intervals.get((case, leader)) if leader is not None else None
        if slower is None or (_resolved(slower) and slower.value > least_s):
            leader, places[case] = case, place
        else:
            places[case] = places[leader]
    return [replace(result, place=places.get(result.case)) for result in results]


# ── scaling over numbers of ranks ────────────────────────────────────────────────────────────────
def scaling(scenarios: Sequence[ScenarioAnalysis]) -> tuple[ScalingPoint, ...]:
    """Return scaling points, by strategy and ranks, of scenarios that differ only in the number of ranks.

    Each rank keeps its batch, so efficiency would be 1 without the cost of synchronising or of sharing cores.
    """
    computed = (scenario for scenario in scenarios if scenario.compute is not None)
    groups = RANKS.tables(computed, lambda scenario: scenario.scenario.case)
    points = []
    for members in groups.values():
        if len(members) == 1:
            continue
        members.sort(key=lambda scenario: scenario.scenario.case.world_size)
        base, last = members[0], members[-1]
        timed = [r for scenario in members for r in scenario.results if r.step is not None and not r.strategy.again]
        # The reference first, then the fastest strategy on most ranks.
        steps_s = {r.label: r.step.value for r in last.results if r.step is not None and competes(r.strategy)}
        names = sorted(dict.fromkeys(r.label for r in timed), key=lambda name: steps_s.get(name, 0.0))
        points += [_scaling_point(r, base) for name in names for r in timed if r.label == name]
    return tuple(points)


def _scaling_point(result: StrategyResult, base: ScenarioAnalysis) -> ScalingPoint:
    assert result.step is not None and base.compute is not None  # noqa: S101 - the caller's choice
    step, case = result.step, result.case
    examples = options_of(case).batch * case.world_size
    rate = Interval(examples / step.value, examples / step.high, examples / step.low, step.kind)
    ranks, itself = base.scenario.case.world_size, case == with_strategy(base.scenario.case, Strategy(REFERENCE))
    efficiency = None if itself else intervals.ratio_of_intervals(step, base.compute)
    speed_up = base.compute.value / step.value * case.world_size / ranks
    return ScalingPoint(case, step, rate, ranks, efficiency, speed_up)
