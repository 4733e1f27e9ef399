"""Model how time depends on size (piecewise α–β, one model per series), and compute bounds that no run can beat.

In: summaries, and the environment of their run. Out: one `Fit` for each series of sizes; `Bound`s, from measured pairs
and from the links that the run found (NVLink, PCIe, InfiniBand); and a warning for each case that exceeds the
capacity of its hardware, because then the measurement (or a size) is wrong. If the model is far from the measured
times, the `Fit` has no segments and its note gives the reason. Rates of hardware are bytes/s in one direction; rates
from standards are after encoding; the overhead of protocols is not subtracted.

α–β and n½: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994). Bounds next to results:
Hoefler & Belli, "Scientific benchmarking of parallel computing systems", SC'15, rule 11.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from collbench.analyze.sessions import places_of
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, ranks_together
from collbench.model.conclusions import LINK_AS_GIVEN, Bound, Fit, Interval, IntervalKind, Segment, Summary
from collbench.model.facts import HostFacts
from collbench.model.notices import Kind, Notice
from collbench.model.projection import SIZES
from collbench.model.records import Run, case_order
from collbench.stats import intervals
from collbench.stats.intervals import Floats

Spans = list[tuple[int, int]]

# Two parameters through three points leave one degree of freedom: any bend would look like another protocol.
FEWEST_SIZES = 4
# Eager protocol, rendezvous protocol, and one for a cache or a second algorithm; more would overfit.
MOST_SEGMENTS = 3
# Relative deviation too small to justify a segment. Without it BIC splits a perfect series at its rounding errors.
RESOLUTION = 0.01
# A model that is off by more than a third at some size misleads. Series of gloo on two cores reached 0.04 to 0.29, and
# noise alone stays below: with 20 sizes that scatter by 10 %, the worst residual exceeds 0.35 in under 1 % of series.
WORST_RESIDUAL = 0.35
# A term below this share of each time is a rounding error: no clock resolves a billionth of the time it measures.
ROUNDING = 1e-9
# Number of ratios of β to α that are tried first, a factor of about 2.5 apart over all values that could matter; and
# the most steps from the best ratio, of which ten usually suffice.
GRID, MOST_STEPS = 120, 50
# Operation whose time is the time of one exchange: each rank sends `size` bytes and receives `size` bytes at once.
PAIRWISE = "pairwise"
# NVLink: one link, one direction. NVML's version, which is an enum (nvml.h, nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0,
# 3.1, 4.0, 5.0, 6.0) → bytes/s (NVIDIA's data sheets: P100 4 × 20, V100 6 × 25, A100 12 × 25, H100 18 × 25,
# B200 18 × 50 GB/s).
NVLINK = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9, 8: 50e9}
# Some drivers report 7 for a Hopper (compute capability 9), whose links have the value 6.
HOPPER, HOPPER_LINK = range(90, 100), 25e9
# From this compute capability on, switches reduce and copy (NVLink SHARP): a GPU sends and receives each byte once.
REDUCING_SWITCHES = 90
# PCIe: one lane, one direction. Generation → bytes/s (8b/10b up to 2, 128b/130b up to 5, 242/256 in 6).
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# A rate is impossible only if it exceeds the bound by this factor, because clocks differ between cards.
TOLERANCE = 1.02


# ── the model ────────────────────────────────────────────────────────────────────────────────────
def fits(summaries: Sequence[Summary]) -> list[Fit]:
    """Return a fit for each series (cases that differ in size only) with FEWEST_SIZES measured sizes or more."""
    series = SIZES.tables((s for s in summaries if s.time_s is not None), lambda s: s.case)
    ordered = [sorted(group, key=lambda s: s.case.size_bytes) for group in series.values()]
    ordered.sort(key=lambda group: case_order(group[0].case))
    return [_fit(group) for group in ordered if len(group) >= FEWEST_SIZES]


NO_MODEL = Kind(
    "no-model",
    "no model: latency plus size over rate is off by {worst:share} at {size_bytes:bytes} even in its best segments",
)


def _fit(series: list[Summary]) -> Fit:
    """Fit one series. `series`: one or more summaries with a time, by ascending size."""
    sizes = np.array([s.case.size_bytes for s in series], dtype=float)
    times = np.array([s.time_s.value for s in series if s.time_s is not None])
    spans = _segmentation(sizes, times)
    parameters = [_affine(sizes[a:b], times[a:b]) for a, b in spans]
    model = [alpha + beta * sizes[a:b] for (a, b), (alpha, beta) in zip(spans, parameters, strict=True)]
    residuals = np.abs(np.concatenate(model) / times - 1)
    worst = float(residuals.max())
    case = series[0].case
    if worst > WORST_RESIDUAL:
        size = series[int(residuals.argmax())].case.size_bytes
        note = NO_MODEL([s.case.key for s in series], worst=worst, size_bytes=size)
        return Fit(case, (), None, None, None, worst, note)
    segments = tuple(
        Segment(series[a].case.size_bytes, series[b - 1].case.size_bytes, alpha, beta)
        for (a, b), (alpha, beta) in zip(spans, parameters, strict=True)
    )
    first, last = spans[0], spans[-1]
    alpha_s, _, _ = _parameter_intervals(series[first[0] : first[1]])
    _, rate, half_size = _parameter_intervals(series[last[0] : last[1]])
    return Fit(case, segments, alpha_s, rate, half_size, worst)


def _affine(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Return α in seconds and β in seconds per byte, neither negative, that minimise Σ (log model − log t)².

    Residuals are of logarithms, as the noise is: relative residuals would bias the model by −1.5 σ², and absolute
    residuals would fit the largest sizes only, leaving α to chance. With ρ = β / α, log t = log α + log(1 + ρ size).
    The best α for a ρ is a mean, so only ρ is searched: on a grid, and then by Gauss-Newton steps.
    """
    logs = np.log(times)

    def residuals(rho: Floats) -> Floats:
        """Return the residuals for each ρ (rows) and size (columns), with the best α."""
        deviations = logs - np.log1p(np.multiply.outer(rho, sizes))
        return np.asarray(deviations - deviations.mean(axis=-1, keepdims=True))

    grid = np.geomspace(ROUNDING**2 / sizes[-1], ROUNDING**-2 / sizes[0], GRID)
    costs = (residuals(grid) ** 2).sum(axis=1)
    rho, cost = float(grid[costs.argmin()]), float(costs.min())
    for _ in range(MOST_STEPS):
        deviations = residuals(np.array(rho))
        slope = rho * sizes / (1 + rho * sizes)
        slope = slope - slope.mean()
        step = float(deviations @ slope) / max(float(slope @ slope), np.finfo(float).tiny)
        nearer = rho * math.exp(max(-1.0, min(1.0, step)))
        lower = float((residuals(np.array(nearer)) ** 2).sum())
        if not lower < cost:
            break
        rho, cost = nearer, lower
    alpha = math.exp(float(np.mean(logs - np.log1p(rho * sizes))))
    beta = alpha * rho
    # A term that no clock could resolve is zero.
    if beta * sizes[-1] < ROUNDING * alpha:
        return math.exp(float(logs.mean())), 0.0
    if alpha < ROUNDING * beta * sizes[0]:
        return 0.0, math.exp(float(np.mean(logs - np.log(sizes))))
    return alpha, beta


