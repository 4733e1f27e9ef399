"""What else than a bucket plan leaves less communication exposed, by the same planner: each with its own best plan.

In: ready times and an `AllReduceCost`. Out: an `OtherWay` each. Not modelled: the cost of casting, the optimizer's
step, and that computing slows down while communicating. Forward is taken to last half as long as backward, and to be
spread over the gradients as backward is. Measures nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.stats.intervals import Floats
from bench.training import planner
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.conclusions import OtherWay
from bench.training.planner import BucketPlan, bucket_bytes, uniform
from bench.training.ready_times import ReadyTimes

FLOAT32_BYTES = 4
# Forward multiplies once by each weight where backward does twice.
FORWARD_OF_BACKWARD = 0.5
MICRO_BATCHES = (2, 4)
# Caps that are tried for gathering and for priorities.
TRIED_CAPS = 48


def other_ways(ready_times: ReadyTimes, cost: AllReduceCost, itemsize: int) -> Iterator[OtherWay]:
    """itemsize: bytes of an element of a gradient."""
    least = _least(ready_times, cost)
    if itemsize == FLOAT32_BYTES:
        halved = replace(ready_times, nbytes=tuple(max(1, nbytes // 2) for nbytes in ready_times.nbytes))
        yield OtherWay("bf16 or fp16 hook", _least(halved, cost), "gradients are rounded before they are added")
    for count in MICRO_BATCHES:
        note = f"a step has {count} times the examples; time is that of a micro-batch"
        yield OtherWay(f"no_sync, {count} micro-batches a step", least / count, note)
    sharded = _least(ready_times, _half(cost)) + min(
        _stall_of_gathers(ready_times, plan, _half(cost)) for plan in _uniform_plans(ready_times)
    )
    yield OtherWay("reduce-scatter, then all-gather in forward", sharded, "ZeRO-1, FSDP: optimizer states are sharded")


def _least(ready_times: ReadyTimes, cost: AllReduceCost) -> float:
    return planner.exposed(ready_times, planner.optimal(ready_times, cost), cost)


def _half(cost: AllReduceCost) -> AllReduceCost:
    """The cost of a reduce-scatter or an all-gather, which together make an all-reduce."""
    return AllReduceCost(cost.sizes, tuple(time / 2 for time in cost.times_s), cost.slope_s / 2)


def _uniform_plans(ready_times: ReadyTimes) -> set[BucketPlan]:
    return {uniform(ready_times, cap) for cap in planner.useful_caps(ready_times, TRIED_CAPS)}


def _forward(ready_times: ReadyTimes, plan: BucketPlan) -> Floats:
    """Seconds that forward computes with each bucket, in the order of forward: the last bucket comes first."""
    ends = np.array([ready_times.ready_s[end - 1] for end in plan])
    return np.asarray(np.diff(ends, prepend=0.0)[::-1] * FORWARD_OF_BACKWARD)


def _stall(available: Floats, forward: Floats) -> float:
    """Seconds that forward waits: available[k] is when the parameters that it needs k-th are there."""
    # Forward ends at the latest of: parameters k are there, plus the computing from k on.
    left = np.cumsum(forward[::-1])[::-1]
    return max(0.0, float(np.max(available + left)) - float(left[0]))


def _stall_of_gathers(ready_times: ReadyTimes, plan: BucketPlan, cost: AllReduceCost) -> float:
    """Gathers begin with forward, in its order, one after the other."""
    times = cost(np.array(bucket_bytes(ready_times, plan), dtype=float))[::-1]
    return _stall(np.cumsum(times), _forward(ready_times, plan))
