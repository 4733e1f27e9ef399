"""Write runs and comparisons for programs: CSV, JSON and JUnit XML.

In: a run and its analysis, a comparison of runs, trends, checks against a table. Out: text, and the JSON Schema of a
run (docs/report-schema.json). Units stand in the names of JSON's fields. Computes nothing and reads nothing.
"""

import csv
import io
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field

from bench.catalog.operations import OPERATIONS
from bench.model.comparisons import (
    Change,
    ChangeVerdict,
    Check,
    CheckedTable,
    CheckVerdict,
    Comparison,
    Judgement,
    Trend,
)
from bench.model.conclusions import Analysis, Diagnosis, Finding, Interval, Summary
from bench.model.records import OPTIONS, Case, Json, Run
from bench.model.units import format_rate, format_seconds
from bench.model.visible import visible
from bench.report.comparison import LISTS, direction, headline, judgement_text
from bench.report.labels import interval_text
from bench.report.parts import parts

# Increased when a field is renamed, removed or changes its meaning.
SCHEMA = 4
NUMBER, COUNT, TEXT, TEXTS, TRUTH = ["number", "null"], "integer", ["string", "null"], "array", "boolean"
# Field of a case → its type in JSON, and what it is. Those of the case itself (operation, backend, …) come before.
FIELDS: dict[str, tuple[Any, str]] = {
    "key": ("string", "names the case; the same in every run that measures it"),
    "time_s": (NUMBER, "of one call on the slowest rank: mean of the iterations, geometric mean over the launches"),
    "time_low_s": (NUMBER, "lower end of its 95 % interval; null if none is known"),
    "time_high_s": (NUMBER, "upper end"),
    "interval": (TEXT, "what the interval was computed over"),
    "algbw_bytes_per_s": (NUMBER, "algorithm bandwidth: size over time"),
    "busbw_bytes_per_s": (NUMBER, "bus bandwidth: algorithm bandwidth times the factor of the operation"),
    "p10_s": (NUMBER, "10 % of the iterations are faster; null if there are too few to say"),
    "p50_s": (NUMBER, "50 %: the median"),
    "p90_s": (NUMBER, "90 %"),
    "p99_s": (NUMBER, "99 %"),
    "host_time_s": (NUMBER, "GPUs: time by the host's clock, from an idle device to an idle device"),
    "fastest_rank_s": (NUMBER, "as time_s, of the fastest rank"),
    "skew_s": (NUMBER, "mean of last minus first arrival"),
    "pure_s": (NUMBER, "mean of last end minus last arrival"),
    "floor_s": (NUMBER, "time of the call in a group of one rank"),
    "timer_s": (NUMBER, "cost of reading the clock"),
    "scatter_log_sd": (NUMBER, "standard deviation of the logarithms of the launches' means"),
    "precision_asked": (NUMBER, "relative half-width that the configuration asks for within a launch; null if none"),
    "precision_reached": (NUMBER, "the mean of those that were reached within launches; null without enough blocks"),
    "foreign_cpu_share": (NUMBER, "share of the busy CPU time that other processes used"),
    "launches": (COUNT, "launches that gave a number"),
    "iterations": (COUNT, "timed iterations of all launches"),
    "outliers": (COUNT, "iterations more than 1.5 interquartile ranges above the upper quartile"),
    "far_outliers": (COUNT, "more than 3"),
    "steady": (TRUTH, "false if the times changed near an end of a launch"),
    "stopped_by": (TEXT, "why the case ended"),
    "slow_share": (NUMBER, "share of the iterations in a second, slower mode; 0 if there is none"),
    "fast_mode_s": (NUMBER, "mean of the iterations that are not in it; null if there is none"),
    "slow_mode_s": (NUMBER, "mean of those that are"),
    "chosen": (TEXT, "what NCCL chose; empty if it was not asked"),
    "imported": (TEXT, "how another tool computed the time; empty for our own"),
    "failures": (TEXTS, "what failed, one sentence each"),
    "warnings": (TEXTS, "what speaks against the numbers of this case"),
}
# First characters of a formula in spreadsheets.
FORMULAS = ("=", "+", "-", "@")
# Our names of a summary's fields, where FIELDS says the unit. summary.csv has our names.
RENAMED = {
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "scatter_log_sd": "scatter",
    "precision_asked": "asked",
    "precision_reached": "reached",
    "foreign_cpu_share": "foreign_cpu",
}
# A ratio with its interval, and what that was computed over.
RATIO = ("ratio", "ratio_low", "ratio_high", "interval")
# Facts of the manifest that the JSON of a run repeats.
RUN_FACTS = ("started", "finished", "status", "argv", "overrides", "collbench", "imported")


