"""The data of the training benchmark, in the order in which it flows. Read this module first.

    Machine + configuration ─▶ TrainingPlan(Scenario, Strategy) ─▶ StrategyChecks, Round, CommunicationOnly, Timeline,
    CallSizePoint, Advised, LaunchFailure

A scenario is what all strategies share: model, batch, link, ranks. Within a launch of a scenario, all its strategies
are measured in rounds, each round in another random order, so that a disturbance of the machine affects all alike.
Everything is frozen. Units are seconds and bytes, and nanoseconds in names with `_ns`. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.model.records import Failure, Json

# The strategy without synchronisation. Every scenario has it, and the others are compared with it.
REFERENCE = "none"
# The parts of a rank's step, in order. gather: calls of a sharded optimizer, also those within forward and backward.
PARTS = ("forward", "backward", "pack", "tail", "clip", "update", "gather")


# ── what is to be measured ───────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Link:
    """An emulated FIFO link: one all-reduce after the other, each of b bytes in latency_s + b / bytes_per_s.

    It uses no CPU, so that overlap can be judged on few cores. It moves no data. points: (bytes, seconds) of a
    measured link, ascending; with them, times follow the curve through the points, and the other two only name it.
    """

    latency_s: float
    bytes_per_s: float
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to synchronise gradients; `training.strategies.STRATEGIES` says what each name does and takes.

    cap_bytes: of buckets. bucket_boundary: a bucket ends "after" the cap is reached, as in torch, or "before" it would
        be exceeded.
    buckets: bytes of each bucket, in the order in which they are sent; of the strategies plan and ddp.
    options: of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    accumulate: micro-batches a step; gradients are synchronised after the last one.
    imported: "package.module:name" of a user's own synchroniser.
    again: 1 for the second copy of an A/A pair.
    called: how its buckets were chosen, "advised" or "torch"; empty if the configuration lists them. Of ddp, "advised"
        without buckets or a cap is open: a run finds them out in its first launch (`Advised`).
    """

    name: str
    cap_bytes: int | None = None
    bucket_boundary: str = "after"
    buckets: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    accumulate: int = 1
    imported: str | None = None
    again: int = 0
    called: str = ""

    @property
    def open(self) -> bool:
        """True while its buckets are not known."""
        return bool(self.called) and not self.buckets and self.cap_bytes is None


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient of a model. name: of its parameter; of a shared parameter, its first name."""

    name: str
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without its weights: its gradients in order of registration, and when each becomes ready in a step."""

    gradients: tuple[Gradient, ...]
    ready_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The circumstances that the compared strategies share.

    model: a preset's name, or "package.module:build" of a user's own. batch: examples per rank and step. sequence:
    tokens of an example. link: None is the real backend. dtype: of parameters and gradients. threads: that compute in
    each rank. shape: replaces the model, which is only a name then: backward waits until each gradient's ready time,
    and nothing is computed. clip: largest norm of all gradients, to which each step scales them down; 0 for any.
    """

    model: str
    backend: str
    world_size: int
    batch: int
    sequence: int
    dtype: str = "float32"
    optimizer: str = "sgd"
    link: Link | None = None
    threads: int = 1
    shape: Shape | None = None
    clip: float = 0.0

    @property
    def key(self) -> str:
        """Its name in facts, such as `nano/gloo/n2/b4/s64/float32/sgd`; what is not usual follows."""
        head = f"{self.model}/{self.backend}/n{self.world_size}/b{self.batch}/s{self.sequence}"
        link = f"/link={self.link.latency_s:g}s+{self.link.bytes_per_s:g}B/s" if self.link else ""
        link += f"~{len(self.link.points)}" if self.link and self.link.points else ""
        threads = f"/t{self.threads}" if self.threads != 1 else ""
        clip = f"/clip={self.clip:g}" if self.clip else ""
        return f"{head}/{self.dtype}/{self.optimizer}{link}{threads}{clip}"


@dataclass(frozen=True, slots=True)
class TrainingLaunch:
    """One launch of fresh processes for one scenario: its strategies, and the number of rounds to measure.

    number: of the launch, counted from 1.
    """

    scenario: Scenario
    number: int
    strategies: tuple[Strategy, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class SkippedStrategy:
    """A strategy that was asked for and will not be measured, with the reason; None stands for all of the scenario."""

    scenario: Scenario
    strategy: Strategy | None
    reason: str


@dataclass(frozen=True, slots=True)
class CallSizeSweep:
    """The same parameters all-reduced in different numbers of calls (Li et al., VLDB 2020, figure 2)."""

    parameters: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The launches of a run of the training benchmark, and its settings.

    steps: of a strategy in one round, between two barriers. warmup: steps of each strategy before the first round.
    max_foreign_cpu: a round is left out if other processes use more than this share of the machine's CPU time.
    """

    name: str
    order: tuple[TrainingLaunch, ...]
    skips: tuple[SkippedStrategy, ...]
    launches: int
    steps: int
    warmup: int
    seed: int
    timeout_s: float
    max_foreign_cpu: float
    call_sizes: CallSizeSweep | None = None

    @property
    def total(self) -> int:
        """Number of rounds to measure."""
        return sum(launch.rounds for launch in self.order)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The message to every rank of one launch.

    log: the file for what torch prints. checked: an earlier try of this launch has already reported its checks.
    detail: also record one step and the communication only of each strategy; one launch of a scenario does.
    """

    launch: TrainingLaunch
    plan: TrainingPlan
    log: str
    first_round: int = 1
    checked: bool = False
    detail: bool = True


# ── what was measured: each `Fact` is a line of samples.jsonl ────────────────────────────────────
@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """The check of one invariant. ok: None where it does not apply; text then says why."""

    invariant: str
    ok: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class StrategyChecks:
    """The checks of one strategy in one launch, made before it is timed.

    strategy: its label; None for what concerns the whole run. calls: bytes of each all-reduce of a step, in order;
    None where the library does not tell. A strategy with a check that failed is not timed.
    """

    scenario: str
    launch: int
    strategy: str | None
    checks: tuple[InvariantCheck, ...]
    calls: tuple[int, ...] | None = None

    @property
    def failed(self) -> list[InvariantCheck]:
        return [check for check in self.checks if check.ok is False]


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """The steps of one strategy between two barriers, `Round.steps` of them. Tuples have one entry per rank.

    wall_ns: from leaving the first barrier to the end of the last step. parts_ns: for each of PARTS, the sum over the
    steps; older runs have no clip, and their update includes gather. foreign_cpu: share of the machine's CPU time used
    by other processes; None if unknown. last_ns: the shortest tail of any rank in a step, which is that of the rank
    that came last, summed over the steps; None in older runs, which did not record it.
    """

    strategy: str
    wall_ns: tuple[int, ...]
    parts_ns: dict[str, tuple[int, ...]]
    foreign_cpu: float | None = None
    last_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One timed block of every strategy, in the random order in which they were measured."""

    scenario: str
    launch: int
    round: int
    unix_s: float
    steps: int
    blocks: tuple[TimedBlock, ...]


