"""Write report.md and report.html: what was measured, on what, how far to trust it, the tables, the pictures.

In: the `View` of a run, the pictures that exist. Out: blocks, also for the terminal, and files. The HTML page is the
same document with the pictures inside, so that one file can be mailed. Packages describe what they measured
(`parts.Description`). An imported run is described as far as its files tell. Computes no statistics but the median
width of the intervals.
"""

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.catalog.collectives import OPERATIONS
from bench.model.conclusions import Analysis, Summary
from bench.model.facts import HostFacts, Manifest, Session, Told
from bench.model.notices import CaseNotice
from bench.model.records import Case, Failure, Run
from bench.model.units import (
    FEW,
    first_few,
    format_bytes,
    format_rate,
    format_rounded_bytes,
    format_seconds,
    format_share,
)
from bench.planning.footprint import checked_apart
from bench.report import blocks, findings, labels, machine_format, markdown
from bench.report.blocks import Blocks, Column, Heading, fold, in_line, items, keyed, left, section, table
from bench.report.labels import NOTHING, counted, interval_text, label, seconds_text, size_text, with_interval
from bench.report.notices import sentence, sentences
from bench.report.page import page
from bench.report.plots import PICTURES, Picture
from bench.report.view import View, view_of

# Tables that fill a few screens, and sections that a reader can still browse; if there are more, one table holds all.
MOST_TABLES, MOST_SECTIONS = 6, 60
VIRTUAL_NOTE = f"**Virtual GPUs**: these times {labels.BY_RULE}."
# Groups of cases that the answer speaks of, and caveats above it on a terminal; tables and report have all.
MOST_GROUPS = MOST_CAVEATS = 3
# Kinds of collectives, and rows of each, whose numbers the answer has as a table.
MOST_TABLED, MOST_ROWS = 2, 6
# Smallest bandwidth that is shown, in bytes a second.
LEAST_RATE = 1e7
REPORT = "report.md"
# Notes that a reader will still read.
MOST_NOTES = 200
# Columns of times with both ends of their intervals that fit into 80 characters.
MOST_INTERVALS = 2
COMPACT = "Time, half the width of its {}, and in brackets the bus bandwidth in GB/s:"
NO_RANK, FAILED = "none", "failed"
# Header of a column → its cell.
Cell = Callable[[Summary], str]
Cells = dict[str, Cell]
# Scheduling of a case → words for it.
SCHEDULING = {
    "normal": "normal scheduling",
    "batch": "gloo's loop threads under SCHED_BATCH (batch)",
    "rr": "real-time scheduling (rr)",
}
# Pictures that are not folded, besides the first.
UNFOLDED = tuple(kind.name for kind in PICTURES if kind.unfolded)
# Beginning of a note on a case that the tables have as a column.
IN_COLUMNS = CaseNotice.STOPPED_EARLY
NOTHING_MEASURED = "Nothing was measured: interrupted before its first sample; collbench resume measures it."
IN_FULL = "Everything about each case is in summary.csv."


def documents(view: View, pictures: Sequence[Picture], folder: Path, output: Path) -> dict[str, str]:
    """The files of a report, by name. folder: where its pictures are. output: where the files will be."""
    address = os.path.relpath(folder, output)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in pictures}
    report = build(view, pictures, address)
    return {
        "summary.csv": machine_format.to_csv(view.run, view.analysis),
        REPORT: markdown.written(report),
        "report.html": page(report, str(getattr(report[0], "text", view.run.name)), files),
    }


