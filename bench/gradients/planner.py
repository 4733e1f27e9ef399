"""The bucket advisor: which gradients to send together, so that least communication is left over after backward.

In: a `Curve`, how long an all-reduce of so many bytes takes, and a `Profile`, when each gradient is ready. Out: plans,
the time that each leaves exposed, a bound that no plan beats, and all of it as an `Advice`. A plan is a tuple of
ends: bucket k holds the gradients ends[k-1] .. ends[k] - 1, counted in the order in which they become ready.

The link is FIFO: a bucket starts when its last gradient is ready and the one before it is through. That computing
slows down while communicating, and what flattening costs, is not modelled. Measures nothing and formats nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from bench.errors import BenchError
from bench.gradients.conclusions import Advice

Floats = NDArray[np.float64]
Plan = tuple[int, ...]

MIB = 2**20
# torch's own: dist._DEFAULT_FIRST_BUCKET_BYTES, then _DEFAULT_BUCKET_CAP_MB, of nn/parallel/distributed.py.
TORCH_CAPS = (MIB, 25 * MIB)
# No clock tells less; two plans that differ by less are the same.
RESOLUTION_S = 1e-9
# By how much a link is held to differ from what was measured of it.
LINK_ERROR = 0.2
# Caps to try: every one that matters in a transformer of 300 tensors; among thousands of odd sizes, evenly chosen.
MOST_CAPS = 4096
# Points of a picture; more cannot be told apart.
DRAWN_CAPS = 256


# ── the link ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Curve:
    """Time of an all-reduce: straight lines through (sizes, times_s), and slope_s seconds a byte beyond the last.

    sizes ascend from 0, times never fall: times_s[0] is the latency α.
    """

    sizes: tuple[float, ...]
    times_s: tuple[float, ...]
    slope_s: float

    def __call__(self, nbytes: Floats) -> Floats:
        """Seconds for each of so many bytes."""
        inside = np.interp(nbytes, self.sizes, self.times_s)
        return np.asarray(inside + np.maximum(0.0, nbytes - self.sizes[-1]) * self.slope_s)

    @classmethod
    def of_link(cls, latency_s: float, bytes_per_s: float) -> Curve:
        """α–β: latency_s + bytes / bytes_per_s."""
        return cls((0.0,), (latency_s,), 1 / bytes_per_s)

    @classmethod
    def through(cls, sizes: Sequence[float], times_s: Sequence[float]) -> Curve:
        """Through measured points, two sizes at least. Where noise makes times fall, they are levelled.

        Below the smallest size the first line goes on, to zero at least; beyond the largest the last one does, or the
        mean rate at the largest size where that line is level.
        """
        order = np.argsort(sizes)
        bytes_ = np.asarray(sizes, dtype=float)[order]
        if len(bytes_) < 2 or bytes_[0] <= 0 or not np.all(np.diff(bytes_) > 0):
            raise BenchError("a curve needs the times of two sizes or more, each of them once")
        # On logarithms, as noise is relative.
        times = np.exp(isotonic_regression(np.log(np.asarray(times_s, dtype=float)[order])).x)
        slopes = np.diff(times) / np.diff(bytes_)
        latency = max(0.0, float(times[0] - slopes[0] * bytes_[0]))
        beyond = float(slopes[-1]) or float(times[-1] / bytes_[-1])
        return cls((0.0, *map(float, bytes_)), (latency, *map(float, times)), beyond)

    @property
    def latency_s(self) -> float:
        return self.times_s[0]

    def off_by(self, latency: float, rate: float) -> Curve:
        """The same with so many times the latency and so many times the rate."""
        alpha = self.latency_s
        times = tuple(alpha * latency + (time - alpha) / rate for time in self.times_s)
        return Curve(self.sizes, times, self.slope_s / rate)

    def floors(self) -> list[tuple[float, float]]:
        """Lines (α, β), neither negative, that lie nowhere above the curve; for any size the best such is among them.

        For a slope β the highest is α(β) = min over points of time − β·size. It is concave in β and bends only at
        slopes between two points; it counts up to the last slope, and as long as it is not negative.
        """
        sizes, times = np.array(self.sizes), np.array(self.times_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            chords = (times[:, None] - times) / (sizes[:, None] - sizes)
            rays = times[1:] / sizes[1:]
        steepest = float(min([self.slope_s, *rays]))
        slopes = {steepest, *(float(slope) for slope in chords.ravel() if 0 <= slope < steepest)}
        return [(max(0.0, float(np.min(times - beta * sizes))), beta) for beta in sorted(slopes)]


# ── the model ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Profile:
    """Gradients in the order in which they become ready; the last one ends backward.

    ready_s: from the beginning of the step, or of backward. order: which number each has where it is registered.
    """

    nbytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, nbytes: Sequence[int], ready_s: Sequence[float]) -> Profile:
        """From gradients in the order of registration; of two that are ready at once the later registered is first.

        Those of no bytes are left out: nothing is sent of them. Raises BenchError if none is left.
        """
        known = [i for i, size in enumerate(nbytes) if size > 0]
        if not known or not all(math.isfinite(ready_s[i]) for i in known):
            raise BenchError("a profile needs one gradient at least, and a time at which each of them is ready")
        order = sorted(known, key=lambda i: (ready_s[i], -i))
        return cls(tuple(nbytes[i] for i in order), tuple(ready_s[i] for i in order), tuple(order))

    @property
    def total(self) -> int:
        return sum(self.nbytes)


def bucket_bytes(profile: Profile, plan: Plan) -> tuple[int, ...]:
    """Bytes of each bucket, in the order in which they are sent."""
    return tuple(sum(profile.nbytes[start:end]) for start, end in pairwise((0, *plan)))


def members(profile: Profile, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Of each bucket, the numbers under which its gradients are registered."""
    return tuple(profile.order[start:end] for start, end in pairwise((0, *plan)))


