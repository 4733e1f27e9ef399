"""Describe cases in few words: labels, titles, rows of sizes, notes on tables, and numbers with their intervals.

In: cases, summaries, skips. Out: short texts, and summaries in the groups that tables show. An attribute that an
operation does not have is left out: a barrier has no size, Python objects have no dtype. Computes no statistics and no
layout, and loads no large package.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bench.catalog.backends import BACKENDS
from bench.catalog.operations import OPERATIONS, PLACES, heaviest_bytes, placement, ranks_together
from bench.model.conclusions import Interval, Summary
from bench.model.records import OPTION_NAMED, OPTIONS, Case, Option, Skip
from bench.model.units import counted as counted
from bench.model.units import first_few, format_bytes, format_modes, format_seconds
from bench.report.parts import part_of

# Attribute of a case → its value in words.
Words = dict[str, str]
# Number of ranks and scheduling.
ColumnKey = tuple[int, str]

# Stands for a number, a size or an interval that does not exist.
NOTHING = "-"
SEPARATOR = " · "
# Values of one kind in a line: more make the line longer than a terminal is wide.
MOST_LISTED = 5
# Options that a title always shows, first and in this order. Other options are shown only if they differ from their
# default.
ALWAYS = ("reduce_op", "placement", "root", "metric", "buffers")
# Attributes that are left out if they are at their default and the same in all cases of an operation.
UNSAID = tuple(name for name in ALWAYS if name != "metric")
# Longer lists of groups or parts are cut.
LONGEST = 24
# Options whose values the table of options cannot put into words. Empty words are left out.
WORDS: dict[str, Callable[[Case], str]] = {
    "metric": lambda case: metric_name(case),
    "depth": lambda case: "",  # the metric's name holds it
    "placement": lambda case: PLACES[placement(case)],
    "groups": lambda case: f"groups {_short(case.groups)}",
    "splits": lambda case: f"parts {_short(case.splits)}",
    "recording": lambda case: "{} calls ({})".format(*reversed(case.recording.split(":"))),
}
# Smaller sizes are printed in bytes, so their rounding needs no explanation.
SMALLEST_ROUND = 1024
# Rounded sizes that a note names; the tables have them all.
MOST_NAMED = 3
# Cases with two modes that a note names; the notes on single cases have them all.
MOST_MODES = 3


def _short(text: str) -> str:
    """A division or a distribution; of a list of groups or parts, its beginning."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────
def size_text(size_bytes: int) -> str:
    """A size; a dash where there is none."""
    return format_bytes(size_bytes) if size_bytes else NOTHING


def seconds_text(value: float | None) -> str:
    """A time; a dash where there is none, or where it is zero."""
    return format_seconds(value) if value else NOTHING


def ranks_text(count: int) -> str:
    """`1 rank`, `2 ranks`."""
    return counted(count, "rank")


def interval_text(interval: Interval, text: Callable[[float], str]) -> str:
    """Such as `[1.00 – 1.20 ms]`; a dash if no interval is known."""
    return f"[{between(text(interval.low), text(interval.high))}]" if interval.known else NOTHING


def with_interval(interval: Interval | None, text: Callable[[float], str]) -> str:
    """Such as `1.10 ms [1.00 – 1.20 ms]`; without the bracket if no interval is known; a dash if no value is."""
    if interval is None:
        return NOTHING
    return text(interval.value) + (f" {interval_text(interval, text)}" if interval.known else "")


def between(low: str, high: str) -> str:
    """`1.00 – 1.20 ms`, or `900 µs – 1.20 ms`: a unit that both have stands once."""
    number, _, unit = low.rpartition(" ")
    return f"{number if number and high.endswith(f' {unit}') else low} – {high}"


