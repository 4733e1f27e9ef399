"""Apply every analysis of this package to one run, in order.

In: a `Run`. Out: an `Analysis`. Its `Diagnosis` names the ranks and links that are late or slow, and says what could
not be told and why. If nothing is found, it says that too: silence must not be mistaken for health.
"""

from bench.analyze.consistency import findings as inconsistencies
from bench.analyze.links import matrices, slow_ranks_and_links
from bench.analyze.model import bounds, fits, hardware_bounds
from bench.analyze.ranks import late_ranks
from bench.analyze.replay import replayed_steps
from bench.analyze.summaries import choice_changes, summarize
from bench.analyze.training import call_sizes, scaling, scenarios, trains
from bench.analyze.warnings import warnings_of
from bench.catalog.operations import OPERATIONS, cycle
from bench.model.conclusions import Analysis, Diagnosis
from bench.model.records import Run


def analyze(run: Run) -> Analysis:
    """Everything that follows from one run, but advice on buckets, which `advise` adds."""
    summaries = summarize(run)
    diagnosis = diagnose(run)
    of_steps = scenarios(run, summaries)
    return Analysis(
        summaries=tuple(summaries),
        warnings=tuple(warnings_of(run, summaries)),
        diagnosis=diagnosis,
        inconsistencies=tuple(inconsistencies(summaries)),
        fits=tuple(fits(summaries)),
        bounds=(*bounds(summaries, run.plan.link_bytes_per_s), *hardware_bounds(run, summaries)),
        matrices=tuple(matrices(run)),
        choices=tuple(choice_changes(summaries)),
        replayed=tuple(replayed_steps(run)),
        scenarios=of_steps,
        scaling=scaling(of_steps),
        call_sizes=call_sizes(summaries),
    )


def diagnose(run: Run) -> Diagnosis:
    """Find late ranks from arrivals, and slow ranks and links from pairwise exchanges."""
    if any(s.aggregate is not None for s in run.samples):
        return Diagnosis(
            (), ("imported numbers hold no rank's arrival and no times of single ranks: nobody can be named",)
        )
    late = late_ranks(run)
    slow, silent = slow_ranks_and_links(run)
    measured = [s.case for s in run.samples if s.failure is None and s.timed is not None]
    if not measured:
        silent.append("nothing was measured, so nobody can be named")
    elif not late and any(case.world_size > 1 and cycle(case) == 1 and not trains(case) for case in measured):
        silent.append(
            "no rank is late: last arrivals are spread as chance would, or over more than a quarter of the ranks, or "
            "cost less than a tenth of the time"
        )
    if any(case.world_size > 1 and trains(case) for case in measured):
        silent.append(
            "training steps: their ranks are not tested, because they leave a barrier together and then compute; the "
            "split of a step has the time that ranks wait for the last one"
        )
    if not any(OPERATIONS[case.op].paired for case in measured):
        silent.append("links: not tested; operations: [pairwise] with 4 ranks or more tells slow ranks from slow links")
    elif not slow and not silent:
        silent.append("no rank and no link is slow")
    return Diagnosis((*late, *slow), tuple(silent))
