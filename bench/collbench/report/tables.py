"""Arrange summaries in tables: a row for each size that was asked for, a column for each number of ranks.

In: summaries. Out: tables with titles, their notes, and their blocks for a document or a terminal. `labels` has the
words, `blocks.pivot` the layout. This module computes no statistics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, heaviest_bytes, ranks_together
from collbench.catalog.metrics import METRICS
from collbench.model import results
from collbench.model.conclusions import Interval, IntervalKind, Summary
from collbench.model.projection import KINDS, TABLES, grouped
from collbench.model.records import Case
from collbench.model.results import Unit
from collbench.model.units import first_few, format_bytes, format_modes, format_rate, format_seconds, format_share
from collbench.report import labels
from collbench.report.blocks import Blocks, Column, Heading, items, keyed, left, pivot, table
from collbench.report.labels import NOTHING, interval_text, seconds_text, size_text, with_interval

# Tables that fill a few screens; if there are more, one table contains all.
MOST_TABLES = 6
# Smallest bandwidth that is shown, in bytes per second.
LEAST_RATE = 1e7
# Numbers of ranks whose times fit into 80 characters with both limits of their intervals.
MOST_INTERVALS = 2
# Smaller sizes are printed in bytes, so their rounding needs no explanation.
SMALLEST_ROUND = 1024
NOTHING_MEASURED = "Nothing was measured: interrupted before its first sample; collbench resume measures it."
FAILED = "failed"
# The time of 1 MiB on gloo was half of that with `rotate` when one buffer was used again and again.
ROTATES = (
    "rotate buffers: each call uses other memory. A loop over one buffer can be faster, on a CPU up to twice as fast "
    "(at 1 MiB); buffers=hot measures that"
)
# Kind of interval → its name, unless it is a 95 % interval over launches.
INTERVALS = {IntervalKind.RANGE: "range of launches", IntervalKind.WITHIN_RUN: "95 % interval within a launch"}


@dataclass(frozen=True)
class CaseTable:
    """The summaries of a table, column by column. Their cases differ in size, number of ranks and scheduling only."""

    title: str
    members: Sequence[Summary]

    @cached_property
    def columns(self) -> dict[Case, str]:
        """The header of each case's column, in order."""
        return column_headers(summary.case for summary in self.members)

    @cached_property
    def rows(self) -> dict[Case, str]:
        """The name of each case's row, by ascending size."""
        return row_names([summary.case for summary in self.members])

    @property
    def name(self) -> str:
        """The title without the words in brackets, such as `all_reduce on gloo`."""
        return self.title.partition(" (")[0]


def case_tables(summaries: Sequence[Summary]) -> list[CaseTable]:
    """Return the tables of these summaries, in the order of the summaries."""
    tables = []
    for residue, members in TABLES.tables(summaries, lambda summary: summary.case).items():
        several = len({summary.case.scheduling for summary in members}) > 1
        by_column = sorted(members, key=lambda summary: (*_column(summary.case), summary.case.asked))
        tables.append(CaseTable(labels.title(residue if several else members[0].case), by_column))
    return tables


def _column(case: Case) -> tuple[int, bool, str]:
    """Return the key by which columns are sorted: the number of ranks, then normal scheduling before others."""
    return case.world_size, case.scheduling != "normal", case.scheduling


def column_headers(cases: Iterable[Case]) -> dict[Case, str]:
    """Return the header of each case's column, in order: `2 ranks`; `2 ranks normal` if scheduling differs."""
    ordered = sorted(cases, key=_column)
    several = len({case.scheduling for case in ordered}) > 1
    return {case: labels.ranks_text(case.world_size) + f" {case.scheduling}" * several for case in ordered}


def row_names(cases: Sequence[Case]) -> dict[Case, str]:
    """Return the size that names each case's row, in order: `≤ 4 KiB` if it was rounded down for some of its cases."""
    return {
        case: "≤ " * any(other.asked_bytes for other in row) + size_text(row[0].asked)
        for row in size_rows(cases)
        for case in row
    }


def size_rows(cases: Sequence[Case]) -> list[list[Case]]:
    """Group cases that differ only in size, ranks and scheduling into rows: one per requested size, ascending."""
    return list(grouped(sorted(cases, key=lambda case: (case.asked, case.world_size)), TABLES.row_of).values())


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
    first = members[0]
    rotates = first.case.buffers == "rotate" and OPERATIONS[first.case.op].pooled and not first.imported
    rotates = rotates and not METRICS[first.case.metric].fixed_buffers
    return [*notes([summary.case for summary in members]), *[ROTATES] * rotates, *_two_modes(members)]


def _two_modes(members: Sequence[Summary]) -> list[str]:
    """Return a sentence on cases whose calls have two modes, the widest apart first; empty if there are none."""
    modes = [(summary.case, summary.stall) for summary in members if summary.stall is not None]
    modes.sort(key=lambda mode: -mode[1].slow_s / mode[1].fast_s)
    headers = column_headers(summary.case for summary in members)
    named = [
        f"{place(case, headers)}: {format_modes(stall.share, stall.fast_s, stall.slow_s)}" for case, stall in modes
    ]
    return [f"two modes: {first_few(named, separator='; ')}"] if modes else []


