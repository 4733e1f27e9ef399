"""TrainingRun → TrainingAnalysis: what each strategy costs a step, with intervals, and which can be told apart.

Differences are taken within rounds, then the median of a launch, then the mean of launches (docs/gradients.md). With
fewer than three launches, rounds of all launches are pooled, and the interval is said to be within-run.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bench.conclusions import Interval
from bench.training.analyze.advice import advised
from bench.training.analyze.rounds import (
    Series,
    by_launch,
    differences_of,
    disturbed,
    estimate,
    facts_of,
    kept,
    step_s,
    steps_of,
)
from bench.training.conclusions import Comparison, Outcome, Split, TrainingAnalysis, Twins
from bench.training.records import (
    Alone,
    Broken,
    Check,
    Checked,
    Round,
    Rung,
    Scenario,
    Strategy,
    Stretch,
    Timeline,
    TrainingRun,
)
from bench.training.strategies import kind, label, reference_of

NOT_YET = "not measured yet"
# Of a step; what the parts leave unexplained beyond it is said to be so (I8).
UNEXPLAINED = 0.05
Floats = NDArray[np.float64]


def analyze(run: TrainingRun) -> TrainingAnalysis:
    """All that follows from a run."""
    scenarios = {bout.scenario.key: bout for bout in run.plan.bouts}
    comparisons = tuple(
        _comparison(run, bout.scenario, bout.strategies)
        for bout in scenarios.values()
        if any(isinstance(fact, Round | Checked | Broken) and fact.scenario == bout.scenario.key for fact in run.facts)
    )
    general = [check for fact in facts_of(run, Checked) if fact.strategy is None for check in fact.checks]
    warnings = list(run.warnings)
    for one in comparisons:
        if one.dropped:
            warnings.append(
                f"{one.scenario.key}: {one.dropped} of {one.rounds} rounds left out: others used the machine"
            )
        elif one.rounds and disturbed(run, one.scenario) * 2 > one.rounds:
            warnings.append(f"{one.scenario.key}: others used the machine in most rounds, so all were kept")
    return TrainingAnalysis(
        comparisons=comparisons,
        checks=_distinct(general),
        rungs=tuple(facts_of(run, Rung)),
        left=run.plan.left,
        broken=tuple(facts_of(run, Broken)),
        warnings=tuple(warnings),
    )


def _distinct(checks: Iterable[Check]) -> tuple[Check, ...]:
    """One of each invariant and text, failures first: what failed in any launch failed."""
    ordered = sorted(checks, key=lambda check: check.ok is not False)
    return tuple({(check.invariant, check.text): check for check in ordered}.values())


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────
def _comparison(run: TrainingRun, scenario: Scenario, strategies: tuple[Strategy, ...]) -> Comparison:
    every, rounds = facts_of(run, Round, scenario), kept(run, scenario)
    outcomes = [_outcome(run, scenario, strategy, rounds) for strategy in strategies]
    pairs = [(one, replace(one, again=0)) for one in strategies if one.again]
    twins = [
        Twins(label(first), estimate(difference))
        for second, first in pairs
        if (difference := differences_of(rounds, label(second), label(first)))
    ]
    noise = max((max(abs(twin.difference.low), abs(twin.difference.high)) for twin in twins), default=0.0)
    outcomes = [replace(one, resolved=_resolved(one.exposed, noise)) for one in outcomes]
    reference = next((one.step for one in outcomes if one.label == label(reference_of(Strategy("none")))), None)
    return Comparison(
        scenario=scenario,
        compute=reference,
        outcomes=tuple(_placed(outcomes, rounds, noise)),
        twins=tuple(twins),
        noise_s=noise,
        rounds=len(every),
        dropped=len(every) - len(rounds),
        timelines=_latest(facts_of(run, Timeline, scenario)),
        advice=advised(run, scenario),
    )


def _resolved(exposed: Interval | None, noise: float) -> bool:
    return exposed is None or ((exposed.low > 0 or exposed.high < 0) and abs(exposed.value) > noise)


def _latest(timelines: list[Timeline]) -> tuple[Timeline, ...]:
    return tuple({one.strategy: one for one in timelines}.values())


def _outcome(run: TrainingRun, scenario: Scenario, strategy: Strategy, rounds: list[Round]) -> Outcome:
    name, reference = label(strategy), label(reference_of(strategy))
    checked = [fact for fact in facts_of(run, Checked, scenario) if fact.strategy == name]
    checks = _distinct(check for fact in checked for check in fact.checks)
    calls = next((fact.calls for fact in checked if fact.calls is not None), None)
    base = Outcome(strategy, name, 0, calls=calls, checks=checks)
    failed = [check for check in checks if check.ok is False]
    if failed:
        return replace(base, refused="; ".join(f"{check.invariant}: {check.text}" for check in failed))
    steps = steps_of(rounds, name)
    if not steps:
        broken = next((f.failure.text for f in facts_of(run, Broken, scenario) if f.strategy in {name, None}), None)
        return replace(base, refused=broken or NOT_YET)
    step, all_steps = estimate(steps), np.concatenate(list(steps.values()))
    measured = replace(base, rounds=len(all_steps), step=step, step_std=_std(all_steps))
    if name == reference:
        return measured
    paired = differences_of(rounds, name, reference)
    if not paired:
        return measured
    exposed, differences = estimate(paired), np.concatenate(list(paired.values()))
    shares = by_launch(rounds, name, step_s, reference, share=True)
    split = _split(rounds, strategy, exposed.value)
    alone = [time_s for fact in facts_of(run, Alone, scenario) if fact.strategy == name for time_s in fact.times_s]
    alone_s = float(np.median(alone)) if alone else None
    return replace(
        measured,
        exposed=exposed,
        exposed_std=_std(differences),
        share=exposed.value / step.value,
        share_std=_std(np.concatenate(list(shares.values()))),
        split=split,
        alone_s=alone_s,
        hidden=None if not alone_s else 1 - exposed.value / alone_s,
        closes=abs(split.residual_s) <= UNEXPLAINED * step.value,
    )


def _placed(outcomes: list[Outcome], rounds: list[Round], noise: float) -> list[Outcome]:
    """The same with places: whoever cannot be told from the first of a group shares its place."""
    ranked = sorted((one for one in outcomes if one.step), key=lambda one: one.step.value if one.step else 0.0)
    places: dict[str, int] = {}
    leader, place = "", 0
    for position, one in enumerate(ranked, start=1):
        difference = differences_of(rounds, one.label, leader) if leader else {}
        if not difference or _resolved(estimate(difference), noise):
            leader, place = one.label, position
        places[one.label] = place
    return [replace(one, place=places.get(one.label)) for one in outcomes]


def _std(values: Floats) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _split(rounds: list[Round], strategy: Strategy, exposed_s: float) -> Split:
    name, reference = label(strategy), label(reference_of(strategy))

    def part(*names: str) -> float:
        """How much longer these parts take than without synchronisation: mean over ranks, median over rounds."""

        def of(stretch: Stretch, steps: int) -> float:
            return sum(float(np.mean(stretch.parts_ns[one])) for one in names) / steps / 1e9

        return _median(by_launch(rounds, name, of, reference))

    tail, pack, interference = part("tail"), part("pack"), part("forward", "backward", "update")
    late = _median(by_launch(rounds, name, _late_s))
    residual = exposed_s - tail - pack - interference
    return Split(tail, pack if kind(strategy).own else None, interference, residual, late)


def _median(series: Series) -> float:
    return float(np.median(np.concatenate(list(series.values()))))


def _late_s(stretch: Stretch, steps: int) -> float:
    """What ranks wait for the one that comes last, a step, mean over ranks."""
    if stretch.last_ns is None:
        return 0.0
    return (float(np.mean(stretch.parts_ns["tail"])) - stretch.last_ns) / steps / 1e9
