"""Caps that make torch follow a bucket plan.

In: ready times and a plan. Out: `bucket_cap_mb_list` and `bucket_cap_mb` of DistributedDataParallel, in MiB. A bucket
closes once it has reached its cap: any cap works that is reached with its last gradient and not before, so the one with
the fewest decimals is taken. Does not import torch.
"""

from bench.training.planner import BucketPlan, bucket_bytes, uniform
from bench.training.ready_times import ReadyTimes

MIB = 2**20


def caps_mib(ready_times: ReadyTimes, plan: BucketPlan) -> tuple[float, ...]:
    """`bucket_cap_mb_list` that makes torch follow the plan."""
    return tuple(_shortest_mib(low, high) for low, high in _cap_ranges(ready_times, plan))


def cap_mib(ready_times: ReadyTimes, cap: int) -> float:
    """`bucket_cap_mb` that gives the same plan as `cap` bytes."""
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
