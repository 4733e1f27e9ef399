"""Advise on buckets: find the cap that leaves little communication after backward, and assess other DDP settings.

In: `ReadyTimes`, when gradients are ready; an `AllReduceCost`, the time of an all-reduce by its bytes; and the share by
which the link may be off. Out: an `Advice`, and on request its explanation. Measures nothing.

The link is FIFO: a bucket starts when its last gradient is ready and the bucket before it is done. Not modelled:
casting, flattening, and computing that slows down while communicating.

A cap that is best on one link may cost much on a link that is a little slower. So caps are compared by their mean tail
on three links: as assumed, slower, and faster. A cap is advised in place of torch's default only if it saves a share of
the step on the link as assumed (`WORTH`), and loses on none of the three links.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from collbench.model.units import format_rounded_bytes
from collbench.packages.training.conclusions import Advice, PlanPrediction
from collbench.packages.training.planning.buckets import (
    BucketPlan,
    ReadyTimes,
    bucket_bytes,
    torch_default,
    uniform,
    useful_caps,
)
from collbench.packages.training.planning.link_model import AllReduceCost, LinkModel

# A setting is worth typing if it saves this share of a step. Steps of one job repeat to about 1 %, so a smaller
# saving could not be seen.
WORTH = 0.01
# Batches per step with no_sync.
BATCHES = 4
# Relative error of a link's latency and rate, unless more is known.
OFF = 0.2
# Largest relative error of a link that the advisor uses.
LARGEST_OFF = 0.8
# Most caps that are compared and drawn.
COMPARED_CAPS = 256
# The resolution of clocks; times that differ by no more than this count as equal.
RESOLUTION_S = 1e-9
# Forward multiplies once by each weight; backward multiplies twice.
FORWARD_OF_BACKWARD = 0.5
FLOAT32_BYTES = 4


# ── tails of plans ───────────────────────────────────────────────────────────────────────────────
def tail_s(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> float:
    """Return the seconds of communication that remain after backward."""
    free = -math.inf
    for end, time_s in zip(plan, cost(np.array(bucket_bytes(ready_times, plan), dtype=float)), strict=True):
        free = max(free, ready_times.ready_s[end - 1]) + float(time_s)
    return free - ready_times.ready_s[-1]


def lower_bound(ready_times: ReadyTimes, cost: AllReduceCost) -> float:
    """Return a lower bound on the tail of every plan, in seconds, in whatever order it sends the gradients.

    Let B be the bytes of gradient j and of all that become ready after it. Each of these gradients is in a bucket
    that starts at ready[j] or later. These are k ≥ 1 buckets with at least B bytes. For any line α + β·b, α, β ≥ 0,
    that is nowhere above the curve, they take at least k·α + β·B ≥ α + β·B seconds on a link that carries one bucket
    at a time. So no plan is done before ready[j] + α + β·B, for every j and every such line.
    """
    ready, unsent = np.array(ready_times.ready_s), np.cumsum(ready_times.nbytes[::-1])[::-1]
    return max(float(np.max(ready + alpha + beta * unsent)) for alpha, beta in cost.floors()) - ready_times.ready_s[-1]


# ── the advice ───────────────────────────────────────────────────────────────────────────────────
def advise(ready_times: ReadyTimes, cost: AllReduceCost, off: float = OFF) -> Advice:
    """Return the best uniform cap, torch's default, and whether the cap is worth typing. off: a share, below 1."""
    slower, faster = cost.off_by(1 + off, 1 - off), cost.off_by(1 - off, 1 + off)

    def predicted(plan: BucketPlan) -> PlanPrediction:
        tails = (tail_s(ready_times, plan, link) for link in (cost, slower, faster))
        return PlanPrediction(bucket_bytes(ready_times, plan), *tails)

    default = predicted(torch_default(ready_times))
    caps = {cap: predicted(uniform(ready_times, cap)) for cap in useful_caps(ready_times, COMPARED_CAPS)}
    # Among equally good caps, the largest.
    cap = min(reversed(caps), key=lambda cap: round(sum(caps[cap].tails_s) / RESOLUTION_S))
    best = caps[cap]
    saves = default.tail_s - best.tail_s >= WORTH * (computing_s(ready_times) + default.tail_s)
    loses_s = max(new_s - old_s for new_s, old_s in zip(best.tails_s, default.tails_s, strict=True))
    loses = loses_s > RESOLUTION_S
    return Advice(
        advised=saves and not loses,
        cap_bytes=cap,
        cap=best,
        default=default,
        bound_s=lower_bound(ready_times, cost),
        off=off,
        caps=tuple((size, prediction.tail_s) for size, prediction in caps.items()),
        loses_s=loses_s if saves and loses else 0.0,
    )


def computing_s(ready_times: ReadyTimes) -> float:
    """Return the seconds of forward and backward together."""
    return (1 + FORWARD_OF_BACKWARD) * ready_times.ready_s[-1]


# ── the advice with its explanation ──────────────────────────────────────────────────────────────
class Way(NamedTuple):
    """The prediction for another setting that reports have code for."""

    # Name of the setting, as in `training.report.advice`.
    name: str
    # Communication that remains after backward, in seconds.
    tail_s: float
    # Share of a step with the advised buckets that the setting saves.
    saved: float


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with what it follows from."""

    advice: Advice
    # Name of the model that the gradients belong to.
    model: str
    ready_times: ReadyTimes
    link: LinkModel
    # Further limitations of the predictions.
    notes: tuple[str, ...]
    # The best first.
    ways: tuple[Way, ...]

    @property
    def step_s(self) -> float:
        """Return the time of a step with torch's defaults."""
        return computing_s(self.ready_times) + self.advice.default.tail_s


def explain(advice: Advice, ready_times: ReadyTimes, link: LinkModel, itemsize: int, model: str) -> ExplainedAdvice:
    """Return the advice with its explanation. itemsize: bytes of a gradient's element."""
    plan = uniform(ready_times, advice.cap_bytes) if advice.advised else torch_default(ready_times)
    notes = link.notes
    if link.largest is not None and max(advice.chosen.buckets) > link.largest:
        notes += (
            "A bucket has more bytes than the largest size measured: above "
            f"{format_rounded_bytes(link.largest)} the curve goes on as a straight line.",
        )
    return ExplainedAdvice(advice, model, ready_times, link, notes, ways(ready_times, plan, link.cost, itemsize))


def ways(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost, itemsize: int) -> tuple[Way, ...]:
    """Return other settings with the same buckets, the best first. itemsize: bytes of a gradient's element."""
    usual_s = tail_s(ready_times, plan, cost)
    step_s = computing_s(ready_times) + usual_s
    # With a hook, buckets are made from uncompressed gradients, and half of their bytes are sent.
    halved = replace(ready_times, nbytes=tuple(nbytes // 2 for nbytes in ready_times.nbytes))
    tails = {"hook": tail_s(halved, plan, cost)} if itemsize == FLOAT32_BYTES else {}
    tails["no_sync"] = usual_s / BATCHES
    found = (Way(name, left_s, (usual_s - left_s) / step_s) for name, left_s in tails.items())
    return tuple(sorted(found, key=lambda way: -way.saved))