def build(view: View, pictures: Sequence[Picture] = (), folder: str = "") -> Blocks:
    """The whole report: the answer first, what only some readers need folded.

    folder: the path from the report to the pictures.
    """
    run, groups, descriptions = view.run, view.groups, view.descriptions
    first, others = (
        [
            blocks.Picture(title, f"{folder}/{name}.png")
            for number, (title, name) in enumerate(pictures)
            if (number == 0 or name.startswith(UNFOLDED)) is wanted
        ]
        for wanted in (True, False)
    )
    of_packages = [block for description in descriptions for block in description.body]
    found = view.analysis.diagnosis.findings or view.analysis.inconsistencies
    pages = "".join(f", {description.page}" for description in descriptions if description.leads)
    folded = [section for description in descriptions for section in description.folded]
    return [
        Heading(in_line(f"{run.manifest.get('name', run.name)}: {_subject(run)}"), 1),
        in_line(" · ".join(_where(run))),
        *(answer_blocks(view, listed=True) or [_no_answer(run)]),
        *first,
        *section("Failed", _failed(run)),
        *_sections(groups),
        *of_packages,
        *(findings.standing_out(view.analysis) if found or groups or not of_packages else []),
        Heading("How far to trust it"),
        *(items(view.caveats) or ["Nothing was found that casts doubt on these numbers."]),
        *fold("More pictures", others),
        *fold("Everything about each case", _details(groups)),
        *findings.folded(view.analysis),
        *fold("Notes on single cases", _notes(view.calls)),
        *(block for title, inner in folded for block in fold(title, inner)),
        *fold("Left out", _left_out(run)),
        *fold("What was measured, on what, and how", [*items(_circumstances(view)), *method(view)]),
        f"Words: docs/reading.md (at the end of report.html). Method: docs/method.md{pages}.",
    ]


def as_markdown(run: Run, analysis: Analysis) -> str:
    """The whole report without pictures, for standard output."""
    return markdown.written(build(view_of(run, analysis)))


def _failed(run: Run) -> Blocks:
    """The measurements that failed: a row for each case and way to fail."""
    launches: dict[tuple[Case, Failure], list[str]] = {}
    for samples in run.samples:
        if samples.failure is not None:
            launches.setdefault((samples.case, samples.failure), []).append(str(samples.launch))
    columns: list[Column[tuple[Case, Failure]]] = [
        left("case", lambda row: labels.span([row[0]])),
        left("launch", lambda row: ", ".join(launches[row])),
        left("kind", lambda row: row[1].kind),
        left("rank", lambda row: NO_RANK if row[1].rank is None else str(row[1].rank)),
        left("what happened", lambda row: row[1].text),
    ]
    return table(launches, columns)


def _details(groups: Sequence[tuple[str, list[Summary]]]) -> Blocks:
    """Everything about each case, as far as a reader can browse it."""
    if len(groups) > MOST_SECTIONS:
        return []
    titles = [[f"**{title}**"] * (len(groups) > 1) for title, _ in groups]
    return [block for title, (_, cases) in zip(titles, groups, strict=True) for block in [*title, *case_details(cases)]]


def _notes(summaries: Sequence[Summary]) -> Blocks:
    """The notices of single cases, but for those that tables have as a column."""
    noted = [(s.case, text) for s in summaries for text in sentences(n for n in s.notices if n.kind != IN_COLUMNS)]
    more = len(noted) - MOST_NOTES
    columns: list[Column[tuple[Case, str]]] = [
        left("case", lambda row: label(row[0])),
        left("note", lambda row: in_line(row[1])),
    ]
    return [
        *table(noted[:MOST_NOTES], columns),
        *([f"And {more} more: column `warnings` of summary.csv."] if more > 0 else []),
    ]


def _left_out(run: Run) -> Blocks:
    """The cases that were skipped, by reason."""
    columns: list[Column[tuple[str, list[Case]]]] = [
        Column("cases", lambda row: str(len(row[1]))),
        left("which", lambda row: labels.span(row[1])),
        left("why", lambda row: row[0]),
    ]
    return table(labels.by_reason(run.plan.skips), columns)


def terminal(view: View) -> tuple[Blocks, Blocks]:
    """What `run` and `report` print: first the tables, then caveats and the answer.

    A run of a package begins with its answer: its tables say why, and are longer than a screen.
    """
    reply = answer_blocks(view, listed=False) or [_no_answer(view.run)] * bool(view.run.samples)
    more = len(view.caveats) - MOST_CAVEATS
    lines = [f"note: {text}" for text in view.caveats[:MOST_CAVEATS]] + [f"and {more} more in {REPORT}"] * (more > 0)
    notes: Blocks = ["\n".join(lines)] if lines else []
    first = any(description.leads for description in view.descriptions)
    above, below = (reply, notes) if first else ([], [*notes, *reply])
    # The tables of collectives, then those of packages.
    of_packages = [block for description in view.descriptions for block in description.brief]
    tables = [*(summary_tables(view.groups) if view.calls or not view.run.samples else []), *of_packages]
    return [*above, *tables], below


