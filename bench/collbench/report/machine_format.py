"""Write runs and comparisons for programs: CSV and JSON.

In: the view of a run, a comparison of runs, trends. Out: text, and the types of the documents, from which the JSON
Schemas are made. The types of results declare the fields. Computes nothing and reads nothing.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from collbench.catalog.collectives import ALL_OPTIONS, OPERATIONS
from collbench.model.comparisons import ChangeVerdict, Comparison, Trend
from collbench.model.conclusions import Finding
from collbench.model.notices import Notice
from collbench.model.records import OPTIONS, Json, Skip
from collbench.model.results import CaseRecord, RunRecord, columns, fact
from collbench.model.visible import visible
from collbench.report import notices, openmetrics
from collbench.report.labels import on_both_sides
from collbench.report.rows import CaseRow, case_columns, cells, json_schema, model, row
from collbench.report.text import record_types, run_records
from collbench.report.view import View

# First characters of a formula in spreadsheets.
FORMULAS = ("=", "+", "-", "@")


# ── one run ──────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class RunFacts:
    """What a run is. All but its name are left out where they are not known."""

    name: str = fact()
    started: str | None = fact("UTC", optional=True)
    finished: str | None = fact("UTC", optional=True)
    status: str | None = fact(optional=True)
    argv: list[str] | None = fact("the command line", optional=True)
    overrides: list[str] | None = fact("changes by --set", optional=True)
    collbench: str | None = fact("version that measured", optional=True)
    imported: dict[str, Any] | None = fact("of which files of which tool", optional=True)


@dataclass(frozen=True)
class RunDocument:
    """A run of CollBench (report --format json)."""

    # Increased when a field is renamed, removed or changes its meaning; fields may be added without another number.
    schema: Literal[6] = fact()
    run: RunFacts = fact()
    environment: list[dict[str, Any]] = fact("one entry a session: the machine before and after it")
    cases: list[CaseRow] = fact()
    skipped: list[Skip] = fact()
    findings: list[Finding] = fact()
    notices: tuple[Notice, ...] = fact("the gravest first")


def to_json(view: View) -> str:
    """Return the run with all its cases as JSON, with null if there is no number."""
    run, analysis = view.run, view.analysis
    known: Any = {column.fact.name: run.manifest.get(column.fact.name) for column in columns(RunFacts)}
    environment: Any = [
        {name: value for name, value in session.items() if name != "launches"} for session in run.environment
    ]
    document = RunDocument(
        schema=6,
        run=RunFacts(**known | {"name": run.name}),
        environment=environment,
        cases=case_rows(view),
        skipped=[*run.plan.skips],
        findings=[*analysis.diagnosis.findings, *analysis.inconsistencies],
        notices=analysis.notices,
    )
    added = map(row, run_records(analysis))
    return json_text({**row(document), **{name: value for entries in added for name, value in entries.items()}})


def run_schema() -> Json:
    """Return the JSON Schema of `to_json`."""
    added = (column for kind in record_types(RunRecord) for column in columns(kind))
    return json_schema(model(RunDocument, tuple(added)))


def json_text(document: Json) -> str:
    """Return a document as JSON."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)


def case_rows(view: View) -> list[CaseRow]:
    """Return the cases, with the records that their packages add."""
    records = {case: record for value in run_records(view.analysis) for case, record in value.cases.items()}
    return [CaseRow(summary, records.get(summary.case)) for summary in view.analysis.summaries]


