"""Summarise one case that another tool measured: one number per launch, without iterations or ranks.

In: samples with an `aggregate`. Out: a `Summary`: the geometric mean over launches with Student's t on the logarithms,
as for measured cases. One launch has no interval, because the scatter of its number is unknown.
"""

from collections.abc import Sequence

import numpy as np

from bench import intervals, operations
from bench.conclusions import Summary
from bench.records import Case, Samples


def of_aggregates(case: Case, launches: Sequence[Samples]) -> Summary:
    """The summary of launches of which at least one has a number."""
    good = [s.aggregate for s in launches if s.failure is None and s.aggregate is not None]
    failures = tuple(s.failure for s in launches if s.failure is not None)
    times = np.array([one.time_s for one in good])
    time_s = intervals.without_interval(float(times[0])) if len(good) == 1 else intervals.launch_interval(times)
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
        stopped_by="imported",
        failures=failures,
        warnings=(failed,) if failures else (),
        imported=" / ".join(dict.fromkeys(one.statistic for one in good)),
    )
