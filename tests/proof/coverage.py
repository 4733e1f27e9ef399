"""Do 95 % intervals hold the truth in 95 % of the cases? On series with a known median, and on real ones."""

import itertools
from dataclasses import replace

import numpy as np

from bench.intervals import launch_interval, median_interval, slowest_rank_s
from bench.measure import environment
from proof.claim import Effort, Outcome
from proof.rig import Rig

PIECE = 400
RHO, LENGTHS = (0.0, 0.2, 0.4, 0.6), (20, 60, 200)


def simulated(_: Rig, effort: Effort) -> list[Outcome]:
    """Log-normal series, autocorrelated, with a fifth of the iterations stalled in half of them."""
    rng = np.random.default_rng(2026)
    each = effort.series // (len(RHO) * len(LENGTHS) * 2)
    hits = []
    for rho, length, stalls in itertools.product(RHO, LENGTHS, (False, True)):
        for _ in range(each):
            normal = _autocorrelated(rng, rho, length)
            times = np.exp(0.2 * normal)
            if stalls:  # the slowest fifth: the median stays where it is
                times = np.where(normal > 0.84, times * 5, times)
            interval = median_interval(times)
            hits.append(interval.low <= 1.0 <= interval.high)
    over = []
    for _ in range(effort.series):
        interval = launch_interval(np.exp(rng.normal(0, rng.uniform(0.02, 0.3), rng.integers(3, 11))))
        over.append(interval.low <= 1.0 <= interval.high)
    return [
        _outcome("coverage of the interval within a launch, simulated", "93 to 97 %", hits, 0.93, 0.97),
        _outcome("coverage of the interval over launches, simulated", "93 to 97 %", over, 0.93, 0.97),
    ]


def real(rig: Rig, effort: Effort) -> list[Outcome]:
    """Long launches of gloo, cut into pieces: does the interval of a piece hold the median of the whole?

    Pieces of 400: what keeps a mode for longer than a piece cannot be seen by it. Shorter ones are shown beside it.
    """
    text = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 4
sizes: [4KiB, 1MiB]
scheduling: {scheduling}
sampling: {{warmup: 50, iterations: {iterations}}}
timeout: 60s
"""
    found = []
    for scheduling in ("normal", "rr"):
        claim = (
            f"coverage of the interval within a launch, real launches ({scheduling} scheduling) in pieces of {PIECE}"
        )
        reason = environment.realtime_obstacle()
        if scheduling == "rr" and reason:
            found.append(Outcome(claim, "≥ 90 %", reason, None))
            continue
        run = rig.measure(text.format(scheduling=scheduling, iterations=effort.splits * PIECE))
        launches = [slowest_rank_s(samples.timed) for samples in run.samples]
        hits = {length: [hit for times in launches for hit in _hits(times, length)] for length in (100, 200, PIECE)}
        beside = ", ".join(f"{np.mean(hits[length]):.1%} of pieces of {length}" for length in (100, 200))
        outcome = _outcome(claim, "≥ 90 %", hits[PIECE], 0.90, 1)
        found.append(replace(outcome, measured=f"{outcome.measured} ({beside})"))
    return found


def _hits(times: np.ndarray, length: int) -> list[bool]:
    whole = float(np.median(times))
    intervals = [median_interval(piece) for piece in np.array_split(times, len(times) // length)]
    return [interval.low <= whole <= interval.high for interval in intervals]


def _autocorrelated(rng: np.random.Generator, rho: float, length: int) -> np.ndarray:
    """Standard normal, lag-1 correlation rho."""
    steps = rng.normal(size=length)
    series = np.empty(length)
    series[0] = steps[0]
    for i in range(1, length):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * steps[i]
    return series


def _outcome(claim: str, target: str, hits: list[bool], low: float, high: float) -> Outcome:
    share = float(np.mean(hits))
    return Outcome(claim, target, f"{share:.1%} of {len(hits)}", low <= share <= high)