def place(case: Case, headers: Mapping[Case, str]) -> str:
    """Name a case within its table: `2 ranks, 4 KiB`, or `2 ranks` if the operation has no size."""
    return ", ".join([headers[case], *([size_text(case.size_bytes)] if case.size_bytes else [])])


def width(summaries: Sequence[Summary]) -> str:
    """Name the intervals of these times, such as `95 % interval or range of launches`; empty if none is known."""
    kinds = {s.time_s.kind for s in summaries if s.time_s is not None and s.time_s.known}
    return " or ".join(sorted({INTERVALS.get(kind, "95 % interval") for kind in kinds}))


def widths(times: Mapping[Case, Interval]) -> tuple[str, dict[Case, float]]:
    """Return the meaning of the intervals and their relative half-widths; ranges of launches only if all are ranges."""
    known = {case: time for case, time in times.items() if time.known}
    sure = {case: time for case, time in known.items() if time.kind != IntervalKind.RANGE}
    what = "precision" if sure else "spread of launches (too few for a 95 % interval)"
    return what, {case: time.relative_half_width for case, time in (sure or known).items()}


# ── the tables ───────────────────────────────────────────────────────────────────────────────────
def terminal_tables(tables: Sequence[CaseTable], only_times: bool = False) -> Blocks:
    """Return tables for the terminal: each with half-widths in place of wide columns, or one table if there are many.

    only_times: leave out bus bandwidths and notes, for the screen of a run that is being measured.
    """
    if not tables:
        return [NOTHING_MEASURED]
    if len(tables) > MOST_TABLES:
        return _in_one(tables)
    blocks: Blocks = []
    for case_table in tables:
        short = len({*case_table.columns.values()}) > MOST_INTERVALS
        blocks += [Heading(case_table.title, 3), *case_grid([case_table], short, not only_times)]
        blocks += [] if only_times else items(notes_of(case_table.members))
    return blocks


def sections(tables: Sequence[CaseTable]) -> Blocks:
    """Return a section for each table."""
    return [
        block
        for case_table in tables
        for block in (Heading(case_table.title), *case_grid([case_table]), *items(notes_of(case_table.members)))
    ]


def case_grid(
    tables: Sequence[CaseTable], short: bool = False, rates: bool = True, leading: Sequence[Column[Summary]] = ()
) -> Blocks:
    """Return a caption and one table of the cases of some tables: a row per size, a column per number of ranks.

    short: write half-widths in place of intervals, and bus bandwidths in brackets. rates: include bus bandwidths.
    leading: columns in front of the size, which tell the tables apart.
    """
    summaries = {summary.case: summary for case_table in tables for summary in case_table.members}
    names = {case: name for case_table in tables for case, name in case_table.rows.items()}
    headers = column_headers(summaries)
    if short and rates:
        cells = [Column("", _time_and_rate)]
    else:
        every = [Column[Summary]("", lambda s: time_text(s, short)), Column("GB/s", lambda s: rate_text(s.busbw))]
        cells = every[: 1 + rates]
    grid = pivot(
        [summaries[case] for case in names],
        [*leading, Column("size", lambda s: names[s.case])],
        (lambda s: headers[s.case], headers.values()),
        cells,
    )
    return [caption([*summaries.values()], short, rates), *grid]


def caption(members: Sequence[Summary], short: bool, rates: bool) -> str:
    """Return the sentence on the numbers of a table; it names only those that some case has."""
    kind = width(members)
    launches = {s.launches for s in members if s.launches}
    counted = f"{min(launches)} launches" if len(launches) == 1 else "launches"
    over = "Mean time of one launch" if launches == {1} else f"Mean time, geometric over {counted} (new ranks in each)"
    parts = ["Time, as imported" if any(s.imported for s in members) else over]
    if kind:
        parts[0] += f" ± half of its {kind}" if short else f" with its {kind}"
    if rates and any(rate_text(s.busbw) != NOTHING for s in members):
        meaning = f"what a link carries; from {format_rate(LEAST_RATE)} GB/s on"
        parts.append(f"in brackets the bus bandwidth in GB/s ({meaning})" if short else f"bus bandwidth ({meaning})")
    return f"{', and '.join(parts)}:"


def _in_one(tables: Sequence[CaseTable]) -> Blocks:
    """Join tables into one, with a row per table and size; common properties are above it, and notes below it."""
    cases = [case_table.members[0].case for case_table in tables]
    common, own_parts = labels.describe([KINDS.residue(case) for case in cases])
    variants = [", ".join(part.words for part in parts if part.name != "op") for parts in own_parts]
    how = {s.case: words for case_table, words in zip(tables, variants, strict=True) for s in case_table.members}
    noted = dict.fromkeys(f"**{case.op} on {case.backend}**: {'; '.join(notes([case]))}" for case in cases)
    leading: list[Column[Summary]] = [left("operation", lambda s: s.case.op), left("how", lambda s: how[s.case])]
    return [
        f"All: {', '.join(labels.in_words(common))}",
        *case_grid(tables, short=True, leading=leading),
        *items([*noted, *rounding([*how])]),
    ]


