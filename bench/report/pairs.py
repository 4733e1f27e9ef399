"""Write the comparison of two sides of a run, for people (Markdown) and programs (CSV).

In: a `PairedComparison`. Out: text with the verdict in its first line. Computes only layout. The picture is in
`plots.pairs`.
"""

from bench.model.comparisons import PairedComparison
from bench.model.records import Json
from bench.report import markdown
from bench.report.comparison import (
    csv_text,
    differing,
    headline,
    judgement_columns,
    verdict_table,
    where_lines,
    whole_text,
)


def document(result: PairedComparison) -> str:
    """For people: verdict, the whole, the table of cases, where it changed, what else differs, how it was measured."""
    parts = [headline(result), f"## {result.before} → {result.after}"]
    if result.whole is not None:
        parts.append(whole_text(result.whole))
    if result.changes:
        names = [change.name for change in result.changes]
        parts.append(verdict_table("case", names, result.changes))
        parts += where_lines(
            [one.name for one in result.changes], [one.where for one in result.changes], result.changes
        )
    if result.broken:
        parts.append(f"Failed on side B: {', '.join(result.broken)}")
    parts += differing(result.differences)
    parts.append(how_measured(result))
    if result.warnings:
        parts.append(f"Warnings:\n\n{markdown.lines(result.warnings)}")
    return "\n\n".join(parts)


def how_measured(result: PairedComparison) -> str:
    """One line on the method."""
    return (
        f"How measured: {result.pairs} pairs of launches, A and B in random order; the pair is the unit; "
        f"{result.ended} · {result.rule}"
    )


def to_csv(result: PairedComparison) -> str:
    """One row per case and pair."""
    rows: list[Json] = [
        {
            "case": change.name,
            **judgement_columns(change.judgement),
            "before_s": change.before.value,
            "after_s": change.after.value,
            "pair": number,
            "pair_ratio": ratio,
        }
        for change in result.changes
        for number, ratio in enumerate(change.ratios, start=1)
    ]
    return csv_text(rows)
