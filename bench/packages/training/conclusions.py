"""Define the conclusions from training steps: what each strategy costs a step, and what is advised.

Times are seconds a step. Nothing here reads or formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.model.conclusions import Analysis, Interval
from bench.model.notices import NoticeKind
from bench.model.records import Case, InvariantCheck
from bench.packages.training.step_records import RankMemory, Timeline
from bench.packages.training.synchronisation import Scenario, Strategy

# A setting is worth typing if it saves this share of a step. Steps of one job repeat to about 1 %, so that less could
# not be seen.
WORTH = 0.01
# Batches a step with no_sync.
BATCHES = 4
# A prediction holds if it is wrong by at most this many seconds, or by at most this share of itself.
OFF_S, OFF_SHARE = 1e-3, 0.1


class TrainingNotice(NoticeKind):
    """What can be said of training steps."""

    BLOCKS_LEFT_OUT = "blocks-left-out"
    BLOCKS_KEPT = "disturbed-blocks-kept"
    ALL_BLOCKS_KEPT = "all-disturbed-blocks-kept"
    RANKS_UNTESTED = "ranks-untested"


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
    """The result of one strategy in one scenario; times are seconds of one step of the slowest rank.

    rounds: blocks that count, over all launches. step: as `Summary.time_s` of the case. exposed: X = step − step
    without synchronisation, paired within rounds; may be negative. share: exposed / step. The *_std are standard
    deviations over rounds.
    communication_only_s: its calls back to back, without computing. hidden: 1 − exposed / communication_only_s.
    place: 1 for the fastest; strategies that cannot be told apart share the place of the first of them.
    resolved: False where the interval of exposed contains zero. adds_up: whether the split explains exposed (I8).
    refused: why there are no times; all of them are None then. calls: bytes of each all-reduce of a step.
    memory: of the strategy alone, on the rank with most; None where it was not measured. computed_bytes: what its
    tensors take without activations; None where that is not known.
    """

    case: Case
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
    timeline: Timeline | None = None
    memory: RankMemory | None = None
    computed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AAPair:
    """Two copies of one strategy, measured as if they were two strategies. difference: step of second − of first."""

    label: str
    difference: Interval


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """The results of all strategies of one scenario.

    compute: a step without synchronisation. noise_s: the largest difference within the intervals of the A/A
    pairs. blocks: timed in all rounds; dropped: how many of them were left out because others used the machine.
    advice: on buckets; `advise` adds it.
    """

    scenario: Scenario
    compute: Interval | None
    results: tuple[StrategyResult, ...]
    aa_pairs: tuple[AAPair, ...]
    noise_s: float
    blocks: int
    dropped: int
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """How fast a strategy trains on a number of ranks, each with the same batch.

    examples_per_s: of all ranks together. efficiency: the step without synchronisation on `base_ranks`, the fewest that
    were measured, divided by this step; None of that step itself. speed_up: of the examples a second, likewise.
    """

    case: Case
    label: str
    step: Interval
    examples_per_s: Interval
    base_ranks: int
    efficiency: Interval | None
    speed_up: float


@dataclass(frozen=True, slots=True)
class Verified:
    """The prediction for a plan beside its measurement. predicted_s: exposed after backward.

    tail_s: measured, of the rank that came last: what others wait for that rank is not the link's. exposed: all that
    was. Both are None where nothing was measured; refused says why, if anything does.
    """

    name: str
    predicted_s: float
    tail_s: float | None = None
    exposed: Interval | None = None
    refused: str | None = None

    @property
    def holds(self) -> bool | None:
        """True if the tail was about as long as predicted; None without a measurement."""
        if self.tail_s is None:
            return None
        return abs(self.tail_s - self.predicted_s) <= max(OFF_S, OFF_SHARE * self.predicted_s)


# ── advice on buckets; times are predictions, seconds a step ─────────────────────────────────────
@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """What a bucket plan is predicted to leave after backward: its tail, in seconds a step.

    buckets: bytes of each, in the order in which they are sent. tail_s: on the link as assumed. slower_s, faster_s: on
    links whose latency and rate are worse, or better, by `Advice.off`.
    """

    buckets: tuple[int, ...]
    tail_s: float
    slower_s: float
    faster_s: float

    @property
    def tails_s(self) -> tuple[float, float, float]:
        """On all three links."""
        return self.tail_s, self.slower_s, self.faster_s


@dataclass(frozen=True, slots=True)
class Advice:
    """The best cap of buckets, of one size for all, on a link that is known roughly; and torch's default.

    advised: whether the cap is worth typing in place of the default. loses_s: why it is not, though it saves enough on
    the link as assumed: what it loses at most on one that is off. cap_bytes: that cap; cap: what it leaves.
    bound_s: no plan, in whatever order, leaves less. off: share by which latency and rate may be off. caps: (cap in
    bytes, predicted tail) of uniform caps, for the picture.
    """

    advised: bool
    cap_bytes: int
    cap: PlanPrediction
    default: PlanPrediction
    bound_s: float
    off: float
    caps: tuple[tuple[int, float], ...] = ()
    loses_s: float = 0.0

    @property
    def chosen(self) -> PlanPrediction:
        """The prediction of what is advised."""
        return self.cap if self.advised else self.default


@dataclass(frozen=True, slots=True)
class Way:
    """The prediction for code that makes gradients synchronise in another way; seconds a step.

    name: which code, as in `training.report.advice`. tail_s: communication that remains after backward. saved: share of
    a step with the advised buckets.
    """

    name: str
    tail_s: float
    saved: float

    @property
    def worth(self) -> bool:
        """Whether it saves enough to be typed."""
        return self.saved >= WORTH


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with what explains it.

    model: whose gradients, with their number and `total` bytes. link: in words; cpu: whether communicating on it takes
    CPU time; None if unknown. notes: what else limits the predictions.
    backward_s: when the last gradient is ready. bytes_s: all of them at the rate of the link. step_s: a step with
    torch's defaults. ways: what there is code for besides. cap_mib: `bucket_cap_mb` of DistributedDataParallel for the
    cap. ranks: for which all this holds, if known.
    """

    advice: Advice
    model: str
    link: str
    cpu: bool | None
    notes: tuple[str, ...]
    gradients: int
    total: int
    backward_s: float
    bytes_s: float
    step_s: float
    ways: tuple[Way, ...]
    cap_mib: float
    ranks: int | None = None


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TrainingAnalysis:
    """All conclusions from the training steps of one run."""

    scenarios: tuple[ScenarioAnalysis, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()


PACKAGE = "training"


def training_of(analysis: Analysis) -> TrainingAnalysis:
    """What the analysis of a run concludes from its training steps; empty if there are none."""
    found = analysis.of_packages.get(PACKAGE)
    return found if isinstance(found, TrainingAnalysis) else TrainingAnalysis()
