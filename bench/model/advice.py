"""Define what is advised on buckets: made by `advise`, shown by `report`. Times are predictions, seconds a step."""

from __future__ import annotations

from dataclasses import dataclass

# A setting is worth making if it saves this share of backward somewhere. Steps of one job repeat to about 1 %, so that
# less could not be seen.
WORTH = 0.01
# A prediction holds if it is wrong by at most this many seconds, or by at most this share of itself.
OFF_S, OFF_SHARE = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Advice:
    """The bucket plan to use on a link that is known roughly, by `advise.advisor`; times are predictions.

    A regret is how much more than the best plan there a plan leaves exposed, where link and backward are off by at most
    `box`. advised: "default", "cap" or "plan", the simplest that loses nothing worth a setting. plan: with the least
    worst regret. cap: the uniform cap with the least worst regret. least_s: what the best plan leaves if all is as
    assumed. bound_s: no plan, in whatever order, leaves less. caps: (cap in bytes, predicted exposed seconds) of
    uniform caps, for the picture. box: shares by which latency, rate and backward may be off.
    """

    advised: str
    plan: PlanPrediction
    cap: PlanPrediction
    default: PlanPrediction
    least_s: float
    bound_s: float
    box: tuple[float, float, float]
    caps: tuple[tuple[int, float], ...] = ()

    @property
    def chosen(self) -> PlanPrediction:
        """The prediction of what is advised."""
        return {"default": self.default, "cap": self.cap, "plan": self.plan}[self.advised]


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The prediction for a bucket plan. buckets: bytes of each, in the order in which they are sent.

    exposed_s: if all is as assumed. worst_regret_s: the largest regret, and worst_at the factors of latency, rate and
    backward there. cap: in bytes, of a uniform cap.
    """

    buckets: tuple[int, ...]
    exposed_s: float
    worst_regret_s: float
    worst_at: tuple[float, float, float]
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """One bucket of a plan. members: registration numbers of its gradients, in the order they become ready.

    ready_s: when the last of them is ready. start_s, done_s: when its all-reduce starts and ends.
    """

    nbytes: int
    members: tuple[int, ...]
    ready_s: float
    start_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class OtherWay:
    """The prediction for another way than a bucket plan: exposed seconds a step. note: what it changes in training."""

    name: str
    exposed_s: float
    note: str


@dataclass(frozen=True, slots=True)
class ExplainedAdvice:
    """An advice with all that explains it.

    model: whose gradients; names: of them, in the order in which they are registered. link: in words; cpu: whether
    communicating on it takes CPU time; None if unknown. notes: what else limits the predictions.
    total: bytes of all gradients; itemsize: of one element. backward_s: when the last one is ready. bytes_s: all
    gradients at the rate of the link. predictions: of the advised plan and of plans in common use, by name. caps_mib,
    cap_mib: `bucket_cap_mb_list` of DistributedDataParallel for the plan, and `bucket_cap_mb` for the cap.
    """

    advice: Advice
    model: str
    names: tuple[str, ...]
    link: str
    cpu: bool | None
    notes: tuple[str, ...]
    total: int
    itemsize: int
    backward_s: float
    bytes_s: float
    predictions: tuple[tuple[str, PlanPrediction], ...]
    buckets: tuple[PlannedBucket, ...]
    others: tuple[OtherWay, ...]
    caps_mib: tuple[float, ...]
    cap_mib: float