# ── one case ─────────────────────────────────────────────────────────────────────────────────────
def label(case: Case) -> str:
    """Such as `all_reduce · gloo · float32 · 4 ranks · 1 MiB`; then the options that are not at their default."""
    size = [size_text(case.size_bytes)] if OPERATIONS[case.op].sized else []
    words = _unusual(case)
    part = part_of(case)
    first = [words.pop(name) for name in (part.first if part else ()) if name in words]
    head = [case.op, *first, case.backend, *dtype_words(case), ranks_text(case.world_size)]
    return SEPARATOR.join([*head, *size, *words.values()])


def title(case: Case) -> str:
    """Title of the case's table: `all_reduce on gloo (float32, sum, in place, isolated, rotate buffers)`."""
    words = attributes(case)
    op, backend = words.pop("op"), words.pop("backend")
    return f"{op} on {backend} ({', '.join(words.values())})"


def family(case: Case) -> str:
    """Name of the case's series of sizes, without the world size: `all_reduce gloo float32` and the extras."""
    return " ".join([case.op, case.backend, *dtype_words(case), *extras(case)])


def metric_name(case: Case) -> str:
    """Such as `isolated`, or `pipelined (20 back to back)`."""
    if (part := part_of(case)) is not None:
        return part.metric(case)
    return case.metric if case.depth == 1 else f"{case.metric} ({case.depth} back to back)"


def dtype_words(case: Case) -> list[str]:
    """The dtype, where the operation has one."""
    return [case.dtype] if OPERATIONS[case.op].typed else []


def extras(case: Case) -> list[str]:
    """Words for the options of a case that differ from the defaults, such as `max` or `root 1`."""
    return list(_unusual(case).values())


def _unusual(case: Case) -> Words:
    """The options that differ from the defaults."""
    words = {option.name: _in_words(case, option) for option in OPTIONS if getattr(case, option.name) != option.default}
    return {name: word for name, word in words.items() if word}


def _in_words(case: Case, option: Option) -> str:
    """The value of an option, as people read it."""
    part = part_of(case)
    own = (part.words.get(option.name) if part else None) or WORDS.get(option.name)
    return own(case) if own else option.words.format(getattr(case, option.name))


def _default_in_words(case: Case, name: str) -> str:
    """The default of an option of the case's operation, as people read it; empty if it has no such option or value."""
    option = OPTION_NAMED[name]
    return _in_words(case, option) if option.default and OPERATIONS[case.op].has(option) else ""


def attributes(case: Case) -> Words:
    """All attributes but size and ranks, in words; tables differ in these. Those that do not apply are left out."""
    operation, unusual = OPERATIONS[case.op], _unusual(case)
    words = {"op": case.op, "backend": case.backend, "dtype": case.dtype if operation.typed else ""}
    for name in ALWAYS:
        applies = len(operation.placements) > 1 if name == "placement" else operation.has(OPTION_NAMED[name])
        words[name] = _in_words(case, OPTION_NAMED[name]) if applies or name in unusual else ""
    return {name: word for name, word in (words | unusual).items() if word}


def with_defaults(cases: Sequence[Case]) -> list[Words]:
    """The attributes of each case. Where one has an option that another has at its default, the default is named."""
    every = [attributes(case) for case in cases]
    names = dict.fromkeys(name for words in every for name in words)
    return [
        {name: word for name in names if (word := words.get(name) or _default_in_words(case, name))}
        for case, words in zip(cases, every, strict=True)
    ]


# ── several cases ────────────────────────────────────────────────────────────────────────────────
def common_parts(names: Sequence[str]) -> tuple[str, list[str]]:
    """The parts that all labels have in common, and each label without them. A label is never left empty.

    Of `a · x · 1 KiB` and `a · x · 2 KiB`: `a · x`, then `1 KiB` and `2 KiB`.
    """
    parts = [name.split(SEPARATOR) for name in names]
    if len(parts) < 2 or len({len(label_parts) for label_parts in parts}) > 1:
        return "", list(names)
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    if all(same):
        return "", list(names)
    kept = [SEPARATOR.join(part for part, shared in zip(row, same, strict=True) if not shared) for row in parts]
    return SEPARATOR.join(part for part, shared in zip(parts[0], same, strict=True) if shared), kept


