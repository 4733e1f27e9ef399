"""Define the conclusions from training steps: the cost of each strategy per step, and the advice on buckets.

Times are seconds per step. Nothing here reads or formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from collbench.model.conclusions import Analysis, Interval
from collbench.model.records import Case, InvariantCheck
from collbench.packages.training.step_records import RankMemory, Timeline
from collbench.packages.training.synchronisation import Scenario, Strategy, label, short_name, strategy_in

# A prediction is confirmed if its error is at most OFF_S seconds, or at most the share OFF_SHARE of the prediction.
OFF_S, OFF_SHARE = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of exposed communication: seconds per step, mean over ranks."""

    # Time in which the rank is blocked after backward until the last gradient is usable.
    tail_s: float
    # Hooks, flattening, copying and dividing. None inside a library, where packing cannot be seen and is included in
    # the other parts.
    pack_s: float | None
    # Time by which forward and backward take longer than in the reference.
    interference_s: float
    # Time that the other parts do not explain.
    residual_s: float
    # Part of the tail: waiting for ranks whose backward ended later. No synchronisation avoids it.
    late_s: float = 0.0
    # Calls of a sharded optimizer that send each rank's updated share, or that are made within forward and backward.
    gather_s: float = 0.0
    # Time by which clipping and the update take longer; below 0 if each rank updates its share only.
    update_s: float = 0.0

    @property
    def last_rank_s(self) -> float:
        """Return the tail of the rank whose backward ended last."""
        return self.tail_s - self.late_s


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The result of one strategy in one scenario.

    Times are seconds of one step of the slowest rank. The *_std are standard deviations over rounds.
    """

    case: Case
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
    calls_alone_s: float | None = None
    # Hidden share of the communication: 1 − exposed / calls_alone_s.
    hidden: float | None = None
    # Bytes of each all-reduce of a step.
    calls: tuple[int, ...] | None = None
    # Place, 1 for the fastest; strategies that cannot be distinguished share the place of the first of them.
    place: int | None = None
    # False if the interval of exposed contains zero.
    resolved: bool = True
    # True if the split explains exposed communication (I8).
    adds_up: bool | None = None
    # Reason why there are no times; all times are None then.
    refused: str | None = None
    checks: tuple[InvariantCheck, ...] = ()
    timeline: Timeline | None = None
    # Memory of the strategy alone: maximum over ranks at each instant. None if it was not measured.
    memory: RankMemory | None = None
    # Bytes of the strategy's tensors, without activations. None if not known.
    computed_bytes: int | None = None

    @property
    def strategy(self) -> Strategy:
        """Return the strategy of the case."""
        return strategy_in(self.case)

    @property
    def label(self) -> str:
        """Return the name of the strategy."""
        return label(self.strategy)

    @property
    def name(self) -> str:
        """Return the name of the strategy in tables."""
        return short_name(self.strategy)


@dataclass(frozen=True, slots=True)
class AAPair:
    """Two copies of one strategy, measured as if they were two strategies."""

    strategy: Strategy
    # Step of the second copy − step of the first.
    difference: Interval

    @property
    def label(self) -> str:
        """Return the name of the strategy."""
        return label(self.strategy)


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """The results of all strategies of one scenario."""

    scenario: Scenario
    # Time of a step without synchronisation.
    compute: Interval | None
    results: tuple[StrategyResult, ...]
    aa_pairs: tuple[AAPair, ...]
    # A/A noise: the largest difference within the intervals of the A/A pairs.
    noise_s: float
    # Number of blocks that were timed, in all rounds.
    blocks: int
    # Number of these blocks that were left out because other processes used the machine.
    dropped: int
    # Advice on buckets, which `advise` adds.
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The speed at which a strategy trains on a number of ranks, each with the same batch."""

    case: Case
    step: Interval
    # Examples per second of all ranks together.
    examples_per_s: Interval
    # Fewest ranks that were measured.
    base_ranks: int
    # Step without synchronisation on `base_ranks` ranks / this step. None for the base step itself.
    efficiency: Interval | None
    # Examples per second / examples per second of the step without synchronisation on `base_ranks` ranks.
    speed_up: float

    @property
    def label(self) -> str:
        """Return the name of the strategy."""
        return label(strategy_in(self.case))


@dataclass(frozen=True, slots=True)
class Verified:
    """The prediction for a plan, and its measurement."""

    name: str
    # Predicted time that is exposed after backward.
    predicted_s: float
    # Measured tail of the last rank: the time that other ranks wait for that rank is not caused by the link. None if
    # nothing was measured.
    tail_s: float | None = None
    # All exposed communication. None if nothing was measured.
    exposed: Interval | None = None
    # Reason why nothing was measured, if there is one.
    refused: str | None = None

    @property
    def holds(self) -> bool | None:
        """Return True if the tail was about as long as predicted; None without a measurement."""
        if self.tail_s is None:
            return None
        return abs(self.tail_s - self.predicted_s) <= max(OFF_S, OFF_SHARE * self.predicted_s)


# ── advice on buckets; times are predictions, seconds per step ───────────────────────────────────
@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The predicted tail of a bucket plan: communication after backward, in seconds per step."""

    # Bytes of each bucket, in the order in which they are sent.
    buckets: tuple[int, ...]
    # Tail on the link as assumed.
    tail_s: float
    # Tails on links whose latency and rate are worse (slower), or better (faster), by `Advice.off`.
    slower_s: float
    faster_s: float

    @property
    def tails_s(self) -> tuple[float, float, float]:
        """Return the tails on all three links."""
        return self.tail_s, self.slower_s, self.faster_s


@dataclass(frozen=True, slots=True)
class Advice:
    """The best uniform cap of buckets on a link that is known approximately, and torch's default."""

    # True if the cap is worth typing in place of the default.
    advised: bool
    # The best cap, and the prediction for it.
    cap_bytes: int
    cap: PlanPrediction
    default: PlanPrediction
    # Lower bound on the tail of every plan, in whatever order it sends.
    bound_s: float
    # Relative error that latency and rate may have.
    off: float
    # Uniform caps, for the picture: (cap in bytes, predicted tail).
    caps: tuple[tuple[int, float], ...] = ()
    # Largest loss of the cap on a slower or faster link, if only this loss prevents the advice: the cap saves enough on
    # the link as assumed. 0 otherwise.
    loses_s: float = 0.0

    @property
    def chosen(self) -> PlanPrediction:
        """Return the prediction for the advised buckets."""
        return self.cap if self.advised else self.default


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TrainingAnalysis:
    """All conclusions from the training steps of one run."""

    scenarios: tuple[ScenarioAnalysis, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()


PACKAGE = "training"


def training_of(analysis: Analysis) -> TrainingAnalysis:
    """Return the conclusions from the training steps of a run; empty if there are none."""
    conclusions = analysis.of_packages.get(PACKAGE)
    return conclusions if isinstance(conclusions, TrainingAnalysis) else TrainingAnalysis()
