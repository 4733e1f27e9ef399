"""Summarise the cases of a run: `Run` → one `Summary` per case.

Facts in, conclusions out; nothing is printed, nothing is dropped silently. Per iteration the maximum over ranks counts,
per launch the mean over iterations, over launches the geometric mean with Student's t on the logarithms
(docs/method.md). Averages over ranks are never taken: they hide the straggler that all ranks waited for. A package
decides which of its timed blocks count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from collbench.analyze.against import differences_of, samples_that_count, scenes_of
from collbench.analyze.reading import once
from collbench.analyze.sessions import Aligned, Clocks, clocks_of, is_virtual, launches_of
from collbench.catalog import collectives
from collbench.catalog.collectives import OPERATIONS
from collbench.model.conclusions import ChoiceChange, Summary
from collbench.model.notices import STOPPED_EARLY, Kind, Notice, Rule, every
from collbench.model.projection import SIZES, grouped
from collbench.model.records import Case, Failure, Json, Run, Samples, Timings, case_order
from collbench.stats import intervals
from collbench.stats.intervals import Floats, LaunchScatter
from collbench.stats.series import common_mode, outliers, over_launches, steady

# Below this multiple of the time between two timestamps with nothing between them, the clock is part of the number.
TIMER_LIMIT = 20
# Share of the machine's busy CPU time used by other processes, above which there is a notice.
FOREIGN_CPU_LIMIT = 0.10
# /proc/stat counts in hundredths of a second: with less busy time than this, the share is noise.
FOREIGN_CPU_MIN_S = 0.3
# Shares above which a disturbance is named: steal time in the wall time; other processes in the busy CPU time.
STEAL_SHARE, FOREIGN_SHARE = 0.01, 0.05
# Share of iterations beyond the far fence above which the mean hardly describes a case.
OUTLIER_LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class _Tried:
    """A case that was tried, with its launches that succeeded."""

    case: Case
    good: list[Samples]
    failures: tuple[Failure, ...]
    # Seconds of each iteration of each launch; none if another tool reports one number per launch.
    series: list[Floats]
    # Mean of each launch, in seconds.
    means: Floats

    @property
    def timed(self) -> list[Timings]:
        return [samples.timed for samples in self.good if samples.timed is not None]


def summarize(run: Run) -> list[Summary]:
    """Return one summary for each case that was planned and tried, in the order of the tables."""
    clocks, virtual, sampling = clocks_of(run), is_virtual(run), run.plan.settings.sampling
    chosen = (launch.get("chosen", {}) for launch in launches_of(run.environment))
    choices: dict[str, Json] = {key: choice for each in chosen for key, choice in each.items()}
    target = sampling.relative_error if sampling.iterations is None else None
    summaries = []
    scenes = [differences_of(run, shared) for shared in scenes_of(run)]
    over = {case: scene.intervals[pair] for scene in scenes for case, pair in scene.over_reference.items()}
    for tried, headline in _headlines(run):
        headline |= {
            "over_reference": over.get(tried.case),
            "chosen": _chosen(choices.get(tried.case.key, {})),
            "virtual": virtual,
        }
        summaries.append(_complete(tried, headline, clocks, target) if tried.timed else Summary(**headline))
    return summaries


@once
def headlines(run: Run) -> list[Summary]:
    """Return summaries with only the values that a comparison needs: times with intervals, percentiles, failures.

    The numbers are equal to `summarize`'s, in a fraction of its time: comparisons read many runs with many cases.
    """
    return [Summary(**headline) for _, headline in _headlines(run)]


def _headlines(run: Run) -> Iterator[tuple[_Tried, Json]]:
    """Yield each case that was tried, with its `_headline`, in the order of the tables.

    Intervals over launches use autocorrelation and skewness, pooled over all cases of a backend and a scheduling.
    """
    by_case = grouped(samples_that_count(run), lambda samples: samples.case)
    tried = [_tried(case, by_case[case]) for case in sorted(by_case, key=case_order)]
    scatter: dict[Case, LaunchScatter] = {}
    for alike in grouped(tried, lambda each: (each.case.backend, each.case.scheduling)).values():
        pooled = intervals.launch_scatter([np.log(each.means) for each in alike])
        scatter |= dict.fromkeys((each.case for each in alike), pooled)
    yield from ((each, _headline(each, scatter[each.case])) for each in tried)


def _tried(case: Case, launches: Sequence[Samples]) -> _Tried:
    good = [s for s in launches if s.failure is None and (s.timed or s.aggregate) is not None]
    series = [np.asarray(times.slowest_s) for s in good if (times := s.timed or s.aggregate) is not None]
    series = series if all(map(len, series)) else []
    means = [times.mean() for times in series] or [s.aggregate.time_s for s in good if s.aggregate is not None]
    failures = tuple(s.failure for s in launches if s.failure is not None)
    return _Tried(case, good, failures, series, np.array(means, dtype=float))


def _headline(tried: _Tried, scatter: LaunchScatter) -> Json:
    """Return the fields of a summary that a comparison needs; of a case that another tool measured, all fields."""
    case, timed, series, means = tried.case, tried.timed, tried.series, tried.means
    if not tried.good:
        return {"case": case, "launches": 0, "iterations": 0, "time_s": None, "failures": tried.failures}
    if len(timed) == 1:
        time_s = intervals.of_one_launch(series[0], timed[0].blocks)
    else:
        time_s = intervals.of_launches(means, scatter)
    headline = {
        "case": case,
        "launches": len(means),
        "iterations": sum(map(len, series)),
        "time_s": time_s,
        "means_s": tuple(means.tolist()),
        "scatter": float(np.std(np.log(means), ddof=1)) if len(means) > 1 else None,
        "algbw": collectives.algbw(case, time_s.value),
        "busbw": collectives.busbw(case, time_s.value),
        "stall": common_mode(series) if one_series(case) or not timed else None,
        "failures": tried.failures,
    }
    if not timed:
        return headline | _of_other_tool(tried)
    ordered = [np.sort(times) for times in series]
    # Seconds per call by the host's clock, if there is another clock.
    host_times = [float(np.mean(t.host_ns.max(axis=1) / t.calls)) / 1e9 for t in timed if t.host_ns is not None]
    return headline | {
        "host_time_s": over_launches(host_times) if host_times else None,
        "foreign_cpu": _foreign_cpu(tried.good),
        **{
            # The mean over launches: iterations of different launches are never pooled.
            f"p{percent}_s": over_launches([intervals.quantiles(times, [percent / 100])[0] for times in ordered])
            for percent, fewest in intervals.FEWEST_FOR_PERCENTILE.items()
            if min(map(len, ordered)) >= fewest
        },
    }


def one_series(case: Case) -> bool:
    """Return whether the iterations of a case are one time series, in which a second mode or a new level has a meaning.

    Iterations of different rounds or groups are different operations; and cases that are compared with a reference
    have few blocks, with all other cases between two blocks.
    """
    return collectives.cycle(case) == 1 and not OPERATIONS[case.op].against


def _complete(tried: _Tried, headline: Json, clocks: Clocks, target: float | None) -> Summary:
    """Return the summary with all its fields."""
    case, good, timed, series = tried.case, tried.good, tried.timed, tried.series
    of_launch = intervals.within_launch if len(good) > 1 else intervals.of_one_launch
    within = [of_launch(times_s, timings.blocks) for times_s, timings in zip(series, timed, strict=True)]
    usages = [samples.usage for samples in good if samples.usage is not None]
    near, far = outliers(series)
    fastest, skew, pure = _rank_times(timed, [clocks.aligned(samples) for samples in good])
    if OPERATIONS[case.op].against:  # ranks leave the barrier together; their waits are a part of the case
        skew = pure = None
    floors = [max(usage.floor_ns) for usage in usages if usage.floor_ns]
    timers = [max(usage.timer_cost_ns) for usage in usages if usage.timer_cost_ns]
    summary = Summary(
        **headline,
        fastest_rank_s=fastest,
        skew_s=skew,
        pure_s=pure,
        outliers=near,
        far_outliers=far,
        outlier_causes=_disturbances(good) if near else (),
        steady=not one_series(case) or all(map(steady, series)),
        timer_s=max(timers) / 1e9 if timers else None,
        floor_s=max(floors) / 1e9 if floors else None,
        asked=None if OPERATIONS[case.op].against else target,  # a fixed number of rounds
        reached=float(np.mean([interval.relative_half_width for interval in within]))
        if all(interval.known for interval in within)
        else None,
        stopped_by=tuple(sorted({samples.stopped_by for samples in good if samples.stopped_by is not None})),
    )
    notices = every(_OF_SUMMARY, summary)
    # The share of kept iterations that include dispatching.
    if bound := sum(usage.dispatch_bound or 0 for usage in usages) / summary.iterations:
        notices.append(DISPATCH_BOUND(share=bound, host_s=summary.host_time_s))
    if left_out := sum(usage.left_out or 0 for usage in usages):
        notices.append(LEFT_OUT(iterations=left_out))
    return replace(summary, notices=(*notices, *_failed(tried)))


CASE_OTHER_PROCESSES = Kind("case-other-processes", "other processes used {share:share} of the busy CPU time")
_OF_SUMMARY = (
    Rule(lambda s: s.time_s and s.time_s.value * s.case.depth < TIMER_LIMIT * (s.timer_s or 0.0),
         Kind("timer-limited", "timer-limited: reading the clock, or the events, is part of this number")),
    Rule(lambda s: "time" in s.stopped_by and s.asked and s.reached is not None and s.reached > s.asked, STOPPED_EARLY),
    Rule(lambda s: not s.steady,
         Kind("unsteady", "not steady: the time changed near an end of a launch")),
    Rule(lambda s: s.foreign_cpu is not None and s.foreign_cpu > FOREIGN_CPU_LIMIT,
         CASE_OTHER_PROCESSES, {"share": "foreign_cpu"}),
    Rule(lambda s: s.stall is not None,
         Kind("two-modes", "two modes: {share:share} of calls take {slow_s:seconds}, others {fast_s:seconds}"),
         {name: f"stall.{name}" for name in ("share", "fast_s", "slow_s")}),
    Rule(lambda s: s.stall is None and s.far_outliers > OUTLIER_LIMIT * s.iterations,
         Kind("far-outliers", "{far} of {iterations} iterations are far outliers{causes:after ; seen meanwhile: }"),
         {"far": "far_outliers", "iterations": "iterations", "causes": "outlier_causes"}),
)  # fmt: skip
DISPATCH_BOUND = Kind(
    "dispatch-bound",
    "dispatch-bound: in {share:fine share} of the iterations the GPU ran out of work before all was enqueued, "
    "so this is not the device's time{host_s:after ; by the host's clock |seconds}",
)
LEFT_OUT = Kind(
    "left-out", "{iterations:count iteration} left out, in which the GPU ran out of work before all was enqueued"
)


FAILED_LAUNCHES = Kind("failed-launches", "{failed} of {launches:count launch} failed")


def _failed(tried: _Tried) -> Iterator[Notice]:
    if failed := len(tried.failures):
        yield FAILED_LAUNCHES(failed=failed, launches=failed + len(tried.good))


def _rank_times(
    timed: Sequence[Timings], aligned: Sequence[Aligned | None]
) -> tuple[float, float | None, float | None]:
    """Return seconds: time of the fastest rank, arrival skew (last minus first start), time after the last arrival.

    timed, aligned: the timings of each launch, and on one clock if that is known. The last two results are None if
    arrivals are not on one clock, or if they are smaller than its uncertainty. For device times the time after the last
    arrival is the time itself, and None is returned for it.
    """
    rows = []
    for timings in (launch.timings if launch is not None else own for own, launch in zip(timed, aligned, strict=True)):
        start, duration = timings.arrivals_ns, timings.duration_ns
        if start is None:
            start = np.zeros_like(duration)
        last = start.max(axis=1)
        pure = (start + duration).max(axis=1) - last
        quantities = np.array([duration.min(axis=1) / timings.calls, last - start.min(axis=1), pure])
        rows.append(np.mean(quantities, axis=1) / 1e9)
    fastest, *arrival_times = (over_launches(list(column)) for column in np.transpose(rows))
    if timed[0].host_ns is not None:  # all begin together, after the waits that show who was late
        return fastest, arrival_times[0] if all(own.arrivals_ns is not None for own in timed) else None, None
    uncertainties = [launch.uncertainty_s for launch in aligned if launch is not None]
    if len(uncertainties) < len(timed):
        return fastest, None, None
    skew, pure_s = (value if value >= max(uncertainties) else None for value in arrival_times)
    return fastest, skew, pure_s


# ── disturbances ─────────────────────────────────────────────────────────────────────────────────
def _foreign_cpu(launches: Sequence[Samples]) -> float | None:
    """Return the share of the host's busy CPU time that no rank used; None if it is unknown."""
    usages = [s.usage for s in launches if s.usage is not None and s.usage.machine_busy_s is not None]
    busy = sum(usage.machine_busy_s or 0.0 for usage in usages)
    if busy < FOREIGN_CPU_MIN_S:
        return None
    return max(0.0, 1 - sum(sum(usage.cpu_s) for usage in usages) / busy)


