"""Write as text what stands out in a run, how time depends on size, and what a more precise run needs.

In: conclusions. Out: Markdown. Computes only layout.
"""

from collections.abc import Callable, Sequence

from bench.model.conclusions import Analysis, Bound, Diagnosis, Fit, Interval, Need, NeedsInAll, Summary
from bench.model.units import format_rate, format_rounded_bytes, format_seconds
from bench.report import markdown, replay
from bench.report.labels import common_parts, family, label
from bench.report.tables import NOTHING, interval_text


def standing_out(analysis: Analysis) -> list[str]:
    """What every reader should see: who is slow, contradictions, and the calls of a recorded job."""
    parts = ["## What stands out", diagnosis(analysis.diagnosis)]
    if analysis.inconsistencies:
        parts += ["The run contradicts itself:", markdown.lines(finding.text for finding in analysis.inconsistencies)]
    for step in analysis.replayed:
        parts += replay.section(step)
    return parts


def folded(analysis: Analysis) -> list[str]:
    """What only some readers need: outliers, what NCCL chose, models and bounds, if there are any."""
    noticed = [s for s in analysis.summaries if s.far_outliers and s.outlier_causes]
    bounded = ["No case can exceed these bus bandwidths:", bounds(analysis.bounds)] if analysis.bounds else []
    modelled = [MODEL_EXPLAINED, models(analysis.fits)] if analysis.fits else []
    chosen = [CHOICES_EXPLAINED, markdown.lines(analysis.choices)] if analysis.choices else []
    return [
        *markdown.folded("Outliers", [OUTLIERS_EXPLAINED, outliers(noticed)] if noticed else []),
        *markdown.folded("What NCCL chose", chosen),
        *markdown.folded("How time depends on size", [*modelled, *bounded]),
    ]


CHOICES_EXPLAINED = (
    "Algorithm, protocol and channels, as NCCL wrote them in a launch of its own that was not timed. A step in the "
    "times is often a change of these."
)


MODEL_EXPLAINED = (
    "t = α + size·β, piecewise, least relative squares; r∞ = 1/β and n½ = α/β are those of the largest sizes "
    "(algorithm bandwidth). With 95 % intervals over launches."
)


OUTLIERS_EXPLAINED = (
    "Iterations more than 1.5 (far: 3) interquartile ranges above the upper quartile, all of them kept. What was seen "
    "at the same time is a likely cause, not a proven one."
)


def outliers(noticed: Sequence[Summary]) -> str:
    """One row per case, with possible causes that were seen while it ran."""
    rows = [
        [label(s.case), f"{s.outliers} of {s.iterations}", str(s.far_outliers), "; ".join(s.outlier_causes)]
        for s in noticed
    ]
    return markdown.table(rows, ["case", "outliers", "far", "seen beside them"], ["left", "right", "right", "left"])


def diagnosis(found: Diagnosis) -> str:
    """The findings, then what was not found or could not be told."""
    named = [f"**{finding.subject}**: {finding.text}" for finding in found.findings]
    return markdown.lines([*named, *found.silent]) or "Nothing was checked."


def models(fits: Sequence[Fit]) -> str:
    """One row per series of sizes."""
    rows = [
        [
            family(fit.case),
            str(fit.case.world_size),
            _with_interval(fit.alpha_s, format_seconds),
            _with_interval(fit.rate, format_rate),
            _with_interval(fit.half_size, format_rounded_bytes),
            format_rounded_bytes(fit.half_size_seen) if fit.half_size_seen else NOTHING,
            str(len(fit.segments)) if fit.segments else NOTHING,
            fit.note or f"{fit.worst_residual:.0%}",
        ]
        for fit in fits
    ]
    headers = ["operation", "ranks", "α", "r∞ GB/s", "n½", "n½ seen", "segments", "worst residual"]
    return markdown.table(rows, headers, ["left", *["right"] * 6, "left"])


def bounds(found: Sequence[Bound]) -> str:
    """One row per bound."""
    rows = [[bound.backend, str(bound.world_size), bound.name, format_rate(bound.busbw)] for bound in found]
    return markdown.table(rows, ["backend", "ranks", "bound", "bus bandwidth GB/s"], ["left", "right", "left", "right"])


def needs(found: Sequence[Need], together: NeedsInAll | None, precision: float) -> str:
    """The launches and iterations that a run like the pilot needs, for each case and for all together."""
    common, short = common_parts([label(need.case) for need in found])
    rows = [
        [
            name,
            str(need.launches) if need.launches else NOTHING,
            str(need.iterations) if need.iterations else NOTHING,
            format_seconds(need.seconds) if need.seconds else NOTHING,
            need.note,
        ]
        for name, need in zip(short, found, strict=True)
    ]
    table = markdown.table(
        rows, ["case", "launches", "iterations each", "takes", "note"], ["left", "right", "right", "right", "left"]
    )
    table = f"All: {common}\n\n{table}" if common else table
    if together is None:
        return table
    settings = f"launches: {together.launches}, sampling: {{iterations: {together.iterations}}}"
    return (
        f"{table}\n\nFor ±{precision:.0%} over launches: {format_seconds(together.seconds)} if each case gets what it "
        f"needs; with one setting for all ({settings}) {format_seconds(together.uniform_s)}.\n"
        f"A budget spends where it is needed: budget: {format_seconds(together.budget_s).replace(' ', '')}"
    )


def _with_interval(interval: Interval | None, text: Callable[[float], str]) -> str:
    if interval is None:
        return NOTHING
    return f"{text(interval.value)} {interval_text(interval, text)}" if interval.known else text(interval.value)
