"""The conclusions from runs of the training benchmark, as data: made by `training.analyze`, shown by `training.report`.

    TrainingRun ─▶ StrategyResult(one a strategy) ─▶ ScenarioAnalysis(one a scenario) ─▶ TrainingAnalysis
    two TrainingRuns ─▶ StepChange(one a strategy) ─▶ TrainingComparison

Times are seconds of one step of the slowest rank, unless a class says otherwise. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.model.comparisons import Judgement, WithJudgement, failing
from bench.model.conclusions import Interval
from bench.model.training import (
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
    """The parts of exposed communication: seconds a step, mean over ranks.

    tail: the rank is blocked after backward until the last gradient is usable. pack: hooks, flattening, copying and
    dividing; None inside a library, where it cannot be seen and is included in the other parts.
    interference: how much longer forward and backward take. residual: what the other parts do not explain.
    late: the part of the tail that is waiting for ranks whose backward ended later; no synchronisation avoids it.
    gather: calls of a sharded optimizer: those that send what each rank updated, or that are made within forward and
    backward. update: how much longer clipping and the update take; below 0 where each rank updates its share only.
    """

    tail_s: float
    pack_s: float | None
    interference_s: float
    residual_s: float
    late_s: float = 0.0
    gather_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The result of one strategy in one scenario.

    step: time of a step, with its interval. exposed: X = step − step without synchronisation, paired within rounds;
    may be negative. share: exposed / step. The *_std are standard deviations over rounds.
    communication_only_s: its calls back to back, without computing. hidden: 1 − exposed / communication_only_s.
    place: 1 for the fastest; strategies that cannot be told apart share the place of the first of them.
    resolved: False where the interval of exposed contains zero.
    refused: why there are no times; all of them are None then.
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
    """Two copies of one strategy, measured as if they were two strategies. difference: step of second − of first."""

    label: str
    difference: Interval


@dataclass(frozen=True, slots=True)
class Advice:
    """The bucket plan to use on a link that is known roughly, by `training.advisor`; times are predictions.

    A regret is how much more than the best plan there a plan leaves exposed, where link and backward are off by at most
    `box`. advised: "default", "cap" or "plan", the simplest that loses nothing worth a setting. plan: with the least
    worst regret. cap: the uniform cap with the least worst regret. least_s: what the best plan leaves if all is as
    assumed. bound_s: no plan, in whatever order, leaves less. caps: (cap in bytes, predicted exposed seconds) of
    uniform caps, for the picture. box: shares by which latency, rate and backward may be off.
    """

    advised: str
    plan: PlanPrediction
    cap: PlanPrediction
    default: PlanPrediction
    least_s: float
    bound_s: float
    box: tuple[float, float, float]
    caps: tuple[tuple[int, float], ...] = ()

    @property
    def chosen(self) -> PlanPrediction:
        """The prediction of what is advised."""
        return {"default": self.default, "cap": self.cap, "plan": self.plan}[self.advised]


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The prediction for a bucket plan. buckets: bytes of each, in the order in which they are sent.

    exposed_s: if all is as assumed. worst_regret_s: the largest regret, and worst_at the factors of latency, rate and
    backward there. cap: in bytes, of a uniform cap.
    """

    buckets: tuple[int, ...]
    exposed_s: float
    worst_regret_s: float
    worst_at: tuple[float, float, float]
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """One bucket of a plan. members: registration numbers of its gradients, in the order they become ready.

    ready_s: when the last of them is ready. start_s, done_s: when its all-reduce starts and ends.
    """

    nbytes: int
    members: tuple[int, ...]
    ready_s: float
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class OtherWay:
    """The prediction for another way than a bucket plan: exposed seconds a step. note: what it changes in training."""

    name: str
    exposed_s: float
    note: str


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with all that explains it.

    total: bytes of all gradients; itemsize: of one element. backward_s: when the last one is ready. bytes_s: all
    gradients at the rate of the link. predictions: of the advised plan and of plans in common use, by name. caps_mib,
    cap_mib: `bucket_cap_mb_list` of DistributedDataParallel for the plan, and `bucket_cap_mb` for the cap.
    """

    advice: Advice
    gradients: int
    total: int
    itemsize: int
    backward_s: float
    bytes_s: float
    predictions: tuple[tuple[str, PlanPrediction], ...]
    buckets: tuple[PlannedBucket, ...]
    others: tuple[OtherWay, ...]
    caps_mib: tuple[float, ...]
    cap_mib: float


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """The results of all strategies of one scenario.

    compute: a step without synchronisation. noise_s: the largest difference within the intervals of the A/A
    pairs. blocks: timed in all rounds; dropped: how many of them were left out because others used the machine.
    """

    scenario: Scenario
    compute: Interval | None
    results: tuple[StrategyResult, ...]
    aa_pairs: tuple[AAPair, ...]
    noise_s: float
    rounds: int
    blocks: int
    dropped: int
    timelines: tuple[Timeline, ...] = ()
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class TrainingAnalysis:
    """The conclusions from one run. checks: those that concern no single strategy."""

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

    resolved: False where the difference may be zero: by a test over all strategies at once, because it is within the
    noise of the A/A pairs of either run, or because there are too few launches to test it.
    """

    before: Interval
    after: Interval
    difference: Interval
    resolved: bool


@dataclass(frozen=True, slots=True)
class StepChange(WithJudgement):
    """One strategy of one scenario in two runs: the time of a step. exposed: None for the reference."""

    scenario: Scenario
    label: str
    before: Interval
    after: Interval
    judgement: Judgement
    exposed: ExposedChange | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A strategy of a scenario that has a time in one run only. reason: why it has none in the other."""

    scenario: Scenario
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """Two runs of the training benchmark compared; its fields are as in `bench.model.conclusions.Comparison`.

    broken: strategies that were timed before, and were refused or failed after.
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
    whole: Judgement | None = None
    fail_on: tuple[str, ...] = ("SLOWER",)

    @property
    def failed(self) -> bool:
        """Whether a verdict is a failure, or a strategy failed after."""
        return failing(self.verdict, self.changes, self.fail_on) or bool(self.broken)
