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

from bench.model.conclusions import Interval
from bench.stats.intervals import Floats
from bench.training.analyze.advice import advice_for
from bench.training.analyze.rounds import (
    Series,
    by_launch,
    differences_of,
    disturbed,
    estimates,
    facts_of,
    kept,
    of_parts,
    pooled_median,
    step_s,
    steps_of,
)
from bench.training.conclusions import AAPair, ScenarioAnalysis, Split, StrategyResult, TrainingAnalysis
from bench.training.records import (
    Advised,
    CallSizePoint,
    CommunicationOnly,
    InvariantCheck,
    LaunchFailure,
    Round,
    Scenario,
    SkippedStrategy,
    Strategy,
    StrategyChecks,
    TimedBlock,
    Timeline,
    TrainingRun,
)
from bench.training.strategies import kind, label, reference_of, settled

NOT_YET = "not measured yet"
DEFAULT_ADVISED = "the advice is torch's default, which is measured as ddp"
# Share of a step: if the parts of exposed communication leave more than this unexplained, the report says so (I8).
UNEXPLAINED = 0.05
K = TypeVar("K", bound=Hashable)


def analyze(run: TrainingRun) -> TrainingAnalysis:
    """All that follows from a run."""
    strategies = {launch.scenario: launch.strategies for launch in run.plan.order}
    begun = {fact.scenario for fact in run.facts if isinstance(fact, Round | StrategyChecks | LaunchFailure)}
    scenarios = tuple(_scenario(run, one, of) for one, of in strategies.items() if one.key in begun)
    defaults = tuple(
        SkippedStrategy(scenario, one, DEFAULT_ADVISED)
        for scenario, of in strategies.items()
        for one in _settled(run, scenario, of)
        if _is_default(run, scenario, one)
    )
    general = [check for fact in facts_of(run, StrategyChecks) if fact.strategy is None for check in fact.checks]
    return TrainingAnalysis(
        scenarios=scenarios,
        checks=_distinct(general),
        call_sizes=tuple(facts_of(run, CallSizePoint)),
        skips=(*run.plan.skips, *defaults),
        failures=tuple(facts_of(run, LaunchFailure)),
        warnings=(*run.warnings, *(text for one in scenarios if (text := _disturbance(run, one)) is not None)),
    )


def _disturbance(run: TrainingRun, one: ScenarioAnalysis) -> str | None:
    """A warning if other processes disturbed timed blocks of a scenario."""
    said = []
    if one.dropped:
        said.append(f"{one.dropped} of {one.blocks} timed blocks left out")
    if most := disturbed(run, one.scenario):
        whose = "all strategies" if len(most) == len(one.results) else ", ".join(most)
        said.append(f"too much of {whose} disturbed to leave it out, so all of those kept")
    return f"{one.scenario.key}: {'; '.join(said)}: other processes used the CPU" if said else None


def _distinct(checks: Iterable[InvariantCheck]) -> tuple[InvariantCheck, ...]:
    """Checks without repetitions of invariant and text, failures first: a failure in any launch counts."""
    found: dict[tuple[str, str], InvariantCheck] = {}
    for check in sorted(checks, key=lambda check: check.ok is not False):
        found.setdefault((check.invariant, check.text), check)
    return tuple(found.values())


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────
def _scenario(run: TrainingRun, scenario: Scenario, strategies: tuple[Strategy, ...]) -> ScenarioAnalysis:
    every, rounds = facts_of(run, Round, scenario), kept(run, scenario)
    strategies = tuple(one for one in _settled(run, scenario, strategies) if not _is_default(run, scenario, one))
    timed = _Timed(rounds, strategies)
    results = [_result(run, scenario, strategy, timed) for strategy in strategies]
    pairs = [(label(one), label(replace(one, again=0))) for one in strategies if one.again]
    aa_pairs = [AAPair(first, timed.apart[again, first]) for again, first in pairs if (again, first) in timed.apart]
    noise = max((max(abs(pair.difference.low), abs(pair.difference.high)) for pair in aa_pairs), default=0.0)
    results = [replace(one, resolved=_resolved(one.exposed)) for one in results]
    reference = next((one.step for one in results if one.label == label(reference_of(Strategy("none")))), None)
    return ScenarioAnalysis(
        scenario=scenario,
        compute=reference,
        results=tuple(_placed(results, rounds)),
        aa_pairs=tuple(aa_pairs),
        noise_s=noise,
        rounds=len(every),
        blocks=(blocks := sum(len(one.blocks) for one in every)),
        dropped=blocks - sum(len(one.blocks) for one in rounds),
        # The first of each strategy: launches of a resumed run record them again.
        timelines=tuple({one.strategy: one for one in reversed(facts_of(run, Timeline, scenario))}.values())[::-1],
        advice=advice_for(run, scenario),
    )


def _settled(run: TrainingRun, scenario: Scenario, strategies: Iterable[Strategy]) -> list[Strategy]:
    """The strategies with what the run itself advised."""
    advised = facts_of(run, Advised, scenario)
    return [settled(one, advised[0]) if advised else one for one in strategies]


def _is_default(run: TrainingRun, scenario: Scenario, strategy: Strategy) -> bool:
    """Whether the strategy stayed open because torch's default was advised."""
    return strategy.open and bool(facts_of(run, Advised, scenario))


class _Timed:
    """Times of all strategies of a scenario, estimated together.

    steps: by label. apart: by two labels, how much longer a step of the first is: of each strategy and its reference,
    and of the two of each A/A pair.
    """

    def __init__(self, rounds: list[Round], strategies: Sequence[Strategy]) -> None:
        self.rounds = rounds
        self.steps_of = _measured({label(one): steps_of(rounds, label(one)) for one in strategies})
        pairs = [(label(one), label(reference_of(one))) for one in strategies]
        pairs += [(label(one), label(replace(one, again=0))) for one in strategies if one.again]
        distinct = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
        self.differences_of = _measured({pair: differences_of(rounds, *pair) for pair in distinct})
        self.steps, self.apart = estimates(self.steps_of), estimates(self.differences_of)


def _measured(many: dict[K, Series]) -> dict[K, Series]:
    return {key: series for key, series in many.items() if series}


def _resolved(difference: Interval | None) -> bool:
    """Whether a difference is not nothing. What the A/A pairs differ by is in its own interval already."""
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
        broken = next(
            (f.failure.text for f in facts_of(run, LaunchFailure, scenario) if f.strategy in {name, None}), None
        )
        return replace(base, refused=broken or NOT_YET)
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
    timed = [one for one in results if one.step]
    value = left_s if all(kind(one.strategy).own for one in timed) else step_s
    levels = estimates({one.label: by_launch(rounds, one.label, value) for one in timed})
    ranked = sorted((one.label for one in timed), key=lambda name: levels[name].value)
    apart = estimates(
        _measured({(slow, fast): by_launch(rounds, slow, value, fast) for fast, slow in combinations(ranked, 2)})
    )
    places: dict[str, int] = {}
    leader, place = "", 0
    for position, name in enumerate(ranked, start=1):
        if (name, leader) not in apart or _resolved(apart[name, leader]):
            leader, place = name, position
        places[name] = place
    return [replace(one, place=places.get(one.label)) for one in results]


def _std(values: Floats) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _split(rounds: list[Round], strategy: Strategy, exposed_s: float) -> Split:
    name, reference = label(strategy), label(reference_of(strategy))

    def part(*names: str) -> float:
        """Seconds a step by which these parts exceed those of the reference: mean over ranks, median over rounds."""
        return pooled_median(by_launch(rounds, name, of_parts(*names), reference))

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
