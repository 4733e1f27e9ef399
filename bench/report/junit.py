"""Write verdicts as JUnit XML, which continuous-integration services show; each measured case is a test case.

In: a `Comparison` or `Check` values. Out: XML text. There is a failure or an error exactly where the exit code is 1:
verdicts that `--fail-on` names are failures; a case that was measured before and failed after, and a check of something
that was not measured, are errors. INCONCLUSIVE is skipped where it is no failure. Reads no XML.
"""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Sequence

from bench.model.comparisons import Change, CheckedTable, Comparison, Judgement
from bench.model.conclusions import Interval
from bench.model.records import Case
from bench.model.units import format_rate, format_seconds
from bench.report.comparison import Judged, headline
from bench.report.tables import interval_text


def of_comparison(result: Comparison) -> str:
    """One suite: every common case, and the cases that were measured before and failed after."""
    cases = [(_class(change.case), change.case.key, change.verdict, _sentence(change)) for change in result.changes]
    if result.whole is not None:
        whole = f"{result.whole.verdict}: index over all cases, {judgement_text(result.whole)}"
        cases.insert(0, ("all", "the run as a whole", result.whole.verdict, whole))
    broken = [(_class(case), case.key, "measured before, failed after") for case in result.broken]
    said = [headline(result), *result.warnings]
    return of_verdicts(result.before, result.after, cases, broken, said, result.fail_on)


def of_verdicts(
    before: str,
    after: str,
    cases: Iterable[tuple[str, str, str, str]],
    broken: Iterable[tuple[str, str, str]],
    said: Sequence[str],
    fail_on: Sequence[str],
) -> str:
    """One suite of two runs. cases: class, name, verdict, sentence; broken: class, name, sentence; said: its output.

    fail_on: verdicts that are failures.
    """
    suite = ET.Element("testsuite", name=f"{before} → {after}")
    for where, name, verdict, sentence in cases:
        case = _case(suite, where, name)
        if verdict in fail_on:
            _say(case, "failure", sentence)
        elif verdict == "INCONCLUSIVE":
            _say(case, "skipped", sentence)
        else:
            ET.SubElement(case, "system-out").text = sentence
    for where, name, sentence in broken:
        _say(_case(suite, where, name), "error", sentence)
    ET.SubElement(suite, "system-out").text = "\n".join(said)
    return _text(suite)


def of_checks(result: CheckedTable, run: str, failing: Collection[str]) -> str:
    """One suite: a test case for each line of the table of expectations. failing: verdicts that are failures.

    An open line is no failure where the table as a whole passes.
    """
    failing = failing if result.verdict in failing else ()
    suite = ET.Element("testsuite", name=run)
    for check in result.checks:
        case = _case(suite, _class(check.case), check.case.key)
        measured = check.measured
        seen = (
            f"{format_rate(measured.value)} GB/s {interval_text(measured, format_rate)}" if measured else "not measured"
        )
        wanted = f"{format_rate(check.expected)} GB/s less {check.tolerance * 100:g} %"
        text = f"{check.verdict}: busbw {seen}, expected {wanted}" + (f"; {check.note}" if check.note else "")
        if check.verdict == "PASS":
            ET.SubElement(case, "system-out").text = text
        elif check.verdict in failing:
            _say(case, "error" if check.verdict == "MISSING" else "failure", text)
        else:
            _say(case, "skipped", text)
    return _text(suite)


def _sentence(change: Change) -> str:
    return change_sentence(change.before, change.after, change, change.note)


def change_sentence(before: Interval, after: Interval, change: Judged, note: str) -> str:
    """Verdict, times, ratio with its interval, p, the reason, further launches that would decide, and the note."""
    times = f"{change.verdict}: {format_seconds(before.value)} → {format_seconds(after.value)}"
    more = f"about {change.further_launches} further launches would decide" if change.further_launches else ""
    return "; ".join(filter(None, [f"{times}, {judgement_text(change)}", more, note]))


def judgement_text(judged: Judged | Judgement) -> str:
    """Such as `ratio 1.210 [1.100 – 1.330], p 0.002: the interval lies above 1`."""
    ratio = f"ratio {judged.ratio.value:.3f} {interval_text(judged.ratio, '{:.3f}'.format)}"
    return f"{ratio}{'' if judged.p is None else f', p {judged.p:.2g}'}: {judged.reason}"


def _class(case: Case) -> str:
    return f"{case.op}.{case.backend}"


def _case(suite: ET.Element, where: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=where, name=name)


def _say(case: ET.Element, kind: str, text: str) -> None:
    ET.SubElement(case, kind, message=text)


def _text(suite: ET.Element) -> str:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for plural, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(len(suite.findall(f"testcase/{kind}"))))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"
