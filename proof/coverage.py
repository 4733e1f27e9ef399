"""Do 95 % intervals hold the truth in 95 % of the cases? On series with a known median, and on real ones."""

import itertools
from dataclasses import replace

import numpy as np

from bench.stats.intervals import launch_interval, median_interval
from proof.claim import Effort, Outcome, counted
from proof.rig import Rig

PART = 400
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
    """Long launches of gloo, split: does the interval of a part hold the median of the whole?

    Split in two ways. Interleaved, every part spans the whole launch. Cut into stretches, each sees only its own
    time: what the machine does differently a second later is in none of its samples (in real time, where iterations
    scatter less and drifts weigh more, 67 % of stretches of 400 held it).
    """
    text = f"""
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 4
sizes: [4KiB, 1MiB]
sampling: {{warmup: 50, iterations: {effort.splits * PART}}}
timeout: 60s
"""
    launches = [samples.timed.slowest_s for samples in rig.measure(text).samples]
    interleaved = [hit for x in launches for hit in _hits(x, [x[i :: effort.splits] for i in range(effort.splits)])]
    stretches = {n: [hit for x in launches for hit in _hits(x, np.array_split(x, len(x) // n))] for n in (100, PART)}
    claim = f"coverage of the interval within a launch, real launches, {effort.splits} parts of {PART} each"
    beside = _outcome(f"{claim}, stretches", "≥ 90 %", stretches[PART], 0.90, 1)
    return [
        _outcome(f"{claim}, interleaved", "≥ 90 %", interleaved, 0.90, 1),
        replace(beside, measured=f"{beside.measured} ({np.mean(stretches[100]):.1%} of stretches of 100)"),
    ]


def _hits(times: np.ndarray, parts: list[np.ndarray]) -> list[bool]:
    whole = float(np.median(times))
    intervals = [median_interval(part) for part in parts]
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
    return Outcome(claim, target, counted(sum(hits), len(hits)), low <= share <= high)