def problems(run: Run, analysis: Analysis) -> list[str]:
    """A sentence with the number of failed measurements, and how many a resume would repeat; empty if none failed."""
    failed = [samples for samples in run.samples if samples.failure is not None]
    lost = sum(not samples.final for samples in failed)
    again = f"; collbench resume {run.path} measures {lost} of them again" if lost else ""
    return [f"{len(failed)} of {len(run.samples)} measurements failed; the report says why{again}"] if failed else []


# ── the answer ───────────────────────────────────────────────────────────────────────────────────
def brief(view: View) -> str:
    """The answer in one line: what is missing, and what was found first."""
    texts = answer(view) or [_no_answer(view.run)]
    return " ".join(texts[: 1 + (view.analysis.incomplete is not None) + view.virtual])


def answer(view: View) -> list[str]:
    """What is missing; the numbers that answer most questions; what stands out; and how far to trust it.

    Empty if nothing is missing and nothing was measured.
    """
    return [text for part in _answer(view) for text in part]


def answer_blocks(view: View, listed: bool) -> Blocks:
    """The answer; of few kinds of collectives, their numbers as tables. listed: whether sentences are a list."""

    def told(texts: Sequence[str]) -> Blocks:
        return items(texts) if listed else ["\n".join(map(in_line, texts))] * bool(texts)

    first, calls, rest = _answer(view)
    groups = view.timed_groups
    longest = max((len(labels.columns(s.case for s in each)) for _, each in groups), default=0)
    fits = len(groups) <= MOST_TABLED and longest <= MOST_ROWS and not view.run.plan.settings.row_by_row
    named = [(title if len(groups) > 1 else title.partition(" (")[0], members) for title, members in groups]
    tables = [block for title, members in named for block in (f"**{title}**", *_answer_table(members))]
    return [*told(first), *(tables if fits else told(calls)), *told(rest)]


def _answer_table(members: Sequence[Summary]) -> Blocks:
    """A row for each number of ranks: time of the smallest and the largest size, and what the largest one reaches."""
    columns, sizes = labels.columns(s.case for s in members), sorted({s.case.size_bytes for s in members})
    at = {(labels.column(s.case), s.case.size_bytes): s for s in members}
    ends: list[Column[labels.ColumnKey]] = keyed(
        [(size_text(size) if size else "time", size) for size in dict.fromkeys([sizes[0], sizes[-1]])],
        lambda key, size: _time_and_interval(at[key, size]) if (key, size) in at else NOTHING,
    )
    rate = {key: _rate(at[key, sizes[-1]].busbw if (key, sizes[-1]) in at else None) for key in columns}
    shown = [left("", lambda key: columns[key]), *ends]
    return table(columns, shown if {*rate.values()} == {NOTHING} else [*shown, Column("GB/s", lambda key: rate[key])])


def _answer(view: View) -> tuple[list[str], list[str], list[str]]:
    """What comes before the numbers; those of collectives; and all else."""
    analysis, calls = view.analysis, _of_calls(view)
    lines = [text for description in view.descriptions for text in description.answer]
    stated = [sentence(finding.notice) for finding in (*analysis.diagnosis.findings, *analysis.inconsistencies)]
    if stated:
        more = f"; {len(stated) - 1} more in {REPORT}" if len(stated) > 1 else ""
        lines.append(f"**Stands out**: {stated[0]}{more}.")
    missing = [] if analysis.incomplete is None else [f"**{sentence(analysis.incomplete)}**."]
    virtual = [VIRTUAL_NOTE] * view.virtual
    trust = [_trust(view)] if calls or lines else []
    return [*virtual, *missing], calls, [*lines, *trust]


