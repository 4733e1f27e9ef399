"""Summaries and comparisons as tables: for people (Markdown), for pandas (CSV), for programs (JSON).

In: `Summary` and `Comparison` values. Out: text or a DataFrame. Computes nothing but layout: every number
is already in the summary.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby

import pandas as pd
from tabulate import tabulate

from bench.conclusions import Comparison, Interval, Summary
from bench.present.labels import label
from bench.records import Json, case_order
from bench.units import format_bytes, format_rate, format_seconds

NOTHING = "-"


# ── for pandas and programs ──────────────────────────────────────────────────────────────────────
def frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """One typed row a case: seconds, bytes and bytes/s; empty where there is no number."""
    table = pd.DataFrame([_row(summary) for summary in summaries])
    return table.convert_dtypes() if len(table) else table


def to_csv(summaries: Sequence[Summary]) -> str:
    """`frame` as CSV text."""
    return str(frame(summaries).to_csv(index=False))


def to_json(summaries: Sequence[Summary]) -> str:
    """The same rows as a JSON list; null where there is no number."""
    return json.dumps([_row(summary) for summary in summaries], indent=1, ensure_ascii=False)


def _row(summary: Summary) -> Json:
    time_s = summary.time_s
    flat = asdict(summary)
    numbers = (
        "algbw", "busbw", "mean_s", "p90_s", "p95_s", "p99_s", "host_time_s", "fastest_rank_s", "skew_s", "pure_s",
        "scatter", "outliers", "far_outliers", "warmup_trimmed", "steady", "timer_s", "floor_s", "asked", "reached",
        "foreign_cpu", "launches", "iterations", "stopped_by",
    )  # fmt: skip
    return {
        "key": summary.case.key,
        **asdict(summary.case),
        "time_s": time_s.value if time_s else None,
        "time_low_s": time_s.low if time_s else None,
        "time_high_s": time_s.high if time_s else None,
        "interval": time_s.kind if time_s else None,
        **{name: flat[name] for name in numbers},
        "stall_share": summary.stall.share if summary.stall else 0.0,
        "stall_extra_s": summary.stall.extra_s if summary.stall else None,
        "failures": "; ".join(failure.text for failure in summary.failures),
        "warnings": "; ".join(summary.warnings),
    }


# ── for people ───────────────────────────────────────────────────────────────────────────────────
def markdown(rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    """A Markdown table; numbers are already text, so nothing is parsed and rounded again."""
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align or ["right"] * len(headers))


def groups(summaries: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """Summaries that belong into one table, with its title; everything but size and ranks is the same in it."""

    def title(summary: Summary) -> str:
        case = summary.case
        parts = [case.dtype, case.reduce_op, f"{case.metric}, {case.buffers} buffers"]
        return f"{case.op} on {case.backend} ({', '.join(parts)})"

    return [(name, list(members)) for name, members in groupby(summaries, key=title)]


def overview(members: Sequence[Summary]) -> str:
    """Sizes down, world sizes across: median time with its interval."""
    return _pivot(
        members, lambda s: f"{format_seconds(s.time_s.value)} {_interval(s.time_s)}" if s.time_s else "failed"
    )


def bandwidth_overview(members: Sequence[Summary]) -> str:
    """Sizes down, world sizes across: bus bandwidth in GB/s."""
    return _pivot(members, lambda s: format_rate(s.busbw) if s.busbw else (NOTHING if s.time_s else "failed"))


def _pivot(members: Sequence[Summary], cell: Callable[[Summary], str]) -> str:
    sizes = sorted({s.case.size_bytes for s in members})
    worlds = sorted({s.case.world_size for s in members})
    cells = {(s.case.size_bytes, s.case.world_size): cell(s) for s in members}
    rows = [[format_bytes(size), *(cells.get((size, n), NOTHING) for n in worlds)] for size in sizes]
    return markdown(rows, ["size", *(f"{n} rank{'s' if n > 1 else ''}" for n in worlds)])


def details(members: Sequence[Summary]) -> str:
    """One row a case with everything that says how far to trust it."""
    headers = [
        "ranks", "size", "time", "95 % interval", "±", "algbw GB/s", "busbw GB/s", "slowest / fastest rank", "p90",
        "iterations", "launches", "stopped by",
    ]  # fmt: skip
    host = any(s.host_time_s is not None for s in members)
    if host:
        headers.insert(5, "host time")
    rows = []
    for s in members:
        if s.time_s is None:
            rows.append(
                [str(s.case.world_size), format_bytes(s.case.size_bytes), "failed", *[NOTHING] * (len(headers) - 3)]
            )
            continue
        row = [
            str(s.case.world_size),
            format_bytes(s.case.size_bytes),
            format_seconds(s.time_s.value),
            _interval(s.time_s),
            f"{s.time_s.relative_half_width:.0%}",
            format_rate(s.algbw or 0.0),
            format_rate(s.busbw) if s.busbw else NOTHING,
            f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.fastest_rank_s else NOTHING,
            format_seconds(s.p90_s) if s.p90_s else NOTHING,
            str(s.iterations),
            str(s.launches),
            s.stopped_by,
        ]
        if host:
            row.insert(5, format_seconds(s.host_time_s) if s.host_time_s else NOTHING)
        rows.append(row)
    return markdown(rows, headers)


def comparison(result: Comparison) -> str:
    """One row a common case: before, after, ratio with its interval, resolved or not."""
    changes = sorted(result.changes, key=lambda change: case_order(change.case))
    rows = [
        [
            label(change.case),
            format_seconds(change.before.value),
            format_seconds(change.after.value),
            f"{change.ratio.value:.3f}",
            f"[{change.ratio.low:.3f} – {change.ratio.high:.3f}]",
            "resolved" if change.resolved else "not resolved",
            change.note,
        ]
        for change in changes
    ]
    headers = ["case", "before", "after", "after / before", "95 % interval", "", "note"]
    return markdown(rows, headers, ["left", "right", "right", "right", "right", "left", "left"])


def comparison_rows(result: Comparison) -> list[Json]:
    """The comparison for programs."""
    return [
        {
            "key": change.case.key,
            "before_s": change.before.value,
            "after_s": change.after.value,
            "ratio": change.ratio.value,
            "ratio_low": change.ratio.low,
            "ratio_high": change.ratio.high,
            "interval": change.ratio.kind,
            "resolved": change.resolved,
            "note": change.note,
        }
        for change in result.changes
    ]


def comparison_csv(result: Comparison) -> str:
    """The comparison as CSV text."""
    return str(pd.DataFrame(comparison_rows(result)).to_csv(index=False))


def comparison_document(result: Comparison) -> str:
    """The comparison for people: the table, what differs around it, what has no partner."""
    parts = [f"## {result.before} → {result.after}", comparison(result)]
    if result.differences:
        rows = [[name, old[:60], new[:60]] for name, old, new in result.differences]
        parts += ["What else differs:", markdown(rows, ["", "before", "after"], ["left"] * 3)]
    for where, cases in (("before", result.only_before), ("after", result.only_after)):
        if cases:
            parts.append(f"Only {where}: {', '.join(label(case) for case in cases)}")
    return "\n\n".join([*parts, lines(result.warnings)]).strip()


def lines(items: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def _interval(interval: Interval) -> str:
    return f"[{format_seconds(interval.low)} – {format_seconds(interval.high)}]"
