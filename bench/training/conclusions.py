"""What follows from a run of the training benchmark: made by `training.analyze`, shown by `training.report`.

    TrainingRun ─▶ StrategyResult(one a strategy) ─▶ ScenarioAnalysis(one a scenario) ─▶ TrainingAnalysis
    two of them ─▶ StepChange(one a strategy) ─▶ TrainingComparison

Times are seconds of one step, of the slowest rank. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.conclusions import Interval
from bench.training.records import (
    CallSizePoint,
    InvariantCheck,
    LaunchFailure,
    Scenario,
    SkippedStrategy,
    Strategy,
    Timeline,
)


@dataclass(frozen=True, slots=True)
class Split:
    """Where exposed communication goes, seconds a step, mean over ranks; residual is what the parts do not explain.

    tail: blocked after backward until the last gradient was usable. pack: hooks, flattening, copying, dividing;
    None inside a library, where we do not see it and it counts as one of the others.
    interference: growth of computing while communicating. late: the share of the tail that is waiting for ranks whose
    backward ended later, which no synchronisation avoids.
    """

    tail_s: float
    pack_s: float | None
    interference_s: float
    residual_s: float
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """One strategy in one scenario.

    step: time of a step, with its interval. exposed: X = step − step without synchronisation, paired within rounds;
    may be negative. share: exposed / step. The *_std are standard deviations over rounds.
    alone_s: its calls back to back without computing. hidden: 1 − exposed / alone.
    place: 1 for the fastest; strategies that cannot be told apart share the place of the first of them.
    resolved: False where exposed lies inside what two copies of the same strategy differ by.
    refused: why there are no times; then all of them are None.
    """

    strategy: Strategy
    label: str
    rounds: int
    step: Interval | None = None
    step_std: float | None = None
    exposed: Interval | None = None
    exposed_std: float | None = None
    share: float | None = None
    share_std: float | None = None
    split: Split | None = None
    communication_only_s: float | None = None
    hidden: float | None = None
    calls: tuple[int, ...] | None = None
    place: int | None = None
    resolved: bool = True
    adds_up: bool | None = None
    refused: str | None = None
    checks: tuple[InvariantCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class AAPair:
    """An A/A pair: two copies of one strategy, measured as if they were two. difference: second − first."""

    label: str
    difference: Interval


@dataclass(frozen=True, slots=True)
class Advice:
    """The best bucket plan for the scenario, by `planner`, from the run's own link and ready times.

    caps: (cap in bytes, predicted exposed seconds) of uniform caps, for the picture.
    """

    buckets: tuple[int, ...]
    exposed_s: float
    best_cap: int
    best_cap_exposed_s: float
    default_exposed_s: float
    bound_s: float
    caps: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """What a plan leaves exposed. largest: bytes of its largest bucket."""

    name: str
    buckets: int
    largest: int
    exposed_s: float


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """One bucket of the best plan. members: numbers of its gradients as registered, in the order of becoming ready.

    ready_s: when the last of them is ready. start_s, done_s: of its all-reduce.
    """

    nbytes: int
    members: tuple[int, ...]
    ready_s: float
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class Deviation:
    """The link has so many times the latency and the rate: what the plan leaves exposed, and what the best would."""

    latency: float
    rate: float
    exposed_s: float
    optimal_s: float


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """All that an advice can be explained by.

    total: bytes of all gradients. backward_s: when the last one is ready. predictions: of the best plan and of those
    that people use. caps_mib, cap_mib: what to give DistributedDataParallel for the best plan and the best uniform cap.
    """

    advice: Advice
    gradients: int
    total: int
    backward_s: float
    predictions: tuple[PlanPrediction, ...]
    buckets: tuple[PlannedBucket, ...]
    sensitivity: tuple[Deviation, ...]
    caps_mib: tuple[float, ...]
    cap_mib: float


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """All strategies of one scenario.

    compute: a step without synchronisation. noise_s: half-width of what the A/A pairs allow: a smaller difference is
    not resolved. dropped: rounds left out because others used the machine, of `rounds`.
    """

    scenario: Scenario
    compute: Interval | None
    results: tuple[StrategyResult, ...]
    aa_pairs: tuple[AAPair, ...]
    noise_s: float
    rounds: int
    dropped: int
    timelines: tuple[Timeline, ...] = ()
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class TrainingAnalysis:
    """All that follows from one run. checks: those that concern no single strategy."""

    scenarios: tuple[ScenarioAnalysis, ...]
    checks: tuple[InvariantCheck, ...]
    call_sizes: tuple[CallSizePoint, ...]
    skips: tuple[SkippedStrategy, ...]
    failures: tuple[LaunchFailure, ...]
    warnings: tuple[str, ...] = ()


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ExposedChange:
    """Exposed communication of one strategy in two runs. difference: after − before, with its interval.

    resolved: False where the difference may be nothing: by a test over all strategies at once, or because two copies
    of one strategy differ by as much in either run, or because too few launches were made to know.
    """

    before: Interval
    after: Interval
    difference: Interval
    resolved: bool


@dataclass(frozen=True, slots=True)
class StepChange:
    """One strategy of one scenario in two runs. ratio: AFTER / BEFORE of the time of a step, with its interval.

    verdict, further_launches: as of a `conclusions.Change`. exposed: None for the reference.
    """

    scenario: Scenario
    label: str
    before: Interval
    after: Interval
    ratio: Interval
    verdict: str
    exposed: ExposedChange | None = None
    further_launches: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A strategy of a scenario that has a time in one run only, and why not in the other."""

    scenario: Scenario
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """Two runs of the training benchmark laid side by side, as a `conclusions.Comparison` is.

    broken: measured before, and refused or failed after.
    """

    before: str
    after: str
    verdict: str
    min_change: float
    changes: tuple[StepChange, ...]
    differences: tuple[tuple[str, str, str], ...] = ()
    only_before: tuple[Unpaired, ...] = ()
    only_after: tuple[Unpaired, ...] = ()
    broken: tuple[Unpaired, ...] = ()
    warnings: tuple[str, ...] = ()
