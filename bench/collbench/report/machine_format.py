"""Write runs and comparisons for programs: CSV and JSON.

In: the view of a run, a comparison of runs, trends. Out: text, and the JSON Schemas of runs and comparisons, whose
fields are in `public`. Computes nothing and reads nothing.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Union, cast

from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from collbench.catalog.collectives import ALL_OPTIONS, OPERATIONS
from collbench.model.comparisons import (
    Change,
    ChangeVerdict,
    Comparison,
    Judgement,
    Trend,
)
from collbench.model.conclusions import Diagnosis
from collbench.model.records import OPTIONS, Json
from collbench.model.visible import visible
from collbench.report import openmetrics, wording
from collbench.report.comparison import LISTS
from collbench.report.labels import label, on_both_sides
from collbench.report.parts import package_columns
from collbench.report.public import (
    JSON_ONLY,
    PublicCase,
    PublicComparison,
    PublicDiagnosis,
    PublicNotice,
    PublicRun,
    PublicSkip,
    PublicTrends,
    RunFacts,
    case_values,
    interval_columns,
    public_finding,
    public_notice,
)
from collbench.report.view import View

# First characters of a formula in spreadsheets.
FORMULAS = ("=", "+", "-", "@")
# What `comparison_json` and `trend_json` return.
COMPARISONS = PublicComparison | PublicTrends
# Columns of a ratio, of its interval, and of the kind of the interval.
RATIO = ("ratio", "ratio_low", "ratio_high", "interval")


# ── one run ──────────────────────────────────────────────────────────────────────────────────────
def to_json(view: View) -> str:
    """Return the run with all its cases as JSON, with null if there is no number."""
    run, analysis = view.run, view.analysis
    entries: Json = {}
    for columns in package_columns():
        entries |= dict(columns.document(analysis))
    environment = [
        {name: value for name, value in session.items() if name != "launches"} for session in run.environment
    ]
    facts: Json = {name: value for name, value in run.manifest.items() if name in RunFacts.model_fields}
    return _json(
        run_model()(
            schema_number=6,
            run=RunFacts(**facts | {"name": run.name}),
            environment=environment,
            cases=public_cases(view),
            skipped=[PublicSkip(key=skip.case.key, reason=public_notice(skip.reason)) for skip in run.plan.skips],
            findings=[*map(public_finding, (*analysis.diagnosis.findings, *analysis.inconsistencies))],
            notices=tuple(map(public_notice, analysis.notices)),
            **entries,
        )
    )


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """Return as JSON the findings of a diagnosis, and the notices on properties that it could not determine."""
    findings = [*map(public_finding, diagnosis.findings)]
    return _json(PublicDiagnosis(findings=findings, silent=tuple(map(public_notice, diagnosis.silent))))


def _json(document: BaseModel) -> str:
    data = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


class _Untitled(GenerateJsonSchema):
    """A schema without titles of fields, which would only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def run_model() -> type[PublicRun]:
    """Make the model of a run, with the fields that packages add."""
    columns = package_columns()
    models: Any = (*(column.case for column in columns), PublicCase)
    bases: Any = (*(column.entries for column in columns), PublicRun)
    model = create_model("PublicRun", __base__=bases, __doc__=PublicRun.__doc__, cases=(list[Union[models]], ...))  # noqa: UP007
    return cast(type[PublicRun], model)


