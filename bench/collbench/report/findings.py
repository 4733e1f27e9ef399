"""Describe in text what stands out in a run: slow ranks, outliers, models of time.

In: conclusions. Out: blocks and sentences. Computes only shares and layout.
"""

from collections.abc import Sequence

from collbench.catalog.collectives import is_copy
from collbench.model.conclusions import Analysis, Bound, ChoiceChange, Diagnosis, Fit, Summary
from collbench.model.projection import KINDS, SIZES
from collbench.model.units import format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share
from collbench.report.blocks import Blocks, Column, Heading, below, fold, items, left, table
from collbench.report.labels import NOTHING, label, with_interval
from collbench.report.notices import sentence, sentences

CHOICES_EXPLAINED = (
    "Algorithm, protocol and channels, as NCCL wrote them in a launch of its own that was not timed. A step in the "
    "times is often a change of these."
)
MODEL_EXPLAINED = (
    "t = α + size·β, piecewise, least relative squares; r∞ = 1/β and n½ = α/β are for the largest sizes "
    "(algorithm bandwidth). With 95 % intervals over launches, or their range if there are fewer than five."
)
OUTLIERS_EXPLAINED = (
    "Iterations more than 1.5 (far: 3) interquartile ranges above the upper quartile, all of them kept. What was seen "
    "at the same time is a likely cause, not a proven one."
)


def standing_out(analysis: Analysis) -> Blocks:
    """Return the findings that every reader should see: slow ranks, nodes and links, and contradictions."""
    contradictions = items(sentence(finding.notice) for finding in analysis.inconsistencies)
    return [
        Heading("What stands out"),
        *diagnosis(analysis.diagnosis),
        *below("The run contradicts itself:", contradictions),
    ]


def diagnosis(result: Diagnosis) -> Blocks:
    """List the findings, then what was not found or could not be determined."""
    named = [f"**{finding.subject}**: {sentence(finding.notice)}" for finding in result.findings]
    return items([*named, *sentences(result.silent)]) or ["Nothing was checked."]


def _choice_change(change: ChoiceChange) -> str:
    """Format choices as `all_reduce · nccl · float32 · 8 ranks: RING LL from 1 KiB on; NVLS SIMPLE from 1 MiB on`."""
    parts = (f"{chosen} from {format_bytes(case.size_bytes)} on" for case, chosen in change.begins)
    return f"{label(SIZES.residue(change.begins[0][0]))}: {'; '.join(parts)}"


def folded(analysis: Analysis) -> Blocks:
    """Return the folded parts, which only some readers need: outliers, NCCL's choices, models and bounds, if any."""
    outliers: list[Column[Summary]] = [
        left("case", lambda s: label(s.case)),
        Column("outliers", lambda s: f"{s.outliers} of {s.iterations}"),
        Column("far", lambda s: str(s.far_outliers)),
        left("seen meanwhile", lambda s: "; ".join(sentences(s.outlier_causes))),
    ]
    bounds: list[Column[Bound]] = [
        left("backend", lambda bound: bound.backend),
        Column("ranks", lambda bound: str(bound.world_size)),
        left("bound", lambda bound: bound.name),
        Column("bus bandwidth GB/s", lambda bound: format_rate(bound.busbw)),
    ]
    noticed = [s for s in analysis.summaries if s.far_outliers and s.outlier_causes and not is_copy(s.case)]
    limits = table(analysis.bounds, bounds)
    return [
        *fold("Outliers", below(OUTLIERS_EXPLAINED, table(noticed, outliers))),
        *fold("What NCCL chose", below(CHOICES_EXPLAINED, items(map(_choice_change, analysis.choices)))),
        *fold(
            "How time depends on size",
            [
                *below(MODEL_EXPLAINED, _models(analysis.fits)),
                *below("No case can exceed these bus bandwidths:", limits),
            ],
        ),
    ]


def _models(fits: Sequence[Fit]) -> Blocks:
    """Return a table of the models, with one row per series of sizes."""
    columns: list[Column[Fit]] = [
        left("operation", lambda fit: label(KINDS.residue(fit.case))),
        Column("ranks", lambda fit: str(fit.case.world_size)),
        Column("α", lambda fit: with_interval(fit.alpha_s, format_seconds)),
        Column("r∞ GB/s", lambda fit: with_interval(fit.rate, format_rate)),
        Column("n½", lambda fit: with_interval(fit.half_size, format_rounded_bytes)),
        Column("segments", lambda fit: str(len(fit.segments)) if fit.segments else NOTHING),
        left("worst residual", lambda fit: sentence(fit.note) if fit.note else format_share(fit.worst_residual)),
    ]
    return table(fits, columns)
