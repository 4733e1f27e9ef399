"""`Run` → one `Summary` a case. Facts in, conclusions out; nothing is printed, nothing is dropped silently.

Per iteration the maximum over ranks, per launch the median over iterations, over launches the geometric
mean with Student's t on the logarithms (docs/method.md). Averages over ranks are never taken: they hide the
straggler that everybody waited for.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench import intervals, operations
from bench.conclusions import Interval, Summary
from bench.records import Case, Run, Samples, Sampling, Timings, case_order

Floats = NDArray[np.float64]

# Below this multiple of the cost of reading the clock twice, the clock is part of the number.
TIMER_LIMIT = 20
# Share of the machine's busy time that belongs to other processes, from which on it is worth a warning.
FOREIGN_CPU_LIMIT = 0.10
# /proc/stat counts in hundredths of a second: below this much busy time the share is noise.
FOREIGN_CPU_MIN_S = 0.3
# Share of iterations beyond the far fence from which on the mean says little.
OUTLIER_LIMIT = 0.05


def summarize(run: Run) -> list[Summary]:
    """One summary for each case that was planned and tried, in the order of the tables."""
    by_case: dict[str, list[Samples]] = defaultdict(list)
    for samples in run.samples:
        by_case[samples.case.key].append(samples)
    groups = sorted(by_case.values(), key=lambda group: case_order(group[0].case))
    return [_summary(group[0].case, group, run.plan.sampling) for group in groups]


def _summary(case: Case, launches: list[Samples], sampling: Sampling) -> Summary:
    failures = tuple(s.failure for s in launches if s.failure is not None)
    good = [s for s in launches if s.failure is None and s.timed is not None]
    if not good:
        return Summary(case, 0, 0, None, failures=failures)
    timings = [s.timed for s in good if s.timed is not None]
    slowest = [intervals.slowest_rank_s(t) for t in timings]
    within = [intervals.median_interval(series) for series in slowest]
    medians = np.array([interval.value for interval in within])
    time_s = within[0] if len(good) == 1 else intervals.launch_interval(medians)
    reached = float(np.mean([interval.relative_half_width for interval in within]))
    stops = sorted({s.stopped_by or "?" for s in good})
    summary = Summary(
        case=case,
        launches=len(good),
        iterations=sum(len(series) for series in slowest),
        time_s=time_s,
        medians_s=tuple(medians.tolist()),
        algbw=operations.algbw(case.size_bytes, time_s.value),
        busbw=operations.busbw(case.op, case.world_size, case.size_bytes, time_s.value),
        mean_s=_over_launches([float(series.mean()) for series in slowest]),
        p90_s=_percentile(slowest, 90),
        p99_s=_percentile(slowest, 99),
        host_time_s=_host_time(timings),
        fastest_rank_s=_median_of(timings, lambda t: t.duration_ns.min(axis=1)),
        skew_s=_median_of(timings, lambda t: np.ptp(t.start_ns, axis=1)),
        pure_s=_median_of(timings, lambda t: (t.start_ns + t.duration_ns).max(axis=1) - t.start_ns.max(axis=1)),
        outlier_share=_outlier_share(slowest),
        reached=reached,
        stopped_by=" and ".join(stops),
        foreign_cpu=_foreign_cpu(good),
        failures=failures,
    )
    return _with_warnings(summary, good, time_s, sampling)


def _with_warnings(summary: Summary, good: list[Samples], time_s: Interval, sampling: Sampling) -> Summary:
    warnings = []
    stamp_s = max(max(s.usage.timer_cost_ns) for s in good if s.usage) / 1e9 if any(s.usage for s in good) else 0.0
    if time_s.value < TIMER_LIMIT * stamp_s:
        warnings.append("timer-limited: reading the clock is part of this number")
    reached = summary.reached or 0.0
    if "time" in summary.stopped_by and reached > sampling.relative_error:
        warnings.append(f"stopped by time at ±{reached:.0%} where ±{sampling.relative_error:.0%} was asked")
    if summary.foreign_cpu is not None and summary.foreign_cpu > FOREIGN_CPU_LIMIT:
        warnings.append(f"other processes used {summary.foreign_cpu:.0%} of the busy CPU time")
    if (summary.outlier_share or 0) > OUTLIER_LIMIT:
        warnings.append(f"{summary.outlier_share:.0%} of the iterations are far outliers")
    if summary.failures:
        warnings.append(f"{len(summary.failures)} of {len(summary.failures) + summary.launches} launches failed")
    return dataclasses.replace(summary, warnings=tuple(warnings))


def _over_launches(values: list[float]) -> float:
    """Geometric mean: launches differ by factors, and 1/x of it is the mean of the rates."""
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-12)))))


def _median_of(timings: list[Timings], quantity: Callable[[Timings], NDArray[np.int64]]) -> float:
    return _over_launches([float(np.median(quantity(t))) / 1e9 for t in timings])


def _host_time(timings: list[Timings]) -> float | None:
    hosts = [float(np.median(t.host_ns.max(axis=1))) / 1e9 for t in timings if t.host_ns is not None]
    return _over_launches(hosts) if hosts else None


def _percentile(slowest: list[Floats], percent: int) -> float | None:
    """Of each launch, then over launches: iterations of different launches are never pooled."""
    values = [intervals.percentile(series, percent) for series in slowest]
    known = [value for value in values if value is not None]
    return _over_launches(known) if len(known) == len(values) else None


def _outlier_share(slowest: list[Floats]) -> float:
    far = total = 0
    for series in slowest:
        low, high = np.quantile(series, [0.25, 0.75])
        far += int(np.count_nonzero(series > high + 3 * (high - low)))
        total += len(series)
    return far / total


def _foreign_cpu(good: list[Samples]) -> float | None:
    """Share of the host's busy CPU time that no rank used; None where it cannot be told."""
    usages = [s.usage for s in good if s.usage is not None and s.usage.machine_busy_s is not None]
    busy = sum(usage.machine_busy_s or 0.0 for usage in usages)
    if busy < FOREIGN_CPU_MIN_S:
        return None
    return max(0.0, 1 - sum(sum(usage.cpu_s) for usage in usages) / busy)
