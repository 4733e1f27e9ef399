"""Find out whether gloo's small calls stall on a lock inside gloo, from cases under normal scheduling and SCHED_BATCH.

In: the summaries of a run. Out: `GlooStalls`; none if the run has no such cases, or one launch and no second mode.
The cause and its remedy are in docs/studies/gloo-stalls.md; this module only measures whether the remedy helps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collbench.analyze.summaries import FOREIGN_CPU_LIMIT
from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.model.conclusions import Interval, Summary
from collbench.model.projection import grouped
from collbench.model.records import Case
from collbench.packages.bimodality.conclusions import SMALL_BYTES, GlooStalls, StallVerdict
from collbench.stats.intervals import launch_interval

# A factor that is certainly below this is not a stall: observed stalls multiply the mean of small calls by 1.5 to 4.
NEGLIGIBLE = 1.1


def gloo_stalls(summaries: Sequence[Summary]) -> tuple[GlooStalls, ...]:
    """Return the conclusions on gloo's small calls: one conclusion for all numbers of ranks with the same verdict."""
    small = [
        summary
        for summary in sorted(summaries, key=lambda summary: summary.case.world_size)
        if summary.case.backend == "gloo"
        and summary.case.world_size > 1
        and summary.time_s is not None
        and OPERATIONS[summary.case.op].sized
        and summary.case.size_bytes <= SMALL_BYTES
        and summary.case.metric == "isolated"
        and cycle(summary.case) == 1
    ]
    by_verdict: dict[StallVerdict, list[Summary]] = defaultdict(list)
    for members in grouped(small, lambda summary: summary.case.world_size).values():
        if (result := _stalls(members)) is not None:
            by_verdict[result.verdict] += members
    together = ((verdict, _stalls(members)) for verdict, members in by_verdict.items())
    return tuple(replace(result, verdict=verdict) for verdict, result in together if result is not None)


def _stalls(small: Sequence[Summary]) -> GlooStalls | None:
    """Return the conclusion on these cases; None if there is neither a factor nor a second mode."""
    normal = [summary for summary in small if summary.case.scheduling == "normal"]
    waits = [(s.case, s.stall, s.iterations) for s in normal if s.stall is not None]
    factor = _factor(normal, {summary.case: summary for summary in small})
    if factor is None and not waits:
        return None
    calls = sum(iterations for _, _, iterations in waits)
    waiting = sum(stall.share * iterations for _, stall, iterations in waits)
    waited_s = sum(stall.share * iterations * (stall.slow_s - stall.fast_s) for _, stall, iterations in waits)
    share = waiting / calls if calls else 0.0
    batch = [s.stall.share for s in small if s.case.scheduling == "batch" and s.stall is not None]
    batch_waits = bool(waits) and len(batch) > len(waits) / 2 and sum(batch) / len(batch) > share / 2
    disturbed = any(summary.foreign_cpu is not None and summary.foreign_cpu > FOREIGN_CPU_LIMIT for summary in small)
    if factor is None:
        verdict = StallVerdict.UNTESTED
    elif factor.high < NEGLIGIBLE:
        verdict = StallVerdict.NONE
    else:
        certain = factor.low > NEGLIGIBLE and not batch_waits and not disturbed
        verdict = StallVerdict.STALLS if certain else StallVerdict.UNDECIDED
    return GlooStalls(
        verdict=verdict,
        ranks=tuple(dict.fromkeys(summary.case.world_size for summary in small)),
        cases=tuple(case for case, _, _ in waits),
        share=share,
        wait_s=waited_s / waiting if waiting else 0.0,
        factor=factor,
        batch_waits=batch_waits,
        disturbed=disturbed,
    )


def _factor(normal: Sequence[Summary], by_case: dict[Case, Summary]) -> Interval | None:
    """Compute normal / batch as geometric mean over the cases of each launch, then over launches; None if impossible.

    Only cases that every launch measured count, so that all launches represent the same cases.
    """
    partners = [(summary, by_case.get(replace(summary.case, scheduling="batch"))) for summary in normal]
    pairs = [(np.log(s.means_s), np.log(batch.means_s)) for s, batch in partners if batch is not None]
    launches = max((len(side) for pair in pairs for side in pair), default=0)
    ratios = [before - after for before, after in pairs if len(before) == len(after) == launches]
    return launch_interval(np.exp(np.mean(ratios, axis=0))) if launches > 1 and ratios else None