def _of_calls(view: View) -> list[str]:
    """A line for each of the first groups of collectives."""
    groups = view.timed_groups
    # `all_reduce on gloo`; with the words in brackets where several groups share that.
    short = [title.partition(" (")[0] for title, _ in groups]
    lines = []
    for name, (title, members) in list(zip(short, groups, strict=True))[:MOST_GROUPS]:
        answer = _group_answer([s for s in members if not s.only_clock])
        lines.append(f"**{name if short.count(name) == 1 else title}**: {answer}")
    more = len(groups) - MOST_GROUPS
    return [*lines, f"{counted(more, 'further kind')} of cases: see the tables."] if more > 0 else lines


def _trust(view: View) -> str:
    """Typical and worst precision, what was verified, and how many caveats there are."""
    phrases = []
    what, widths = labels.widths({s.case: s.time_s for s in view.calls if s.time_s is not None})
    if len(widths) > 1:
        worst = max(widths, key=lambda case: widths[case])
        header = labels.columns(widths)[labels.column(worst)]
        where = ", ".join([header, *([size_text(worst.size_bytes)] if worst.size_bytes else [])])
        typical = format_share(median(widths.values()))
        phrases.append(f"typical {what} within this run ±{typical}, worst ±{format_share(widths[worst])} ({where})")
    elif widths:
        phrases.append(f"{what} within this run ±{format_share(next(iter(widths.values())))}")
    elif any(s.time_s is not None for s in view.calls):
        phrases.append("there is no interval, because there is only one launch")
    phrases += [text for description in view.descriptions for text in description.precision]
    count = len(view.caveats)
    phrases += [_verified(view), counted(count, "caveat") if count else "no caveats"]
    return f"**Trust**: {'; '.join(phrases)}."


def _group_answer(members: Sequence[Summary]) -> str:
    """The time of the smallest size at each world size, and the best bus bandwidth."""
    if not members:
        return "no time, because the calls take as long as reading the clock."
    smallest, columns = min(s.case.size_bytes for s in members), labels.columns(s.case for s in members)
    at_smallest = {labels.column(s.case): s for s in members if s.case.size_bytes == smallest}
    times = [
        f"{_time_and_interval(at_smallest[column])} with {header}"
        for column, header in columns.items()
        if column in at_smallest
    ]
    answer = (f"{size_text(smallest)} takes " if smallest else "") + ", ".join(times)
    best = max(members, key=lambda s: s.busbw or 0.0)
    if best.busbw:
        answer += f". Bus bandwidth reaches {format_rate(best.busbw)} GB/s ({size_text(best.case.size_bytes)}, "
        answer += f"{columns[labels.column(best.case)]})"
    return f"{answer}."


def _no_answer(run: Run) -> str:
    """Why there is no number: nothing was measured, or all of it failed."""
    failures = [(samples.case, samples.failure) for samples in run.samples if samples.failure is not None]
    if not failures:
        return NOTHING_MEASURED
    case, failure = failures[0]
    return f"No number: {counted(len(failures), 'measurement')} failed; {label(case)}: {in_line(failure.text)}"


def _verified(view: View) -> str:
    """Whether the results were verified, and how many were wrong."""
    run = view.run
    wrong = sum(samples.failure is not None and samples.failure.kind == "wrong" for samples in run.samples)
    if run.imported is not None and wrong:
        return f"{counted(wrong, 'result')} WRONG by the tool's own check; no number is printed for them"
    if run.imported is not None:
        return "not verified by CollBench"
    if wrong:
        return f"{counted(wrong, 'measurement')} gave WRONG results; no number is printed for them"
    own = [description.verified for description in view.descriptions if description.verified]
    calls = any(not OPERATIONS[samples.case.op].verifies_itself for samples in run.samples)
    apart = any(checked_apart(samples.case) for samples in run.samples)
    failed = any(samples.failure is not None for samples in run.samples)
    every = "every result that is shown was verified" if failed else "every result was verified"
    how = "results of separate calls were verified, before and after timing" if apart else every
    return "; ".join([*([how] if calls or not own else []), *own])