def to_csv(view: View) -> str:
    """Return summary.csv: one typed row per case, in seconds, bytes and bytes/s; a cell without a number is empty.

    Options that no operation of the run has are not columns, nor are fields of packages that measured nothing, nor
    optional fields that no case has. Without a result, there is one line with all columns that a run can have.
    """
    cases = case_rows(view)
    operations = [OPERATIONS[name] for name in {entry.summary.case.op for entry in cases}]
    used = {option.name for operation in operations for option in operation.own_options}
    used |= {option.name for option in OPTIONS if any(operation.has(option) for operation in operations)}
    left_out = {option.name for option in ALL_OPTIONS} - used if operations else set[str]()
    kinds = {type(entry.of_package) for entry in cases if entry.of_package is not None}
    added = [kind for kind in record_types(CaseRecord) if not cases or kind in kinds]
    at_end = ("failures", "notices", "warnings")
    every = [*case_columns(), *(column for kind in added for column in columns(kind))]
    rows = [cells(entry) for entry in cases]
    names = [
        name
        for column in every
        if column.fact.in_csv and (name := column.fact.name) not in {*left_out, *at_end}
        if not (column.fact.optional and rows) or any(row[name] is not None for row in rows)
    ]
    table: list[Json] = []
    for entry, values in zip(cases, rows, strict=True):
        summary = entry.summary
        texts = {
            "failures": "; ".join(failure.text for failure in summary.failures),
            "notices": " ".join(notice.kind for notice in summary.notices),
            "warnings": "; ".join(map(notices.meaning, summary.notices)),
        }
        table.append({name: values.get(name) for name in names} | texts)
    for name in names:
        present = [line[name] for line in table if line[name] is not None]
        if all(isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0 for value in present):
            for line in table:
                line[name] = None if line[name] is None else int(line[name])
    return csv_text(table, [*names, *at_end])


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class ComparisonDocument:
    """A comparison of two sides (compare --format json)."""

    schema: Literal[1] = fact()
    comparison: Comparison = fact(flat=True)


@dataclass(frozen=True)
class TrendDocument:
    """Times of cases over many runs (compare --format json with several runs)."""

    schema: Literal[1] = fact()
    runs: Sequence[str] = fact("oldest first")
    cases: Sequence[Trend] = fact()


def comparison_csv(result: Comparison) -> str:
    """Return one row per case, with the ratios of its pairs of launches in one field."""
    lines = [cells(change) for change in result.changes]
    return csv_text([{**line, "pair_ratios": " ".join(map(repr, line["pair_ratios"]))} for line in lines])


def comparison_json(result: Comparison) -> str:
    """Return a whole comparison as JSON: verdict, cases, other differences, cases on one side only, warnings."""
    return json_text(row(ComparisonDocument(1, result)))


# Numbers of verdicts in metrics: 0 is good, 1 is bad.
VERDICTS = (ChangeVerdict.SAME, ChangeVerdict.SLOWER, ChangeVerdict.FASTER, ChangeVerdict.INCONCLUSIVE)
LOWER_END, UPPER_END = "Lower limit of its interval.", "Upper limit of its interval."


def comparison_openmetrics(result: Comparison) -> str:
    """Return verdicts and ratios AFTER / BEFORE, for the run as a whole and for each case, as OpenMetrics."""
    judged = [("all", result.whole)] if result.whole is not None else []
    judged += [(on_both_sides(change), change.judgement) for change in result.changes]
    sides = {"before": openmetrics.timeless(result.before), "after": openmetrics.timeless(result.after)}
    of = {"of": "compare", **sides}
    lines = openmetrics.verdicts("collbench_verdict", [(of, result.verdict)], VERDICTS, "Verdict of the whole")
    case_verdicts = [({**sides, "case": name}, j.verdict) for name, j in judged]
    lines += openmetrics.verdicts("collbench_case_verdict", case_verdicts, VERDICTS, "Verdict of a case")
    for end, about in (("value", "Time after over time before."), ("low", LOWER_END), ("high", UPPER_END)):
        rows = [
            ({**sides, "case": name}, getattr(j.ratio, end) if end == "value" or j.ratio.known else None)
            for name, j in judged
        ]
        lines += openmetrics.gauge("collbench_time_ratio" + f"_{end}" * (end != "value"), rows, about)
    lines += openmetrics.notices(of, (*result.remarks, *result.notices))
    return "\n".join([*lines, openmetrics.END])


def comparison_schema() -> Json:
    """Return the JSON Schema of `comparison_json` and `trend_json`."""
    return json_schema(model(ComparisonDocument), model(TrendDocument))


def trend_csv(trends: Sequence[Trend]) -> str:
    """Return one row per case and run."""
    return csv_text([{"key": trend.case.key, **cells(point)} for trend in trends for point in trend.points])


def trend_json(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """Return as JSON the runs, oldest first, and the cases with their times and steps."""
    return json_text(row(TrendDocument(1, runs, trends)))


def csv_text(rows: Sequence[Json], names: Sequence[str] = ()) -> str:
    """Format rows, which have the same keys, as CSV. names: the keys; without them, no rows are no line."""
    text = io.StringIO()
    if names := names or list(rows[0] if rows else ()):
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _in_csv(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _in_csv(value: Any) -> Any:
    """Return the value of a cell; an apostrophe marks a text that spreadsheets would take for a formula as text."""
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.lstrip().startswith(FORMULAS) else visible(value)
