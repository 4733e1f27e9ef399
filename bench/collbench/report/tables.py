"""Arrange summaries in tables: a row for each size that was asked for, a column for each number of ranks.

In: summaries. Out: tables with titles, their notes, and their blocks for a document or a terminal. `labels` has the
words. This module computes no statistics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, heaviest_bytes, ranks_together
from collbench.model import results
from collbench.model.conclusions import Interval, IntervalKind, Summary
from collbench.model.projection import KINDS, TABLES, grouped
from collbench.model.records import Case
from collbench.model.results import Unit
from collbench.model.units import first_few, format_bytes, format_modes, format_rate, format_seconds, format_share
from collbench.report import labels
from collbench.report.blocks import Blocks, Column, Heading, items, keyed, left, table
from collbench.report.labels import NOTHING, interval_text, ranks_text, seconds_text, size_text, title, with_interval

# Number of ranks and scheduling.
ColumnKey = tuple[int, str]
# Tables that fill a few screens; if there are more, one table contains all.
MOST_TABLES = 6
# Smallest bandwidth that is shown, in bytes per second.
LEAST_RATE = 1e7
# Columns of times with both limits of their intervals that fit into 80 characters.
MOST_INTERVALS = 2
# Smaller sizes are printed in bytes, so their rounding needs no explanation.
SMALLEST_ROUND = 1024
COMPACT = "Time, half the width of its {}, and in brackets the bus bandwidth in GB/s:"
NOTHING_MEASURED = "Nothing was measured: interrupted before its first sample; collbench resume measures it."
FAILED = "failed"
# Header of a column → its cell.
Cell = Callable[[Summary], str]
Cells = dict[str, Cell]


@dataclass(frozen=True)
class CaseTable:
    """The summaries of a table. Their cases differ in size, number of ranks and scheduling only."""

    title: str
    members: Sequence[Summary]

    @cached_property
    def columns(self) -> dict[ColumnKey, str]:
        """The columns and their headers, in order."""
        return columns(summary.case for summary in self.members)

    @cached_property
    def rows(self) -> list[tuple[str, dict[ColumnKey, Summary]]]:
        """The rows, by ascending size: name of the row, and its summaries by column."""
        by_case = {summary.case: summary for summary in self.members}
        return [
            (row_name(row), {TABLES.column_of(case): by_case[case] for case in row}) for row in size_rows(list(by_case))
        ]

    @property
    def name(self) -> str:
        """The title without the words in brackets, such as `all_reduce on gloo`."""
        return self.title.partition(" (")[0]

    @property
    def timed(self) -> "CaseTable":
        """The table without the cases that have no time."""
        return replace(self, members=[summary for summary in self.members if summary.time_s is not None])


def tables(summaries: Sequence[Summary]) -> list[CaseTable]:
    """Return the tables of these summaries, in the order of the summaries."""
    made = TABLES.tables(summaries, lambda summary: summary.case).items()
    several = [len({summary.case.scheduling for summary in members}) > 1 for _, members in made]
    titled = [residue if more else members[0].case for (residue, members), more in zip(made, several, strict=True)]
    return [CaseTable(title(case), members) for case, (_, members) in zip(titled, made, strict=True)]


def columns(cases: Iterable[Case]) -> dict[ColumnKey, str]:
    """Return the columns of cases and their headers, in order: `2 ranks`; `2 ranks normal` if scheduling differs."""
    keys = sorted({TABLES.column_of(case) for case in cases}, key=lambda key: (key[0], key[1] != "normal", key[1]))
    several = len({scheduling for _, scheduling in keys}) > 1
    return {(n, scheduling): ranks_text(n) + f" {scheduling}" * several for n, scheduling in keys}


def size_rows(cases: Sequence[Case]) -> list[list[Case]]:
    """Group cases that differ only in size, ranks and scheduling into rows: one per requested size, ascending."""
    return list(grouped(sorted(cases, key=lambda case: (case.asked, case.world_size)), TABLES.row_of).values())


def row_name(row: Sequence[Case]) -> str:
    """Return the size of a row: `4 KiB`, or `≤ 4 KiB` if it was rounded down for some numbers of ranks."""
    return ("≤ " if any(case.asked_bytes for case in row) else "") + size_text(row[0].asked)


# ── notes on tables ──────────────────────────────────────────────────────────────────────────────
def notes(cases: Sequence[Case]) -> list[str]:
    """Return notes on a table: meaning of its size, properties of the backend, missing bandwidth, imbalance, rounding.

    An uneven division has a note on its lowest possible cost: no call ends before its busiest rank has sent and
    received everything.
    """
    first = cases[0]
    operation, backend = OPERATIONS[first.op], BACKENDS[first.backend]
    texts = [f"size: {operation.size_means}"] if operation.sized else ["no data is moved, so there is no size"]
    if first.op in backend.implementation_notes:
        texts.append(f"{backend.name} here: {backend.implementation_notes[first.op]}")
    if first.oversubscribed:
        texts.append("no bandwidth: several ranks share a GPU, and the number would be mistaken for the GPU's")
    uneven = [case for case in cases if case.splits]
    if uneven:
        case = max(uneven, key=lambda case: (case.world_size, case.size_bytes))
        even = case.size_bytes * (ranks_together(case) - 1) / ranks_together(case)
        times = heaviest_bytes(case) / even if even else 1.0
        texts.append(
            f"{case.splits}: the busiest of {ranks_together(case)} ranks moves {times:.2f} times what it would if "
            "parts were equal; bus bandwidth is for the busiest rank, which the link bounds"
        )
    return [*texts, *rounding(cases)]


def rounding(cases: Sequence[Case]) -> list[str]:
    """Return a sentence on sizes of at least 1 KiB that were rounded down to whole equal shares; empty if none was."""
    odd = sorted({(case.size_bytes, ranks_together(case)) for case in cases if case.asked_bytes >= SMALLEST_ROUND})
    if not odd:
        return []
    named = first_few([f"{format_bytes(size)} for {n} ranks" for size, n in odd])
    return [f"sizes are rounded down to whole equal shares, as in nccl-tests: {named}"]


def notes_of(members: Sequence[Summary]) -> list[str]:
    """Return the notes on a table of these summaries."""
    return [*notes([summary.case for summary in members]), *_two_modes(members)]


def _two_modes(members: Sequence[Summary]) -> list[str]:
    """Return a sentence on cases whose calls have two modes, the widest apart first; empty if there are none."""
    modes = [(summary.case, summary.stall) for summary in members if summary.stall is not None]
    modes.sort(key=lambda mode: -mode[1].slow_s / mode[1].fast_s)
    headers = columns(summary.case for summary in members)
    named = [
        f"{headers[TABLES.column_of(case)]}, {size_text(case.size_bytes)}: "
        + format_modes(stall.share, stall.fast_s, stall.slow_s)
        for case, stall in modes
    ]
    return [f"two modes: {first_few(named, separator='; ')}"] if modes else []


def width(summaries: Sequence[Summary]) -> str:
    """Name the intervals of these times: `95 % interval`, `range of launches`, both, or that none is known."""
    kinds = {s.time_s.kind for s in summaries if s.time_s is not None and s.time_s.known}
    if IntervalKind.RANGE not in kinds:
        return "95 % interval" if kinds else "no interval is known"
    return "range of launches" if len(kinds) == 1 else "95 % interval or range of launches"


def widths(times: Mapping[Case, Interval]) -> tuple[str, dict[Case, float]]:
    """Return the meaning of the intervals and their relative half-widths; ranges of launches only if all are ranges."""
    sure = {case: time for case, time in times.items() if time.known and time.kind != IntervalKind.RANGE}
    shown = sure or {case: time for case, time in times.items() if time.known}
    what = "precision" if sure else "spread of launches (too few for a 95 % interval)"
    return what, {case: time.relative_half_width for case, time in shown.items()}


# ── the tables ───────────────────────────────────────────────────────────────────────────────────
def terminal_tables(shown: Sequence[CaseTable], only_times: bool = False) -> Blocks:
    """Return tables for the terminal: an overview of each, or one table of all if there are more than MOST_TABLES.

    only_times: leave out bus bandwidths and notes, for the screen of a run that is being measured.
    """
    if not shown:
        return [NOTHING_MEASURED]
    if len(shown) > MOST_TABLES:
        return _in_one(shown)
    written: Blocks = []
    for each in shown:
        written += [Heading(each.title, 3), *([] if only_times else items(notes_of(each.members)))]
        if len(each.columns) > MOST_INTERVALS:
            written += [f"time ± half of its {width(each.members)}", *_pivot(each, {"": time_and_width})]
        else:
            written += [f"time [{width(each.members)}]", *_pivot(each, {"": time_and_interval})]
        if any(s.busbw for s in each.members) and not only_times:
            rates = _pivot(each, {"": lambda s: rate_text(s.busbw) if s.time_s else FAILED})
            written += ["bus bandwidth, GB/s", *rates]
    return written


def sections(shown: Sequence[CaseTable]) -> Blocks:
    """Return a section for each table."""
    written: Blocks = []
    for each in shown:
        time = "Time, as imported," if any(s.imported for s in each.members) else "Mean time"
        rates: Cells = {"GB/s": lambda s: rate_text(s.busbw)} if any(s.busbw for s in each.members) else {}
        widths = f"{time} with its {width(each.members)}{', and bus bandwidth' if rates else ''}:"
        written += [Heading(each.title), widths, *_pivot(each, {"": time_and_interval} | rates)]
        written += items(notes_of(each.members))
    return written


def _pivot(shown: CaseTable, cells: Cells) -> Blocks:
    """Return one row per size, with a column per number of ranks and cell. cells: header → cell of a summary.

    An empty header is replaced by the number of ranks.
    """
    headers = [(header or ranks, (key, cell)) for key, ranks in shown.columns.items() for header, cell in cells.items()]

    def cell_text(row: tuple[str, Mapping[ColumnKey, Summary]], key: tuple[ColumnKey, Cell]) -> str:
        at, cell = key
        return cell(row[1][at]) if at in row[1] else NOTHING

    return table(shown.rows, [Column("size", lambda row: row[0]), *keyed(headers, cell_text)])


def _in_one(shown: Sequence[CaseTable]) -> Blocks:
    """Join tables into one, with a row per table and size; common properties are above it, and notes below it."""
    every = [s for each in shown for s in each.members]
    common, own = labels.describe([KINDS.residue(each.members[0].case) for each in shown])
    rows = []
    for each, parts in zip(shown, own, strict=True):
        variant = ", ".join(part.words for part in parts if part.name != "op")
        rows += [(each.members[0].case.op, variant, name, by_column) for name, by_column in each.rows]
    written: list[Column[tuple[str, str, str, dict[ColumnKey, Summary]]]] = [
        left("operation", lambda row: row[0]),
        left("how", lambda row: row[1]),
        Column("size", lambda row: row[2]),
        *keyed(
            [(ranks, key) for key, ranks in columns(s.case for s in every).items()],
            lambda row, key: _time_width_and_rate(row[3][key]) if key in row[3] else NOTHING,
        ),
    ]
    by_kind = grouped((each.members[0].case for each in shown), lambda case: f"{case.op} on {case.backend}")
    noted = {name: dict.fromkeys(note for case in cases for note in notes([case])) for name, cases in by_kind.items()}
    return [
        COMPACT.format(width(every)),
        f"All: {', '.join(labels.in_words(common))}",
        *table(rows, written),
        *items(
            [*(f"**{name}**: {'; '.join(texts)}" for name, texts in noted.items()), *rounding([s.case for s in every])]
        ),
    ]


def answer_table(shown: CaseTable) -> Blocks:
    """Return a row per number of ranks: times of the smallest and largest size, bus bandwidth of the largest size."""
    ends = dict([shown.rows[0], shown.rows[-1]])
    largest = shown.rows[-1][1]
    rates = {key: rate_text(largest[key].busbw if key in largest else None) for key in shown.columns}
    written: list[Column[ColumnKey]] = [
        left("", lambda key: shown.columns[key]),
        *keyed(
            [("time" if name == NOTHING else name, by_column) for name, by_column in ends.items()],
            lambda key, by_column: time_and_interval(by_column[key]) if key in by_column else NOTHING,
        ),
    ]
    if {*rates.values()} != {NOTHING}:
        written.append(Column("GB/s", lambda key: rates[key]))
    return table(shown.columns, written)


def case_details(members: Sequence[Summary]) -> Blocks:
    """Return one row per case with all details on how far to trust it, and a line with values that are all equal."""
    several = len({s.case.scheduling for s in members}) > 1
    details: list[tuple[str, Callable[[Summary], str]]] = [
        (width(members), lambda s: interval_text(s.time_s, format_seconds) if s.time_s else NOTHING),
        ("±", lambda s: format_share(s.time_s.relative_half_width) if s.time_s and s.time_s.known else NOTHING),
        *((result.fact.title, _cell(result)) for result in results.columns(Summary) if result.fact.title),
    ]
    texts = {header: {_if_timed(cell)(s) for s in members} for header, cell in details}
    single = {header: min(cells) for header, cells in texts.items() if len(cells) == 1}
    same = {header: text for header, text in single.items() if len(members) > 1 or text == NOTHING}
    shared = [f"{header} {text}" for header, text in same.items() if text != NOTHING]
    columns = [
        Column("ranks", lambda s: f"{s.case.world_size}" + f" {s.case.scheduling}" * several),
        Column("size", lambda s: size_text(s.case.size_bytes)),
        Column("time", lambda s: format_seconds(s.time_s.value) if s.time_s else FAILED),
        *(Column(header, _if_timed(cell)) for header, cell in details if header not in same),
    ]
    return [*([f"The same in all cases: {', '.join(shared)}."] if shared else []), *table(members, columns)]


def _if_timed(cell: Callable[[Summary], str]) -> Callable[[Summary], str]:
    """Return the cell, replaced by a dash if nothing was timed."""
    return lambda s: NOTHING if s.time_s is None else cell(s)


def _cell(result: results.Quantity) -> Cell:
    """Return the cell of a result; some share it with another result."""
    text = UNITS[result.fact.unit]
    return SHARED.get(result.fact.name, lambda summary: text(result.of(summary)))


def _slowest_over_fastest(s: Summary) -> str:
    return f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.time_s and s.fastest_rank_s else NOTHING


def _outliers(s: Summary) -> str:
    if s.imported:
        return NOTHING
    return f"{s.outliers} ({s.far_outliers} far)" if s.outliers else "0"


def _stopped_by(s: Summary) -> str:
    """Return why the case ended; if it missed its precision, also its mean half-width within launches."""
    if s.asked is None or s.reached is None or s.reached <= s.asked:
        return " and ".join(s.stopped_by)
    return f"{' and '.join(s.stopped_by)} at ±{format_share(s.reached)}"


SHARED: dict[str, Cell] = {"fastest_rank_s": _slowest_over_fastest, "outliers": _outliers, "stopped_by": _stopped_by}


def rate_text(bytes_per_s: float | None) -> str:
    """Format a bandwidth; a dash below LEAST_RATE, where bandwidth only repeats the latency."""
    return format_rate(bytes_per_s) if bytes_per_s and bytes_per_s >= LEAST_RATE else NOTHING


# Unit of a result → text of a value.
UNITS: dict[Unit, Callable[[Any], str]] = {
    Unit.SECONDS: seconds_text,
    Unit.RATE: rate_text,
    Unit.SHARE: lambda value: NOTHING if value is None else format_share(value),
    Unit.TEXT: lambda value: str(value) if value else NOTHING,
}


def time_and_interval(summary: Summary) -> str:
    """Format as `1.10 ms [1.00 – 1.20 ms]`; `627 µs ±108 %, too noisy` if the half-width exceeds the time."""
    time_s = summary.time_s
    if time_s is not None and time_s.known and time_s.relative_half_width > 1:
        return f"{time_and_width(summary)}, too noisy"
    return FAILED if time_s is None else with_interval(time_s, format_seconds)


def _time_width_and_rate(summary: Summary) -> str:
    """Format time, half-width and bus bandwidth as `1.86 ms ±97 % (0.281)`."""
    return time_and_width(summary) + (f" ({format_rate(summary.busbw)})" if summary.time_s and summary.busbw else "")


def time_and_width(summary: Summary) -> str:
    """Format time and half-width as `1.86 ms ±97 %`."""
    if summary.time_s is None:
        return FAILED
    width = f" ±{format_share(summary.time_s.relative_half_width)}" if summary.time_s.known else ""
    return f"{format_seconds(summary.time_s.value)}{width}"
