"""Write summaries as tables: for people (Markdown) and for pandas (CSV). JSON is in `machine_format`.

In: `Summary` values. Out: text or a DataFrame. Computes only layout; all numbers come from the summaries.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import pandas as pd

from bench.model.conclusions import Interval, Summary
from bench.model.records import Json
from bench.model.units import format_rate, format_seconds
from bench.report import markdown
from bench.report.groups import row_name, size_rows
from bench.report.labels import attributes, common_words, in_words, ranks_text, size_text

NOTHING = "-"


# ── for pandas and programs ──────────────────────────────────────────────────────────────────────
def frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """One typed row per case: seconds, bytes and bytes/s; empty where there is no number."""
    table = pd.DataFrame([_row(summary) for summary in summaries])
    return table.convert_dtypes() if len(table) else table


def to_csv(summaries: Sequence[Summary]) -> str:
    """`frame` as CSV text."""
    return str(frame(summaries).to_csv(index=False))


def _row(summary: Summary) -> Json:
    time_s = summary.time_s
    flat = asdict(summary)
    numbers = (
        "algbw", "busbw", "mean_s", "p90_s", "p95_s", "p99_s", "host_time_s", "fastest_rank_s", "skew_s", "pure_s",
        "scatter", "outliers", "far_outliers", "steady", "timer_s", "floor_s", "asked", "reached",
        "foreign_cpu", "launches", "iterations", "stopped_by", "chosen", "imported",
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
        "fast_mode_s": summary.stall.fast_s if summary.stall else None,
        "failures": "; ".join(failure.text for failure in summary.failures),
        "warnings": "; ".join(summary.warnings),
    }


# ── for people ───────────────────────────────────────────────────────────────────────────────────
def overview(members: Sequence[Summary]) -> str:
    """One row per size, one column per world size: median time with its interval.

    Of two modes: the fast one with its interval, share and time of the slow one.
    """
    return _pivot(members, _time_and_interval)


def bandwidth_overview(members: Sequence[Summary]) -> str:
    """One row per size, one column per world size: bus bandwidth in GB/s."""
    return _pivot(members, lambda s: format_rate(s.busbw) if s.busbw else (NOTHING if s.time_s else "failed"))


def with_bandwidth(members: Sequence[Summary]) -> str:
    """As `overview`, and behind each time the bus bandwidth in GB/s, where there is one."""
    worlds = sorted({s.case.world_size for s in members})
    rated = any(s.busbw for s in members)
    found = {s.case: s for s in members}
    rows = []
    for row in size_rows(list(found)):
        cells = {case.world_size: _cells(found[case], rated) for case in row}
        rows.append([row_name(row), *(cell for n in worlds for cell in cells.get(n, [NOTHING] * (1 + rated)))])
    headers = [header for n in worlds for header in (ranks_text(n), *["GB/s"] * rated)]
    return markdown.table(rows, ["size", *headers])


def _cells(summary: Summary, rated: bool) -> list[str]:
    return [_time_and_interval(summary), *[format_rate(summary.busbw) if summary.busbw else NOTHING] * rated]


def _pivot(members: Sequence[Summary], cell: Callable[[Summary], str]) -> str:
    worlds = sorted({s.case.world_size for s in members})
    cells = {s.case: cell(s) for s in members}
    rows = []
    for row in size_rows(list(cells)):
        found = {case.world_size: cells[case] for case in row}
        rows.append([row_name(row), *(found.get(n, NOTHING) for n in worlds)])
    return markdown.table(rows, ["size", *map(ranks_text, worlds)])


def compact(tables: Sequence[tuple[str, Sequence[Summary]]]) -> str:
    """Many groups in one table, a row for each size of each group; above it what all have in common."""
    words = [attributes(members[0].case) for _, members in tables]
    shared = common_words(words)
    worlds = sorted({s.case.world_size for _, members in tables for s in members})
    rows = []
    for (_, members), own in zip(tables, words, strict=True):
        how = ", ".join(word for name, word in own.items() if name != "op" and name not in shared)
        cells = {s.case: _short(s) for s in members}
        for row in size_rows(list(cells)):
            found = {case.world_size: cells[case] for case in row}
            rows.append([own["op"], how, row_name(row), *(found.get(n, NOTHING) for n in worlds)])
    headers = ["operation", "how", "size", *map(ranks_text, worlds)]
    return f"All: {', '.join(in_words(shared))}\n\n" + markdown.table(
        rows, headers, ["left", "left", *["right"] * (1 + len(worlds))]
    )


def _time_and_interval(summary: Summary) -> str:
    if summary.time_s is None:
        return "failed"
    stall = summary.stall
    if stall is not None and stall.fast is not None:
        slow = f"{stall.share:.0%} at {format_seconds(stall.slow_s)}"
        return f"{format_seconds(stall.fast_s)} {interval_text(stall.fast, format_seconds)}, {slow}"
    return f"{_time(summary)} {interval_text(summary.time_s, format_seconds, 'median ' if stall else '')}"


def _time(summary: Summary) -> str:
    """The time of a case; such as `98 µs, 27% at 3.1 ms` where it has two modes: a median may lie between them."""
    assert summary.time_s is not None  # noqa: S101 - the callers see to it
    if summary.stall is None:
        return format_seconds(summary.time_s.value)
    stall = summary.stall
    return f"{format_seconds(stall.fast_s)}, {stall.share:.0%} at {format_seconds(stall.slow_s)}"


def _short(summary: Summary) -> str:
    """Such as `1.86 ms ±97% (0.281)`."""
    if summary.time_s is None:
        return "failed"
    rate = f" ({format_rate(summary.busbw)})" if summary.busbw else ""
    width = f" ±{summary.time_s.relative_half_width:.0%}" if summary.time_s.known else ""
    return f"{_time(summary)}{width}{rate}"


def details(members: Sequence[Summary]) -> str:
    """One row per case with everything that says how far to trust it."""
    headers = [
        "ranks", "size", "time", "95 % interval", "±", "algbw GB/s", "busbw GB/s", "slowest / fastest rank", "skew",
        "pure", "p90", "p99", "outliers", "floor", "iterations", "launches", "stopped by",
    ]  # fmt: skip
    host = any(s.host_time_s is not None for s in members)
    if host:
        headers.insert(5, "host time")
    chosen = any(s.chosen for s in members)
    headers += ["NCCL chose"] if chosen else []
    rows = []
    for s in members:
        name = [str(s.case.world_size), size_text(s.case.size_bytes)]
        if s.time_s is None:
            rows.append([*name, "failed", *[NOTHING] * (len(headers) - 3)])
            continue
        row = [
            *name,
            _time(s),
            interval_text(s.time_s, format_seconds, "median " if s.stall else ""),
            f"{s.time_s.relative_half_width:.0%}" if s.time_s.known else NOTHING,
            format_rate(s.algbw) if s.algbw else NOTHING,
            format_rate(s.busbw) if s.busbw else NOTHING,
            f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.fastest_rank_s else NOTHING,
            *(format_seconds(value) if value else NOTHING for value in (s.skew_s, s.pure_s, s.p90_s, s.p99_s)),
            _outliers(s),
            format_seconds(s.floor_s) if s.floor_s else NOTHING,
            str(s.iterations) if s.iterations else NOTHING,
            str(s.launches),
            _stopped(s),
        ]
        if host:
            row.insert(5, format_seconds(s.host_time_s) if s.host_time_s else NOTHING)
        rows.append([*row, s.chosen or NOTHING] if chosen else row)
    return markdown.table(rows, headers)


def _stopped(summary: Summary) -> str:
    """Why it ended; if that was not its precision, the mean half-width within the launches that it had reached."""
    reached = summary.asked is not None and summary.reached is not None and summary.reached > summary.asked
    return f"{summary.stopped_by} at ±{summary.reached:.0%}" if reached else summary.stopped_by


def interval_text(interval: Interval, text: Callable[[float], str], of: str = "") -> str:
    """Such as `[1.00 – 1.20 ms]`; a dash if no interval is known. of: what it is the interval of, if not clear."""
    if not interval.known:
        return NOTHING
    return f"[{of}{between(text(interval.low), text(interval.high))}]"


def between(low: str, high: str) -> str:
    """`1.00 – 1.20 ms`, or `900 µs – 1.20 ms`: a unit that both have stands once."""
    number, _, unit = low.rpartition(" ")
    return f"{number if number and high.endswith(f' {unit}') else low} – {high}"


def _outliers(summary: Summary) -> str:
    if summary.imported:
        return NOTHING
    return f"{summary.outliers} ({summary.far_outliers} far)" if summary.outliers else "0"
