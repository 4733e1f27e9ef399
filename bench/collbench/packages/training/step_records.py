"""Define the details of single training steps: gradients, calls on a timeline, and memory; also emulated links.

    Link, Shape ─▶ (a case) ─▶ StepDetail(Timeline(CallRecord))

Everything is frozen. Units are seconds and bytes. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from collbench.model.records import OwnDetail, Samples
from collbench.model.results import fact


@dataclass(frozen=True, slots=True)
class Link:
    """An emulated FIFO link: one all-reduce after the other, each of b bytes in latency_s + b / bytes_per_s.

    The link uses no CPU, so that overlap can be judged on few cores. It moves no data.
    """

    latency_s: float = fact("of the emulated link; null for a real one", name="link_latency_s")
    bytes_per_s: float = fact("its rate", name="link_bytes_per_s")
    # Pairs (bytes, seconds) of a measured link, ascending. With points, times follow the curve through them, and
    # `latency_s` and `bytes_per_s` only name the link.
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient of a model."""

    # Name of its parameter; the first name of a shared parameter.
    name: str
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without its weights."""

    # In the order of registration.
    gradients: tuple[Gradient, ...]
    # Time at which each gradient becomes ready in a step, since the beginning of backward.
    ready_s: tuple[float, ...]


# ── measurements in addition to times ────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call in one rank's step. Times are seconds since the beginning of the step on that rank."""

    nbytes: int
    # Time at which the last gradient of the call was ready.
    ready_s: float
    # Time at which the call was made.
    launched_s: float
    # Time at which the call was complete.
    done_s: float
    # Positions of the gradients of the call in `Timeline.gradients`; empty if they are unknown.
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The step of one rank. Times but `begin_s` are seconds since the beginning of the step."""

    rank: int
    # Beginning of the step, relative to the first rank, on the clock that all ranks of the host share.
    begin_s: float
    # End of the forward part.
    forward_s: float
    # Time at which the last gradient was ready.
    backward_s: float
    # Time at which all gradients were synchronised and in place.
    usable_s: float
    # End of the step.
    end_s: float
    # Time at which each gradient became ready, in the order of `Timeline.gradients`.
    ready_s: tuple[float, ...]
    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of one case. It is not a timed step, because a stamp for each gradient and call takes time."""

    gradients: tuple[Gradient, ...]
    ranks: tuple[RankTimeline, ...]

    @property
    def step_s(self) -> float:
        """Return the time of the step on the slowest rank."""
        return max((rank.end_s for rank in self.ranks), default=0.0)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak of bytes that one case alone had allocated on a rank, from its first allocation to four instants."""

    # Until the model, its wrapper and the optimizer were made.
    initial_bytes: int
    # Until just before the update of the first step, in which optimizers make their states.
    before_bytes: int
    # Until just after this update.
    after_bytes: int
    # Until the end of further steps.
    peak_bytes: int


@dataclass(frozen=True)
class StepDetail(OwnDetail):
    """The data that one launch of a run stores for a case in addition to its times."""

    operation: ClassVar[str] = "training_step"

    # Bytes of each all-reduce of a step, in order; None if the library does not report them.
    calls: tuple[int, ...] | None = None
    # Times of these calls back to back, without computing, on the slowest rank; empty if the calls cannot be repeated.
    alone_s: tuple[float, ...] = ()
    # None if the case makes calls of other kinds.
    timeline: Timeline | None = None
    # Memory of each rank, if requested; None if the memory of a rank is not known to 3 %.
    memory: tuple[RankMemory, ...] | None = None


def detail_of(samples: Samples) -> StepDetail | None:
    """Return the detail that one launch stored for a training step; None if this launch stored none."""
    return cast(StepDetail | None, samples.detail)
