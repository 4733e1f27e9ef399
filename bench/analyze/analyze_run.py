"""One run, all that follows from it: the order in which the parts of this package are used."""

from bench.analyze.consistency import findings as inconsistencies
from bench.analyze.diagnose import diagnose
from bench.analyze.links import matrices
from bench.analyze.model import bounds, fits
from bench.analyze.stats import summarize
from bench.analyze.topology import hardware_bounds
from bench.analyze.warnings import warnings_of
from bench.conclusions import Analysis
from bench.records import Run


def analyze_run(run: Run) -> Analysis:
    """Summaries, how far to trust them, who is to blame, models and bounds."""
    summaries = summarize(run)
    diagnosis = diagnose(run)
    return Analysis(
        summaries=tuple(summaries),
        warnings=tuple(warnings_of(run, summaries)),
        diagnosis=diagnosis,
        inconsistencies=tuple(inconsistencies(summaries)),
        fits=tuple(fits(summaries)),
        bounds=(*bounds(summaries, run.plan.link_bytes_per_s), *hardware_bounds(run, summaries)),
        matrices=tuple(matrices(run)),
    )
