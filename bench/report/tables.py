"""Write summaries as tables for people. Those for programs are in `machine_format`.

In: `Summary` values. Out: Markdown. Computes only layout; all numbers come from the summaries.
"""

from collections.abc import Callable, Sequence

from bench.model.conclusions import Summary
from bench.model.units import format_rate, format_seconds
from bench.report import markdown
from bench.report.labels import (
    NOTHING,
    attributes,
    common_words,
    in_words,
    interval_text,
    ranks_text,
    row_name,
    size_rows,
    size_text,
)


def overview(members: Sequence[Summary]) -> str:
    """One row per size, one column per world size: median time with its interval.

    Of two modes: the fast one with its interval, share and time of the slow one.
    """
    return _pivot(members, lambda s: [_time_and_interval(s)])


def bandwidth_overview(members: Sequence[Summary]) -> str:
    """One row per size, one column per world size: bus bandwidth in GB/s."""
    return _pivot(members, lambda s: [_rate(s.busbw) if s.time_s else "failed"])


def with_bandwidth(members: Sequence[Summary]) -> str:
    """As `overview`, and behind each time the bus bandwidth in GB/s, where there is one."""
    if not any(s.busbw for s in members):
        return overview(members)
    return _pivot(members, lambda s: [_time_and_interval(s), _rate(s.busbw)], ["GB/s"])


def _pivot(members: Sequence[Summary], cells_of: Callable[[Summary], list[str]], further: Sequence[str] = ()) -> str:
    """One row per size; for each world size the cells of its summary. further: headers of the second cell and on."""
    worlds = sorted({s.case.world_size for s in members})
    summaries = {s.case: s for s in members}
    rows = []
    for row in size_rows(list(summaries)):
        cells = {case.world_size: cells_of(summaries[case]) for case in row}
        rows.append([row_name(row), *(cell for n in worlds for cell in cells.get(n, [NOTHING] * (1 + len(further))))])
    return markdown.table(rows, ["size", *(header for n in worlds for header in (ranks_text(n), *further))])


def compact(tables: Sequence[tuple[str, Sequence[Summary]]]) -> str:
    """Many groups in one table, a row for each size of each group; above it what all have in common."""
    words = [attributes(members[0].case) for _, members in tables]
    shared = common_words(words)
    worlds = sorted({s.case.world_size for _, members in tables for s in members})
    rows = []
    for (_, members), own in zip(tables, words, strict=True):
        how = ", ".join(word for name, word in own.items() if name != "op" and name not in shared)
        summaries = {s.case: s for s in members}
        for row in size_rows(list(summaries)):
            cells = {case.world_size: _short(summaries[case]) for case in row}
            rows.append([own["op"], how, row_name(row), *(cells.get(n, NOTHING) for n in worlds)])
    headers = ["operation", "how", "size", *map(ranks_text, worlds)]
    table = markdown.table(rows, headers, ["left", "left", *["right"] * (1 + len(worlds))])
    return f"All: {', '.join(in_words(shared))}\n\n{table}"


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
        outliers = f"{s.outliers} ({s.far_outliers} far)" if s.outliers else "0"
        # Where it did not end for its precision: the mean half-width within the launches that it had reached.
        imprecise = s.asked is not None and s.reached is not None and s.reached > s.asked
        row = [
            *name,
            _time(s),
            interval_text(s.time_s, format_seconds, "median " if s.stall else ""),
            f"{s.time_s.relative_half_width:.0%}" if s.time_s.known else NOTHING,
            _rate(s.algbw),
            _rate(s.busbw),
            f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.fastest_rank_s else NOTHING,
            *(format_seconds(value) if value else NOTHING for value in (s.skew_s, s.pure_s, s.p90_s, s.p99_s)),
            NOTHING if s.imported else outliers,
            format_seconds(s.floor_s) if s.floor_s else NOTHING,
            str(s.iterations) if s.iterations else NOTHING,
            str(s.launches),
            f"{s.stopped_by} at ±{s.reached:.0%}" if imprecise else s.stopped_by,
        ]
        if host:
            row.insert(5, format_seconds(s.host_time_s) if s.host_time_s else NOTHING)
        rows.append([*row, s.chosen or NOTHING] if chosen else row)
    return markdown.table(rows, headers)


# ── cells ────────────────────────────────────────────────────────────────────────────────────────
def _rate(bytes_per_s: float | None) -> str:
    return format_rate(bytes_per_s) if bytes_per_s else NOTHING


def _time(summary: Summary) -> str:
    """The time of a case; such as `98 µs, 27% at 3.1 ms` where it has two modes: a median may lie between them."""
    assert summary.time_s is not None  # noqa: S101 - the callers see to it
    if summary.stall is None:
        return format_seconds(summary.time_s.value)
    stall = summary.stall
    return f"{format_seconds(stall.fast_s)}, {stall.share:.0%} at {format_seconds(stall.slow_s)}"


def _time_and_interval(summary: Summary) -> str:
    """The time with its interval; of two modes, the interval of the fast mode or, by name, that of the median."""
    if summary.time_s is None:
        return "failed"
    stall = summary.stall
    if stall is not None and stall.fast is not None:
        slow = f"{stall.share:.0%} at {format_seconds(stall.slow_s)}"
        return f"{format_seconds(stall.fast_s)} {interval_text(stall.fast, format_seconds)}, {slow}"
    return f"{_time(summary)} {interval_text(summary.time_s, format_seconds, 'median ' if stall else '')}"


def _short(summary: Summary) -> str:
    """Such as `1.86 ms ±97% (0.281)`."""
    if summary.time_s is None:
        return "failed"
    rate = f" ({format_rate(summary.busbw)})" if summary.busbw else ""
    width = f" ±{summary.time_s.relative_half_width:.0%}" if summary.time_s.known else ""
    return f"{_time(summary)}{width}{rate}"
