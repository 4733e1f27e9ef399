"""Read a published table of step times into groups of comparable rows, and define the records of its audit.

In: the text of a table: one number a row, with the columns of docs/training-audit.md, or one strategy a row, as
`customary_tables` reads it. Out: a `Published`: one `TableGroup` for rows measured alike, in it one `Entry` per
strategy and bucket size, in seconds. A value that cannot be used is a problem of its entry and does not stop the
others. Raises ForeignError with one line for a file that is no such table.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.model.errors import ForeignError
from bench.training import customary_tables

# Rows with this in the column `table` are read; all others belong to other tables.
TABLE = "ddp_step"
# Columns that must be equal for two rows to belong to the same computing.
SHARED = ("source", "hardware", "backend", "world_size", "model", "seq_len", "global_batch")
# The parts of a group's name: column → words.
IN_WORDS = {
    "model": "{}", "world_size": "{} ranks", "hardware": "{}", "backend": "{}", "seq_len": "sequence {}",
    "global_batch": "batch {}", "source": "{}",
}  # fmt: skip
COLUMNS = ("table", *SHARED, "strategy", "bucket_mb", "metric", "value", "unit")
# Name of a metric in a file → its key in `Entry.numbers`.
METRICS = {
    "step_time": "step",
    "step_time_avg": "step",
    "step_time_std": "step_std",
    "comm_time": "comm",
    "comm_time_avg": "comm",
    "comm_time_reported": "comm",
    "comm_time_std": "comm_std",
    "comm_frac": "share",
    "comm_frac_avg": "share",
    "comm_frac_reported": "share",
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
SHARES = {"1": 1.0, "%": 0.01}
# Marks a value that was not reported but computed later from other rows: it is no evidence.
DERIVED = "derived"


@dataclass(slots=True)
class Entry:
    """One strategy of a group. numbers: "step", "comm", … in seconds, and "share". problems: values not usable, why."""

    strategy: str
    bucket: str
    numbers: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The strategy with its bucket size, such as `overlap_bucket 10 MB`."""
        return f"{self.strategy} {self.bucket} MB" if self.bucket else self.strategy


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Rows of the same computing. shared: their values in the columns SHARED."""

    shared: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        """What was measured, where and by whom, in one line."""
        known = dict(zip(SHARED, self.shared, strict=True))
        return ", ".join(words.format(known[column]) for column, words in IN_WORDS.items() if known[column])


@dataclass(frozen=True, slots=True)
class Published:
    """The content of a file. others: number of rows of each other table. passed: rows of TABLE left out, by reason.

    unread: headings that were not understood.
    """

    groups: tuple[TableGroup, ...]
    others: dict[str, int]
    passed: dict[str, int]
    unread: tuple[str, ...] = ()


def read(text: str, name: str, unit: str = "") -> Published:
    """The groups of a file, in its order. name: what messages call the file. unit: of times that name none."""
    header = text.removeprefix("\ufeff").partition("\n")[0]
    if {"metric", "value"} & {column.strip() for column in header.split(",")}:
        return _grouped(_rows(text, name), ())
    try:
        found = customary_tables.read(text, unit)
    except csv.Error as error:
        raise ForeignError(f"{name}: not CSV: {error}") from None
    if not found.rows:
        raise ForeignError(
            f"{name}: no table of step times: a row needs a strategy and a step time, such as `| naive | 416.7 ms |`; "
            f"headings not understood: {', '.join(found.unread) or 'none'}"
        )
    return _grouped(found.rows, found.unread)


def _grouped(rows: Iterable[dict[str, str]], unread: tuple[str, ...]) -> Published:
    groups: dict[tuple[str, ...], dict[tuple[str, str], Entry]] = {}
    others: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for row in rows:
        if row["table"] != TABLE:
            others[row["table"] or "(no name)"] += 1
        elif reason := _passed(row):
            passed[reason] += 1
        else:
            entries = groups.setdefault(tuple(row.get(column, "") for column in SHARED), {})
            key = (_strategy(row["strategy"]), row["bucket_mb"])
            _take(entries.setdefault(key, Entry(*key)), row)
    found = tuple(TableGroup(shared, tuple(entries.values())) for shared, entries in groups.items())
    return Published(found, dict(others), dict(passed), unread)


def _rows(text: str, name: str) -> Iterator[dict[str, str]]:
    """Each row as column → text without surrounding blanks."""
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), restval="", strict=True)
    try:
        header = [str(column).strip() for column in reader.fieldnames or ()]
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            columns = "column" if len(missing) == 1 else "columns"
            raise ForeignError(f"{name}: {columns} {', '.join(missing)} missing; needed: {', '.join(COLUMNS)}")
        twice = [column for column in COLUMNS if header.count(column) > 1]
        if twice:
            raise ForeignError(f"{name}: column {twice[0]} is there twice")
        reader.fieldnames = header
        for row in reader:
            yield {column: value.strip() for column, value in row.items() if isinstance(value, str)}
    except csv.Error as error:
        raise ForeignError(f"{name}: line {reader.line_num}: not CSV: {error}") from None


def _passed(row: dict[str, str]) -> str | None:
    if row.get("verified") == DERIVED:
        return "derived from others"
    return None if row["metric"] in METRICS else "of other metrics"


def _strategy(text: str) -> str:
    return text.lower().replace("-", "_").replace(" ", "_")


def _take(entry: Entry, row: dict[str, str]) -> None:
    """Put the number of a row into its entry, or the reason why it cannot be used."""
    metric, unit, what = METRICS[row["metric"]], row["unit"], row["metric"]
    units = SHARES if metric == "share" else SECONDS
    if unit not in units:
        allowed = ", ".join(units)
        entry.problems.append(f"{what} has {f'the unit {unit!r}' if unit else 'no unit'} (allowed: {allowed})")
        return
    try:
        value = float(row["value"]) * units[unit]
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        entry.problems.append(f"{what} is {row['value']!r}, which is no number")
    elif entry.numbers.setdefault(metric, value) != value:
        entry.problems.append(f"{what} is there twice, and differs")


# ── the audit: made by `training.analyze.audit`, shown by `training.report.audit` ────────────────────
# Published ─▶ AuditedRow (one a row) ─▶ GroupAudit (one a group) ─▶ Audit
@dataclass(frozen=True, slots=True)
class AuditedRow:
    """The audit of one row, in seconds.

    exposed_s: step − T_compute. least_s: its lower limit, given the uncertainty of T_compute and of the step.
    factor: exposed / reported communication where the report understates it; infinite if zero was reported.
    wrong: reasons why the row cannot be right. note: why nothing follows, or other remarks.
    """

    entry: Entry
    exposed_s: float | None = None
    least_s: float | None = None
    factor: float | None = None
    wrong: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """The audit of one group. bases: T_compute by each row that determines it. reason: why T_compute is not known."""

    group: TableGroup
    bases: dict[str, float]
    compute_s: float | None
    reason: str | None
    findings: tuple[AuditedRow, ...]

    @property
    def apart(self) -> float:
        """The range of T_compute over the rows that determine it, as a share of their mean."""
        values = list(self.bases.values())
        return (max(values) - min(values)) / (sum(values) / len(values)) if values else 0.0

    @property
    def understated(self) -> list[AuditedRow]:
        """Rows whose communication time is understated."""
        return [finding for finding in self.findings if finding.factor is not None]

    @property
    def wrong(self) -> list[AuditedRow]:
        """Rows that cannot be right, for whatever reason."""
        return [finding for finding in self.findings if finding.wrong]


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of a whole file."""

    published: Published
    tolerance: float
    groups: tuple[GroupAudit, ...]

    @property
    def wrong(self) -> bool:
        """Whether any row cannot be right."""
        return any(group.wrong for group in self.groups)

    @property
    def conclusive(self) -> bool:
        """Whether any group allows a conclusion."""
        return any(group.reason is None for group in self.groups)
