"""Write runs and comparisons as JUnit XML, which continuous-integration services show.

In: the view of a run, or a comparison of runs. Out: text that fits the schema of Ant's tasks and junit-10 of Jenkins.
There is a failure or an error exactly if the exit code is 1. Failures are verdicts that exit with 1, and cases of a run
that failed in a launch. Errors are cases that were measured before and failed after, and checks of something that was
not measured. Skipped are INCONCLUSIVE if it is not a failure, and cases that were not measured.
"""

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from collbench import __version__
from collbench.model.comparisons import Change, ChangeVerdict, Comparison
from collbench.model.notices import Notice
from collbench.model.records import Case
from collbench.model.units import format_seconds
from collbench.model.visible import visible
from collbench.report import wording
from collbench.report.comparison import direction, headline, judgement_text
from collbench.report.labels import counted, interval_text, on_both_sides, with_interval
from collbench.report.notices import sentence
from collbench.report.view import View


class JUnitSuite:
    """A suite of test cases: `add` adds a case, `text` writes the suite.

    name: name of the run or the comparison. started: when it was measured; None for now. host: localhost if unknown.
    """

    def __init__(self, name: str, started: str | None = None, host: object = None) -> None:
        moment = datetime.fromisoformat(started).astimezone(UTC) if started else datetime.now(UTC)
        self._element = ET.Element(
            "testsuite",
            name=name,
            package="collbench",
            id="0",
            timestamp=f"{moment:%Y-%m-%dT%H:%M:%S}",  # the schema of Ant's tasks allows no time zone
            hostname=str(host or "localhost"),
        )
        ET.SubElement(ET.SubElement(self._element, "properties"), "property", name="collbench", value=__version__)
        self._said: list[str] = []
        self._seconds = 0.0

    def add(self, where: str, name: str, kind: str, text: str, type: str = "", seconds: float = 0.0) -> None:  # noqa: A002
        """Add a test case with its outcome: failure, error or skipped; "" if the case is good.

        type: the verdict or the kind of failure. seconds: how long the case was measured.
        """
        case = ET.SubElement(self._element, "testcase", classname=where, name=name, time=f"{seconds:.3f}")
        self._seconds += seconds
        if kind == "skipped":
            ET.SubElement(case, kind, message=text)
        elif kind:
            ET.SubElement(case, kind, message=text, type=type or kind)
        else:
            self._said.append(f"{name}: {text}")

    def text(self, notices: str = "") -> str:
        """Return the suite with its counts, as XML that every parser accepts. notices: lines on the whole suite."""
        suite = self._element
        ET.SubElement(suite, "system-out").text = "\n".join(filter(None, [notices, *self._said]))
        ET.SubElement(suite, "system-err")
        suite.set("tests", str(len(suite.findall("testcase"))))
        suite.set("time", f"{self._seconds:.3f}")
        for plural, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(plural, str(len(suite.findall(f"testcase/{kind}"))))
        suites = ET.Element("testsuites")
        suites.append(suite)
        for element in suites.iter():
            element.text = visible(element.text or "") or None
            element.attrib.update({name: visible(value) for name, value in element.attrib.items()})
        ET.indent(suites)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def to_junit(view: View) -> str:
    """Return one suite for a run, with each case: tried, skipped or not tried."""
    run = view.run
    host = run.environment[0].get("host", {}).get("hostname") if run.environment else None
    suite = JUnitSuite(run.name, run.manifest.get("started"), host)
    seconds: dict[str, float] = defaultdict(float)
    for samples in run.samples:
        seconds[samples.case.key] += samples.usage.wall_s if samples.usage is not None else 0.0
    tried = set()
    for summary in view.analysis.summaries:
        key = summary.case.key
        tried.add(key)
        text = counted(summary.launches, "launch")
        if summary.time_s is not None:
            text = f"{with_interval(summary.time_s, format_seconds)}, {text}"
        failures = "; ".join(dict.fromkeys(failure.text for failure in summary.failures))
        result = "; ".join(filter(None, [failures, text]))
        type_ = summary.failures[0].kind if summary.failures else ""
        suite.add(class_of(summary.case), key, "failure" if failures else "", result, type_, seconds[key])
    left = [(skip.case, sentence(skip.reason)) for skip in run.plan.skips]
    left += [(case, "not tried") for case in run.plan.cases]
    for case, reason in left:
        if case.key not in tried:
            tried.add(case.key)
            suite.add(class_of(case), case.key, "skipped", reason)
    return suite.text(_notices_text(view.analysis.notices))


def comparison_junit(result: Comparison) -> str:
    """Return one suite: the run as a whole, common cases, cases that failed only after, and cases timed only before."""
    suite = JUnitSuite(f"{result.before} → {result.after}")
    rows = [(class_of(change.case), change.case.key, change.verdict, _sentence(change)) for change in result.changes]
    if result.whole is not None:
        index = f"{result.whole.verdict}: index over all cases, {judgement_text(result.whole)}"
        rows.insert(0, ("all", "the run as a whole", result.whole.verdict, index))
    for where, name, verdict, text in rows:
        kind = "skipped" if verdict == ChangeVerdict.INCONCLUSIVE else ""
        suite.add(where, name, "failure" if verdict in result.fail_on else kind, text, verdict)
    for case in result.broken:
        text = f"measured before, failed after: {wording.absence(case)}"
        suite.add(class_of(case.case), case.case.key, "error", text)
    for case in result.only_before:
        suite.add(class_of(case.case), case.case.key, "skipped", f"only before: {wording.absence(case)}")
    return suite.text(f"{headline(result)}\n{_notices_text(result.notices)}".strip())


def _sentence(change: Change) -> str:
    """Return verdict, times, ratio with its interval, p, reason, further launches, time over the reference."""
    times = f"{change.verdict}: {format_seconds(change.before.value)} → {format_seconds(change.after.value)}"
    further = change.judgement.further_launches
    more = f"about {further} further launches would decide" if further else ""
    exposed = ""
    if change.exposed is not None:
        difference = change.exposed.difference
        size = f"{format_seconds(difference.value)} {interval_text(difference, format_seconds)}"
        exposed = f"over the reference {direction(change.exposed)}: {size}"
    sides = on_both_sides(change) if change.case.key != change.other.key else ""
    return "; ".join(filter(None, [f"{times}, {judgement_text(change.judgement)}", more, exposed, sides]))


def _notices_text(notices: Sequence[Notice]) -> str:
    """Return a line for each notice, with its kind in brackets."""
    return "\n".join(f"[{notice.kind}] {sentence(notice)}" for notice in notices)


def class_of(case: Case) -> str:
    """Return the class name under which JUnit sorts a case."""
    return f"{case.op}.{case.backend}"
