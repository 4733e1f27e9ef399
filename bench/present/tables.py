"""Summaries as tables: for people (Markdown), for pandas (CSV), for programs (JSON).

In: `Summary` values. Out: text or a DataFrame. Computes nothing but layout: every number
is already in the summary.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby

import pandas as pd
from tabulate import tabulate

from bench.conclusions import Interval, Summary
from bench.operations import OPERATIONS
from bench.present.labels import metric_name
from bench.records import Json
from bench.units import format_bytes, format_rate, format_seconds

NOTHING = "-"
# What of a case a table's title says in words; the rest of what differs from the defaults follows as it is.
IN_WORDS = ("reduce_op", "metric", "depth", "buffers", "sync", "scheduling")


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
        "foreign_cpu", "launches", "iterations", "stopped_by", "imported",
    )  # fmt: skip
    return {
        "key": summary.case.key,
        **asdict(summary.case),
        "time_s": time_s.value if time_s else None,
        "time_low_s": time_s.low if time_s and time_s.known else None,
        "time_high_s": time_s.high if time_s and time_s.known else None,
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
        parts = [case.dtype, *([case.reduce_op] if OPERATIONS[case.op].reduces else []), metric_name(case)]
        parts += [f"{case.buffers} buffers", *([f"{case.sync} sync"] if case.sync != "barrier" else [])]
        parts += [f"{case.scheduling} scheduling"] if case.scheduling != "normal" else []
        parts += [extra for extra in case.extras if extra.partition("=")[0] not in IN_WORDS]
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
        "ranks", "size", "time", "95 % interval", "±", "algbw GB/s", "busbw GB/s", "slowest / fastest rank", "skew",
        "pure", "p90", "p99", "outliers", "floor", "iterations", "launches", "stopped by",
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
            f"{s.time_s.relative_half_width:.0%}" if s.time_s.known else NOTHING,
            format_rate(s.algbw or 0.0),
            format_rate(s.busbw) if s.busbw else NOTHING,
            f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.fastest_rank_s else NOTHING,
            *(format_seconds(value) if value else NOTHING for value in (s.skew_s, s.pure_s, s.p90_s, s.p99_s)),
            _outliers(s),
            format_seconds(s.floor_s) if s.floor_s else NOTHING,
            str(s.iterations) if s.iterations else NOTHING,
            str(s.launches),
            s.stopped_by,
        ]
        if host:
            row.insert(5, format_seconds(s.host_time_s) if s.host_time_s else NOTHING)
        rows.append(row)
    return markdown(rows, headers)


def lines(items: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def interval_text(interval: Interval, text: Callable[[float], str]) -> str:
    """Such as `[1.00 ms – 1.20 ms]`; a dash where no interval is known."""
    return f"[{text(interval.low)} – {text(interval.high)}]" if interval.known else NOTHING


def _interval(interval: Interval) -> str:
    return interval_text(interval, format_seconds)


def _outliers(summary: Summary) -> str:
    if summary.imported:
        return NOTHING
    return f"{summary.outliers} ({summary.far_outliers} far)" if summary.outliers else "0"
