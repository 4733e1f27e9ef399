"""Check a run against a table of expected bus bandwidths: a verdict for each line of the table.

In: `Expectations` and summaries. Out: `Check` values. The interval of the bus bandwidth is computed from the two ends
of the interval of the time; a line passes only if all of that interval does. Nothing is printed, nothing is dropped
silently: a line that was not measured is MISSING.
"""

from collections.abc import Sequence

from bench.comparisons import Check
from bench.conclusions import Interval, Summary
from bench.expected import Expectation, Expectations
from bench.operations import busbw
from bench.records import CASE_EXTRAS, Case

PASS, FAIL, INCONCLUSIVE, MISSING = "PASS", "FAIL", "INCONCLUSIVE", "MISSING"
# Fields of a case that may have any value, unless the line names one.
OPEN = ("reduce_op", "buffers", "sync")
# Fields never compared: depth follows from the metric; a case whose ranks share a GPU is MISSING with that reason.
FREE = ("depth", "oversubscribed")


def check(expected: Expectations, summaries: Sequence[Summary]) -> list[Check]:
    """One `Check` for each line and each case that it fits; a MISSING one for a line that fits no case."""
    checks: list[Check] = []
    for line in expected.expect:
        tolerance = expected.tolerance if line.tolerance is None else line.tolerance
        fitting = [summary for summary in summaries if _fits(line, summary.case)]
        checks += [_checked(line, tolerance, summary) for summary in fitting]
        if not fitting:
            checks.append(Check(_case(line), line.busbw, tolerance, None, MISSING, "not in this run"))
    return checks


def _fits(line: Expectation, case: Case) -> bool:
    wanted = _case(line)
    if (case.op, case.backend, case.world_size, case.dtype, case.size_bytes) != (
        wanted.op, wanted.backend, wanted.world_size, wanted.dtype, wanted.size_bytes,
    ):  # fmt: skip
        return False
    free = {*FREE, *(name for name in OPEN if getattr(line, name) is None)}
    return all(getattr(case, name) == getattr(wanted, name) for name in CASE_EXTRAS if name not in free)


def _case(line: Expectation) -> Case:
    """The case that a line describes; fields that it leaves out are at their defaults."""
    said = {name: getattr(line, name) for name in CASE_EXTRAS if getattr(line, name, None) is not None}
    return Case(line.operation, line.backend, line.world_size, line.dtype, line.size, **said)


def _checked(line: Expectation, tolerance: float, summary: Summary) -> Check:
    measured = _bandwidth(summary)
    if measured is None:
        shared = "ranks shared a GPU: no bandwidth is given" if summary.case.oversubscribed else "no time was measured"
        why = summary.failures[0].text if summary.failures else shared
        return Check(summary.case, line.busbw, tolerance, None, MISSING, why)
    if not measured.known:
        note = "one imported number: nothing is known of what it scatters by; import several launches"
        return Check(summary.case, line.busbw, tolerance, measured, INCONCLUSIVE, note)
    least = line.busbw * (1 - tolerance)
    if summary.launches < 2:
        note = "one launch: how launches differ is unknown, so it neither passes nor fails"
        return Check(summary.case, line.busbw, tolerance, measured, INCONCLUSIVE, note)
    verdict = PASS if measured.low >= least else FAIL if measured.high < least else INCONCLUSIVE
    return Check(summary.case, line.busbw, tolerance, measured, verdict)


def _bandwidth(summary: Summary) -> Interval | None:
    if summary.time_s is None:
        return None
    time_s = summary.time_s
    value, low, high = (busbw(summary.case, seconds) for seconds in (time_s.value, time_s.high, time_s.low))
    return Interval(value, low, high, time_s.kind) if value and low and high else None