def finish(profile: Profile, plan: Plan, curve: Curve) -> float:
    """When the last bucket is through."""
    free = -math.inf
    for end, time in zip(plan, curve(np.array(bucket_bytes(profile, plan), dtype=float)), strict=True):
        free = max(free, profile.ready_s[end - 1]) + float(time)
    return free


def exposed(profile: Profile, plan: Plan, curve: Curve) -> float:
    """Communication that is left over when backward has ended: the tail."""
    return finish(profile, plan, curve) - profile.ready_s[-1]


# ── plans ────────────────────────────────────────────────────────────────────────────────────────
def optimal(profile: Profile, curve: Curve) -> Plan:
    """The plan that is through first, exactly, by dynamic programming over where the last bucket begins.

    f[j] = min over i < j of max(f[i], ready[j-1]) + time(bytes of i .. j-1). Being through earlier with the first i
    gradients never delays the rest, so that only the best f[i] counts. Of all plans that reach f[n], one with large
    buckets: from the end on, each begins as early as its deadline permits. n² times are looked up.
    """
    n, sent = len(profile.nbytes), _sent(profile)
    f = np.full(n + 1, -math.inf)
    for j in range(1, n + 1):
        f[j] = np.min(np.maximum(f[:j], profile.ready_s[j - 1]) + curve(sent[j] - sent[:j]))
    ends, deadline = [n], float(f[n])
    while True:
        j = ends[-1]
        times = curve(sent[j] - sent[:j])
        i = int(np.argmax(np.maximum(f[:j], profile.ready_s[j - 1]) + times <= deadline + RESOLUTION_S))
        if i == 0:
            return tuple(reversed(ends))
        ends.append(i)
        deadline -= float(times[i])


def realised(profile: Profile, caps: Sequence[int], closes: str = "after") -> Plan:
    """What torch makes of a list of caps, the last of which holds for all further buckets.

    closes: "after" a cap is reached, as torch does (compute_bucket_assignment_by_size of its reducer.cpp), or
    "before" it would be exceeded.
    """
    ends: list[int] = []
    filled = 0
    for number, nbytes in enumerate(profile.nbytes):
        cap = caps[min(len(ends), len(caps) - 1)]
        if closes == "before" and filled and filled + nbytes > cap:
            ends.append(number)
            filled = 0
        filled += nbytes
        if closes == "after" and filled >= cap:
            ends.append(number + 1)
            filled = 0
    return (*ends, len(profile.nbytes)) if filled else tuple(ends)


def uniform(profile: Profile, cap: int, closes: str = "after") -> Plan:
    """Buckets of one cap, as `bucket_cap_mb` makes them once torch has rebuilt its buckets."""
    return realised(profile, (cap,), closes)


def torch_default(profile: Profile) -> Plan:
    """What DistributedDataParallel does if it is told nothing: 1 MiB, then 25 MiB."""
    return realised(profile, TORCH_CAPS)


def explicit_25(profile: Profile) -> Plan:
    """What `bucket_cap_mb=25` does, which is not the default: it drops the first bucket of 1 MiB."""
    return uniform(profile, TORCH_CAPS[1])


def textbook_cap(profile: Profile, curve: Curve) -> int:
    """√(s·w·o), the cap that minimises (s/k)/w + k·o over k buckets, as if ready times did not matter.

    s: all bytes; w: bytes a second of large messages; o: latency of a call.
    """
    return max(1, round(math.sqrt(profile.total * curve.latency_s / curve.slope_s)))