# ── the tables ───────────────────────────────────────────────────────────────────────────────────
def summary_tables(groups: Sequence[tuple[str, list[Summary]]]) -> Blocks:
    """Tables for the terminal: an overview of each group, or one table of all if there are more than MOST_TABLES."""
    if not groups:
        return [NOTHING_MEASURED]
    if len(groups) > MOST_TABLES:
        return [
            COMPACT.format(labels.width([s for _, members in groups for s in members])),
            *_compact(groups),
            *_all_notes(groups),
        ]
    shown: Blocks = []
    for title, members in groups:
        shown += [Heading(title, 3), *items(labels.notes_of(members))]
        if len(labels.columns(s.case for s in members)) > MOST_INTERVALS:
            shown += [f"time ± half of its {labels.width(members)}", *_pivot(members, {"": _time_and_width})]
        else:
            shown += [f"time [{labels.width(members)}]", *_pivot(members, {"": _time_and_interval})]
        if any(s.busbw for s in members):
            rates = _pivot(members, {"": lambda s: _rate(s.busbw) if s.time_s else FAILED})
            shown += ["bus bandwidth, GB/s", *rates]
    return shown


def _sections(groups: Sequence[tuple[str, list[Summary]]]) -> Blocks:
    """A section for each table, or one table for all if there are more than MOST_SECTIONS."""
    if len(groups) > MOST_SECTIONS:
        every = [s for _, members in groups for s in members]
        return [
            Heading("All cases"),
            COMPACT.format(labels.width(every)),
            *_compact(groups),
            *_all_notes(groups),
            IN_FULL,
        ]
    shown: Blocks = []
    for title, members in groups:
        time = "Time, as imported," if any(s.imported for s in members) else "Mean time"
        rates: Cells = {"GB/s": lambda s: _rate(s.busbw)} if any(s.busbw for s in members) else {}
        shown += [Heading(title), f"{time} with its {labels.width(members)}{', and bus bandwidth' if rates else ''}:"]
        shown += [*_pivot(members, {"": _time_and_interval} | rates), *items(labels.notes_of(members))]
    return shown


def _all_notes(groups: Sequence[tuple[str, list[Summary]]]) -> Blocks:
    """The notes of each operation and backend, each note once."""
    texts: dict[str, dict[str, bool]] = {}
    for _, members in groups:
        case = members[0].case
        for note in labels.notes([case]):
            texts.setdefault(f"{case.op} on {case.backend}", {})[note] = True
    rounded = labels.rounding([s.case for _, members in groups for s in members])
    return items([*(f"**{name}**: {'; '.join(notes)}" for name, notes in texts.items()), *rounded])


def _pivot(members: Sequence[Summary], cells: Cells) -> Blocks:
    """One row per size; for each number of ranks a column for each of these. cells: header → cell of a summary.

    An empty header is that of the number of ranks.
    """
    summaries = {s.case: s for s in members}
    rows = [
        (labels.row_name(row), {labels.column(case): summaries[case] for case in row})
        for row in labels.size_rows(list(summaries))
    ]
    headers = [
        (header or ranks, (column, cell))
        for column, ranks in labels.columns(summaries).items()
        for header, cell in cells.items()
    ]

    def of_row(row: tuple[str, dict[labels.ColumnKey, Summary]], key: tuple[labels.ColumnKey, Cell]) -> str:
        column, cell = key
        return cell(row[1][column]) if column in row[1] else NOTHING

    return table(rows, [Column("size", lambda row: row[0]), *keyed(headers, of_row)])


def _compact(tables: Sequence[tuple[str, Sequence[Summary]]]) -> Blocks:
    """Many groups in one table, a row for each size of each group; above it what all have in common."""
    common, own = labels.describe([labels.kind(members[0].case) for _, members in tables])
    rows = []
    for (_, members), words in zip(tables, own, strict=True):
        how = ", ".join(part.words for part in words if part.name != "op")
        summaries = {s.case: s for s in members}
        for row in labels.size_rows(list(summaries)):
            times = {labels.column(case): _time_width_and_rate(summaries[case]) for case in row}
            rows.append((members[0].case.op, how, labels.row_name(row), times))
    columns: list[Column[tuple[str, str, str, dict[labels.ColumnKey, str]]]] = [
        left("operation", lambda row: row[0]),
        left("how", lambda row: row[1]),
        Column("size", lambda row: row[2]),
    ]
    of_ranks = labels.columns(s.case for _, members in tables for s in members)
    columns += keyed([(ranks, key) for key, ranks in of_ranks.items()], lambda row, key: row[3].get(key, NOTHING))
    return [f"All: {', '.join(labels.in_words(common))}", *table(rows, columns)]


