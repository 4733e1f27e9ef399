"""Apply every analysis of this package to one run, in order.

In: a `Run`. Out: an `Analysis`. Its `Diagnosis` names the ranks and links that are late or slow, and says what could
not be told and why. If nothing is found, it says that too: silence must not be mistaken for health.
"""

from collections.abc import Iterable

from bench.analyze.consistency import findings as inconsistencies
from bench.analyze.links import matrices, slow_ranks_and_links
from bench.analyze.model import bounds, fits, hardware_bounds
from bench.analyze.parts import parts
from bench.analyze.ranks import late_ranks
from bench.analyze.summaries import choice_changes, summarize
from bench.analyze.warnings import incomplete, warnings_of
from bench.catalog.operations import OPERATIONS, cycle
from bench.model.conclusions import Analysis, Diagnosis
from bench.model.records import Case, Run

NOBODY_LATE = "no rank is late"


def analyze(run: Run) -> Analysis:
    """Everything that follows from one run."""
    summaries = summarize(run)
    diagnosis = diagnose(run)
    missing = incomplete(run)
    of_packages = {name: part.analyze(run, summaries) for name, part in parts().items()}
    return Analysis(
        summaries=tuple(summaries),
        warnings=(*([missing] if missing else []), *warnings_of(run, summaries)),
        diagnosis=diagnosis,
        inconsistencies=tuple(inconsistencies(summaries)),
        fits=tuple(fits(summaries)),
        bounds=(*bounds(summaries, run.plan.link_bytes_per_s), *hardware_bounds(run, summaries)),
        matrices=tuple(matrices(run)),
        choices=tuple(choice_changes(summaries)),
        of_packages=of_packages,
        own_cases=frozenset(case for name, part in parts().items() for case in part.own_cases(run, of_packages[name])),
        incomplete=missing,
    )


def diagnose(run: Run) -> Diagnosis:
    """Find late ranks from arrivals, and slow ranks and links from pairwise exchanges."""
    late = late_ranks(run)
    if any(s.aggregate is not None for s in run.samples):
        return Diagnosis(tuple(late), tuple(_untold(run, bool(late))))
    slow, silent = slow_ranks_and_links(run)
    measured = [s.case for s in run.samples if s.failure is None and s.timed is not None]
    if not measured:
        silent.append("nothing was measured, so no rank can be named")
    elif not late and any(map(_tells_who_is_late, measured)):
        silent.append(NOBODY_LATE)
    silent += [text for part in parts().values() for text in part.untested(measured)]
    if not any(OPERATIONS[case.op].paired for case in measured):
        silent.append("links were not tested: `collbench run pairs`")
    elif not slow and not silent:
        silent.append("no rank and no link is slow")
    return Diagnosis((*late, *slow), tuple(silent))


def _tells_who_is_late(case: Case) -> bool:
    """Whether all its ranks make the same calls, and nothing between them."""
    return case.world_size > 1 and cycle(case) == 1 and not OPERATIONS[case.op].round_by_round


def _untold(run: Run, late: bool) -> Iterable[str]:
    """What cannot be told of imported numbers, and why. late: somebody was named."""
    known = [(s.case, s.aggregate) for s in run.samples if s.aggregate is not None and len(s.aggregate.each_s) > 1]
    apart = [(case, aggregate) for case, aggregate in known if aggregate.apart]
    if not known:
        yield "no rank can be named: imported numbers have neither arrival times nor times of single ranks"
        return
    if not apart:
        yield (
            "no rank can be named: the file times each process from one call to the next, which is the same for all "
            "ranks, whichever is late; nccl-tests -I 1 -z 3 times each call separately"
        )
    elif any(len(aggregate.each_s) < case.world_size for case, aggregate in apart):
        yield (
            "processes with several GPUs: the file has only the longest of their times, which names no rank; start "
            "one process for each GPU"
        )
    elif all(OPERATIONS[case.op].rooted or case.groups != "world" for case, _ in apart):
        yield "no rank can be named: ranks that wait only for a root or their own group show nothing about others"
    elif not late:
        yield NOBODY_LATE
    yield "slow ranks and links: imported times do not show them, because all wait equally long for the slowest"
