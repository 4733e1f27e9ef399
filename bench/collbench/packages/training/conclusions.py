"""Define the conclusions from training steps: the cost of each strategy per step, and the advice on buckets.

Times are seconds per step. Nothing here reads or formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from collbench.model.conclusions import Analysis, Interval
from collbench.model.records import Case, InvariantCheck
from collbench.model.results import CaseRecord, RunRecord, Unit, computed, fact
from collbench.packages.training.step_records import Link, RankMemory, Timeline
from collbench.packages.training.synchronisation import (
    Scenario,
    Strategy,
    label,
    options_of,
    short_name,
    strategy_in,
    with_strategy,
)

# A prediction is confirmed if its error is at most OFF_S seconds, or at most the share OFF_SHARE of the prediction.
OFF_S, OFF_SHARE = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of exposed communication: seconds per step, mean over ranks."""

    tail_s: float = fact("blocked after backward until the last gradient was usable", "tail", Unit.SECONDS)
    # No synchronisation avoids it.
    late_s: float = fact(
        "part of the tail: waiting for ranks whose backward ended later", "of it late ranks", Unit.SECONDS
    )
    # Inside a library, packing cannot be seen and is included in the other parts.
    pack_s: float | None = fact("hooks, flattening, copying, dividing; null inside a library", "pack", Unit.SECONDS)
    interference_s: float = fact("growth of forward and backward", "interference", Unit.SECONDS)
    # Below 0 if each rank updates its share only.
    update_s: float = fact("growth of clipping and the update", "update", Unit.SECONDS)
    # They send each rank's updated share, or are made within forward and backward.
    gather_s: float = fact("calls of a sharded optimizer", "gather", Unit.SECONDS)
    residual_s: float = fact("the rest, which the other parts do not explain", "residual", Unit.SECONDS)

    @property
    def last_rank_s(self) -> float:
        """Return the tail of the rank whose backward ended last."""
        return self.tail_s - self.late_s


@dataclass(frozen=True, slots=True)
class StrategyResult(CaseRecord):
    """A strategy: in addition to the fields of every case, seconds per step of the slowest rank.

    The names for programs are those that are customary for training.
    """

    case: Case

    shown_label = computed("the strategy as tables name it", str, attrgetter("label"), name="label")
    scenario = computed(
        "names what all strategies of a launch share", str, lambda result: with_strategy(result.case, None).key
    )
    global_batch_size = computed(
        "examples of one step, over all ranks",
        int,
        lambda result: options_of(result.case).batch * result.case.world_size,
    )
    warmup_steps: int | None = fact("steps per launch before the timed ones", default=None)

    benchmark_steps = computed(
        "timed steps that count, of all launches", int, lambda result: result.case.depth * result.rounds
    )
    # It is `Summary.time_s` of the case.
    step: Interval | None = fact(
        "time of a step: mean of the rounds, geometric mean of the launches",
        limits=("step_time_avg", "step_time_low", "step_time_high"),
        default=None,
    )
    step_std: float | None = fact("standard deviation over rounds", name="step_time_std", default=None)
    # Paired within rounds; may be negative.
    exposed: Interval | None = fact(
        "exposed communication: the step less the same step without synchronisation",
        limits=("comm_time_avg", "comm_time_low", "comm_time_high"),
        default=None,
    )
    exposed_std: float | None = fact("standard deviation over rounds", name="comm_time_std", default=None)
    share: float | None = fact("comm_time over step_time", "comm_frac", Unit.SHARE, name="comm_frac_avg", default=None)
    share_std: float | None = fact("standard deviation over rounds", name="comm_frac_std", default=None)
    calls_alone_s: float | None = fact(
        "the calls of a step back to back, without computing", "calls alone", Unit.SECONDS, default=None
    )
    hidden: float | None = fact(
        "1 − comm_time / calls_alone_s; negative where calls cost more than alone",
        "hidden",
        Unit.SHARE,
        default=None,
    )
    split: Split | None = fact(flat=True, default=None)
    adds_up: bool | None = fact("whether the parts explain comm_time", "adds up", default=None)
    place: int | None = fact(
        "1 for the fastest; strategies that cannot be distinguished share a rank", "place", default=None
    )
    calls: tuple[int, ...] | None = fact("bytes of each all-reduce", name="call_bytes", in_csv=False, default=None)

    call_count = computed(
        "all-reduces of a step; null if the library does not report them",
        int | None,
        lambda result: None if result.calls is None else len(result.calls),
        name="calls",
    )
    resolved: bool = True

    resolved_if_timed = computed(
        "false if the interval of comm_time includes 0",
        bool | None,
        lambda result: result.resolved if result.step else None,
        name="resolved",
    )
    rounds: int = fact("blocks that count, of all launches", default=0)
    # Then all times are None.
    refused: str | None = fact("why there are no times", default=None)

    bucket_bytes = computed("cap of the buckets", int | None, attrgetter("strategy.cap_bytes"))
    accumulate = computed("micro-batches of a step", int, attrgetter("strategy.accumulate"))
    peak_memory_bytes = computed(
        "most that torch gave out at once for it alone; null: not measured",
        int | None,
        lambda result: result.memory and result.memory.peak_bytes,
    )
    computed_bytes: int | None = fact(
        "its tensors without activations; null where not known", name="computed_memory_bytes", default=None
    )
    link: Link | None = fact(flat=True, default=None)
    checks: tuple[InvariantCheck, ...] = fact("of the invariants", in_csv=False, default=())
    timeline: Timeline | None = None
    # Memory of the strategy alone: maximum over ranks at each instant. None if it was not measured.
    memory: RankMemory | None = None

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
    difference: Interval = fact("step of the second less step of the first")

    label = computed("the strategy as tables name it", str, lambda each: label(each.strategy))


