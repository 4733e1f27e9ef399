"""How much longer backward takes because gradients are copied into buckets and sent meanwhile.

In: strategies of a run that send during backward, with what they add to computing. Out: a `Stretch`, by which ready
times of a step without synchronisation become those of a step under a plan. A link that carries calls while backward
takes longer has more time, so that less of them is left at the end. Measures nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from bench.training.planner import BucketPlan
from bench.training.ready_times import ReadyTimes


@dataclass(frozen=True, slots=True)
class Stretch:
    """Seconds that forward and backward take longer: call_s a call, and byte_s a byte that is copied into a bucket.

    A bucket of one gradient is sent in place, so that none of its bytes are copied.
    """

    call_s: float = 0.0
    byte_s: float = 0.0

    def of(self, ready_times: ReadyTimes, plan: BucketPlan) -> float:
        """Seconds under this plan."""
        return self.call_s * len(plan) + self.byte_s * copied_bytes(ready_times, plan)

    def stretched(self, ready_times: ReadyTimes, plan: BucketPlan) -> ReadyTimes:
        """The ready times under this plan: all later by the same share."""
        factor = 1 + self.of(ready_times, plan) / ready_times.ready_s[-1]
        return replace(ready_times, ready_s=tuple(factor * ready for ready in ready_times.ready_s))


def copied_bytes(ready_times: ReadyTimes, plan: BucketPlan) -> int:
    """Bytes of the buckets that hold several gradients."""
    return sum(sum(ready_times.nbytes[a:b]) for a, b in pairwise((0, *plan)) if b - a > 1)


def fitted(ready_times: ReadyTimes, plans: Sequence[BucketPlan], longer_s: Sequence[float]) -> Stretch:
    """From how much longer computing took under each plan; least squares without negative terms."""
    if not plans:
        return Stretch()
    known = np.array([[len(plan), copied_bytes(ready_times, plan) / ready_times.total] for plan in plans], dtype=float)
    (call_s, whole_s), _ = nnls(known, np.maximum(np.asarray(longer_s, dtype=float), 0.0))
    return Stretch(float(call_s), float(whole_s) / ready_times.total)