# Disturbances that may have caused outliers.
STEAL = Kind("steal", "the hypervisor took {share:share} of a core")
QUOTA_USED = Kind("quota-used", "a cgroup's quota was used up in {periods} periods")


def _disturbances(launches: Sequence[Samples]) -> tuple[Notice, ...]:
    """Return the disturbances that occurred while the case ran and can make single iterations long.

    They occurred in the same time as the outliers; that they caused the outliers is likely, not proven.
    """
    usages = [s.usage for s in launches if s.usage is not None]
    wall = sum(usage.wall_s for usage in usages)
    steal = sum(usage.steal_s or 0.0 for usage in usages) / wall if wall else 0.0
    throttled = sum(usage.throttled or 0 for usage in usages)
    foreign = _foreign_cpu(launches)
    return (
        *([STEAL(share=steal)] if steal > STEAL_SHARE else []),
        *([QUOTA_USED(periods=throttled)] if throttled else []),
        *([CASE_OTHER_PROCESSES(share=foreign)] if foreign is not None and foreign > FOREIGN_SHARE else []),
    )


# ── numbers of other tools ───────────────────────────────────────────────────────────────────────
def _of_other_tool(tried: _Tried) -> Json:
    """Return the fields of a case that another tool measured: one number per launch, and each call's time if reported.

    A launch has no interval, because its scatter is unknown: single calls, if the tool reports their times, are
    neighbours in time.
    """
    aggregates = [s.aggregate for s in tried.good if s.aggregate is not None]
    near, far = outliers(tried.series)
    return {
        "iterations": sum(aggregate.iterations or 0 for aggregate in aggregates),
        "outliers": near,
        "far_outliers": far,
        "stopped_by": ("imported",),
        "notices": tuple(_failed(tried)),
        "imported": " / ".join(dict.fromkeys(aggregate.statistic for aggregate in aggregates)),
    }


# ── NCCL's choices ───────────────────────────────────────────────────────────────────────────────
def _chosen(choice: Json) -> str:
    """Format NCCL's reported choice for a case (`launch/sweep.py`) as `NVLS SIMPLE, 16 channels`."""
    words = [part for part in (choice.get("kernel") or choice.get("algorithm"), choice.get("protocol")) if part]
    channels = choice.get("channels")
    return " ".join(words) + (f", {channels} channel{'s' if channels > 1 else ''}" if channels else "")


def choice_changes(summaries: Sequence[Summary]) -> list[ChoiceChange]:
    """Return a change of choice for each series of sizes in which NCCL's choice is not always the same."""
    series = SIZES.tables((s for s in summaries if s.chosen), lambda s: s.case)
    changes = []
    for members in series.values():
        ordered = sorted(members, key=lambda summary: summary.case.size_bytes)
        begins = [ordered[0], *(after for before, after in pairwise(ordered) if before.chosen != after.chosen)]
        if len(begins) > 1:
            changes.append(ChoiceChange(tuple((summary.case, summary.chosen) for summary in begins)))
    return changes