def useful_caps(profile: Profile, most: int = MOST_CAPS) -> Sequence[int]:
    """Caps at which a uniform plan changes: sums of neighbouring gradients. Evenly chosen if there are more than most.

    A bucket closes when such a sum reaches the cap, so that any other cap does what the next larger of these does.
    """
    sent = _sent(profile).astype(np.int64)
    sums: set[int] = set()
    for start in range(len(sent) - 1):
        sums.update((sent[start + 1 :] - sent[start]).tolist())
    caps = sorted(sums)
    if len(caps) <= most:
        return caps
    return [caps[i] for i in np.unique(np.linspace(0, len(caps) - 1, most).round().astype(int))]


def uniform_exposures(profile: Profile, curve: Curve, caps: Sequence[int]) -> list[float]:
    """What each cap leaves exposed; the same as `exposed(uniform(cap))`, for all of them at once."""
    limits = np.array(caps, dtype=float)
    filled, free = np.zeros(len(limits)), np.full(len(limits), -math.inf)
    for nbytes, ready in zip(profile.nbytes, profile.ready_s, strict=True):
        filled += nbytes
        closed = filled >= limits
        free[closed] = np.maximum(free[closed], ready) + curve(filled[closed])
        filled[closed] = 0
    rest = filled > 0
    free[rest] = np.maximum(free[rest], profile.ready_s[-1]) + curve(filled[rest])
    return [float(left) for left in free - profile.ready_s[-1]]


def best_uniform(profile: Profile, curve: Curve, caps: Sequence[int] | None = None) -> tuple[int, float]:
    """The cap that leaves least exposed, and how much; the largest of several that leave the same."""
    tried = useful_caps(profile) if caps is None else caps
    return _best(list(zip(tried, uniform_exposures(profile, curve, tried), strict=True)))


def _best(tried: Sequence[tuple[int, float]]) -> tuple[int, float]:
    least = min(left for _, left in tried)
    return max(pair for pair in tried if pair[1] <= least + RESOLUTION_S)


def _sent(profile: Profile) -> Floats:
    """Bytes of the first 0, 1, .. n gradients; exact up to 2⁵³."""
    return np.concatenate([[0.0], np.cumsum(np.array(profile.nbytes, dtype=float))])


# ── how far to trust them ────────────────────────────────────────────────────────────────────────
def lower_bound(profile: Profile, curve: Curve) -> float:
    """Seconds that every plan leaves exposed, in whatever order it sends the gradients.

    Let B be the bytes of gradient j and of those that become ready after it. Each is in a bucket that starts at
    ready[j] or later. These are k ≥ 1 buckets with B bytes at least, and any line α + β·b that lies nowhere above the
    curve, α, β ≥ 0, gives them k·α + β·B ≥ α + β·B seconds on a link that carries one at a time. So nothing is
    through before ready[j] + α + β·B, for every j and every such line.
    """
    ready, sent = np.array(profile.ready_s), _sent(profile)
    rest = sent[-1] - sent[:-1]
    return max(float(np.max(ready + alpha + beta * rest)) for alpha, beta in curve.floors()) - profile.ready_s[-1]


@dataclass(frozen=True, slots=True)
class Deviation:
    """The link has so many times the latency and the rate: what the plan leaves exposed, and what the best would."""

    latency: float
    rate: float
    exposed_s: float
    optimal_s: float


def sensitivity(profile: Profile, plan: Plan, curve: Curve, error: float = LINK_ERROR) -> tuple[Deviation, ...]:
    """The plan on links that are off by `error` in latency, in rate and in both."""
    factors = [1.0, 1 - error, 1 + error]
    return tuple(
        Deviation(latency, rate, exposed(profile, plan, real), exposed(profile, optimal(profile, real), real))
        for latency, rate in product(factors, factors)
        for real in [curve.off_by(latency, rate)]
    )


def advise(profile: Profile, curve: Curve) -> Advice:
    """The best plan, beside the best uniform cap, torch's default and the bound."""
    caps = useful_caps(profile)
    tried = list(zip(caps, uniform_exposures(profile, curve, caps), strict=True))
    plan, best = optimal(profile, curve), _best(tried)
    drawn = {tried[i] for i in np.linspace(0, len(tried) - 1, DRAWN_CAPS).round().astype(int)} | {best}
    return Advice(
        buckets=bucket_bytes(profile, plan),
        exposed_s=exposed(profile, plan, curve),
        best_cap=best[0],
        best_cap_exposed_s=best[1],
        default_exposed_s=exposed(profile, torch_default(profile), curve),
        bound_s=lower_bound(profile, curve),
        caps=tuple(sorted(drawn)),
    )
