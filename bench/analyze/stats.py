"""Summarise the cases of a run: `Run` → one `Summary` per case.

Facts in, conclusions out; nothing is printed, nothing is dropped silently. Per iteration the maximum over ranks counts,
per launch the median over iterations, over launches the geometric mean with Student's t on the logarithms
(docs/method.md). Averages over ranks are never taken: they hide the straggler that everybody waited for.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.analyze.aggregates import of_aggregates
from bench.analyze.disturbance import causes, foreign_cpu
from bench.analyze.sessions import Clocks
from bench.catalog import operations
from bench.model.conclusions import Interval, Summary
from bench.model.records import Case, Run, Samples, Sampling, Timings, case_order
from bench.model.units import format_seconds
from bench.stats import intervals
from bench.stats.intervals import Floats
from bench.stats.series import common_mode, outliers, over_launches, steady

# Below this multiple of the distance of two stamps with nothing between them, the clock is part of the number.
TIMER_LIMIT = 20
# Share of the machine's busy CPU time used by other processes, above which there is a warning.
FOREIGN_CPU_LIMIT = 0.10
# Shares of the iterations whose times show where a comparison found a change.
QUANTILES = (0.1, 0.5, 0.9)
# Share of iterations beyond the far fence above which the mean says little.
OUTLIER_LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class _Series:
    """One launch of one case. slowest_s: maximum over ranks of each iteration. steady: as `series.steady`.

    percentiles_s: percent → seconds, where the number of iterations supports it.
    """

    samples: Samples
    timings: Timings
    slowest_s: Floats
    steady: bool
    interval: Interval
    percentiles_s: dict[int, float]


def summarize(run: Run) -> list[Summary]:
    """One summary for each case that was planned and tried, in the order of the tables."""
    clocks = Clocks(run)
    return [_summary(case, launches, run.plan.sampling, clocks) for case, launches in _by_case(run)]


def headlines(run: Run) -> list[Summary]:
    """Summaries with only what a comparison needs: times with intervals, medians of the launches, failures.

    The numbers are those of `summarize`, in a fraction of its time: comparisons read many runs with many cases.
    """
    return [_headline(case, launches) for case, launches in _by_case(run)]


def quantiles_of(times_s: Floats) -> list[float]:
    """The QUANTILES of the iterations of one launch."""
    return intervals.quantiles(np.sort(times_s), QUANTILES)


def _by_case(run: Run) -> list[tuple[Case, list[Samples]]]:
    """The launches of each case that was tried, in the order of the tables."""
    found: dict[Case, list[Samples]] = defaultdict(list)
    for samples in run.samples:
        found[samples.case].append(samples)
    return sorted(found.items(), key=lambda item: case_order(item[0]))


def _headline(case: Case, launches: list[Samples]) -> Summary:
    if any(s.aggregate is not None for s in launches):
        return of_aggregates(case, launches)
    failures = tuple(s.failure for s in launches if s.failure is not None)
    good = [s.timed for s in launches if s.failure is None and s.timed is not None]
    if not good:
        return Summary(case, 0, 0, None, failures=failures)
    series = [timed.slowest_s for timed in good]
    medians = np.array([np.median(times) for times in series])
    quantiles = [quantiles_of(times) for times in series]
    time_s = (
        intervals.within_launch(series[0], good[0].blocks) if len(good) == 1 else intervals.launch_interval(medians)
    )
    return Summary(
        case=case,
        launches=len(good),
        iterations=sum(len(timed.duration_ns) for timed in good),
        time_s=time_s,
        medians_s=tuple(medians.tolist()),
        means_s=tuple(over_launches(times) for times in series),
        quantiles_s=tuple(map(over_launches, np.transpose(quantiles))),
        algbw=None if case.oversubscribed else operations.algbw(case.size_bytes, time_s.value),
        busbw=operations.busbw(case, time_s.value),
        stall=None if operations.cycle(case) > 1 else common_mode(series),
        failures=failures,
    )


def _summary(case: Case, launches: list[Samples], sampling: Sampling, clocks: Clocks) -> Summary:
    if any(s.aggregate is not None for s in launches):
        return of_aggregates(case, launches)
    failures = tuple(s.failure for s in launches if s.failure is not None)
    good = [_series(s) for s in launches if s.failure is None and s.timed is not None]
    if not good:
        return Summary(case, 0, 0, None, failures=failures)
    medians = np.array([one.interval.value for one in good])
    time_s = good[0].interval if len(good) == 1 else intervals.launch_interval(medians)
    near, far = outliers([one.slowest_s for one in good])
    fastest, skew, pure = _of_ranks(good, clocks)
    summary = Summary(
        case=case,
        launches=len(good),
        iterations=sum(len(one.slowest_s) for one in good),
        time_s=time_s,
        medians_s=tuple(medians.tolist()),
        means_s=tuple(over_launches(one.slowest_s) for one in good),
        scatter=float(np.std(np.log(medians), ddof=1)) if len(good) > 1 else None,
        algbw=None if case.oversubscribed else operations.algbw(case.size_bytes, time_s.value),
        busbw=operations.busbw(case, time_s.value),
        mean_s=over_launches([float(one.slowest_s.mean()) for one in good]),
        p90_s=_percentile(good, 90),
        p95_s=_percentile(good, 95),
        p99_s=_percentile(good, 99),
        host_time_s=_host_time(good),
        fastest_rank_s=fastest,
        skew_s=skew,
        pure_s=pure,
        outliers=near,
        far_outliers=far,
        outlier_causes=causes([one.samples for one in good]) if near else (),
        stall=None if operations.cycle(case) > 1 else common_mode([one.slowest_s for one in good]),
        steady=all(one.steady for one in good),
        timer_s=_largest(good, lambda s: s.usage.timer_cost_ns if s.usage else None),
        floor_s=_largest(good, lambda s: s.usage.floor_ns if s.usage else None),
        asked=sampling.relative_error if sampling.iterations is None else None,
        reached=float(np.mean([one.interval.relative_half_width for one in good])),
        stopped_by=" and ".join(sorted({one.samples.stopped_by or "?" for one in good})),
        foreign_cpu=foreign_cpu([one.samples for one in good]),
        failures=failures,
    )
    return dataclasses.replace(summary, warnings=tuple(_warnings(summary, good)))


def _series(samples: Samples) -> _Series:
    assert samples.timed is not None  # noqa: S101 - the caller selects such
    slowest = samples.timed.slowest_s
    # Iterations of different rounds or groups are different operations, not one series in time.
    level = operations.cycle(samples.case) > 1 or steady(slowest)
    supported = [percent for percent, fewest in intervals.FEWEST_FOR_PERCENTILE.items() if len(slowest) >= fewest]
    shares = [percent / 100 for percent in supported]
    percentiles = dict(zip(supported, intervals.quantiles(np.sort(slowest), shares), strict=True))
    interval = intervals.within_launch(slowest, samples.timed.blocks)
    return _Series(samples, samples.timed, slowest, level, interval, percentiles)


def _warnings(summary: Summary, good: list[_Series]) -> list[str]:
    assert summary.time_s is not None  # noqa: S101 - the caller has just made it
    found = []
    if summary.time_s.value < TIMER_LIMIT * (summary.timer_s or 0.0):
        found.append("timer-limited: reading the clock is part of this number")
    if "time" in summary.stopped_by and summary.asked and (summary.reached or 0.0) > summary.asked:
        found.append(f"stopped by time at ±{summary.reached:.0%} where ±{summary.asked:.0%} was asked")
    if not summary.steady:
        found.append("not steady: the time changed near an end of a launch")
    if summary.foreign_cpu is not None and summary.foreign_cpu > FOREIGN_CPU_LIMIT:
        found.append(f"other processes used {summary.foreign_cpu:.0%} of the busy CPU time")
    if summary.stall is not None:
        stall = summary.stall
        found.append(
            f"two modes: {stall.share:.0%} of the iterations take {format_seconds(stall.extra_s)} longer than "
            f"the usual {format_seconds(stall.fast_s)}"
        )
    elif summary.far_outliers > OUTLIER_LIMIT * summary.iterations:
        beside = f"; beside them: {', '.join(summary.outlier_causes)}" if summary.outlier_causes else ""
        found.append(f"{summary.far_outliers} of {summary.iterations} iterations are far outliers{beside}")
    bound = sum(sum(one.samples.usage.dispatch_bound or []) for one in good if one.samples.usage)
    if bound:
        found.append(f"{bound} device times have dispatching in them: the GPU ran out of work before all was enqueued")
    if summary.failures:
        found.append(f"{len(summary.failures)} of {len(summary.failures) + summary.launches} launches failed")
    return found


def _of_ranks(good: list[_Series], clocks: Clocks) -> tuple[float, float | None, float | None]:
    """Seconds: time of the fastest rank, arrival skew (last minus first start), time after the last arrival.

    The last two are None where arrivals are not on one clock, or where they are smaller than its uncertainty.
    """
    aligned = [clocks.aligned(one.samples) for one in good]
    rows = []
    for one, arrival in zip(good, aligned, strict=True):
        timings = one.timings if arrival is None else arrival.timings
        start, duration = timings.start_ns, timings.duration_ns
        last = start.max(axis=1)
        pure = (start + duration).max(axis=1) - last
        quantities = np.array([duration.min(axis=1) / timings.calls, last - start.min(axis=1), pure])
        rows.append(np.median(quantities, axis=1) / 1e9)
    fastest, *of_arrivals = (over_launches(list(column)) for column in np.transpose(rows))
    if None in aligned:
        return fastest, None, None
    unsure = max(one.uncertainty_s for one in aligned if one is not None)
    skew, after = (value if value >= unsure else None for value in of_arrivals)
    return fastest, skew, after


def _host_time(good: list[_Series]) -> float | None:
    hosts = [(one.timings.host_ns, one) for one in good]
    known = [host.max(axis=1) / one.timings.calls for host, one in hosts if host is not None]
    return over_launches([float(np.median(times)) / 1e9 for times in known]) if known else None


def _percentile(good: list[_Series], percent: int) -> float | None:
    """The percentile of each launch, then their mean: iterations of different launches are never pooled."""
    known = [one.percentiles_s[percent] for one in good if percent in one.percentiles_s]
    return over_launches(known) if len(known) == len(good) else None


def _largest(good: list[_Series], values_ns: Callable[[Samples], list[float] | None]) -> float | None:
    """The largest over launches and ranks, in seconds; None where none was measured."""
    known = [max(values) for one in good if (values := values_ns(one.samples))]
    return max(known) / 1e9 if known else None
