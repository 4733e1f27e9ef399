"""Bucket plans: how gradients are divided into buckets; the one implementation, which prediction and measurement share.

In: gradients in the order in which they become ready, and caps or sizes in bytes. Out: a `BucketPlan`, a tuple of ends:
bucket k holds the gradients ends[k-1] … ends[k] - 1 of that order. And the caps that make torch follow a plan. Does not
import torch, and does not know what a call costs: `planner` does.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.model.training import Strategy
from bench.planning.ready_times import ReadyTimes

BucketPlan = tuple[int, ...]

MIB = 2**20
# torch's defaults: dist._DEFAULT_FIRST_BUCKET_BYTES, then _DEFAULT_BUCKET_CAP_MB, in nn/parallel/distributed.py.
TORCH_CAPS = (MIB, 25 * MIB)
# Most caps to try: enough for every cap that matters in a transformer of 300 tensors; of more, an even selection.
MOST_CAPS = 4096


def by_caps(nbytes: Sequence[int], caps: Sequence[int], boundary: str = "after") -> BucketPlan:
    """Buckets by a list of caps in bytes; the last cap applies to all further buckets.

    boundary: a bucket ends "after" the cap is reached, as in torch (`compute_bucket_assignment_by_size` in its
    reducer.cpp), or "before" it would be exceeded.
    """
    ends: list[int] = []
    filled = 0
    for number, size in enumerate(nbytes):
        cap = caps[min(len(ends), len(caps) - 1)]
        if boundary == "before" and filled and filled + size > cap:
            ends.append(number)
            filled = 0
        filled += size
        if boundary == "after" and filled >= cap:
            ends.append(number + 1)
            filled = 0
    return (*ends, len(nbytes)) if filled else tuple(ends)


def by_sizes(nbytes: Sequence[int], sizes: Sequence[int]) -> BucketPlan:
    """Buckets of exactly these sizes in bytes. Raises ValueError where consecutive gradients do not add up to them."""
    ends: list[int] = []
    end = 0
    for position, size in enumerate(sizes, start=1):
        filled = 0
        while end < len(nbytes) and filled < size:
            filled += nbytes[end]
            end += 1
        if filled != size:
            raise ValueError(f"bucket {position} of the plan has {size} bytes, but gradients make up {filled}")
        ends.append(end)
    if end < len(nbytes):
        raise ValueError(f"{len(nbytes) - end} gradients are in no bucket of the plan")
    return tuple(ends)


def uniform(ready_times: ReadyTimes, cap: int, bucket_boundary: str = "after") -> BucketPlan:
    """Buckets of one cap, as `bucket_cap_mb` makes them after torch has rebuilt its buckets."""
    return by_caps(ready_times.nbytes, (cap,), bucket_boundary)


def torch_default(ready_times: ReadyTimes) -> BucketPlan:
    """The default buckets of DistributedDataParallel: a cap of 1 MiB for the first, then 25 MiB."""
    return by_caps(ready_times.nbytes, TORCH_CAPS)


def of_strategy(ready_times: ReadyTimes, strategy: Strategy) -> BucketPlan | None:
    """The plan that a strategy follows; None if it is not one of those that send during backward."""
    number = len(ready_times.nbytes)
    if strategy.name == "overlap_param":
        return tuple(range(1, number + 1))
    if strategy.name == "overlap_bucket" and strategy.cap_bytes is not None:
        return uniform(ready_times, strategy.cap_bytes, strategy.bucket_boundary)
    return by_sizes(ready_times.nbytes, strategy.buckets) if strategy.name == "plan" else None


# ── what a plan holds ────────────────────────────────────────────────────────────────────────────
def bucket_bytes(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[int, ...]:
    """Bytes of each bucket, in the order in which they are sent."""
    return tuple(sum(ready_times.nbytes[start:end]) for start, end in pairwise((0, *plan)))


def members(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[tuple[int, ...], ...]:
    """The registration numbers of the gradients in each bucket."""
    return tuple(ready_times.order[start:end] for start, end in pairwise((0, *plan)))


def sent_bytes(ready_times: ReadyTimes) -> NDArray[np.float64]:
    """Bytes of the first 0, 1, .. n gradients together; exact up to 2⁵³."""
    return np.concatenate([[0.0], np.cumsum(np.array(ready_times.nbytes, dtype=float))])


# ── caps ─────────────────────────────────────────────────────────────────────────────────────────
def useful_caps(ready_times: ReadyTimes, most: int = MOST_CAPS) -> Sequence[int]:
    """Caps at which a uniform plan changes: sums of consecutive gradients; an even selection if more than `most`.

    A bucket closes when such a sum reaches the cap, so any other cap gives the plan of the next larger one of these.
    """
    sent = sent_bytes(ready_times).astype(np.int64)
    sums: set[int] = set()
    for start in range(len(sent) - 1):
        sums.update((sent[start + 1 :] - sent[start]).tolist())
    return evenly(sorted(sums), most)


def evenly(values: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of the values, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def caps_mib(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[float, ...]:
    """`bucket_cap_mb_list` of DistributedDataParallel that makes torch follow the plan, in MiB.

    A bucket closes once it has reached its cap: any cap works that is reached with its last gradient and not before, so
    the one with the fewest decimals is taken.
    """
    return tuple(_shortest_mib(low, high) for low, high in _cap_ranges(ready_times, plan))


def cap_mib(ready_times: ReadyTimes, cap: int) -> float:
    """`bucket_cap_mb` that gives the same plan as `cap` bytes, with the fewest decimals."""
    ranges = _cap_ranges(ready_times, uniform(ready_times, cap))
    # The last bucket may end because no gradient is left, so it sets no upper limit on the cap.
    return _shortest_mib(max(low for low, _ in ranges), min([cap, *(high for _, high in ranges[:-1])]))


def _cap_ranges(ready_times: ReadyTimes, plan: BucketPlan) -> list[tuple[int, int]]:
    """For each bucket, its bytes without its last gradient, and with it."""
    sizes = bucket_bytes(ready_times, plan)
    return [(size - ready_times.nbytes[end - 1], size) for size, end in zip(sizes, plan, strict=True)]


def _shortest_mib(low: int, high: int) -> float:
    """The shortest number of MiB that torch, by int(mib * 2**20), turns into more than low and at most high bytes."""
    # 2^-20 has 20 decimals, so with 20 decimals high is exact.
    for decimals in range(21):
        scale = int(10**decimals)
        mib = high * scale // MIB / scale
        if low < int(mib * MIB) <= high:
            return mib
    return high / MIB