@dataclass(frozen=True, slots=True)
class CommunicationOnly:
    """A strategy's calls back to back, without computing. times_s: of each repetition, on the slowest rank."""

    scenario: str
    launch: int
    strategy: str
    calls: tuple[int, ...]
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call in one rank's step. Times are seconds since the beginning of the step on that rank.

    ready_s: when its last gradient was ready. launched_s: when the call was made. done_s: when it was complete.
    parameters: numbers of its gradients, which are positions in `Timeline.gradients`; empty if unknown.
    """

    nbytes: int
    ready_s: float
    launched_s: float
    done_s: float
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank's step. ready_s: when each gradient became ready, in the order of `Timeline.gradients`.

    begin_s: when the step began, relative to the first rank, on the clock that all ranks of the host share.
    forward_s, backward_s, usable_s, end_s: ends of the parts, since the beginning of the step: backward_s is when the
    last gradient was ready, usable_s when all gradients were synchronised and in place.
    """

    rank: int
    begin_s: float
    forward_s: float
    backward_s: float
    usable_s: float
    end_s: float
    ready_s: tuple[float, ...]
    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of one strategy in detail. It is no timed step, because stamps of each gradient and call take time."""

    scenario: str
    launch: int
    strategy: str
    gradients: tuple[Gradient, ...]
    ranks: tuple[RankTimeline, ...]


@dataclass(frozen=True, slots=True)
class CallSizePoint:
    """`parameters` all-reduced in `calls` calls. times_s: of all calls, for each repetition, on the slowest rank."""

    backend: str
    world_size: int
    launch: int
    parameters: int
    calls: int
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Advised:
    """The setting of torch's DDP that a run advised itself before one of its launches, and has measured since.

    cap_bytes, buckets: as of a `Strategy`; None and empty if the advice is torch's default.
    """

    scenario: str
    launch: int
    cap_bytes: int | None
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """The failure of a launch. strategy: the one that was being checked; None if none was."""

    scenario: str
    launch: int
    strategy: str | None
    failure: Failure


Fact = StrategyChecks | Round | CommunicationOnly | Timeline | CallSizePoint | Advised | LaunchFailure


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The content of a results folder of the training benchmark."""

    path: Path
    manifest: Json
    plan: TrainingPlan
    environment: list[Json]
    facts: list[Fact]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}:{self.path.name}" if "side" in self.manifest else self.path.name
