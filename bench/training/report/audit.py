"""Write the audit of a published table as Markdown: a table and one conclusion for each group.

In: an `Audit`. Out: text. Computes nothing but layout. Text of the published file is printed without control
characters, and with / for |, which would break a table.
"""

from bench.report import markdown
from bench.report.tables import NOTHING
from bench.training.published import Audit, AuditedRow, GroupAudit

HEADERS = ("strategy", "step", "reported comm", "must be exposed", "at least", "understated", "verdict")
ALIGN = ("left", "right", "right", "right", "right", "right", "left")
# Longest text that is printed whole, such as the name of a source: a heading is one line.
LONGEST = 200


def text(audit: Audit) -> str:
    """The whole audit."""
    return "\n\n".join([*(_group(group, audit.tolerance) for group in audit.groups), _last(audit)])


def _group(group: GroupAudit, tolerance: float) -> str:
    rows = [_row(finding) for finding in group.findings]
    return f"## {plain(group.group.name)}\n\n{markdown.table(rows, HEADERS, ALIGN)}\n\n{conclusion(group, tolerance)}"


def _row(finding: AuditedRow) -> list[str]:
    numbers = finding.entry.numbers
    return [
        plain(finding.entry.name),
        _time(numbers.get("step")),
        _time(numbers.get("comm")),
        _time(finding.exposed_s),
        _time(finding.least_s),
        f"{times(finding.factor)} times" if finding.factor is not None else NOTHING,
        plain("; ".join([*(f"CANNOT BE RIGHT: {reason}" for reason in finding.wrong), *filter(None, [finding.note])])),
    ]


def conclusion(group: GroupAudit, tolerance: float) -> str:
    """One line: T_compute and how many rows it shows to be wrong, or why nothing follows."""
    bases = ", ".join(f"{plain(name)} {_time(value)}" for name, value in group.bases.items())
    if group.compute_s is None:
        known = f" ({bases}; {100 * tolerance:.3g} % allowed)" if len(group.bases) > 1 else ""
        rest = f" But {_rows(len(group.wrong))} cannot be right by itself." if group.wrong else ""
        return f"**No conclusion**: {plain(group.reason or '')}{known}.{rest}"
    apart = f"; {100 * group.apart:.2f} % apart, {100 * tolerance:.3g} % allowed" if len(group.bases) > 1 else ""
    head = f"**T_compute = {_time(group.compute_s)}** ({bases}{apart})"
    factors = [finding.factor for finding in group.understated if finding.factor is not None]
    if factors:
        low, high = times(min(factors)), times(max(factors))
        span = low if low == high else f"{low} to {high}"
        head += f": {_rows(len(factors))} understate communication, {span} times"
    others = len(group.wrong) - len(factors)
    if others:
        head += f"; {_rows(others)} cannot be right for another reason"
    return f"{head}." if factors or others else f"{head}: nothing here cannot be right."


def _last(audit: Audit) -> str:
    """The rows of the file that were not audited."""
    found = audit.published
    others = [f"{count} of table {plain(table)}" for table, count in found.others.items()]
    passed = [f"{count} {reason}" for reason, count in found.passed.items()]
    if not audit.groups:
        others.insert(0, "all rows, because none is of table ddp_step and has a step or communication time")
    unread = f"\n\nColumns not understood: {', '.join(plain(one) for one in found.unread)}." if found.unread else ""
    return f"Rows not audited: {'; '.join([*passed, *others]) or 'nothing'}.{unread}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def times(factor: float) -> str:
    """A factor: `18`, `2.5`, `infinitely many`."""
    if factor == float("inf"):
        return "infinitely many"
    return f"{factor:.0f}" if factor >= 9.95 else f"{factor:.1f}"


def _time(seconds: float | None) -> str:
    """Four significant digits, in milliseconds, which published tables use; in seconds from 10 s on."""
    if seconds is None:
        return NOTHING
    return f"{seconds:.4g} s" if abs(seconds) >= 10 else f"{seconds * 1e3:.4g} ms"


def plain(words: str) -> str:
    """Text of the file, made safe for one cell of a table and for a terminal."""
    line = "".join(letter if letter.isprintable() else " " for letter in words).replace("|", "/")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
