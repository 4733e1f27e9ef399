"""Is one rank always the last to arrive? Names it, or says that nobody can be named.

In: a `Run`. Out: findings of kind "late rank". Who waits longest is the victim and is never named: what counts
is who begins last (or, without a common clock, who spends the shortest time in the operation, because nobody
waits for the last one).

Per case: Friedman's test that ranks differ at all, then for each rank a one-sided binomial test of its share
of last arrivals against 1/n, over an effective number of iterations (they are autocorrelated), corrected by
Holm (1979) over all ranks and cases. Significant is not enough: the rank must cost the operation 10 % of its
time, and be the most frequent last one in each launch.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.analyze.clocks import Clocks
from bench.conclusions import Finding
from bench.intervals import FEWEST_FOR_MEDIAN, effective_size
from bench.operations import cycle
from bench.records import Case, Run, Samples
from bench.units import format_seconds

Floats = NDArray[np.float64]

LEVEL = 0.05
# A rank that costs less than this share of an operation's time is not worth anybody's morning.
SMALLEST_COST = 0.10


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """What speaks against one rank in one case. relative_cost: the wait that it causes, as a share of the time.

    delay_s: median over iterations of its arrival minus the median arrival of the others.
    """

    case: Case
    rank: int
    share: float
    p: float
    relative_cost: float
    delay_s: float


def late_ranks(run: Run) -> list[Finding]:
    """The ranks that arrive last too often to be chance, and cost something by it."""
    launches: dict[str, list[Samples]] = defaultdict(list)
    cases: dict[str, Case] = {}
    for samples in run.samples:
        case = samples.case
        if samples.timed is None or samples.failure is not None or case.world_size < 2 or cycle(case) > 1:
            continue
        cases[case.key] = case
        launches[case.key].append(samples)
    clocks = Clocks(run)
    suspicions = [one for key, case in cases.items() for one in _suspicions(case, launches[key], clocks)]
    tests = sum(case.world_size for case in cases.values())
    corrected = holm(np.array([one.p for one in suspicions]), tests)
    named: dict[tuple[str, int, int], list[tuple[_Suspicion, float]]] = defaultdict(list)
    for one, p in zip(suspicions, corrected, strict=True):
        if p <= LEVEL:
            named[one.case.backend, one.case.world_size, one.rank].append((one, float(p)))
    return [_finding(group, cases) for group in named.values()]


def holm(p: Floats, tests: int) -> Floats:
    """Holm's step-down correction; p: the smallest ones of so many tests."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * (tests - np.arange(len(p)))) if len(p) else p
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def _suspicions(case: Case, launches: Sequence[Samples], clocks: Clocks) -> list[_Suspicion]:
    """The ranks of one case that would matter: last in each launch more often than any other, and at a cost."""
    arrivals, unsure_s = _arrivals(launches, clocks)
    lasts = [np.bincount(a.argmax(axis=1), minlength=case.world_size) / len(a) for a in arrivals]
    (rank, *others) = {int(shares.argmax()) for shares in lasts}
    if others or sum(map(len, arrivals)) < FEWEST_FOR_MEDIAN:
        return []
    time_s = float(np.median([np.median(s.timed.duration_ns.max(axis=1)) for s in launches if s.timed])) / 1e9
    rest = [np.delete(a, rank, axis=1) for a in arrivals]
    behind = [a[:, rank] - o.max(axis=1) for a, o in zip(arrivals, rest, strict=True)]
    # The median: a mean would be that of the few iterations in which the scheduler stalled somebody.
    cost = float(np.median(np.concatenate(behind)))
    if cost < max(SMALLEST_COST * time_s, unsure_s) or not _ranks_differ(arrivals):
        return []
    after = [a[:, rank] - np.median(o, axis=1) for a, o in zip(arrivals, rest, strict=True)]
    share = float(np.concatenate([b > 0 for b in behind]).mean())
    p = _binomial_p([float(shares[rank]) for shares in lasts], behind, case.world_size)
    return [_Suspicion(case, rank, share, p, cost / time_s, float(np.median(np.concatenate(after))))]


def _binomial_p(shares: Sequence[float], behind: Sequence[Floats], ranks: int) -> float:
    """That a rank is last so often by chance, over the effective number of iterations."""
    from scipy.stats import binomtest  # here: slow to load

    counts = [effective_size(b) if len(b) >= FEWEST_FOR_MEDIAN else len(b) for b in behind]
    counts = [min(count, len(b)) for count, b in zip(counts, behind, strict=True)]
    last = sum(round(share * count) for share, count in zip(shares, counts, strict=True))
    return float(binomtest(last, sum(counts), 1 / ranks, alternative="greater").pvalue)


def _arrivals(launches: Sequence[Samples], clocks: Clocks) -> tuple[list[Floats], float]:
    """When each rank began, in seconds, and how unsure that is, for each launch.

    Without a common clock: the later, the shorter it took, up to a constant.
    """
    aligned = [clocks.aligned(samples) for samples in launches]
    known = [one for one in aligned if one is not None]
    if len(known) == len(launches):
        return [np.asarray(a.timings.start_ns / 1e9) for a in known], max(a.uncertainty_s for a in known)
    return [np.asarray(-s.timed.duration_ns / 1e9) for s in launches if s.timed is not None], 0.0


def _ranks_differ(arrivals: list[Floats]) -> bool:
    """Friedman's test; with two ranks the binomial test alone says the same."""
    from scipy.stats import friedmanchisquare

    together = np.concatenate(arrivals)
    return together.shape[1] < 3 or bool(friedmanchisquare(*together.T).pvalue <= LEVEL)


def _finding(group: list[tuple[_Suspicion, float]], cases: dict[str, Case]) -> Finding:
    """One sentence on one rank, over all cases that it stands out in."""
    worst, p = max(group, key=lambda pair: pair[0].relative_cost)
    case = worst.case
    alike = sum(1 for c in cases.values() if (c.backend, c.world_size) == (case.backend, case.world_size))
    delay = float(np.median([one.delay_s for one, _ in group]))
    share = float(np.median([one.share for one, _ in group]))
    text = (
        f"rank {worst.rank} of {case.world_size} on {case.backend} is late: last to arrive in {share:.0%} of the "
        f"iterations (chance: {1 / case.world_size:.0%}), {format_seconds(delay)} after the others, in {len(group)} of "
        f"{alike} cases; it costs up to {worst.relative_cost:.0%} of an operation's time (p = {p:.1g} after Holm)"
    )
    return Finding(
        kind="late rank",
        subject=f"rank {worst.rank}",
        text=text,
        cases=tuple(one.case for one, _ in group),
        rank=worst.rank,
        cost_s=delay,
        share=share,
        p=p,
    )