def case_details(members: Sequence[Summary]) -> Blocks:
    """One row per case with everything that says how far to trust it; a line for what all cases have alike."""
    several = len({s.case.scheduling for s in members}) > 1
    details: list[tuple[str, Callable[[Summary], str]]] = [
        (labels.width(members), lambda s: interval_text(s.time_s, format_seconds) if s.time_s else NOTHING),
        ("±", lambda s: format_share(s.time_s.relative_half_width) if s.time_s and s.time_s.known else NOTHING),
        ("host time", lambda s: seconds_text(s.host_time_s)),
        ("algbw GB/s", lambda s: _rate(s.algbw)),
        ("busbw GB/s", lambda s: _rate(s.busbw)),
        (
            "slowest / fastest rank",
            lambda s: f"{s.time_s.value / s.fastest_rank_s:.2f}" if s.time_s and s.fastest_rank_s else NOTHING,
        ),
        ("skew", lambda s: seconds_text(s.skew_s)),
        ("pure", lambda s: seconds_text(s.pure_s)),
        ("p10", lambda s: seconds_text(s.p10_s)),
        ("p50", lambda s: seconds_text(s.p50_s)),
        ("p90", lambda s: seconds_text(s.p90_s)),
        ("p99", lambda s: seconds_text(s.p99_s)),
        ("outliers", _outliers),
        ("floor", lambda s: seconds_text(s.floor_s)),
        ("iterations", lambda s: str(s.iterations) if s.iterations else NOTHING),
        ("launches", lambda s: str(s.launches)),
        ("stopped by", _stopped_by),
        ("NCCL chose", lambda s: s.chosen or NOTHING),
    ]
    texts = {header: {_if_timed(cell)(s) for s in members} for header, cell in details}
    single = {header: min(cells) for header, cells in texts.items() if len(cells) == 1}
    same = {header: text for header, text in single.items() if len(members) > 1 or text == NOTHING}
    alike = [f"{header} {text}" for header, text in same.items() if text != NOTHING]
    columns = [
        Column("ranks", lambda s: f"{s.case.world_size}" + f" {s.case.scheduling}" * several),
        Column("size", lambda s: size_text(s.case.size_bytes)),
        Column("time", lambda s: format_seconds(s.time_s.value) if s.time_s else FAILED),
        *(Column(header, _if_timed(cell)) for header, cell in details if header not in same),
    ]
    return [*([f"The same in all cases: {', '.join(alike)}."] if alike else []), *table(members, columns)]


def _if_timed(cell: Callable[[Summary], str]) -> Callable[[Summary], str]:
    """The cell; a dash where nothing was timed."""
    return lambda s: NOTHING if s.time_s is None else cell(s)


def _outliers(s: Summary) -> str:
    if s.imported:
        return NOTHING
    return f"{s.outliers} ({s.far_outliers} far)" if s.outliers else "0"


def _stopped_by(s: Summary) -> str:
    """Where it did not end for its precision, with the mean half-width within the launches that it had reached."""
    if s.asked is None or s.reached is None or s.reached <= s.asked:
        return " and ".join(s.stopped_by)
    return f"{' and '.join(s.stopped_by)} at ±{format_share(s.reached)}"


def _rate(bytes_per_s: float | None) -> str:
    """A bandwidth; below LEAST_RATE it only tells the latency over again."""
    return format_rate(bytes_per_s) if bytes_per_s and bytes_per_s >= LEAST_RATE else NOTHING


def _time_and_interval(summary: Summary) -> str:
    """Such as `1.10 ms [1.00 – 1.20 ms]`; `627 µs ±108 %, too noisy` if the interval is wider than the time."""
    time_s = summary.time_s
    if time_s is not None and time_s.known and time_s.relative_half_width > 1:
        return f"{_time_and_width(summary)}, too noisy"
    return FAILED if time_s is None else with_interval(time_s, format_seconds)


def _time_width_and_rate(summary: Summary) -> str:
    """Such as `1.86 ms ±97% (0.281)`."""
    return _time_and_width(summary) + (f" ({format_rate(summary.busbw)})" if summary.time_s and summary.busbw else "")


