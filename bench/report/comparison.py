"""Write comparisons of runs with each other and with a table, for people (Markdown) and programs (CSV, JSON).

In: `Comparison` and `Check` values. Out: text with the verdict in its first line. Computes only layout and
counts. JUnit is in `junit`, pictures are in `plots.comparison`.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from bench.model.comparisons import Change, Check, CheckedTable, Comparison, Judgement
from bench.model.conclusions import Interval
from bench.model.records import NOT_AVAILABLE, Json, case_order
from bench.model.units import format_rate, format_seconds
from bench.report import markdown
from bench.report.labels import common_parts, label
from bench.report.tables import NOTHING, interval_text

VERDICTS = ("SLOWER", "FASTER", "SAME", "INCONCLUSIVE")
CHECK_VERDICTS = ("FAIL", "MISSING", "INCONCLUSIVE", "PASS")
# Facts of hardware that the first line names if they differ, and what stands for a fact that a run does not have.
HARDWARE = {"cpu.model": "CPU", "gpus": "GPU"}
UNKNOWN = frozenset({"-", "", "none", NOT_AVAILABLE})
# Characters of a fact; longer values, such as a commit with its branch, would make the table too wide.
LONGEST_FACT = 60


class Judged(Protocol):
    """The comparison of one thing in two runs: its times, their ratio AFTER / BEFORE, and the verdict."""

    @property
    def before(self) -> Interval:
        """Seconds."""

    @property
    def after(self) -> Interval:
        """Seconds."""

    @property
    def ratio(self) -> Interval:
        """`after` / `before`, with its interval."""

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""

    @property
    def reason(self) -> str:
        """Why this verdict."""

    @property
    def p(self) -> float | None:
        """p-value of no change, corrected for the number of cases; None if it is not known."""

    @property
    def further_launches(self) -> int | None:
        """Further launches on each side that would decide; None if decided, or if too many would be needed."""

    @property
    def note(self) -> str:
        """A remark; mostly empty."""


class JudgedRuns(Protocol):
    """A comparison of two runs of any benchmark."""

    @property
    def verdict(self) -> str:
        """One of VERDICTS, for the whole comparison."""

    @property
    def min_change(self) -> float:
        """The smallest relative change that matters."""

    @property
    def differences(self) -> Sequence[tuple[str, str, str]]:
        """(fact, before, after) of the facts that differ."""

    @property
    def changes(self) -> Sequence[Judged]:
        """One for each thing that both runs measured."""

    @property
    def whole(self) -> Judgement | None:
        """The run as a whole, by an index; None if there is none."""


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────
def headline(result: JudgedRuns) -> str:
    """Such as `SLOWER: 2 of 18 cases slower; 16 same; the whole slower; smallest change that matters 5 %`."""
    counts = Counter(change.verdict for change in result.changes)
    first, *others = sorted(VERDICTS, key=lambda verdict: verdict != result.verdict)
    rest = ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in others if counts[verdict])
    total = f"{len(result.changes)} case{'' if len(result.changes) == 1 else 's'}"
    whole = f"the whole {result.whole.verdict.lower()}" if result.whole else ""
    parts = [
        f"{counts[first]} of {total} {first.lower()}",
        rest,
        whole,
        f"smallest change that matters {_percent(result)}",
    ]
    return f"{result.verdict}: {'; '.join(filter(None, [*parts, *_other_hardware(result)]))}"


def _other_hardware(result: JudgedRuns) -> list[str]:
    """Another CPU or GPU explains a change before anything else does."""
    known = [row for row in result.differences if row[0] in HARDWARE and UNKNOWN.isdisjoint(row[1:])]
    return [f"another {HARDWARE[fact]}: {before} → {after}" for fact, before, after in known]


def _percent(result: JudgedRuns) -> str:
    return f"{result.min_change * 100:g} %"


def document(result: Comparison) -> str:
    """For people: verdict, table, differences of machine and settings, cases in one run only, warnings."""
    parts = [headline(result), f"## {result.before} → {result.after}"]
    if result.whole is not None:
        parts.append(whole_text(result.whole))
    parts += [table(result), *where_text(result.changes)]
    parts += differing(result.differences)
    for where, cases in (
        ("Failed after, measured before", result.broken),
        ("Only before", result.only_before),
        ("Only after", result.only_after),
    ):
        if cases:
            parts.append(f"{where}: {', '.join(label(case) for case in cases)}")
    if result.warnings:
        parts.append(f"Warnings:\n\n{markdown.lines(result.warnings)}")
    return "\n\n".join(parts)


def whole_text(whole: Judgement) -> str:
    """The index of the run as a whole, with its interval and why it says what it says."""
    ratio = f"{whole.ratio.value:.3f} {interval_text(whole.ratio, '{:.3f}'.format)}"
    p = "" if whole.p is None else f", p {whole.p:.2g}"
    return f"The run as a whole: {whole.verdict}, index after / before {ratio}{p}: {whole.reason}."


def where_text(changes: Sequence[Change]) -> list[str]:
    """Which part of the times changed in the cases that did; empty if none did."""
    return where_lines([label(one.case) for one in changes], [one.where for one in changes], changes)


def where_lines(called: Sequence[str], where: Sequence[str], changes: Sequence[Judged]) -> list[str]:
    """The same for changes with other names. called: the name of each. where: what changed in it; mostly empty."""
    _, short = common_parts(called)
    told = [
        f"{name}: {text}"
        for name, text, change in zip(short, where, changes, strict=True)
        if text and change.verdict in {"SLOWER", "FASTER"}
    ]
    return [f"Where it changed:\n\n{markdown.lines(told)}"] if told else []


def differing(differences: Sequence[tuple[str, str, str]]) -> list[str]:
    """A table of what else differs: machine, software, settings. Empty if nothing does."""
    rows = [[name, old[:LONGEST_FACT], new[:LONGEST_FACT]] for name, old, new in differences]
    return ["What else differs:", markdown.table(rows, ["", "before", "after"], ["left"] * 3)] if rows else []


def table(result: Comparison) -> str:
    """One row per common case: verdict, times, ratio with its interval, how many launches would decide."""
    changes = sorted(result.changes, key=lambda change: case_order(change.case))
    return verdict_table("case", [label(change.case) for change in changes], changes)


def verdict_table(what: str, called: Sequence[str], changes: Sequence[Judged]) -> str:
    """One row per change, and what must be said of single ones. called: the name of each. what: that column's header.

    What all names have in common stands above the table.
    """
    common, short = common_parts(called)
    rows = [
        [
            name,
            change.verdict,
            format_seconds(change.before.value),
            format_seconds(change.after.value),
            f"{change.ratio.value:.3f} {interval_text(change.ratio, '{:.3f}'.format)}",
        ]
        for name, change in zip(short, changes, strict=True)
    ]
    table = markdown.table(
        rows, [what, "verdict", "before", "after", "after / before"], ["left", "left", *["right"] * 3]
    )
    return "\n\n".join(filter(None, [f"All: {common}" * bool(common), table, _remarks(short, changes)]))


def _remarks(called: Sequence[str], changes: Sequence[Judged]) -> str:
    """Why cases are as they are, where the interval does not show it; each reason once."""
    found: dict[str, list[str]] = {}
    for name, change in zip(called, changes, strict=True):
        for text in filter(None, ["" if change.verdict in {"SLOWER", "FASTER"} else change.reason, change.note]):
            found.setdefault(text, []).append(f"{name}{further_text(change) if text == change.reason else ''}")
    return markdown.lines(f"{text}: {', '.join(names)}" for text, names in found.items())


def further_text(change: Judged) -> str:
    """How many further launches would decide; empty if decided, or if there is no interval over launches."""
    if change.verdict != "INCONCLUSIVE" or change.ratio.kind != "over launches":
        return ""
    return f" ({f'about {change.further_launches}' if change.further_launches else 'over 200'} further launches)"


def to_csv(result: Comparison) -> str:
    """One row per case."""
    return csv_text(_rows(result))


def to_json(result: Comparison) -> str:
    """Everything: the overall verdict, the cases, what else differs, cases in one run only, the warnings."""
    whole = {
        "before": result.before,
        "after": result.after,
        "verdict": result.verdict,
        "min_change": result.min_change,
        "whole": judgement_columns(result.whole) if result.whole else None,
        "cases": _rows(result),
        "differences": difference_rows(result.differences),
        **{name: [case.key for case in getattr(result, name)] for name in ("broken", "only_before", "only_after")},
        "warnings": result.warnings,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)


def difference_rows(differences: Sequence[tuple[str, str, str]]) -> list[Json]:
    """What else differs (machine, software, settings), for programs."""
    return [{"fact": fact, "before": old, "after": new} for fact, old, new in differences]


def _rows(result: Comparison) -> list[Json]:
    return [
        {
            "key": change.case.key,
            "verdict": change.verdict,
            "before_s": change.before.value,
            "after_s": change.after.value,
            **judgement_columns(change.judgement),
            "note": change.note,
            "where": change.where,
        }
        for change in result.changes
    ]


def judgement_columns(judged: Judgement) -> Json:
    """A judgement for programs; the ratio as in `ratio_columns`."""
    return {
        "verdict": judged.verdict,
        **ratio_columns(judged.ratio),
        "p": judged.p,
        "reason": judged.reason,
        "further_launches": judged.further_launches,
    }


def ratio_columns(ratio: Interval) -> Json:
    """A ratio and its interval; the limits are None if no interval is known."""
    return {
        "ratio": ratio.value,
        "ratio_low": ratio.low if ratio.known else None,
        "ratio_high": ratio.high if ratio.known else None,
        "interval": ratio.kind,
    }


# ── a run against a table ────────────────────────────────────────────────────────────────────────
def checks_document(result: CheckedTable, run: str) -> str:
    """For people: the verdict, then one row for each line of the table of expectations."""
    checks = result.checks
    counts = Counter(check.verdict for check in checks)
    found = ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in CHECK_VERDICTS if counts[verdict])
    rows = [
        [
            label(check.case),
            check.verdict,
            format_rate(check.expected),
            f"{check.tolerance * 100:g} %",
            format_rate(check.measured.value) if check.measured else NOTHING,
            interval_text(check.measured, format_rate) if check.measured else NOTHING,
            check.note,
        ]
        for check in checks
    ]
    headers = ["case", "verdict", "expected GB/s", "tolerance", "busbw GB/s", "95 % interval", "note"]
    align = ["left", "left", "right", "right", "right", "right", "left"]
    first = f"{result.verdict}: {run}, {len(checks)} expected: {found}; {result.reason}"
    index = ""
    if result.index is not None and len(checks) > 1:
        ratio = interval_text(result.index, "{:.3f}".format)
        index = f"The table as a whole: measured / least allowed {result.index.value:.3f} {ratio}\n\n"
    return f"{first}\n\n{index}{markdown.table(rows, headers, align)}"


def checks_csv(checks: Sequence[Check]) -> str:
    """One row for each line of the table of expectations."""
    return csv_text(_check_rows(checks))


def checks_json(result: CheckedTable, run: str) -> str:
    """The verdict on the table, and one entry for each of its lines."""
    whole = {"run": run, "verdict": result.verdict, "reason": result.reason}
    index = ratio_columns(result.index) if result.index else None
    return json.dumps({**whole, "index": index, "checks": _check_rows(result.checks)}, indent=1, ensure_ascii=False)


def _check_rows(checks: Sequence[Check]) -> list[Json]:
    nothing = {"value": None, "low": None, "high": None, "kind": None}
    rows = []
    for check in checks:
        measured = asdict(check.measured) if check.measured else nothing
        if check.measured is not None and not check.measured.known:
            measured |= {"low": None, "high": None}
        rows.append(
            {
                "key": check.case.key,
                "verdict": check.verdict,
                "expected_busbw": check.expected,
                "tolerance": check.tolerance,
                "busbw": measured["value"],
                "busbw_low": measured["low"],
                "busbw_high": measured["high"],
                "interval": measured["kind"],
                "note": check.note,
            }
        )
    return rows


def csv_text(rows: Sequence[Json]) -> str:
    """Rows with the same keys as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
