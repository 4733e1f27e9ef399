"""Summarise one case that another tool measured: one number per launch, and the time of each call where it tells.

In: samples with an `aggregate`. Out: a `Summary`: the geometric mean over launches with Student's t on the logarithms,
as for measured cases. One number has no interval, because what it scatters by is unknown; of times of single calls the
median counts, with its interval, outliers and modes.
"""

from collections.abc import Sequence

import numpy as np

from bench.catalog import operations
from bench.model.conclusions import Summary
from bench.model.records import Case, Samples
from bench.stats import intervals, series


def of_aggregates(case: Case, launches: Sequence[Samples]) -> Summary:
    """The summary of launches of which at least one has a number."""
    good = [s.aggregate for s in launches if s.failure is None and s.aggregate is not None]
    failures = tuple(s.failure for s in launches if s.failure is not None)
    each = [np.array(one.each_s) for one in good if len(one.each_s) >= intervals.FEWEST_FOR_MEDIAN]
    known = each if len(each) == len(good) else []
    times = np.array([np.median(calls) for calls in known] or [one.time_s for one in good])
    if len(good) > 1:
        time_s = intervals.launch_interval(times)
    else:
        time_s = intervals.median_interval(known[0]) if known else intervals.without_interval(float(times[0]))
    near, far = series.outliers(known)
    failed = f"{len(failures)} of {len(launches)} launches failed"
    return Summary(
        case=case,
        launches=len(good),
        iterations=sum(one.iterations or 0 for one in good),
        time_s=time_s,
        medians_s=tuple(times.tolist()),
        scatter=float(np.std(np.log(times), ddof=1)) if len(good) > 1 else None,
        algbw=operations.algbw(case.size_bytes, time_s.value),
        busbw=operations.busbw(case, time_s.value),
        outliers=near,
        far_outliers=far,
        stall=series.common_mode(known),
        stopped_by="imported",
        failures=failures,
        warnings=(failed,) if failures else (),
        imported=" / ".join(dict.fromkeys(one.statistic for one in good)),
    )
