"""Compute when gradients become ready in backward, and divide them into buckets, for prediction and measurement.

In: a preset and the time of its backward, a `Timeline`, or a CSV file of gradients. Out: a `Shape`, whose gradients are
in order of registration; a `ReadyTimes`, in the order in which gradients become ready; and a `BucketPlan` over that
order, a tuple of ends: bucket k contains the gradients ends[k-1] … ends[k] - 1. Imports no torch, runs no model, and
does not use the cost of a call: `advisor` does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from collbench.model.errors import BenchError
from collbench.model.units import MIB
from collbench.packages.training.catalog.presets import Preset, gradients
from collbench.packages.training.catalog.strategies import kind
from collbench.packages.training.step_records import Shape, Timeline
from collbench.packages.training.synchronisation import Strategy

BucketPlan = tuple[int, ...]

# torch's defaults: dist._DEFAULT_FIRST_BUCKET_BYTES, then _DEFAULT_BUCKET_CAP_MB, in nn/parallel/distributed.py.
TORCH_CAPS = (MIB, 25 * MIB)


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Gradients in the order in which they become ready; the last gradient ends backward."""

    nbytes: tuple[int, ...]
    # Time since the beginning of backward.
    ready_s: tuple[float, ...]
    # Registration number of each gradient.
    order: tuple[int, ...]

    @classmethod
    def of(cls, nbytes: Sequence[int], ready_s: Sequence[float]) -> ReadyTimes:
        """Return the ready times of gradients that are given in order of registration.

        If two gradients are ready at once, the gradient registered later is first. Gradients of no bytes are left out,
        because they are not sent. Raises BenchError if no gradient is left, or if a ready time is not finite.
        """
        nonempty = [i for i, size in enumerate(nbytes) if size > 0]
        if not nonempty or not all(math.isfinite(ready_s[i]) for i in nonempty):
            raise BenchError("a profile needs one gradient at least, and a time at which each of them is ready")
        order = sorted(nonempty, key=lambda i: (ready_s[i], -i))
        return cls(tuple(nbytes[i] for i in order), tuple(ready_s[i] for i in order), tuple(order))

    @classmethod
    def of_shape(cls, shape: Shape) -> ReadyTimes:
        """Return the ready times of the gradients of a shape; see `of`."""
        return cls.of([gradient.nbytes for gradient in shape.gradients], shape.ready_s)

    @property
    def total(self) -> int:
        return sum(self.nbytes)


def shape_by_flops(preset: Preset, backward_s: float, itemsize: int = 4) -> Shape:
    """Return a shape with ready times in proportion to the flops of backward, in reverse order of registration.

    A weight matrix costs 4 flops per token and element in backward, half of them for its own gradient and half for
    the gradient of its input. Norms and the embedding's look-up cost almost nothing, and the embedding is last. The
    products of queries, keys and values, which have no weights, are left out: their share grows with the sequence.
    """
    sizes = gradients(preset, itemsize)
    owners = [gradient.name.split(".")[-2] for gradient in sizes]
    multiplies = [not owner.startswith("norm") and owner != "embedding" for owner in owners]
    work = np.array([gradient.elements for gradient in sizes], dtype=float) * multiplies
    done = np.cumsum(work[::-1])[::-1]
    return Shape(sizes, tuple(float(t) for t in backward_s * done / done[0]))


def recorded_shape(timeline: Timeline) -> Shape:
    """Return the shape of a recorded step: ready times since the beginning of backward, medians over ranks."""
    ready = [np.array(rank.ready_s) - rank.forward_s for rank in timeline.ranks]
    if not ready or any(len(times) != len(timeline.gradients) for times in ready):
        raise BenchError("the recorded step has no time for each gradient")
    return Shape(timeline.gradients, tuple(max(0.0, float(time_s)) for time_s in np.median(ready, axis=0)))


# ── plans ────────────────────────────────────────────────────────────────────────────────────────
def by_caps(nbytes: Sequence[int], caps: Sequence[int]) -> BucketPlan:
    """Return buckets by a list of caps in bytes; the last cap applies to all further buckets.

    A bucket ends after the gradient that reaches the cap, as in torch (`compute_bucket_assignment_by_size` in its
    reducer.cpp).
    """
    ends: list[int] = []
    filled = 0
    for number, size in enumerate(nbytes, start=1):
        filled += size
        if filled >= caps[min(len(ends), len(caps) - 1)]:
            ends.append(number)
            filled = 0
    return (*ends, len(nbytes)) if filled else tuple(ends)