def json_schema(model: Any = None) -> Json:
    """Return the JSON Schema of `to_json`, or of COMPARISONS."""
    made = TypeAdapter(model or run_model()).json_schema(mode="serialization", schema_generator=_Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def public_cases(view: View) -> list[PublicCase]:
    """Return the cases, with the fields that their packages add."""
    added = {
        case: (columns.case, own)
        for columns in package_columns()
        for case, own in columns.values(view.run, view.analysis).items()
    }
    cases = []
    for summary in view.analysis.summaries:
        model, own = added.get(summary.case, (PublicCase, {}))
        cases.append(model(**case_values(summary), **own))
    return cases


def to_csv(view: View) -> str:
    """Return summary.csv: one typed row per case, in seconds, bytes and bytes/s; a cell without a number is empty.

    Options that no operation of the run has are not columns, nor are fields of packages that measured nothing. Without
    a result, there is one line with all columns that a run can have.
    """
    operations = [OPERATIONS[name] for name in {summary.case.op for summary in view.analysis.summaries}]
    used = {option.name for operation in operations for option in operation.own_options}
    used |= {option.name for option in OPTIONS if any(operation.has(option) for operation in operations)}
    left_out = {option.name for option in ALL_OPTIONS} - used if operations else set[str]()
    cases = public_cases(view)
    models = [type(case) for case in cases] or [PublicCase, *(columns.case for columns in package_columns())]
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    left_out |= {name for name, field in fields.items() if JSON_ONLY in field.metadata}
    at_end = ("failures", "notices", "warnings")
    names = [name for name in fields if name not in {*left_out, *at_end}]
    rows: list[Json] = []
    for case in cases:
        row = {name: getattr(case, name, None) for name in names}
        noticed: Sequence[PublicNotice] = case.notices
        texts = {
            "failures": "; ".join(case.failures),
            "notices": " ".join(notice.kind for notice in noticed),
            "warnings": "; ".join(notice.text for notice in noticed),
        }
        rows.append(row | texts)
    for name in names:
        if all(_whole_or_none(row[name]) for row in rows):
            for row in rows:
                row[name] = None if row[name] is None else int(row[name])
    return csv_text(rows, [*names, *at_end])


def _whole_or_none(value: object) -> bool:
    """Return whether a cell is empty or a whole number."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1)


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────
def comparison_csv(result: Comparison) -> str:
    """Return one row per case, with the ratios of its pairs of launches in one field."""
    rows = [_change_row(change) for change in result.changes]
    return csv_text([{**row, "pair_ratios": " ".join(map(repr, row["pair_ratios"]))} for row in rows])


def comparison_json(result: Comparison) -> str:
    """Return a whole comparison as JSON: verdict, cases, other differences, cases on one side only, warnings."""
    names = [*PublicComparison.model_fields]
    values = {name: getattr(result, name) for name in names if hasattr(result, name)} | {
        "schema_number": 1,
        "whole": {**judgement_columns(result.whole), "pair_ratios": result.ratios} if result.whole else None,
        "fresh": interval_columns(result.fresh, *RATIO) if result.fresh else None,
        "cases": [_change_row(change) for change in result.changes],
        "differences": [{"fact": fact, "before": old, "after": new} for fact, old, new in result.differences],
        **{
            name: [
                {"key": case.case.key, "name": label(case.case), "why": case.why, "reason": wording.absence(case)}
                for case in getattr(result, name)
            ]
            for name in LISTS
        },
        "ended": result.ended.reason if result.ended else None,
        "rule": public_notice(result.rule) if result.rule else None,
        "notices": [public_notice(notice) for notice in (*result.remarks, *result.notices)],
    }
    return _json(PublicComparison(**values))


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


def _change_row(change: Change) -> Json:
    """Return the fields of one case, with its key before. Exposed communication is None unless the case computes."""
    exposed = change.exposed
    limits = ("exposed_difference_s", "exposed_difference_low_s", "exposed_difference_high_s")
    return {
        "key": change.case.key,
        "name": on_both_sides(change),
        "verdict": change.verdict,
        "before_s": change.before.value,
        "after_s": change.after.value,
        **judgement_columns(change.judgement),
        "exposed_before_s": exposed.before.value if exposed else None,
        "exposed_after_s": exposed.after.value if exposed else None,
        **interval_columns(exposed.difference if exposed else None, *limits),
        "exposed_resolved": exposed.resolved if exposed else None,
        "pair_ratios": change.ratios,
    }


def trend_csv(trends: Sequence[Trend]) -> str:
    """Return one row per case and run."""
    return csv_text([{"key": row["key"], **time} for row in _trend_rows(trends) for time in row["times"]])


def trend_json(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """Return as JSON the runs, oldest first, and the cases with their times and steps."""
    return _json(PublicTrends(schema_number=1, runs=runs, cases=_trend_rows(trends)))


def _trend_rows(trends: Sequence[Trend]) -> list[Json]:
    return [
        {
            "key": trend.case.key,
            "steps": [{"run": trend.runs[level.first], "ratio": level.ratio} for level in trend.changed],
            "times": [
                {
                    "run": run,
                    **interval_columns(time, "time_s", "time_low_s", "time_high_s", "interval"),
                    "step": position in {level.first for level in trend.changed},
                }
                for position, (run, time) in enumerate(zip(trend.runs, trend.times_s, strict=True))
            ],
        }
        for trend in trends
    ]


def judgement_columns(judged: Judgement) -> Json:
    """Return the fields of a judgement; the limits of the ratio are None if the interval is unknown."""
    return {
        "verdict": judged.verdict,
        **interval_columns(judged.ratio, *RATIO),
        "level": judged.level,
        "p": judged.p,
        "reason": judged.reason.kind,
        "further_launches": judged.further_launches,
    }


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