def answer_table(case_table: CaseTable) -> Blocks:
    """Return a row per number of ranks: times of the smallest and largest size, bus bandwidth of the largest size."""
    sizes = {case: "time" if name == NOTHING else name for case, name in case_table.rows.items()}
    smallest, *_, largest = [*sizes.values()] * 2
    return pivot(
        [s for s in case_table.members if sizes[s.case] in {smallest, largest}],
        [left("", lambda s: case_table.columns[s.case])],
        (lambda s: sizes[s.case], [smallest, largest]),
        [
            Column("", time_text),
            Column("GB/s", lambda s: rate_text(s.busbw) if sizes[s.case] == largest else NOTHING),
        ],
    )


def case_details(members: Sequence[Summary]) -> Blocks:
    """Return one row per case with all details on how far to trust it, and a line with values that are all equal."""
    several = len({s.case.scheduling for s in members}) > 1
    details: dict[str, Callable[[Summary], str]] = {
        width(members) or "interval": lambda s: interval_text(s.time_s, format_seconds),
        "±": lambda s: format_share(s.time_s.relative_half_width) if s.time_s and s.time_s.known else NOTHING,
        **{result.fact.title: _cell(result) for result in results.columns(Summary) if result.fact.title},
    }
    texts = {header: {s.case: cell(s) if s.time_s else NOTHING for s in members} for header, cell in details.items()}
    single = {header: min(cells.values()) for header, cells in texts.items() if len({*cells.values()}) == 1}
    same = {header: text for header, text in single.items() if len(members) > 1 or text == NOTHING}
    shared = [f"{header} {text}" for header, text in same.items() if text != NOTHING]
    columns: list[Column[Summary]] = [
        Column("ranks", lambda s: f"{s.case.world_size}" + f" {s.case.scheduling}" * several),
        Column("size", lambda s: size_text(s.case.size_bytes)),
        Column("time", lambda s: format_seconds(s.time_s.value) if s.time_s else FAILED),
        *keyed([(header, header) for header in texts if header not in same], lambda s, header: texts[header][s.case]),
    ]
    return [*([f"The same in all cases: {', '.join(shared)}."] if shared else []), *table(members, columns)]


def _cell(result: results.Quantity) -> Callable[[Summary], str]:
    """Return the cell of a result; some share it with another result."""
    text = UNITS[result.fact.unit]
    return SHARED.get(result.fact.name, lambda summary: text(result.of(summary)))


def _stopped_by(s: Summary) -> str:
    """Return why the case ended; if it missed its precision, also its mean half-width within launches."""
    if s.asked is None or s.reached is None or s.reached <= s.asked:
        return " and ".join(s.stopped_by)
    return f"{' and '.join(s.stopped_by)} at ±{format_share(s.reached)}"


# Name of a result → its cell, which contains another result too.
SHARED: dict[str, Callable[[Summary], str]] = {
    "fastest_rank_s": lambda s: (
        f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.time_s and s.fastest_rank_s else NOTHING
    ),
    "outliers": lambda s: NOTHING if s.imported else f"{s.outliers}" + f" ({s.far_outliers} far)" * bool(s.outliers),
    "stopped_by": _stopped_by,
}


def rate_text(bytes_per_s: float | None) -> str:
    """Format a bandwidth; a dash below LEAST_RATE, where bandwidth only repeats the latency."""
    return format_rate(bytes_per_s) if bytes_per_s and bytes_per_s >= LEAST_RATE else NOTHING


# Unit of a result → text of a value.
UNITS: dict[Unit, Callable[[Any], str]] = {
    Unit.SECONDS: seconds_text,
    Unit.RATE: rate_text,
    Unit.SHARE: lambda value: labels.optional(value, format_share),
    Unit.TEXT: lambda value: str(value) if value else NOTHING,
}


def time_text(summary: Summary, short: bool = False) -> str:
    """Format as `1.10 ms [1.00 – 1.20 ms]`; short: as `1.10 ms ±9 %`."""
    time_s = summary.time_s
    if time_s is None:
        return FAILED
    if not short or not time_s.known:
        return with_interval(time_s, format_seconds)
    return f"{format_seconds(time_s.value)} ±{format_share(time_s.relative_half_width)}"


def _time_and_rate(summary: Summary) -> str:
    """Format time, half-width and bus bandwidth as `1.86 ms ±97 % (0.281)`."""
    rate = rate_text(summary.busbw)
    return time_text(summary, short=True) + (f" ({rate})" if summary.time_s and rate != NOTHING else "")