def _time_and_width(summary: Summary) -> str:
    """Such as `1.86 ms ±97%`."""
    if summary.time_s is None:
        return FAILED
    width = f" ±{format_share(summary.time_s.relative_half_width)}" if summary.time_s.known else ""
    return f"{format_seconds(summary.time_s.value)}{width}"


# ── what was measured, on what, and how ──────────────────────────────────────────────────────────
def _subject(run: Run) -> str:
    """The operations of the run, and when it began."""
    operations = sorted({case.op for case in run.plan.cases}) or ["nothing"]
    named = first_few(operations)
    if run.imported is not None:
        return f"{named}, imported"
    return f"{named}, {str(run.manifest.get('started', ''))[:16].replace('T', ' ')} UTC"


def _where(run: Run) -> list[str]:
    """When it was measured, on what, and with what, in few words."""
    host: Any = run.environment[0].get("host", {}) if run.environment else {}
    cpu, torch = host.get("cpu", {}), host.get("packages", {}).get("torch")
    cores = f"{cpu['usable_cores']} cores" if cpu.get("usable_cores") else ""
    gpus = [gpu.get("name") for gpu in host.get("gpus", []) if "nccl" in {case.backend for case in run.plan.cases}]
    machine = dict.fromkeys(gpus) or (cpu.get("model"), cores)
    return [str(text) for text in (run.name, *machine, f"torch {torch}" if torch else "") if text]


