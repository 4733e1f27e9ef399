"""Define the types of conclusions, which `analyze` computes from facts and `report` shows.

    Run ─▶ Summary ─┬─▶ Fit, Bound    how time depends on size, and what no run can beat
                    └─▶ Finding       a rank, a link or a size that stands out, with its evidence

Each type holds its evidence and its warnings. Everything is frozen. Units: seconds, bytes, bytes per second. Nothing
here reads or computes. The types of facts are in `records`, those of conclusions from several runs in `comparisons`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from bench.model.records import Case, Failure, Scenario
from bench.model.training import InvariantCheck, RankMemory, Strategy, Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# A setting is worth typing if it saves this share of a step. Steps of one job repeat to about 1 %, so that less could
# not be seen.
WORTH = 0.01
# A prediction holds if it is wrong by at most this many seconds, or by at most this share of itself.
OFF_S, OFF_SHARE = 1e-3, 0.1


class IntervalKind(StrEnum):
    """What an interval is made from. NONE: a single number of another tool has no interval."""

    OVER_LAUNCHES = "over launches"
    WITHIN_RUN = "within-run"  # of one launch
    NOISE_FLOOR = "stated noise floor"
    OVER_RETESTS = "over retests"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval around it.

    Without an interval (`IntervalKind.NONE`), low and high are the value, and must not be shown.
    """

    value: float
    low: float
    high: float
    kind: IntervalKind

    @property
    def known(self) -> bool:
        return self.kind != IntervalKind.NONE

    @property
    def relative_half_width(self) -> float:
        """Infinite where no interval is known."""
        return (self.high - self.low) / 2 / self.value if self.known and self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Stall:
    """A second, slower mode in the times of one case. share: of the iterations that are in it.

    fast_s, slow_s: mean of each mode, so that within a launch they and their shares add up to the mean of all.
    """

    share: float
    fast_s: float
    slow_s: float


@dataclass(frozen=True, slots=True)
class GlooStalls:
    """Whether gloo's small calls stall here, and how much faster they are where its loop threads run under SCHED_BATCH.

    verdict: "stalls"; "none"; "undecided"; "other", where calls stall and SCHED_BATCH is no remedy; "harms", where it
    makes them slower; or "untested", where calls stall that were not measured under it. largest_bytes: of the small
    calls. cases: those with two modes under normal scheduling. share: of their calls that wait; wait_s: how much
    longer these take. factor: time under normal scheduling / under SCHED_BATCH, over all small cases that have both;
    None if untested. disturbed: whether other
    programs used the cores, for which calls wait, too.
    """

    verdict: str
    largest_bytes: int
    cases: tuple[Case, ...]
    share: float
    wait_s: float
    factor: Interval | None
    disturbed: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """One case over all its launches. Times are the per-iteration maximum over ranks, for one call.

    means_s: the mean of each launch's iterations. time_s: their geometric mean and its interval, which is the time of
        the case wherever one is quoted; None if no launch succeeded, and then `failures` says why. scatter: standard
        deviation of the logarithms of `means_s`; None with one launch.
    p10_s, p50_s, p90_s, p99_s: percentiles of the iterations of each launch, geometric means over the launches; None
        where a launch has too few iterations for one.
    fastest_rank_s: like `time_s`, with the minimum over ranks. skew_s: mean of last minus first start.
    pure_s: mean of last end minus last start: the time after all ranks had arrived. Both are None where starts
        on different ranks cannot be compared on one clock.
    outliers, far_outliers: iterations beyond Tukey's fences, 1.5 and 3 interquartile ranges above the upper
        quartile, counted and kept. outlier_causes: disturbances seen while the case ran.
    stall: a second mode, if there is one.
        steady: False if the times changed again late in a launch.
    timer_s: cost of reading the clock. floor_s: time of the same call in a group of one rank.
    asked, reached: relative half-width asked for, and mean of those within the launches.
    chosen: what NCCL chose for it, in words; empty if it was not asked.
    imported: how the times were obtained, if another tool measured them; a launch is then one number, and every
        field that needs single iterations or ranks is missing.
    """

    case: Case
    launches: int
    iterations: int
    time_s: Interval | None
    means_s: tuple[float, ...] = ()
    scatter: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    host_time_s: float | None = None
    fastest_rank_s: float | None = None
    skew_s: float | None = None
    pure_s: float | None = None
    outliers: int = 0
    far_outliers: int = 0
    outlier_causes: tuple[str, ...] = ()
    stall: Stall | None = None
    steady: bool = True
    timer_s: float | None = None
    floor_s: float | None = None
    asked: float | None = None
    reached: float | None = None
    stopped_by: str = ""
    foreign_cpu: float | None = None
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    chosen: str = ""
    imported: str = ""