def _segmentation(sizes: Floats, times: Floats) -> Spans:
    """Return the positions [start, end) of the 1 to 3 segments with the least BIC (Schwarz 1978).

    m segments have 2m coefficients and m - 1 boundaries. All partitions into m segments are tried.
    """
    n = len(sizes)

    @functools.cache
    def squares(start: int, end: int) -> float:
        """Return the sum of squared residuals of the logarithms for the best α and β of sizes[start:end]."""
        alpha, beta = _affine(sizes[start:end], times[start:end])
        return float(np.sum(np.log((alpha + beta * sizes[start:end]) / times[start:end]) ** 2))

    def cost(spans: Spans) -> float:
        return sum(squares(start, end) for start, end in spans)

    def bic(spans: Spans) -> float:
        return n * math.log(cost(spans) / n + RESOLUTION**2) + (3 * len(spans) - 1) * math.log(n)

    candidates: list[Spans] = [[(0, n)]]
    for count in range(2, min(MOST_SEGMENTS, n // FEWEST_SIZES) + 1):
        boundaries = itertools.combinations(range(FEWEST_SIZES, n - FEWEST_SIZES + 1), count - 1)
        partitions = (list(pairwise([0, *inner, n])) for inner in boundaries)
        long_enough = (spans for spans in partitions if all(end - start >= FEWEST_SIZES for start, end in spans))
        candidates.append(min(long_enough, key=cost))
    return min(candidates, key=bic)


# ── the intervals of the parameters ──────────────────────────────────────────────────────────────
def _parameter_intervals(segment: list[Summary]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Return α (s), r∞ (bytes/s) and n½ (bytes) of one segment; None for a value not distinct from zero or infinity.

    Each launch that all sizes have is fitted: a slow launch is slow for all its sizes, and only this accounts for it.
    The value is then the geometric mean over launches, which may differ a little from the segment's value. Without two
    such launches there is no interval: the quality of the fit does not show how certain the points are.
    """
    sizes = np.array([s.case.size_bytes for s in segment], dtype=float)
    common = min(len(s.means_s) for s in segment)
    alone = [(s.time_s.value,) for s in segment if s.time_s is not None]
    launches = alone if common < 2 else [s.means_s[:common] for s in segment]
    alphas, betas = np.array([_affine(sizes, times_s) for times_s in np.array(launches).T]).T
    if not betas.all():
        return _over_launches(alphas), None, None
    return _over_launches(alphas), _over_launches(1 / betas), _over_launches(alphas / betas)


def _over_launches(values: Floats) -> Interval | None:
    """Return Student's t interval of logarithms (of values, cut at 0, if a launch gave 0); the range of few values.

    None if every launch gave zero: an interval without width would claim a precision that was not reached.
    """
    if not values.any():
        return None
    if values.all() or len(values) < intervals.FEWEST_OVER_LAUNCHES:
        return intervals.of_launches(values)
    half = intervals.student_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    middle = float(np.mean(values))
    return Interval(middle, max(0.0, middle - half), middle + half, IntervalKind.OVER_LAUNCHES)


# ── the bounds ───────────────────────────────────────────────────────────────────────────────────
def bounds(summaries: Sequence[Summary], link_bytes_per_s: float | None) -> list[Bound]:
    """Return bus bandwidths in bytes/s that cases with two or more ranks cannot exceed, by backend and world size.

    "link as given": the rate that the user states for the link. "ring of measured pairs": the best rate over the
    sizes of `pairwise`, whose time is the time of the slowest pair of a round. Every link of a ring carries the bus
    bandwidth, so a ring is no faster than its slowest link. An algorithm other than a ring may exceed this bound.
    """
    rates: dict[tuple[str, int, str], float] = {}
    for summary in summaries:
        case = summary.case
        if case.world_size < 2:
            continue
        if link_bytes_per_s is not None:
            rates[case.backend, case.world_size, LINK_AS_GIVEN] = link_bytes_per_s
        if case.op == PAIRWISE and summary.time_s is not None:
            name = (case.backend, case.world_size, "ring of measured pairs")
            rates[name] = max(rates.get(name, 0.0), case.size_bytes / summary.time_s.value)
    return [Bound(*name, busbw) for name, busbw in sorted(rates.items())]


def hardware_bounds(run: Run, summaries: Sequence[Summary]) -> list[Bound]:
    """Return the bounds from the links between GPUs, and between hosts, for each backend and world size of a run."""
    host = _first_host(run)
    gpu, fabric, places = gpu_rate(host), infiniband_rate(host), places_of(run)
    measured = {(s.case.backend, s.case.world_size) for s in summaries if s.case.world_size > 1 and s.busbw is not None}
    bounds = []
    for backend, n in sorted(measured):
        if gpu is not None and BACKENDS[backend].device == "cuda":
            # If switches reduce, an all-reduce sends each byte once, but its bus bandwidth counts it 2(n-1)/n times.
            capabilities = [device.get("capability") or 0 for device in host.get("gpus") or []]
            factor = 2 * (n - 1) / n if n > 1 and min(capabilities, default=0) >= REDUCING_SWITCHES else 1.0
            bounds.append(Bound(backend, n, gpu[0], max(1.0, factor) * gpu[1]))
        h = places[backend, n].hosts if (backend, n) in places else 1
        if fabric is not None and h > 1:
            # If each host reduces first, 2(h-1)/h of the data cross a host's ports, which is less than 2(n-1)/n.
            most = fabric * ((n - 1) / n) / ((h - 1) / h)
            bounds.append(Bound(backend, n, f"InfiniBand between {h} hosts", most))
    return bounds


FASTER_THAN_HARDWARE = Kind(
    "faster-than-hardware",
    "{op} of {size_bytes:bytes} on {ranks:count rank} would need {needed_bytes_per_s:rate} GB/s into one GPU, but "
    "{way} carries {carried_bytes_per_s:rate}",
    "do not believe this number",
)


def impossible(run: Run, summaries: Sequence[Summary]) -> Iterable[Notice]:
    """Yield one notice for each case that is faster than the hardware can be."""
    way = gpu_rate(_first_host(run))
    if way is None:
        return
    for summary in summaries:
        case, n = summary.case, ranks_together(summary.case)
        factor = OPERATIONS[case.op].bus_factor
        if BACKENDS[case.backend].device != "cuda" or summary.time_s is None or n < 2 or factor is None:
            continue
        # Bytes that one GPU must receive at least, even when switches reduce and copy on the way.
        least_bytes = case.size_bytes * (1.0 if case.op.startswith("all_reduce") else factor(n))
        needed = least_bytes / summary.time_s.value
        if needed > TOLERANCE * way[1]:
            yield FASTER_THAN_HARDWARE(
                [case.key],
                op=case.op,
                size_bytes=case.size_bytes,
                ranks=case.world_size,
                needed_bytes_per_s=needed,
                way=way[0],
                carried_bytes_per_s=way[1],
            )


def gpu_rate(host: HostFacts) -> tuple[str, float] | None:
    """Return name and rate of the fastest way into the first GPU of a host; None if it is unknown."""
    gpus = host.get("gpus") or []
    if not gpus:
        return None
    gpu = gpus[0]
    versions = gpu.get("nvlinks") or []
    if isinstance(versions, list) and versions:
        if not {*versions} <= {*NVLINK}:
            return None  # links of an unknown kind
        rates = [HOPPER_LINK if gpu.get("capability") in HOPPER else NVLINK[version] for version in versions]
        return f"NVLink ({len(rates)} links)", sum(rates)
    generation, width = gpu.get("pcie_generation"), gpu.get("pcie_width")
    if generation in PCIE_LANE and isinstance(width, int):
        return f"PCIe {generation} × {width}", PCIE_LANE[generation] * width
    return None


def infiniband_rate(host: HostFacts) -> float | None:
    """Return bytes/s of all active InfiniBand ports of a host together; None if there is none."""
    active = [port for port in host.get("infiniband") or [] if "ACTIVE" in str(port.get("state")).upper()]
    rates = (re.match(r"\s*([\d.]+)\s*Gb", str(port.get("rate"))) for port in active)
    return sum(float(rate[1]) * 1e9 / 8 for rate in rates if rate) or None


def _first_host(run: Run) -> HostFacts:
    return run.environment[0].get("host", {}) if run.environment else {}