class PublicFinding(BaseModel):
    """A rank, node, link or size that stands out, with the evidence."""

    kind: str = Field(description="late rank, late node, slow rank, slow node, slow link, or inconsistent")
    subject: str = Field(description="who it is, such as rank 2, node h5 or link 0–3")
    text: str = Field(description="the finding in a sentence")
    cases: tuple[str, ...] = Field(description="keys of the cases that show it")
    rank: int | None = Field(description="if the subject is one rank")
    ranks: tuple[int, ...] = Field(description="all ranks that it is about")
    link: tuple[int, int] | None = Field(description="both ends, if the subject is a link")
    cost_s: float | None = Field(description="time that it adds to an operation")
    share: float | None = Field(description="of iterations in which it came last; or by how much its time is longer")
    p: float | None = Field(description="p-value after correction for several tests")


def _finding(finding: Finding) -> Json:
    values = {name: getattr(finding, name) for name in PublicFinding.model_fields if name != "cases"}
    return PublicFinding(**values, cases=tuple(case.key for case in finding.cases)).model_dump()


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """What was found, and why nothing was where nothing was."""
    document = {"findings": [_finding(finding) for finding in diagnosis.findings], "silent": list(diagnosis.silent)}
    return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False)


def _fields(case: Case) -> Json:
    return asdict(case) | {"asked_bytes": case.asked}


# ── one run ──────────────────────────────────────────────────────────────────────────────────────
def to_json(run: Run, analysis: Analysis) -> str:
    """The run with all its cases; null where there is no number."""
    of_packages: dict[Case, Json] = {}
    for part in (part.columns for part in parts()):
        for case, values in part.columns(run, analysis).items():
            of_packages[case] = {**values, **part.details(analysis)[case]}
    cases = []
    for summary in analysis.summaries:
        measured = _columns(summary)
        case_fields = _fields(summary.case)
        named = {"key": measured.pop("key"), "operation": case_fields.pop("op")}
        cases.append({**named, **case_fields, **measured, **of_packages.get(summary.case, {})})
    environment = [
        {name: value for name, value in session.items() if name != "launches"} for session in run.environment
    ]
    document: Json = {
        "schema": SCHEMA,
        "run": {"name": run.name, **{name: value for name, value in run.manifest.items() if name in RUN_FACTS}},
        "environment": environment,
        "cases": cases,
        **{name: value for part in parts() for name, value in part.columns.document(analysis).items()},
        "skipped": [{"key": skip.case.key, "reason": skip.reason} for skip in run.plan.skips],
        "findings": [_finding(finding) for finding in (*analysis.diagnosis.findings, *analysis.inconsistencies)],
        "warnings": list(analysis.warnings),
    }
    return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False)