def by_sizes(nbytes: Sequence[int], sizes: Sequence[int]) -> BucketPlan:
    """Return buckets of these sizes in bytes. Raises ValueError if consecutive gradients do not add up to a size."""
    ends = {sent: number for number, sent in enumerate(accumulate(nbytes), start=1)}
    sent = [*accumulate(sizes)]
    if missing := [number for number, end in enumerate(sent) if end not in ends]:
        raise ValueError(
            f"bucket {missing[0] + 1} of the plan, of {sizes[missing[0]]} bytes, does not end where a gradient ends"
        )
    if unsent := sum(nbytes) - sent[-1]:
        raise ValueError(f"gradients of {unsent} bytes are in no bucket of the plan")
    return tuple(ends[end] for end in sent)


def expected_calls(strategy: Strategy, nbytes: Sequence[int], order: Sequence[int]) -> tuple[int, ...] | None:
    """Return the bytes of each call of a step, in order; None if a library decides, or if no gradient is sent.

    nbytes: bytes of each gradient, in order of registration. order: numbers of the gradients as they become ready.
    """
    entry, ready = kind(strategy), [nbytes[number] for number in order]
    if strategy.buckets:
        return strategy.buckets
    if not entry.own or not entry.sends:
        return None
    if entry.one_call:
        return (sum(nbytes),)
    if strategy.cap_bytes is None:
        return tuple(ready if entry.overlaps else nbytes)
    ends = by_caps(ready, (strategy.cap_bytes,))
    return tuple(sum(ready[a:b]) for a, b in pairwise((0, *ends)))


def in_as_many(strategy: Strategy, buckets: int, nbytes: Sequence[int]) -> Strategy:
    """Return the strategy for another model, with a cap that gives `buckets` buckets, or as many as possible.

    nbytes: bytes of the other model's gradients, in the order in which they become ready.
    """
    # The larger the cap, the fewer buckets: the largest cap with enough of them.
    enough = bisect_right(range(1, sum(nbytes) + 1), -buckets, key=lambda cap: -len(by_caps(nbytes, (cap,))))
    name = kind(strategy).by_cap or strategy.name
    return replace(strategy, name=name, cap_bytes=max(1, enough), buckets=(), called="")


def uniform(ready_times: ReadyTimes, cap: int) -> BucketPlan:
    """Return buckets of one cap, as `bucket_cap_mb` makes them after torch has rebuilt its buckets."""
    return by_caps(ready_times.nbytes, (cap,))


def torch_default(ready_times: ReadyTimes) -> BucketPlan:
    """Return the default buckets of DistributedDataParallel: a cap of 1 MiB for the first bucket, then 25 MiB."""
    return by_caps(ready_times.nbytes, TORCH_CAPS)


def bucket_bytes(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[int, ...]:
    """Return the bytes of each bucket, in the order in which buckets are sent."""
    return tuple(sum(ready_times.nbytes[start:end]) for start, end in pairwise((0, *plan)))


def useful_caps(ready_times: ReadyTimes, most: int) -> list[int]:
    """Return caps at which a uniform plan changes (sums of consecutive gradients), at most `most`, evenly selected.

    A bucket closes when such a sum reaches the cap, so any other cap gives the plan of the next larger sum.
    """
    sent = np.cumsum([0, *ready_times.nbytes])
    sums = np.unique(sent[:, None] - sent)
    caps = sums[sums > 0]
    chosen = np.linspace(0, len(caps) - 1, min(most, len(caps))).round().astype(int)
    return [*map(int, caps[chosen])]


def cap_mib(ready_times: ReadyTimes, cap: int) -> float:
    """Return the `bucket_cap_mb` that gives the same plan as `cap` bytes, with the fewest decimals."""
    plan = uniform(ready_times, cap)
    # torch takes int(mib * 2**20). 2^-20 has 20 decimals, so with 20 decimals the cap is exact.
    rounded = (cap * scale // MIB / scale for scale in (int(10**decimals) for decimals in range(21)))
    return next(mib for mib in rounded if mib and uniform(ready_times, int(mib * MIB)) == plan)
