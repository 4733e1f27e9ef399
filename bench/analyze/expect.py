"""Check a run against a table of expected bus bandwidths: a verdict for the table and for each line.

In: `Expectations` and summaries. Out: a `CheckedTable`. All lines are tested together first: a machine that is exactly
as fast as expected would otherwise fail to pass a table of many lines, by the noise of one of them. Nothing is printed,
nothing is dropped silently: a line that was not measured is MISSING.
"""

from collections.abc import Sequence

import numpy as np

from bench.analyze import verdicts
from bench.comparisons import Check, CheckedTable
from bench.conclusions import Interval, Summary
from bench.expected import Expectation, Expectations
from bench.intervals import Floats
from bench.operations import busbw
from bench.records import CASE_EXTRAS, Case

PASS, FAIL, INCONCLUSIVE, MISSING = "PASS", "FAIL", "INCONCLUSIVE", "MISSING"
# Fields of a case that may have any value, unless the line names one.
OPEN = ("reduce_op", "buffers", "sync")
# Fields never compared: depth follows from the metric; a case whose ranks share a GPU is MISSING with that reason.
FREE = ("depth", "oversubscribed")


def check(expected: Expectations, summaries: Sequence[Summary]) -> CheckedTable:
    """One `Check` for each line and each case that it fits; a MISSING one for a line that fits no case.

    The table passes if its index, the weighted geometric mean of measured / expected less its tolerance, is surely 1 or
    more, no line fails, and no line is below its limit in its mean. A line fails if its interval, corrected for the
    number of lines, lies below its limit.
    """
    checks: list[Check] = []
    tested: list[tuple[int, Floats]] = []
    for line in expected.expect:
        tolerance = expected.tolerance if line.tolerance is None else line.tolerance
        fitting = [summary for summary in summaries if _fits(line, summary.case)]
        for summary in fitting:
            one = _checked(line, tolerance, summary)
            if one.verdict == PASS:  # until it is tested
                tested.append((len(checks), _logs(summary, line.busbw * (1 - tolerance))))
            checks.append(one)
        if not fitting:
            checks.append(Check(_case(line), line.busbw, tolerance, None, MISSING, "not in this run"))
    index = _tested(checks, tested)
    return CheckedTable(tuple(checks), *_of_table(checks, index), index)


def _tested(checks: list[Check], tested: Sequence[tuple[int, Floats]]) -> Interval | None:
    """Put the verdicts of the lines that can be tested into `checks`; returns the index of the table."""
    if not tested:
        return None
    margins = [logs for _, logs in tested]
    estimates = verdicts.paired(margins)
    half = verdicts.half_width(estimates, verdicts.ERROR_RATE)
    for (at, _), margin, width in zip(tested, estimates.difference.tolist(), half.tolist(), strict=True):
        verdict = PASS if margin - width >= 0 else FAIL if margin + width < 0 else INCONCLUSIVE
        note = "above its limit in the mean" if verdict == INCONCLUSIVE and margin >= 0 else ""
        old = checks[at]
        checks[at] = Check(old.case, old.expected, old.tolerance, old.measured, verdict, note)
    if len({len(logs) for logs in margins}) > 1:
        return None
    together = verdicts.paired([np.asarray(verdicts.weights(estimates) @ np.array(margins))])
    (width,) = verdicts.half_width(together, verdicts.ERROR_RATE).tolist()
    middle = float(together.difference[0])
    low, value, high = (float(np.exp(middle + shift)) for shift in (-width, 0, width))
    return Interval(value, low, high, "over launches")


def _of_table(checks: Sequence[Check], index: Interval | None) -> tuple[str, str]:
    """Verdict and reason of the table."""
    found = {one.verdict for one in checks}
    for grave, reason in ((FAIL, "a line surely misses its limit"), (MISSING, "a line was not measured")):
        if grave in found:
            return grave, reason
    if found == {PASS}:
        return PASS, "every line surely reaches its limit"
    if index is None:
        return INCONCLUSIVE, "lines are open, and cannot be tested together"
    open_ = [one for one in checks if one.verdict == INCONCLUSIVE]
    if index.low >= 1 and all(one.note.startswith("above") for one in open_):
        return PASS, "the table as a whole surely reaches its limits, and each line does in its mean"
    return INCONCLUSIVE, "a line is below its limit in its mean" if index.low >= 1 else "the whole is not sure"


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
    """The line without a test: PASS stands for a line that can be tested."""
    measured = _bandwidth(summary)
    if measured is None:
        shared = "ranks shared a GPU: no bandwidth is given" if summary.case.oversubscribed else "no time was measured"
        why = summary.failures[0].text if summary.failures else shared
        return Check(summary.case, line.busbw, tolerance, None, MISSING, why)
    if not measured.known:
        note = "one imported number: nothing is known of what it scatters by; import several launches"
        return Check(summary.case, line.busbw, tolerance, measured, INCONCLUSIVE, note)
    if summary.launches < 2:
        note = "one launch: how launches differ is unknown, so it neither passes nor fails"
        return Check(summary.case, line.busbw, tolerance, measured, INCONCLUSIVE, note)
    return Check(summary.case, line.busbw, tolerance, measured, PASS)


def _logs(summary: Summary, least: float) -> Floats:
    """Logarithms of measured / least bus bandwidth, one a launch."""
    rates = [busbw(summary.case, seconds) or 0.0 for seconds in summary.medians_s]
    return np.log(np.array(rates) / least)


def _bandwidth(summary: Summary) -> Interval | None:
    if summary.time_s is None:
        return None
    time_s = summary.time_s
    value, low, high = (busbw(summary.case, seconds) for seconds in (time_s.value, time_s.high, time_s.low))
    return Interval(value, low, high, time_s.kind) if value and low and high else None
