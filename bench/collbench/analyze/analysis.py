"""Apply every analysis of this package to one run, in order.

In: a `Run`. Out: an `Analysis`. Its `Diagnosis` names the ranks and links that are late or slow, and the
questions without an answer, with the reason. If nothing is found, it states this, too: no text would look like health.
"""

from types import SimpleNamespace

from collbench.analyze.against import noise_of
from collbench.analyze.consistency import findings as inconsistencies
from collbench.analyze.cost_model import bounds, fits, hardware_bounds
from collbench.analyze.links import matrices, slow_ranks_and_links
from collbench.analyze.notices import incomplete, notices_of
from collbench.analyze.ranks import late_ranks
from collbench.analyze.reading import readings
from collbench.analyze.summaries import choice_changes, one_series, summarize
from collbench.catalog.collectives import OPERATIONS
from collbench.model.conclusions import Analysis, Diagnosis
from collbench.model.divisions import WORLD
from collbench.model.notices import Kind, Notice, Rule, first
from collbench.model.records import Run


def analyze(run: Run) -> Analysis:
    """Return all conclusions from one run."""
    summaries = summarize(run)
    diagnosis = diagnose(run)
    missing = incomplete(run)
    return Analysis(
        summaries=tuple(summaries),
        notices=(*([missing] if missing else []), *notices_of(run, summaries)),
        diagnosis=diagnosis,
        inconsistencies=tuple(inconsistencies(summaries)),
        fits=tuple(fits(summaries)),
        bounds=(*bounds(summaries, run.plan.link_bytes_per_s), *hardware_bounds(run, summaries)),
        matrices=tuple(matrices(run)),
        choices=tuple(choice_changes(summaries)),
        noise_s=noise_of(run),
        of_packages={name: reading.value for name, reading in readings(run).items()},
        incomplete=missing,
    )


NOBODY_LATE = Kind("nobody-late", "no rank is late")
NOTHING_MEASURED = Kind("nothing-measured", "nothing was measured, so no rank can be named")
NO_LINKS_TESTED = Kind("no-links-tested", "links were not tested", "`collbench run pairs` tests them")
NOBODY_SLOW = Kind("nobody-slow", "no rank and no link is slow")
RANKS_UNTESTED = Kind(
    "ranks-untested",
    "ranks that compute after a barrier are not tested for being late: they leave the barrier together",
)


def diagnose(run: Run) -> Diagnosis:
    """Find late ranks from arrivals, and slow ranks and links from pairwise exchanges."""
    late = late_ranks(run)
    if any(s.aggregate is not None for s in run.samples):
        return Diagnosis(tuple(late), tuple(_undiagnosed(run, bool(late))))
    slow, silent = slow_ranks_and_links(run)
    measured = [s.case for s in run.samples if s.failure is None and s.timed is not None]
    if not measured:
        silent.append(NOTHING_MEASURED())
    elif not late and any(case.world_size > 1 and one_series(case) for case in measured):
        silent.append(NOBODY_LATE())
    if together := [case.key for case in measured if case.world_size > 1 and OPERATIONS[case.op].against]:
        silent.append(RANKS_UNTESTED(list(dict.fromkeys(together))))
    if not any(OPERATIONS[case.op].paired for case in measured):
        silent.append(NO_LINKS_TESTED())
    elif not slow and not silent:
        silent.append(NOBODY_SLOW())
    return Diagnosis((*late, *slow), tuple(silent))


NO_LINK_TIMES = Kind(
    "no-link-times",
    "slow ranks and links: imported times do not show them, because all ranks wait equally long for the slowest rank",
)
# The first that holds says why imported numbers name no rank.
_NO_RANK = (
    Rule(lambda f: not f.each,
         Kind("no-arrivals", "no rank can be named: imported numbers have neither arrival times nor times of single "
              "ranks")),
    Rule(lambda f: not f.apart,
         Kind("not-apart", "no rank can be named: the file times each process from one call to the next, which is the "
              "same for all ranks, whichever is late", "nccl-tests -I 1 -z 3 times each call separately")),
    Rule(lambda f: any(len(aggregate.each_s) < case.world_size for case, aggregate in f.apart),
         Kind("several-gpus", "processes with several GPUs: the file has only the longest of their times, which does "
              "not identify a rank", "start one process for each GPU")),
    Rule(lambda f: all(OPERATIONS[case.op].rooted or case.groups != WORLD for case, _ in f.apart),
         Kind("only-rooted", "no rank can be named: ranks that wait only for a root or their own group show nothing "
              "about others")),
    Rule(lambda f: not f.late, NOBODY_LATE),
)  # fmt: skip


def _undiagnosed(run: Run, late: bool) -> list[Notice]:
    """Return a notice on each question that imported numbers cannot answer. late: whether a late rank was named."""
    each = [(s.case, s.aggregate) for s in run.samples if s.aggregate is not None and len(s.aggregate.each_s) > 1]
    apart = [(case, aggregate) for case, aggregate in each if aggregate.apart]
    reason = first(_NO_RANK, SimpleNamespace(each=each, apart=apart, late=late))
    return [*filter(None, [reason]), *([NO_LINK_TIMES()] if each else [])]
