"""The data of the training benchmark, in the order in which it flows. Read this module first.

    Machine + configuration ─▶ TrainingPlan(Scenario, Strategy) ─▶ StrategyChecks, Round, CommunicationOnly, Timeline,
    CallSizePoint, LaunchFailure

A scenario is all that strategies share: model, batch, link, ranks. Within a launch of a scenario, all its strategies
are measured in rounds, each round in another random order, so that whatever disturbs the machine disturbs them alike.
Everything is frozen; seconds and bytes, `_ns` in the name where nanoseconds are meant. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.records import Failure, Json

# The strategy without synchronisation, which every scenario has: what the others are compared with.
REFERENCE = "none"
# The parts of a rank's step, in the order in which they pass.
PARTS = ("forward", "backward", "pack", "tail", "update")


# ── what is to be measured ───────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Link:
    """An emulated FIFO link: an all-reduce of b bytes takes latency_s + b / bytes_per_s, one after the other.

    It costs no CPU, so that overlap can be judged on few cores. It moves no data. points: (bytes, seconds) of a
    measured link, ascending; then all-reduces take what a curve through them says, and the other two only name it.
    """

    latency_s: float
    bytes_per_s: float
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to synchronise gradients; `strategies.STRATEGIES` says what each name does and takes.

    cap_bytes: of buckets. bucket_boundary: a bucket ends "after" the cap is reached, as in torch, or "before" it would
        be exceeded.
    buckets: bytes of each bucket, in the order in which they are sent, of `plan` and of ddp's list.
    options: of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    accumulate: micro-batches a step; gradients are synchronised after the last one.
    imported: "package.module:name" of a synchroniser that a user brings along.
    again: 1 for the second copy of an A/A pair.
    """

    name: str
    cap_bytes: int | None = None
    bucket_boundary: str = "after"
    buckets: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    accumulate: int = 1
    imported: str | None = None
    again: int = 0


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient, as the model has it. name: of the first of the parameters that share it."""

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
    """What strategies are compared on.

    model: a preset's name, or "package.module:build" of a user's own. batch: examples a rank and step. link: None is
    the real backend. dtype: of parameters and gradients. threads: of each rank's computing. shape: instead of the
    model, which then is only a name: backward waits until each gradient's time has come, and nothing is computed.
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

    @property
    def key(self) -> str:
        """Such as `nano/gloo/n2/b4/s64/float32/sgd`; what differs from a default follows."""
        head = f"{self.model}/{self.backend}/n{self.world_size}/b{self.batch}/s{self.sequence}"
        link = f"/link={self.link.latency_s:g}s+{self.link.bytes_per_s:g}B/s" if self.link else ""
        link += f"~{len(self.link.points)}" if self.link and self.link.points else ""
        return f"{head}/{self.dtype}/{self.optimizer}{link}" + (f"/t{self.threads}" if self.threads != 1 else "")


@dataclass(frozen=True, slots=True)
class TrainingLaunch:
    """One scenario in one launch of fresh processes: its strategies, and how many rounds are to be made.

    number: the launch, counted from 1.
    """

    scenario: Scenario
    number: int
    strategies: tuple[Strategy, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class SkippedStrategy:
    """What was asked for and will not be measured, with the reason. strategy: None where all of the scenario is."""

    scenario: Scenario
    strategy: Strategy | None
    reason: str


@dataclass(frozen=True, slots=True)
class CallSizeSweep:
    """So many parameters, all-reduced in so many calls (Li et al., VLDB 2020, figure 2)."""

    parameters: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """All that a run of the training benchmark will do.

    steps: of a strategy in one round, between two barriers. warmup: steps of each strategy before the first round.
    max_foreign_cpu: share of the machine's CPU time used by others above which a round is left out.
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
        """Rounds to make."""
        return sum(launch.rounds for launch in self.order)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What every rank of one launch is told.

    checked: an earlier try of it has told what its checks found. detail: show a step and the calls alone, too; one
    launch of a scenario does.
    """

    launch: TrainingLaunch
    plan: TrainingPlan
    log: str
    first_round: int = 1
    checked: bool = False
    detail: bool = True


# ── what was measured: facts; each is a line of samples.jsonl ────────────────────────────────────
@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """One invariant of one strategy. ok: None where it does not apply, and text says why."""

    invariant: str
    ok: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class StrategyChecks:
    """What a launch found of one strategy before timing it.

    strategy: its label; None for what concerns the whole run. calls: bytes of each all-reduce of a step, in order;
    None where the library does not tell. A strategy with a check that failed gets no times.
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
    """`steps` steps of one strategy between two barriers. All lists have one entry a rank.

    wall_ns: from leaving the barrier to the end of the last step. parts_ns: of PARTS, sums over the steps.
    steps_ns: of each rank, each step's time. foreign_cpu: share of the machine's CPU time used by others; None where
    it is not known. last_ns: the tail of the rank whose tail was the shortest, which is the one that came last, step by
    step; the same sum. None in runs from before it was told.
    """

    strategy: str
    wall_ns: tuple[int, ...]
    parts_ns: dict[str, tuple[int, ...]]
    foreign_cpu: float | None = None
    last_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """Every strategy once, in the random order in which they were measured."""

    scenario: str
    launch: int
    round: int
    unix_s: float
    steps: int
    blocks: tuple[TimedBlock, ...]


@dataclass(frozen=True, slots=True)
class CommunicationOnly:
    """A strategy's calls back to back, without computing; seconds of each repetition, slowest rank."""

    scenario: str
    launch: int
    strategy: str
    calls: tuple[int, ...]
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of one rank's step. Times from the beginning of the step on that rank.

    ready_s: when its last gradient was ready; launched_s: when it was handed over; done_s: when it was complete.
    parameters: numbers of the gradients in it, in order of `Timeline.gradients`; empty where that is not known.
    """

    nbytes: int
    ready_s: float
    launched_s: float
    done_s: float
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank's step. ready_s: when each gradient became ready, in the order of `Timeline.gradients`.

    begin_s: when it began, on the clock that all ranks of the host share, relative to the first of them.
    forward_s, backward_s, usable_s, end_s: ends of the parts, from the beginning of the step: backward_s is when the
    last gradient was ready, usable_s when all of them were synchronised and in place.
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
    """One step of one strategy in detail, by ranks that also kept a stamp for each gradient and call: not timed."""

    scenario: str
    launch: int
    strategy: str
    gradients: tuple[Gradient, ...]
    ranks: tuple[RankTimeline, ...]


@dataclass(frozen=True, slots=True)
class CallSizePoint:
    """So many parameters in so many calls, on `world_size` ranks; seconds of each repetition, slowest rank."""

    backend: str
    world_size: int
    launch: int
    parameters: int
    calls: int
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A launch, or one strategy of it, that did not reach its end."""

    scenario: str
    launch: int
    strategy: str | None
    failure: Failure


Fact = StrategyChecks | Round | CommunicationOnly | Timeline | CallSizePoint | LaunchFailure


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A results folder of the training benchmark, read."""

    path: Path
    manifest: Json
    plan: TrainingPlan
    environment: list[Json]
    facts: list[Fact]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name
