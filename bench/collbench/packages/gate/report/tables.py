"""Write whether a run reaches the bandwidths that a table expects: for people, as CSV, as JSON and as JUnit XML."""

from collections import Counter
from collections.abc import Collection, Sequence

from collbench.model.units import format_rate, format_ratio
from collbench.packages.gate.conclusions import Check, CheckedTable, CheckVerdict
from collbench.report.blocks import Blocks, Column, left, table
from collbench.report.junit import JUnitSuite, class_of
from collbench.report.labels import interval_text, known, label, optional, with_interval
from collbench.report.machine_format import csv_text, json_text
from collbench.report.notices import sentence
from collbench.report.rows import cells, row

# The worst first.
VERDICTS = (CheckVerdict.FAIL, CheckVerdict.MISSING, CheckVerdict.INCONCLUSIVE, CheckVerdict.PASS)


def checks_document(result: CheckedTable, run: str) -> Blocks:
    """Return the verdict, then one row for each line of the table of expectations."""
    checks = result.checks
    counts = Counter(check.verdict for check in checks)
    counted = ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in VERDICTS if counts[verdict])
    blocks: Blocks = [f"{result.verdict}: {run}, {len(checks)} expected: {counted}; {sentence(result.reason)}"]
    if result.index is not None and len(checks) > 1:
        blocks.append(f"The table as a whole: measured / least allowed {with_interval(result.index, format_ratio)}")
    sources = [source for source in dict.fromkeys(check.source for check in checks) if source]
    return [*blocks, *table(checks, CHECKS), *([f"Expected by {'; '.join(sources)}"] if sources else [])]


CHECKS: list[Column[Check]] = [
    left("case", lambda check: label(check.case)),
    left("verdict", lambda check: check.verdict),
    Column("expected GB/s", lambda check: format_rate(check.expected)),
    Column("tolerance", lambda check: f"{check.tolerance * 100:g} %"),
    Column("busbw GB/s", lambda check: optional(check.measured, lambda busbw: format_rate(busbw.value))),
    Column("95 % interval", lambda check: interval_text(check.measured, format_rate)),
    left("note", lambda check: sentence(check.note) if check.note else ""),
]


def checks_csv(checks: Sequence[Check]) -> str:
    """Return CSV with one row for each line of the table of expectations."""
    return csv_text([cells(check) for check in checks])


def checks_json(result: CheckedTable, run: str) -> str:
    """Return JSON with the verdict on the table, and one entry for each of its lines."""
    return json_text({"run": run, **row(result)})


def checks_junit(result: CheckedTable, run: str, failing: Collection[str]) -> str:
    """Return one suite with a test case per line of the table of expectations. failing: verdicts that are failures.

    An undecided line is not a failure if the table as a whole passes.
    """
    failing = failing if result.verdict in failing else ()
    suite = JUnitSuite(run)
    for check in result.checks:
        busbw = "not measured"
        if check.measured:
            interval = known((" {}", check.measured.known and interval_text(check.measured, format_rate)))
            busbw = f"{format_rate(check.measured.value)} GB/s{''.join(interval)}"
        wanted = f"{format_rate(check.expected)} GB/s less {check.tolerance * 100:g} %"
        text = f"{check.verdict}: busbw {busbw}, expected {wanted}"
        text += f"; {sentence(check.note)}" if check.note else ""
        kind = "" if check.verdict == CheckVerdict.PASS else "skipped"
        if check.verdict != CheckVerdict.PASS and check.verdict in failing:
            kind = "error" if check.verdict == CheckVerdict.MISSING else "failure"
        suite.add(class_of(check.case), check.case.key, kind, text, check.verdict)
    return suite.text()
