"""Analyze one training run: what each strategy costs a step, with intervals, and which strategies can be told apart.

In: a `TrainingRun`. Out: a `TrainingAnalysis`. Differences are taken within rounds; then comes the median of each
launch, then the mean of the launches (docs/training.md). With fewer than three launches, the rounds of all launches are
pooled, and the interval is marked within-run.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import numpy as np

from bench.advise.of_run import advice_for
from bench.analyze.training_rounds import (
    Series,
    by_launch,
    differences_of,
    disturbed,
    estimates,
    facts_of,
    kept,
    parts_s,
    pooled_median,
    step_s,
    steps_of,
)
from bench.catalog.strategies import kind, label, reference_of, settled
from bench.model.conclusions import AAPair, Interval, ScenarioAnalysis, Split, StrategyResult, TrainingAnalysis
from bench.model.records import Scenario
from bench.model.training import (
    Advised,
    CallSizePoint,
    CommunicationOnly,
    InvariantCheck,
    LaunchFailure,
    Round,
    SkippedStrategy,
    Strategy,
    StrategyChecks,
    TimedBlock,
    Timeline,
    TrainingRun,
)
from bench.stats.intervals import Floats

NOT_YET = "not measured yet"
DEFAULT_ADVISED = "the advice is torch's default, which is measured as ddp"
# Share of a step: if the parts of exposed communication leave more than this unexplained, the report says so (I8).
UNEXPLAINED = 0.05
K = TypeVar("K", bound=Hashable)


def analyze(run: TrainingRun) -> TrainingAnalysis:
    """The conclusions from a run: its scenarios, checks, call sizes, and all that failed or was skipped."""
    plans = {launch.scenario: launch.strategies for launch in run.plan.order}
    begun = {fact.scenario for fact in run.facts if isinstance(fact, Round | StrategyChecks | LaunchFailure)}
    scenarios = tuple(
        _scenario(run, scenario, planned) for scenario, planned in plans.items() if scenario.case.key in begun
    )
    defaults = tuple(
        SkippedStrategy(scenario, strategy, DEFAULT_ADVISED)
        for scenario, planned in plans.items()
        for strategy in _settled(run, scenario, planned)
        if _is_default(run, scenario, strategy)
    )
    warnings = list(run.warnings)
    for result in scenarios:
        disturbances = []
        if result.dropped:
            disturbances.append(f"{result.dropped} of {result.blocks} timed blocks left out")
        if names := disturbed(run, result.scenario):
            whose = "all strategies" if len(names) == len(result.results) else ", ".join(names)
            disturbances.append(f"too much of {whose} disturbed to leave it out, so all of those kept")
        if disturbances:
            warnings.append(f"{result.scenario.case.key}: {'; '.join(disturbances)}: other processes used the CPU")
    general = [check for fact in facts_of(run, StrategyChecks) if fact.strategy is None for check in fact.checks]
    return TrainingAnalysis(
        scenarios=scenarios,
        checks=_distinct(general),
        call_sizes=tuple(facts_of(run, CallSizePoint)),
        skips=(*run.plan.skips, *defaults),
        failures=tuple(facts_of(run, LaunchFailure)),
        warnings=tuple(warnings),
    )


def _distinct(checks: Iterable[InvariantCheck]) -> tuple[InvariantCheck, ...]:
    """Checks without repetitions of invariant and text, failures first: a failure in any launch counts."""
    first: dict[tuple[str, str], InvariantCheck] = {}
    for check in sorted(checks, key=lambda check: check.ok is not False):
        first.setdefault((check.invariant, check.text), check)
    return tuple(first.values())


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────
def _scenario(run: TrainingRun, scenario: Scenario, strategies: tuple[Strategy, ...]) -> ScenarioAnalysis:
    all_rounds, rounds = facts_of(run, Round, scenario), kept(run, scenario)
    settled_ones = _settled(run, scenario, strategies)
    strategies = tuple(strategy for strategy in settled_ones if not _is_default(run, scenario, strategy))
    timed = _Timed(rounds, strategies)
    results = [_result(run, scenario, strategy, timed) for strategy in strategies]
    pairs = [(label(strategy), label(replace(strategy, again=0))) for strategy in strategies if strategy.again]
    aa_pairs = [AAPair(first, timed.apart[again, first]) for again, first in pairs if (again, first) in timed.apart]
    noise = max((max(abs(pair.difference.low), abs(pair.difference.high)) for pair in aa_pairs), default=0.0)
    results = [replace(result, resolved=_resolved(result.exposed)) for result in results]
    name = label(reference_of(Strategy("none")))
    reference = next((result.step for result in results if result.label == name), None)
    return ScenarioAnalysis(
        scenario=scenario,
        compute=reference,
        results=tuple(_placed(results, rounds)),
        aa_pairs=tuple(aa_pairs),
        noise_s=noise,
        rounds=len(all_rounds),
        blocks=(blocks := sum(len(timed_round.blocks) for timed_round in all_rounds)),
        dropped=blocks - sum(len(timed_round.blocks) for timed_round in rounds),
        # The first of each strategy: launches of a resumed run record them again.
        timelines=tuple({line.strategy: line for line in reversed(facts_of(run, Timeline, scenario))}.values())[::-1],
        advice=advice_for(run, scenario),
    )


def _settled(run: TrainingRun, scenario: Scenario, strategies: Iterable[Strategy]) -> list[Strategy]:
    """The strategies with what the run itself advised."""
    advised = facts_of(run, Advised, scenario)
    return [settled(strategy, advised[0]) if advised else strategy for strategy in strategies]


def _is_default(run: TrainingRun, scenario: Scenario, strategy: Strategy) -> bool:
    """True if the strategy stayed open because torch's default was advised."""
    return strategy.open and bool(facts_of(run, Advised, scenario))