def _circumstances(view: View) -> list[str]:
    """Lines on the cases, the state of the run, the machine, its software, and the data."""
    run, cases, summaries = view.run, view.run.plan.cases, view.analysis.summaries
    session = run.environment[0] if run.environment else {}
    lines = []
    if cases:
        sizes = [case.size_bytes for case in cases if case.size_bytes]
        worlds = ", ".join(str(n) for n in sorted({case.world_size for case in cases}))
        backends = ", ".join(sorted({case.backend for case in cases}))
        dtypes = sorted({word for case in cases for word in labels.dtype_words(case)})
        what = [backends, *dtypes, *([f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}"] if sizes else [])]
        operations = dict.fromkeys(case.op for case in cases)
        if len(operations) > FEW:
            lines.append(f"**Operations**: {', '.join(operations)}")
        launches = counted(run.plan.launches, "launch")
        lines.append(f"**What**: {', '.join(what)}, world sizes {worlds}; {counted(len(cases), 'case')} × {launches}")
    lines += [text for description in view.descriptions for text in description.circumstances]
    done = sum(1 for samples in run.samples if samples.failure is None)
    state = "imported" if run.imported is not None else run.manifest.get("status")
    lines.append(
        f"**State**: {state}; {done} of {run.plan.total} measurements good, {len(run.samples) - done} failed, "
        f"{len(run.plan.skips)} cases skipped{duration(run.manifest) if run.imported is None else ''}"
    )
    if run.imported is not None:
        files = [
            f"{file.get('name')} (sha256 {str(file.get('sha256'))[:12]})" for file in run.imported.get("files", [])
        ]
        lines.append(f"**From**: {', '.join(run.imported.get('tool', []))}, imported; {', '.join(files)}")
        machine: Told = session.get("imported", {})
        where = [", ".join(machine.get("hosts", [])), str(machine.get("devices", ""))]
        if any(where):
            lines.append(f"**On** (as the file says): {': '.join(filter(None, where))}")
        if machine.get("nccl"):
            lines.append(f"**With** (as the file says): NCCL {machine['nccl']}")
    else:
        lines += machine_lines(session)
    lines.append(f"**Data**: {_verified(view)}")
    timers = [s.timer_s for s in summaries if s.timer_s is not None]
    if timers and run.imported is None:
        lines.append(f"**Clock**: reading it costs up to {format_seconds(max(timers))}, which is not subtracted")
    return lines


def machine_lines(session: Session) -> list[str]:
    """Lines on the launcher, machine, GPUs and software, as far as they are known."""
    lines = []
    if "job" in session:
        names = list(dict.fromkeys(str(host.get("hostname")) for host in session["hosts"]))
        hosts = "host" if len(names) == 1 else f"{len(names)} hosts:"
        job = session["job"]
        lines.append(f"**Started by**: {job['launcher']}, {job['ranks']} ranks on {hosts} {first_few(names)}")
    host: HostFacts = session.get("host", {})
    if not host:
        return lines
    cpu = host.get("cpu", {})
    lines.append(
        f"**On**: {host.get('hostname')}: {cpu.get('usable_cores')} cores of {cpu.get('model')}, "
        f"{format_rounded_bytes(host.get('memory_bytes', 0))} of memory, kernel {host.get('kernel')}"
        + (", in a virtual machine" if cpu.get("hypervisor") == "yes" else "")
    )
    lines += [f"**GPU**: {gpu.get('name')}, driver {gpu.get('driver')}" for gpu in host.get("gpus", [])]
    # The versions of NCCL and MPI that the ranks had loaded.
    ranks = [rank for launch in session.get("launches", []) for rank in launch.get("ranks", [])]
    loaded = {"NCCL ": {rank.get("nccl") for rank in ranks}, "": {rank.get("mpi") for rank in ranks}}
    libraries = [f"{name}{version}" for name, versions in loaded.items() for version in sorted(filter(None, versions))]
    software = [
        f"torch {host.get('packages', {}).get('torch')}",
        f"Python {host.get('python')}",
        f"CollBench {host.get('collbench')} (commit {host.get('commit')})",
    ]
    return [*lines, f"**With**: {', '.join([*software, *libraries])}"]


def duration(manifest: Manifest) -> str:
    """Such as `; took 62.8 s`; empty if it is not known."""
    started, finished = manifest.get("started"), manifest.get("finished")
    if not started or not finished:
        return ""
    seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    return f"; took {format_seconds(seconds)}"


def method(view: View) -> Blocks:
    """How the numbers were measured: a line on calls, and one on each package that measures in its own way."""
    of_packages = [description.method for description in view.descriptions if description.method]
    summaries = view.calls or ([] if of_packages else view.analysis.summaries)
    calls = [method_of_calls(view.run, summaries)] if summaries else []
    return [*calls, *of_packages] or ["How measured: nothing was."]


def method_of_calls(run: Run, summaries: Sequence[Summary]) -> str:
    """A line on how collectives were measured. summaries: of at least one."""
    cases = [s.case for s in summaries]
    metrics = " and ".join(dict.fromkeys(map(labels.metric_name, cases)))
    if run.imported is not None:
        several = run.plan.launches > 1
        launches = f"geometric mean over {run.plan.launches} launches" if several else "one launch, so no intervals"
        return (
            f"How measured: not by CollBench, but by {', '.join(run.imported.get('tool', []))} · {metrics} · "
            f"{' / '.join(run.imported.get('statistic', []))} · {launches} · size is the total in bytes, "
            "GB = 10⁹ bytes"
        )
    # In a job, ranks share no memory for a barrier (docs/method.md, "The barrier").
    barrier = "barrier over the network" if any("job" in session for session in run.environment) else "barrier"
    clock = "CUDA events" if any(s.host_time_s is not None for s in summaries) else "perf_counter"
    counts = [s.iterations // s.launches for s in summaries if s.launches] or [0]
    each = [s.launches for s in summaries if s.launches] or [run.plan.launches]
    iterations, launches = ("–".join(map(str, sorted({min(n), max(n)}))) for n in (counts, each))
    buffers = next((f"{c.buffers} buffers · " for c in cases if OPERATIONS[c.op].pooled), "")
    kinds = list(dict.fromkeys(c.scheduling for c in cases))
    scheduling = "" if kinds == ["normal"] else f"{' and '.join(SCHEDULING[kind] for kind in kinds)} · "
    settings = run.plan.settings
    order = "one size after the other" if settings.row_by_row else f"order shuffled, seed {settings.seed}"
    return (
        f"How measured: {metrics} · {barrier} before each call · {clock} · maximum over ranks, "
        f"mean over {iterations} iterations, geometric mean over {launches} launch{'' if max(each) == 1 else 'es'} · "
        f"{scheduling}{buffers}{order} · "
        "each table says what size counts, GB = 10⁹ bytes"
    )
