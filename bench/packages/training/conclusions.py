"""Define the conclusions from training steps: what each strategy costs a step, and what is advised.

Times are seconds a step. Nothing here reads or formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.model.conclusions import Analysis, Interval
from bench.model.notices import NoticeKind
from bench.model.records import Case, InvariantCheck
from bench.packages.training.step_records import RankMemory, Timeline
from bench.packages.training.synchronisation import Scenario, Strategy, label

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


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of exposed communication: seconds a step, mean over ranks."""

    # Time in which the rank is blocked after backward until the last gradient is usable.
    tail_s: float
    # Hooks, flattening, copying and dividing. None inside a library, where packing cannot be seen and is included in
    # the other parts.
    pack_s: float | None
    # Time by which forward and backward take longer.
    interference_s: float
    # Time that the other parts do not explain.
    residual_s: float
    # Part of the tail: waiting for ranks whose backward ended later. No synchronisation avoids it.
    late_s: float = 0.0
    # Calls of a sharded optimizer that send what each rank updated, or that are made within forward and backward.
    gather_s: float = 0.0
    # Time by which clipping and the update take longer; below 0 if each rank updates its share only.
    update_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The result of one strategy in one scenario.

    Times are seconds of one step of the slowest rank. The *_std are standard deviations over rounds.
    """

    case: Case
    strategy: Strategy
    label: str
    # Number of blocks that count, over all launches.
    rounds: int
    # Time of a step, as `Summary.time_s` of the case.
    step: Interval | None = None
    step_std: float | None = None
    # X = step − step without synchronisation, paired within rounds; may be negative.
    exposed: Interval | None = None
    exposed_std: float | None = None
    # Exposed share of a step: exposed / step.
    share: float | None = None
    share_std: float | None = None
    split: Split | None = None
    # Time of the strategy's calls back to back, without computing.
    communication_only_s: float | None = None
    # Hidden share of the communication: 1 − exposed / communication_only_s.
    hidden: float | None = None
    # Bytes of each all-reduce of a step.
    calls: tuple[int, ...] | None = None
    # Place, 1 for the fastest; strategies that cannot be told apart share the place of the first of them.
    place: int | None = None
    # False if the interval of exposed contains zero.
    resolved: bool = True
    # True if the split explains exposed (I8).
    adds_up: bool | None = None
    # Reason why there are no times; all times are None then.
    refused: str | None = None
    checks: tuple[InvariantCheck, ...] = ()
    timeline: Timeline | None = None
    # Memory of the strategy alone, on the rank with most. None if it was not measured.
    memory: RankMemory | None = None
    # Bytes of the strategy's tensors, without activations. None if not known.
    computed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AAPair:
    """Two copies of one strategy, measured as if they were two strategies."""

    strategy: Strategy
    # Step of the second copy − step of the first.
    difference: Interval

    @property
    def label(self) -> str:
        """The name of the strategy."""
        return label(self.strategy)


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """The results of all strategies of one scenario."""

    scenario: Scenario
    # Time of a step without synchronisation.
    compute: Interval | None
    results: tuple[StrategyResult, ...]
    aa_pairs: tuple[AAPair, ...]
    # Largest difference within the intervals of the A/A pairs.
    noise_s: float
    # Number of blocks that were timed, in all rounds.
    blocks: int
    # Number of these blocks that were left out because others used the machine.
    dropped: int
    # Advice on buckets, which `advise` adds.
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The speed at which a strategy trains on a number of ranks, each with the same batch."""

    case: Case
    strategy: Strategy
    step: Interval
    # Examples a second of all ranks together.
    examples_per_s: Interval
    # Fewest ranks that were measured.
    base_ranks: int
    # Step without synchronisation on `base_ranks` ranks / this step. None for that step itself.
    efficiency: Interval | None
    # Examples a second / those of the step without synchronisation on `base_ranks` ranks.
    speed_up: float

    @property
    def label(self) -> str:
        """The name of the strategy."""
        return label(self.strategy)


@dataclass(frozen=True, slots=True)
class Verified:
    """The prediction for a plan beside its measurement."""

    name: str
    # Predicted time that is exposed after backward.
    predicted_s: float
    # Measured tail of the rank that came last: the time that others wait for that rank is not the link's. None if
    # nothing was measured.
    tail_s: float | None = None
    # All exposed communication. None if nothing was measured.
    exposed: Interval | None = None
    # Reason why nothing was measured, if there is one.
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
    """The communication that a bucket plan is predicted to leave after backward: its tail, in seconds a step."""

    # Bytes of each bucket, in the order in which they are sent.
    buckets: tuple[int, ...]
    # Tail on the link as assumed.
    tail_s: float
    # Tails on links whose latency and rate are worse (slower), or better (faster), by `Advice.off`.
    slower_s: float
    faster_s: float

    @property
    def tails_s(self) -> tuple[float, float, float]:
        """The tails on all three links."""
        return self.tail_s, self.slower_s, self.faster_s


@dataclass(frozen=True, slots=True)
class Advice:
    """The best cap of buckets, of one size for all, on a link that is known roughly; and torch's default."""

    # True if the cap is worth typing in place of the default.
    advised: bool
    # The best cap, and the prediction for it.
    cap_bytes: int
    cap: PlanPrediction
    default: PlanPrediction
    # Time that every plan leaves at least, in whatever order.
    bound_s: float
    # Share by which latency and rate may be off.
    off: float
    # Uniform caps, for the picture: (cap in bytes, predicted tail).
    caps: tuple[tuple[int, float], ...] = ()
    # Most that the cap loses on a link that is off, if this is why it is not advised: it saves enough on the link as
    # assumed. 0 otherwise.
    loses_s: float = 0.0

    @property
    def chosen(self) -> PlanPrediction:
        """The prediction of what is advised."""
        return self.cap if self.advised else self.default


@dataclass(frozen=True, slots=True)
class Way:
    """The prediction for code that makes gradients synchronise in another way; seconds a step."""

    # Name of the code, as in `training.report.advice`.
    name: str
    # Communication that remains after backward.
    tail_s: float
    # Share that is saved of a step with the advised buckets.
    saved: float

    @property
    def worth(self) -> bool:
        """Whether the code saves enough to be typed."""
        return self.saved >= WORTH


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with what explains it."""

    advice: Advice
    # Name of the model that the gradients belong to.
    model: str
    # Description of the link.
    link: str
    # True if communicating on the link takes CPU time. None if unknown.
    cpu: bool | None
    # What else limits the predictions.
    notes: tuple[str, ...]
    # Number of gradients, and their bytes in total.
    gradients: int
    total: int
    # Time at which the last gradient is ready.
    backward_s: float
    # Time of all bytes at the rate of the link.
    bytes_s: float
    # Time of a step with torch's defaults.
    step_s: float
    # Other settings that there is code for.
    ways: tuple[Way, ...]
    # `bucket_cap_mb` of DistributedDataParallel for the cap.
    cap_mib: float
    # Number of ranks for which all this holds, if known.
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