class _Timed:
    """Times of all strategies of a scenario, estimated together.

    steps: by label. apart: by two labels, how much longer a step of the first is: of each strategy and its reference,
    and of the two of each A/A pair.
    """

    def __init__(self, rounds: list[Round], strategies: Sequence[Strategy]) -> None:
        self.rounds = rounds
        self.steps_of = _measured({name: steps_of(rounds, name) for name in map(label, strategies)})
        pairs = [(label(strategy), label(reference_of(strategy))) for strategy in strategies]
        pairs += [(label(copy), label(replace(copy, again=0))) for copy in strategies if copy.again]
        distinct = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
        self.differences_of = _measured({pair: differences_of(rounds, *pair) for pair in distinct})
        self.steps, self.apart = estimates(self.steps_of), estimates(self.differences_of)


def _measured(many: dict[K, Series]) -> dict[K, Series]:
    return {key: series for key, series in many.items() if series}


def _resolved(difference: Interval | None) -> bool:
    """True if a difference is not zero. Its interval already includes what the A/A pairs differ by."""
    return difference is None or difference.low > 0 or difference.high < 0


def _result(run: TrainingRun, scenario: Scenario, strategy: Strategy, timed: _Timed) -> StrategyResult:
    name, reference = label(strategy), label(reference_of(strategy))
    checked = [fact for fact in facts_of(run, StrategyChecks, scenario) if fact.strategy == name]
    checks = _distinct(check for fact in checked for check in fact.checks)
    calls = next((fact.calls for fact in checked if fact.calls is not None), None)
    base = StrategyResult(strategy, name, 0, calls=calls, checks=checks)
    failed = [check for check in checks if check.ok is False]
    if failed:
        return replace(base, refused="; ".join(f"{check.invariant}: {check.text}" for check in failed))
    if name not in timed.steps:
        failures = (f.failure.text for f in facts_of(run, LaunchFailure, scenario) if f.strategy in {name, None})
        return replace(base, refused=next(failures, None) or NOT_YET)
    step, all_steps = timed.steps[name], np.concatenate(list(timed.steps_of[name].values()))
    measured = replace(base, rounds=len(all_steps), step=step, step_std=_std(all_steps))
    if (name, reference) not in timed.apart:
        return measured
    exposed = timed.apart[name, reference]
    differences = np.concatenate(list(timed.differences_of[name, reference].values()))
    shares = by_launch(timed.rounds, name, step_s, reference, share=True)
    split = _split(timed.rounds, strategy, exposed.value)
    alone = [
        time_s
        for fact in facts_of(run, CommunicationOnly, scenario)
        if fact.strategy == name
        for time_s in fact.times_s
    ]
    communication_only_s = float(np.median(alone)) if alone else None
    return replace(
        measured,
        exposed=exposed,
        exposed_std=_std(differences),
        share=exposed.value / step.value,
        share_std=_std(np.concatenate(list(shares.values()))),
        split=split,
        communication_only_s=communication_only_s,
        hidden=None if not communication_only_s else 1 - exposed.value / communication_only_s,
        adds_up=abs(split.residual_s) <= UNEXPLAINED * step.value,
    )


def _placed(results: list[StrategyResult], rounds: list[Round]) -> list[StrategyResult]:
    """The results with places: strategies that cannot be told apart from the first of a place share it.

    Where all packing is seen, the order is that of what a step has left to wait for and to pack, which repeats far
    better than whole steps do; else it is that of steps.
    """
    timed = [result for result in results if result.step]
    value = left_s if all(kind(result.strategy).own for result in timed) else step_s
    levels = estimates({result.label: by_launch(rounds, result.label, value) for result in timed})
    ranked = sorted((result.label for result in timed), key=lambda name: levels[name].value)
    apart = estimates(
        _measured({(slow, fast): by_launch(rounds, slow, value, fast) for fast, slow in combinations(ranked, 2)})
    )
    places: dict[str, int] = {}
    leader, place = "", 0
    for position, name in enumerate(ranked, start=1):
        if (name, leader) not in apart or _resolved(apart[name, leader]):
            leader, place = name, position
        places[name] = place
    return [replace(result, place=places.get(result.label)) for result in results]


def _std(values: Floats) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _split(rounds: list[Round], strategy: Strategy, exposed_s: float) -> Split:
    name, reference = label(strategy), label(reference_of(strategy))

    def part(*names: str) -> float:
        """Seconds a step by which these parts exceed those of the reference: mean over ranks, median over rounds."""
        return pooled_median(by_launch(rounds, name, parts_s(*names), reference))

    split = Split(
        tail_s=part("tail"),
        pack_s=part("pack") if kind(strategy).own else None,
        gather_s=part("gather"),
        update_s=part("clip", "update"),
        interference_s=part("forward", "backward"),
        residual_s=0.0,
        late_s=pooled_median(by_launch(rounds, name, _late_s)),
    )
    explained = split.tail_s + (split.pack_s or 0.0) + split.gather_s + split.update_s + split.interference_s
    return replace(split, residual_s=exposed_s - explained)


def left_s(block: TimedBlock, steps: int) -> float:
    """Seconds a step of the last rank's tail, and of packing, mean over ranks."""
    tail = float(np.mean(block.parts_ns["tail"])) if block.last_ns is None else block.last_ns
    return (tail + float(np.mean(block.parts_ns["pack"]))) / steps / 1e9


def _late_s(block: TimedBlock, steps: int) -> float:
    """Seconds a step that ranks wait for the last one of them, mean over ranks."""
    if block.last_ns is None:
        return 0.0
    return (float(np.mean(block.parts_ns["tail"])) - block.last_ns) / steps / 1e9
