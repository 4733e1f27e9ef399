"""Define the data of training steps: how gradients are synchronised, over which link, and what a step shows in detail.

    Strategy, Link, Shape ─▶ (a case of the operation training_step) ─▶ Check, StepDetail(Timeline(CallRecord))

A case names its strategy and its link as text (`Settings.links`), because a case is a name. What
all strategies of a launch share is the rest of the case: its scenario. Everything is frozen. Units are seconds and
bytes. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass

# The strategy without synchronisation. Every scenario has it, and the others are compared with it.
REFERENCE = "none"
# The parts of a rank's step, in order: the inner durations of an iteration, which are sums over its steps. Behind them
# follows the tail of each step. gather: calls of a sharded optimizer, also those within forward and backward.
PARTS = ("forward", "backward", "pack", "tail", "clip", "update", "gather")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to synchronise gradients; `training.catalog.strategies.STRATEGIES` says what each name does and takes.

    cap_bytes: of buckets. bucket_boundary: a bucket ends "after" the cap is reached, as in torch, or "before" it would
        be exceeded.
    buckets: bytes of each bucket, in the order in which they are sent; of the strategies plan and ddp.
    options: of ddp, such as "noop", "fp16", "gradient_as_bucket_view".
    accumulate: micro-batches a step; gradients are synchronised after the last one.
    imported: "package.module:name" of a user's own synchroniser.
    again: 1 for the second copy of an A/A pair.
    called: how its buckets were chosen, "advised" or "torch"; empty if the configuration lists them.
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


# ── what was measured besides times ──────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """The check of one invariant. ok: None where it does not apply; text then says why."""

    invariant: str
    ok: bool | None
    text: str


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
    """One step of one strategy. It is no timed step, because stamps of each gradient and call take time."""

    gradients: tuple[Gradient, ...]
    ranks: tuple[RankTimeline, ...]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The most bytes that one strategy alone had allocated on a rank, from its first allocation to four instants.

    initial_bytes: until the model, its wrapper and the optimizer were made. before_bytes, after_bytes: until just
    before and after the update of the first step, in which optimizers make their states. peak_bytes: until the end of
    further steps.
    """

    initial_bytes: int
    before_bytes: int
    after_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class StepDetail:
    """What one launch of a run keeps of a strategy besides its times.

    calls: bytes of each all-reduce of a step, in order; None where the library does not tell. alone_s: times of these
    calls back to back, without computing, on the slowest rank; empty where they cannot be repeated. timeline: None
    where the strategy makes calls of other kinds. memory: of each rank, where it was asked for; None where that of
    a rank is not known to 3 %.
    """

    calls: tuple[int, ...] | None = None
    alone_s: tuple[float, ...] = ()
    timeline: Timeline | None = None
    memory: tuple[RankMemory, ...] | None = None