# ── models and bounds ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Segment:
    """t = alpha_s + size * beta_s_per_byte, for sizes from `low` to `high` bytes, both included."""

    low: int
    high: int
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Piecewise α–β model of one series of sizes: `case` is the smallest, the others differ only in size.

    alpha_s: latency (first segment). rate: r∞ = 1/β in bytes/s of algorithm bandwidth (last segment).
    half_size: n½ = α/β of the last segment. half_size_seen: size at which half the best measured bandwidth is
        reached, interpolated between measured sizes.
    worst_residual: largest relative deviation of the model from a measured time. note: why there is no model, or "".
    """

    case: Case
    segments: tuple[Segment, ...]
    alpha_s: Interval | None
    rate: Interval | None
    half_size: Interval | None
    half_size_seen: float | None
    worst_residual: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bus bandwidth that a case cannot exceed, in bytes/s, and where it comes from."""

    backend: str
    world_size: int
    name: str
    busbw: float


# ── findings ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Finding:
    """A rank, node, link or size that stands out.

    kind: "late rank", "late node", "slow rank", "slow node", "slow link", "inconsistent". subject: such as "rank 2",
    "node h5", "link 0–3". rank: if the subject is one rank. ranks: all ranks that the finding is about.
    cost_s: time that it adds to an operation. share: share of iterations in which it came last (late), or relative
    excess of its time (slow, inconsistent). p: p-value after correction for multiple tests.
    """

    kind: str
    subject: str
    text: str
    cases: tuple[Case, ...] = ()
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    cost_s: float | None = None
    share: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Median time of an exchange between each pair of ranks. times_s: symmetric, NaN on the diagonal."""

    case: Case
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Late and slow ranks, nodes and links of a run. silent: sentences on what could not be determined, and why."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """Time in calls of a recorded job: seconds a step, mean over the recorded ranks.

    in_calls_s: in which a call was under way. moved_s: the part that moving the data took: as long as the call was on
    the rank where it was shortest, which nobody let wait. waited_s: the rest, waiting for others. unsplit_s: of calls
    that cannot be divided into the two. waited_for: world rank → seconds that the others waited for it. calls: a step.
    exposed_s: the part of in_calls_s in which nothing was computed; None where computing was not recorded.
    """

    calls: float
    in_calls_s: float
    moved_s: float
    waited_s: float
    unsplit_s: float
    waited_for: dict[int, float] = field(default_factory=dict)
    exposed_s: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedKind:
    """Calls that differ in nothing but when they were made, and by whom. elements: of the larger side.

    ranks: of a group; groups: how many groups make such calls. dtype, elements, ranks: None where not recorded.
    """

    operation: str
    dtype: str | None
    elements: int | None
    ranks: int | None
    groups: int
    time: RecordedTime


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Where the time in calls of a recorded job went. ranks: world ranks whose files were given.

    total: None where durations were not recorded. kinds, groups: the longest first, groups by their name. withheld:
    what is not told, and why.
    """

    source: str
    backend: str | None
    world_size: int | None
    ranks: tuple[int, ...]
    steps: int
    total: RecordedTime | None
    kinds: tuple[RecordedKind, ...] = ()
    groups: tuple[tuple[str, RecordedTime], ...] = ()
    withheld: tuple[str, ...] = ()

    @property
    def late(self) -> tuple[int, float] | None:
        """The rank that was waited for longest, and its share of all waiting; None unless it stands out.

        With n ranks it does from 2/n of the waiting on; of two ranks, from three quarters on.
        """
        if self.total is None or not self.total.waited_s or not self.total.waited_for:
            return None
        rank = max(self.total.waited_for, key=self.total.waited_for.__getitem__)
        share = self.total.waited_for[rank] / sum(self.total.waited_for.values())
        return (rank, share) if share >= min(0.75, 2 / max(2, len(self.ranks))) else None