def common_words(several: Sequence[Words]) -> Words:
    """Attributes with one value in all. A case that does not name an option of ALWAYS does not have it."""
    values: dict[str, list[str]] = {}
    for words in several:
        for name, word in words.items():
            values.setdefault(name, []).append(word)
    partly = {name for name, named in values.items() if len(named) < len(several)} - {"dtype", *ALWAYS}
    return {name: named[0] for name, named in values.items() if len(set(named)) == 1 and name not in partly}


def in_words(words: Words) -> list[str]:
    """Such as `all_reduce on gloo`, `float32`."""
    rest = dict(words)
    head = " on ".join(filter(None, [rest.pop("op", ""), rest.pop("backend", "")]))
    return [*([head] if head else []), *rest.values()]


def words_to_show(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Operation → the attributes in UNSAID that must be named: they differ among its cases or from the default."""
    values: dict[str, dict[str, set[str]]] = {}
    unusual: dict[str, set[str]] = {}
    for case in cases:
        unusual.setdefault(case.op, set()).update(extras(case))
        for name, word in attributes(case).items():
            values.setdefault(case.op, {}).setdefault(name, set()).add(word)
    return {
        op: {name for name in UNSAID if len(words.get(name, ())) > 1 or words.get(name, set()) & unusual[op]}
        for op, words in values.items()
    }


def without_usual(words: Words, op: str, must: dict[str, set[str]]) -> Words:
    """The words without those of UNSAID that need not be named. must: from `words_to_show`."""
    return {name: word for name, word in words.items() if name not in UNSAID or name in must[op]}


def span(cases: Iterable[Case]) -> str:
    """Many cases in one line: every value that occurs in them, once; sizes as a range. For one case, its label."""
    several = list(cases)
    if len(several) == 1:
        return label(several[0])
    ranks = ", ".join(str(n) for n in sorted({case.world_size for case in several}))
    sizes = sorted({case.size_bytes for case in several if case.size_bytes})
    ends = dict.fromkeys(size_text(size) for size in [*sizes[:1], *sizes[-1:]])
    parts = [_listed(case.op for case in several), _listed(case.backend for case in several), *variety(several)]
    return SEPARATOR.join([*parts, f"{ranks} rank{'' if ranks == '1' else 's'}", *([" – ".join(ends)] if ends else [])])


def in_one_line(cases: Sequence[Case]) -> str:
    """Many cases in one line, as their package writes them, or as `span` does."""
    part = part_of(cases[0])
    return part.span(cases) if part else span(cases)


def variety(cases: Sequence[Case]) -> list[str]:
    """The dtypes of the cases, and the values of each attribute that differs among them or from its default."""
    several = [attributes(case) for case in cases]
    both = list(zip(cases, several, strict=True))
    unusual = {word for case in cases for word in extras(case)}
    parts = [_listed(word for case in cases for word in dtype_words(case))]
    must = set().union(*words_to_show(cases).values())
    for name in dict.fromkeys(name for words in several for name in words if name not in {"op", "backend", "dtype"}):
        if name in UNSAID and name not in must:
            continue
        values = dict.fromkeys(filter(None, (words.get(name, _default_in_words(case, name)) for case, words in both)))
        if len(values) > 1 or unusual & set(values):
            parts.append(_listed(values))
    return [part for part in parts if part]


def _listed(words: Iterable[str]) -> str:
    """Each word once; if there are many, the first MOST_LISTED and the number of the others."""
    distinct = list(dict.fromkeys(words))
    return first_few(distinct, MOST_LISTED if len(distinct) > MOST_LISTED + 1 else len(distinct))


# ── the groups, columns and rows of tables ───────────────────────────────────────────────────────
def groups(summaries: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """(title, summaries) of each table. Summaries in a table differ in size, ranks and scheduling only."""
    tables: dict[str, list[Summary]] = {}
    for summary in summaries:
        tables.setdefault(title(replace(summary.case, scheduling="normal")), []).append(summary)
    schedulings = ({summary.case.scheduling for summary in members} for members in tables.values())
    return [
        (name if len(several) > 1 else title(members[0].case), members)
        for (name, members), several in zip(tables.items(), schedulings, strict=True)
    ]


def column(case: Case) -> ColumnKey:
    """What tells a case's column in a table: its number of ranks and its scheduling."""
    return case.world_size, case.scheduling


def columns(cases: Iterable[Case]) -> dict[ColumnKey, str]:
    """The columns of a table and their headers, in order: `2 ranks`; `2 ranks normal` where scheduling differs."""
    keys = sorted({column(case) for case in cases}, key=lambda key: (key[0], key[1] != "normal", key[1]))
    several = len({scheduling for _, scheduling in keys}) > 1
    return {(n, scheduling): ranks_text(n) + f" {scheduling}" * several for n, scheduling in keys}


def size_rows(cases: Sequence[Case]) -> list[list[Case]]:
    """The rows of a table, a row for each size that was asked for, ascending.

    cases: differ in size, ranks and scheduling only.
    """
    rows: dict[int, list[Case]] = {}
    for case in sorted(cases, key=lambda case: (case.asked, case.world_size)):
        rows.setdefault(case.asked, []).append(case)
    return list(rows.values())


def row_name(row: Sequence[Case]) -> str:
    """The size of a row: `4 KiB`, or `≤ 4 KiB` where it was rounded down for some numbers of ranks."""
    return ("≤ " if any(case.asked_bytes for case in row) else "") + size_text(row[0].asked)


def by_reason(skips: Sequence[Skip]) -> list[tuple[str, list[Case]]]:
    """(reason, cases) of the skips, separately for each backend, in the order of the plan."""
    cases: dict[tuple[str, str], list[Case]] = {}
    for skip in skips:
        cases.setdefault((skip.reason, skip.case.backend), []).append(skip.case)
    return [(reason, several) for (reason, _), several in cases.items()]


def notes(cases: Sequence[Case]) -> list[str]:
    """Notes on a table: what its size counts, how the backend differs, why there is no bandwidth, imbalance, rounding.

    An uneven division has a note of what it costs at best: no call ends before its busiest rank has sent and received
    everything.
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
            "parts were equal; bus bandwidth is that of the busiest rank, which the link bounds"
        )
    return [*texts, *rounding(cases)]


def rounding(cases: Sequence[Case]) -> list[str]:
    """A sentence on sizes that were rounded down to whole equal shares; empty if none of at least 1 KiB was."""
    odd = sorted({(case.size_bytes, ranks_together(case)) for case in cases if case.asked_bytes >= SMALLEST_ROUND})
    if not odd:
        return []
    named = first_few([f"{format_bytes(size)} for {n} ranks" for size, n in odd], MOST_NAMED)
    return [f"sizes are rounded down to whole equal shares, as in nccl-tests: {named}"]


def notes_of(members: Sequence[Summary]) -> list[str]:
    """The notes on a table of these summaries."""
    return [*notes([summary.case for summary in members]), *_two_modes(members)]


def _two_modes(members: Sequence[Summary]) -> list[str]:
    """A sentence on the cases of a table whose calls have two modes: the widest apart; empty if there is none."""
    modes = [(summary.case, summary.stall) for summary in members if summary.stall is not None]
    modes.sort(key=lambda mode: -mode[1].slow_s / mode[1].fast_s)
    named = []
    headers = columns(summary.case for summary in members)
    for case, stall in modes[:MOST_MODES]:
        text = format_modes(stall.share, stall.fast_s, stall.slow_s)
        named.append(f"{headers[column(case)]}, {size_text(case.size_bytes)}: {text}")
    more = f"; and {len(modes) - MOST_MODES} more" if len(modes) > MOST_MODES else ""
    return [f"two modes: {'; '.join(named)}{more}"] if modes else []
