"""Verdicts as JUnit XML, which every continuous-integration service shows: a test case a measured case.

In: a `Comparison` or `Check` values. Out: XML text. SLOWER and FAIL are failures, INCONCLUSIVE is skipped in a
comparison; in a check, which is a gate, it is a failure too. A case that failed to be measured is an error.
Reads no XML.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from bench.conclusions import Change, Check, Comparison
from bench.present.comparisons import headline
from bench.present.tables import interval_text
from bench.records import Case
from bench.units import format_rate, format_seconds


def of_comparison(result: Comparison) -> str:
    """One suite: every common case, and what was measured before and failed after."""
    suite = ET.Element("testsuite", name=f"{result.before} → {result.after}")
    for change in result.changes:
        case = _case(suite, change.case)
        if change.verdict == "SLOWER":
            _say(case, "failure", _sentence(change))
        elif change.verdict == "INCONCLUSIVE":
            _say(case, "skipped", _sentence(change))
        else:
            ET.SubElement(case, "system-out").text = _sentence(change)
    for broken in result.broken:
        _say(_case(suite, broken), "error", "measured before, failed after")
    ET.SubElement(suite, "system-out").text = "\n".join([headline(result), *result.warnings])
    return _text(suite)


def of_checks(checks: Sequence[Check], run: str) -> str:
    """One suite: a test case a line of the table of expectations."""
    suite = ET.Element("testsuite", name=run)
    for check in checks:
        case = _case(suite, check.case)
        measured = check.measured
        seen = (
            f"{format_rate(measured.value)} GB/s {interval_text(measured, format_rate)}" if measured else "not measured"
        )
        wanted = f"{format_rate(check.expected)} GB/s less {check.tolerance * 100:g} %"
        text = f"{check.verdict}: busbw {seen}, expected {wanted}" + (f"; {check.note}" if check.note else "")
        if check.verdict == "PASS":
            ET.SubElement(case, "system-out").text = text
        else:
            _say(case, "error" if check.verdict == "MISSING" else "failure", text)
    return _text(suite)


def _sentence(change: Change) -> str:
    before, after, ratio = change.before, change.after, change.ratio
    text = (
        f"{change.verdict}: {format_seconds(before.value)} → {format_seconds(after.value)}, "
        f"ratio {ratio.value:.3f} {interval_text(ratio, '{:.3f}'.format)}"
    )
    more = f"about {change.further_launches} further launches would decide" if change.further_launches else ""
    return "; ".join(filter(None, [text, more, change.note]))


def _case(suite: ET.Element, case: Case) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"{case.op}.{case.backend}", name=case.key)


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