@dataclass(frozen=True, slots=True)
class ScenarioAnalysis:
    """The scenario in which strategies were measured side by side."""

    scenario: Scenario
    results: tuple[StrategyResult, ...]
    compute: Interval | None = fact("a step without synchronisation")
    aa_pairs: tuple[AAPair, ...] = fact()
    # The largest difference within the intervals of the A/A pairs.
    noise_s: float = fact("most that two copies of one strategy may differ by")
    blocks: int = fact("timed, over all launches")
    dropped: int = fact("of them, left out because other processes used the machine")
    advice: Advice | None = fact("on buckets", default=None)

    key = computed("as in its cases", str, attrgetter("scenario.case.key"), name="scenario")


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The speed at which a strategy trains on a number of ranks, each with the same batch."""

    case: Case = fact("of the case", name="key")
    step: Interval = fact("time of a step")
    examples_per_s: Interval = fact("of all ranks together")
    base_ranks: int = fact("fewest ranks that were measured")
    # None for the base step itself.
    efficiency: Interval | None = fact("step without synchronisation on these over this step")
    speed_up: float = fact("of the examples a second against that step")

    label = computed("the strategy as tables name it", str, lambda each: label(strategy_in(each.case)))


@dataclass(frozen=True, slots=True)
class Verified:
    """The prediction for a plan, and its measurement."""

    name: str
    # Predicted time that is exposed after backward.
    predicted_s: float
    # Measured tail of the last rank: the time that other ranks wait for that rank is not caused by the link. None if
    # nothing was measured.
    tail_s: float | None = None

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

    buckets: tuple[int, ...] = fact("bytes of each all-reduce, in the order in which they are sent")
    tail_s: float = fact("communication after backward, on the link as assumed")
    slower_s: float = fact("on a link whose latency and rate are worse by `off`")
    faster_s: float = fact("on a link that is better by as much")

    @property
    def tails_s(self) -> tuple[float, float, float]:
        """Return the tails on all three links."""
        return self.tail_s, self.slower_s, self.faster_s


@dataclass(frozen=True, slots=True)
class Advice:
    """The best uniform cap of buckets on a link that is known approximately, and torch's default."""

    advised: bool = fact("whether the cap is worth typing in place of torch's default")
    cap_bytes: int = fact("the best cap of one size for all buckets")
    cap: PlanPrediction = fact()
    default: PlanPrediction = fact()
    bound_s: float = fact("no plan, in whatever order, leaves less")
    off: float = fact("share by which latency and rate may be off")
    caps: tuple[tuple[int, float], ...] = fact("cap in bytes, predicted tail in seconds", default=())
    # Largest loss of the cap on a slower or faster link, if only this loss prevents the advice: the cap saves enough on
    # the link as assumed. 0 otherwise.
    loses_s: float = 0.0

    @property
    def chosen(self) -> PlanPrediction:
        """Return the prediction for the advised buckets."""
        return self.cap if self.advised else self.default


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TrainingAnalysis(RunRecord):
    """All conclusions from the training steps of one run."""

    scenarios: tuple[ScenarioAnalysis, ...] = fact(default=())
    scaling: tuple[ScalingPoint, ...] = fact(default=())

    @property
    def cases(self) -> dict[Case, StrategyResult]:
        """Return the result of each case."""
        return {result.case: result for scenario in self.scenarios for result in scenario.results}


PACKAGE = "training"


def training_of(analysis: Analysis) -> TrainingAnalysis:
    """Return the conclusions from the training steps of a run; empty if there are none."""
    conclusions = analysis.of_packages.get(PACKAGE)
    return conclusions if isinstance(conclusions, TrainingAnalysis) else TrainingAnalysis()
