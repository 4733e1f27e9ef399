"""Define what single training steps show in detail: gradients, calls on a line of time, memory; and emulated links.

    Link, Shape ─▶ (a case) ─▶ StepDetail(Timeline(CallRecord))

Everything is frozen. Units are seconds and bytes. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from bench.model.records import OwnDetail, Samples


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
    """One step of one case. It is no timed step, because stamps of each gradient and call take time."""

    gradients: tuple[Gradient, ...]
    ranks: tuple[RankTimeline, ...]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The most bytes that one case alone had allocated on a rank, from its first allocation to four instants.

    initial_bytes: until the model, its wrapper and the optimizer were made. before_bytes, after_bytes: until just
    before and after the update of the first step, in which optimizers make their states. peak_bytes: until the end of
    further steps.
    """

    initial_bytes: int
    before_bytes: int
    after_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class StepDetail(OwnDetail):
    """What one launch of a run keeps of a case besides its times.

    calls: bytes of each all-reduce of a step, in order; None where the library does not tell. alone_s: times of these
    calls back to back, without computing, on the slowest rank; empty where they cannot be repeated. timeline: None
    where the case makes calls of other kinds. memory: of each rank, where it was asked for; None where that of
    a rank is not known to 3 %.
    """

    calls: tuple[int, ...] | None = None
    alone_s: tuple[float, ...] = ()
    timeline: Timeline | None = None
    memory: tuple[RankMemory, ...] | None = None


def detail_of(samples: Samples) -> StepDetail | None:
    """The detail that one launch kept of a training step; None if this launch kept none."""
    return cast(StepDetail | None, samples.detail)