@dataclass(frozen=True, slots=True)
class StepBar:
    """One call in the timeline of a step. kind: a case that stands for all calls like it. start_s: since the first."""

    kind: Case
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class ReplayedKind:
    """Calls of one kind in a step of a recorded job. case: stands for all of them. ranks: of a group.

    calls: a step, mean over ranks. recorded, time: of all of them in a step, mean over ranks; recorded is None where
    durations were not.
    """

    case: Case
    calls: float
    ranks: int
    recorded: RecordedTime | None
    time: Interval


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """The communication of one step of a recorded job, made again: seconds in which a call is under way, mean of ranks.

    stand_in: says whose calls are made where ranks make other calls than in the job; "" where each makes its own.
    bars: of the median step on rank 0; recorded_bars: of the rank whose calls it makes.
    """

    case: Case
    source: str
    recorded_world: int | None
    stand_in: str
    gaps: bool
    time: Interval
    recorded: RecordedTime | None
    kinds: tuple[ReplayedKind, ...]
    changes: tuple[str, ...]
    recorded_bars: tuple[StepBar, ...]
    bars: tuple[StepBar, ...]


# ── training steps ───────────────────────────────────────────────────────────────────────────────
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
    """How fast a strategy trains on so many ranks, each with the same batch.

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
class CallSize:
    """The same bytes all-reduced in so many calls back to back (Li et al., VLDB 2020, figure 2).

    time: of all calls together. options: those that are not at their defaults, such as `scheduling=batch`.
    """

    backend: str
    world_size: int
    total_bytes: int
    calls: int
    time: Interval
    options: str = ""


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


# ── advice on buckets, made by `advise`; times are predictions, seconds a step ───────────────────
@dataclass(frozen=True, slots=True)
class Advice:
    """The bucket plan to use on a link that is known roughly, by `advise.advisor`; times are predictions.

    A regret is how much more than the best plan there a plan leaves exposed, where link and backward are off by at most
    `box`. advised: "default", "cap" or "plan", each only if it saves WORTH of a step where all is as assumed against
    the one before it, and takes longer nowhere in the box. plan: with the least worst regret. cap: the uniform cap with
    the least worst regret. least_s: what the best plan leaves if all is as assumed. bound_s: no plan, in whatever
    order, leaves less. caps: (cap in bytes, predicted exposed seconds) of uniform caps, for the picture. box: shares by
    which latency, rate and backward may be off.
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
class Way:
    """The prediction for code that makes gradients synchronise in another way, if all is as assumed; seconds a step.

    name: which code, as in `report.advice`; number: what is typed in it, 0 if nothing is. tail_s: communication that
    remains after backward. waits_s: computing that waits for communication before. saved: share of a step with the
    advised buckets, or with the own defaults of another framework than torch. worth: whether it saves WORTH of that
    step, and takes longer nowhere in the box.
    """

    name: str
    number: int
    tail_s: float
    waits_s: float
    saved: float
    worth: bool


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with all that explains it.

    model: whose gradients; stacks: names of its lists of blocks, such as "layers". link: in words; cpu: whether
    communicating on it takes CPU time; None if unknown. notes: what else limits the predictions.
    total: bytes of all gradients; itemsize: of one element. backward_s: when the last one is ready. bytes_s: all
    gradients at the rate of the link; step_s: a step with torch's defaults. predictions: of the advised plan and of
    plans in common use, by name. ways: what there is code for besides. caps_mib, cap_mib: `bucket_cap_mb_list` of
    DistributedDataParallel for the plan, and `bucket_cap_mb` for the cap. ranks: for which all this holds, if known.
    """

    advice: Advice
    model: str
    stacks: tuple[str, ...]
    link: str
    cpu: bool | None
    notes: tuple[str, ...]
    total: int
    itemsize: int
    backward_s: float
    bytes_s: float
    step_s: float
    predictions: tuple[tuple[str, PlanPrediction], ...]
    buckets: tuple[PlannedBucket, ...]
    ways: tuple[Way, ...]
    caps_mib: tuple[float, ...]
    cap_mib: float
    ranks: int | None = None


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Analysis:
    """All conclusions from one run. warnings: on the run as a whole, the gravest first. incomplete: the one of
    them that says what is missing; empty if nothing is.

    choices: where NCCL's choice changes with the size, in words. recorded: the job whose calls are made again.
    replayed: its steps, made again.
    scenarios: of training steps, whose cases are among the summaries, too. stalls: None where nothing can be said.
    """

    summaries: tuple[Summary, ...]
    warnings: tuple[str, ...]
    diagnosis: Diagnosis
    inconsistencies: tuple[Finding, ...] = ()
    fits: tuple[Fit, ...] = ()
    bounds: tuple[Bound, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    choices: tuple[str, ...] = ()
    recorded: RecordedJob | None = None
    replayed: tuple[ReplayedStep, ...] = ()
    scenarios: tuple[ScenarioAnalysis, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()
    call_sizes: tuple[CallSize, ...] = ()
    stalls: GlooStalls | None = None
    incomplete: str = ""