def to_csv(run: Run, analysis: Analysis) -> str:
    """summary.csv: one typed row per case, in seconds, bytes and bytes/s; empty where there is no number.

    Options that no operation of the run has are no columns, nor are fields of packages that measured nothing.
    """
    import pandas as pd  # here: it takes half a second to load, and only this needs it

    operations = [OPERATIONS[name] for name in {summary.case.op for summary in analysis.summaries}]
    unused = {option.name for option in OPTIONS if not any(operation.has(option) for operation in operations)}
    of_packages = {case: row for part in parts() for case, row in part.columns.columns(run, analysis).items()}
    rows = []
    for summary in analysis.summaries:
        measured = {RENAMED.get(name, name): value for name, value in _columns(summary).items()}
        case = {name: value for name, value in _fields(summary.case).items() if name not in unused}
        texts = {name: "; ".join(measured.pop(name)) for name in ("failures", "warnings")}
        row = {"key": measured.pop("key"), **case, **measured, **of_packages.get(summary.case, {}), **texts}
        rows.append({name: _in_csv(value) for name, value in row.items()})
    table = pd.DataFrame(rows)
    return str((table.convert_dtypes() if rows else table).to_csv(index=False))


def _finite(data: Any) -> Any:
    """The same data with None for numbers that JSON cannot hold: NaN and infinities."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _columns(summary: Summary) -> Json:
    """FIELDS of a case."""
    stall = summary.stall
    columns = {
        **interval_columns(summary.time_s, "time_s", "time_low_s", "time_high_s", "interval"),
        "key": summary.case.key,
        "slow_share": stall.share if stall else 0.0,
        "fast_mode_s": stall.fast_s if stall else None,
        "slow_mode_s": stall.slow_s if stall else None,
        "failures": [failure.text for failure in summary.failures],
        "warnings": list(summary.warnings),
    }
    return {name: columns[name] if name in columns else getattr(summary, RENAMED.get(name, name)) for name in FIELDS}


def interval_columns(interval: Interval | None, *names: str) -> Json:
    """A value and its interval under these names: value, lower and upper limit, kind; the kind may be left out.

    All are None if there is no value, the limits if no interval is known.
    """
    if interval is None:
        return dict.fromkeys(names)
    low, high = (interval.low, interval.high) if interval.known else (None, None)
    return dict(zip(names, (interval.value, low, high, interval.kind), strict=False))


def json_schema() -> Json:
    """The JSON Schema of `to_json`; fields of the case itself may be added without another number."""
    columns = [part.columns for part in parts()]
    fields = FIELDS | {name: field for part in columns for name, field in part.fields.items()}
    case = {name: {"type": kind, "description": about} for name, (kind, about) in fields.items()}
    case |= {name: field for part in columns for name, field in part.only_json.items()}
    properties: Json = {
        "schema": {"const": SCHEMA},
        "run": {"type": "object", "required": ["name"], "description": "name, times (UTC), status, command line"},
        "environment": {"type": "array", "description": "one entry a session: the machine before and after it"},
        "cases": {"type": "array", "items": {"type": "object", "required": list(FIELDS), "properties": case}},
        **{name: field for part in columns for name, field in part.top.items()},
        "skipped": {"type": "array", "items": {"type": "object", "required": ["key", "reason"]}},
        "findings": {"type": "array", "items": PublicFinding.model_json_schema()},
        "warnings": {"type": "array", "items": {"type": "string"}, "description": "the gravest first"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of CollBench (report --format json)",
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────
def comparison_csv(result: Comparison) -> str:
    """One row per case; the ratios of its pairs of launches in one field."""
    rows = [_change_row(change) for change in result.changes]
    return csv_text([{**row, "pair_ratios": " ".join(map(repr, row["pair_ratios"]))} for row in rows])


def comparison_json(result: Comparison) -> str:
    """Everything: the overall verdict, the cases, what else differs, cases on one side only, the warnings."""
    plain = ("before", "after", "verdict", "min_change", "across", "pairs", "ended", "rule")
    document = {
        **{name: getattr(result, name) for name in plain},
        "whole": {**judgement_columns(result.whole), "pair_ratios": result.ratios} if result.whole else None,
        "cases": [_change_row(change) for change in result.changes],
        "differences": [{"fact": fact, "before": old, "after": new} for fact, old, new in result.differences],
        **{
            name: [{"key": case.case.key, "name": case.name, "reason": case.reason} for case in getattr(result, name)]
            for name in LISTS
        },
        "warnings": result.warnings,
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _change_row(change: Change) -> Json:
    """One case. key: on the side before. The fields of exposed communication are None but for cases that compute."""
    exposed = change.exposed
    limits = ("exposed_difference_s", "exposed_difference_low_s", "exposed_difference_high_s")
    return {
        "key": change.case.key,
        "name": change.name,
        "verdict": change.verdict,
        "before_s": change.before.value,
        "after_s": change.after.value,
        **judgement_columns(change.judgement),
        "exposed_before_s": exposed.before.value if exposed else None,
        "exposed_after_s": exposed.after.value if exposed else None,
        **interval_columns(exposed.difference if exposed else None, *limits),
        "exposed_resolved": exposed.resolved if exposed else None,
        "note": change.note,
        "where": change.where,
        "pair_ratios": change.ratios,
    }


def trend_csv(trends: Sequence[Trend]) -> str:
    """One row per case and run."""
    return csv_text([{"key": row["key"], **time} for row in _trend_rows(trends) for time in row["times"]])


def trend_json(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """The runs, oldest first, and the cases with their times and steps."""
    return json.dumps({"runs": list(runs), "cases": _trend_rows(trends)}, indent=1, ensure_ascii=False)


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


def checks_csv(checks: Sequence[Check]) -> str:
    """One row for each line of the table of expectations."""
    return csv_text(_check_rows(checks))


def checks_json(result: CheckedTable, run: str) -> str:
    """The verdict on the table, and one entry for each of its lines."""
    document = {
        "run": run,
        "verdict": result.verdict,
        "reason": result.reason,
        "index": interval_columns(result.index, *RATIO) if result.index else None,
        "checks": _check_rows(result.checks),
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _check_rows(checks: Sequence[Check]) -> list[Json]:
    return [
        {
            "key": check.case.key,
            "verdict": check.verdict,
            "expected_busbw": check.expected,
            "tolerance": check.tolerance,
            **interval_columns(check.measured, "busbw", "busbw_low", "busbw_high", "interval"),
            "note": check.note,
            "source": check.source,
        }
        for check in checks
    ]


def judgement_columns(judged: Judgement) -> Json:
    """A judgement; the limits of the ratio are None if no interval is known."""
    return {
        "verdict": judged.verdict,
        **interval_columns(judged.ratio, *RATIO),
        "level": judged.level,
        "p": judged.p,
        "reason": judged.reason,
        "further_launches": judged.further_launches,
    }


def csv_text(rows: Sequence[Json]) -> str:
    """Rows with the same keys as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _in_csv(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _in_csv(value: Any) -> Any:
    """A value for a cell; of a text that spreadsheets would take for a formula, they are told that it is text."""
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.lstrip().startswith(FORMULAS) else visible(value)


# ── JUnit XML ────────────────────────────────────────────────────────────────────────────────────
# Continuous-integration services show it. There is a failure or an error exactly where the exit code is 1: verdicts
# that --fail-on names are failures, and so are cases of a run that failed in a launch; a case that was measured before
# and failed after, and a check of something that was not measured, are errors. INCONCLUSIVE is skipped where it is no
# failure, and so are cases that were not measured.
def to_junit(run: Run, analysis: Analysis) -> str:
    """One suite of a run: each case that was tried or skipped."""
    suite = ET.Element("testsuite", name=run.name)
    tried = set()
    for summary in analysis.summaries:
        tried.add(summary.case.key)
        text, time_s = f"{summary.launches} launches", summary.time_s
        if time_s is not None:
            text = f"{format_seconds(time_s.value)} {interval_text(time_s, format_seconds)}, {text}"
        failures = "; ".join(dict.fromkeys(failure.text for failure in summary.failures))
        kind = "failure" if failures else "system-out"
        _add(suite, _class(summary.case), summary.case.key, kind, "; ".join(filter(None, [failures, text])))
    left = [*((skip.case, skip.reason) for skip in run.plan.skips), *((case, "not tried") for case in run.plan.cases)]
    for case, reason in left:
        if case.key not in tried:
            tried.add(case.key)
            _add(suite, _class(case), case.key, "skipped", reason)
    ET.SubElement(suite, "system-out").text = "\n".join(analysis.warnings)
    return _xml(suite)


def comparison_junit(result: Comparison) -> str:
    """One suite: the whole, every common case, and the cases that were measured before and failed after."""
    suite = ET.Element("testsuite", name=f"{result.before} → {result.after}")
    rows = [(_class(change.case), change.case.key, change.verdict, _sentence(change)) for change in result.changes]
    if result.whole is not None:
        whole = f"{result.whole.verdict}: index over all cases, {judgement_text(result.whole)}"
        rows.insert(0, ("all", "the run as a whole", result.whole.verdict, whole))
    for where, name, verdict, sentence in rows:
        kind = "skipped" if verdict == ChangeVerdict.INCONCLUSIVE else "system-out"
        if verdict in result.fail_on:
            kind = "failure"
        _add(suite, where, name, kind, sentence)
    for case in result.broken:
        _add(suite, _class(case.case), case.case.key, "error", f"measured before, failed after: {case.reason}")
    for case in result.only_before:
        _add(suite, _class(case.case), case.case.key, "skipped", f"only before: {case.reason}")
    ET.SubElement(suite, "system-out").text = "\n".join([headline(result), *result.warnings])
    return _xml(suite)


def _sentence(change: Change) -> str:
    """Verdict, times, ratio with its interval, p, the reason, further launches that would decide, exposed, the note."""
    times = f"{change.verdict}: {format_seconds(change.before.value)} → {format_seconds(change.after.value)}"
    more = f"about {change.further_launches} further launches would decide" if change.further_launches else ""
    exposed = ""
    if change.exposed is not None:
        moved = change.exposed.difference
        size = f"{format_seconds(moved.value)} {interval_text(moved, format_seconds)}"
        exposed = f"exposed communication {direction(change.exposed)}: {size}"
    sides = change.name if " → " in change.name else ""
    return "; ".join(filter(None, [f"{times}, {judgement_text(change)}", more, exposed, change.note, sides]))


def checks_junit(result: CheckedTable, run: str, failing: Collection[str]) -> str:
    """One suite: a test case for each line of the table of expectations. failing: verdicts that are failures.

    An open line is no failure where the table as a whole passes.
    """
    failing = failing if result.verdict in failing else ()
    suite = ET.Element("testsuite", name=run)
    for check in result.checks:
        measured = check.measured
        busbw = (
            f"{format_rate(measured.value)} GB/s {interval_text(measured, format_rate)}" if measured else "not measured"
        )
        wanted = f"{format_rate(check.expected)} GB/s less {check.tolerance * 100:g} %"
        text = f"{check.verdict}: busbw {busbw}, expected {wanted}" + (f"; {check.note}" if check.note else "")
        kind = "system-out" if check.verdict == CheckVerdict.PASS else "skipped"
        if check.verdict != CheckVerdict.PASS and check.verdict in failing:
            kind = "error" if check.verdict == CheckVerdict.MISSING else "failure"
        _add(suite, _class(check.case), check.case.key, kind, text)
    return _xml(suite)


def _class(case: Case) -> str:
    return f"{case.op}.{case.backend}"


def _add(suite: ET.Element, where: str, name: str, kind: str, text: str) -> None:
    """Add a test case with its outcome. kind: failure, error or skipped; system-out if the case is good."""
    case = ET.SubElement(suite, "testcase", classname=where, name=name)
    if kind == "system-out":
        ET.SubElement(case, kind).text = text
    else:
        ET.SubElement(case, kind, message=text)


def _xml(suite: ET.Element) -> str:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for plural, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(len(suite.findall(f"testcase/{kind}"))))
    suites = ET.Element("testsuites")
    suites.append(suite)
    for element in suites.iter():
        element.text = visible(element.text or "") or None
        element.attrib.update({name: visible(value) for name, value in element.attrib.items()})
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"
