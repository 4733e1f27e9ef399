"""Check a run against a table of expected bus bandwidths: a verdict for the table and for each line.

In: `Expectations` and summaries. Out: a `CheckedTable`. All lines are tested together first: a machine that is exactly
as fast as expected would otherwise fail to pass a table of many lines, by the noise of one of them. Nothing is printed,
nothing is dropped silently: a line that was not measured is MISSING.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from bench.analyze.sessions import Place
from bench.catalog.operations import busbw
from bench.config.expected import OPEN, Expectation, Expectations
from bench.model.comparisons import Check, CheckedTable
from bench.model.conclusions import Interval, Summary
from bench.model.errors import UnmeasurableError
from bench.model.records import OPTIONS, Case
from bench.stats import verdicts
from bench.stats.intervals import CONFIDENCE, Floats

Places = Mapping[tuple[str, int], Place]

PASS, FAIL, INCONCLUSIVE, MISSING = "PASS", "FAIL", "INCONCLUSIVE", "MISSING"


def check(expected: Expectations, summaries: Sequence[Summary], places: Places = MappingProxyType({})) -> CheckedTable:
    """One `Check` for each line and each case that it fits; a MISSING one for a line that fits no case.

    places: where the ranks ran; lines that name hardware fit no case without it.

    The table passes if its index, the geometric mean of measured / expected less its tolerance, is surely 1 or
    more, no line fails, and no line is below its limit in its mean. A line fails if its interval, corrected for the
    number of lines, lies below its limit.
    """
    checks: list[Check] = []
    # Position of a check → logarithms of measured / least bus bandwidth, one a launch.
    margins: dict[int, Floats] = {}
    elsewhere = 0
    for line in expected.expect:
        placed = [s for s in summaries if _placed(line, s.case, places.get((s.case.backend, s.case.world_size)))]
        if not placed and _names_hardware(line):
            elsewhere += 1
            continue
        tolerance = _tolerance(line, expected)
        fitting = [summary for summary in placed if _fits(line, summary.case)]
        if line.size is None:
            # A line without a size is for the largest size, at each world size.
            largest: dict[int, int] = {}
            for case in (summary.case for summary in fitting):
                largest[case.world_size] = max(case.size_bytes, largest.get(case.world_size, 0))
            fitting = [s for s in fitting if s.case.size_bytes == largest[s.case.world_size]]
        for summary in fitting:
            rate, note, verdict = _bandwidth(summary)
            if not verdict:
                rates = [busbw(summary.case, seconds) or 0.0 for seconds in summary.means_s]
                margins[len(checks)] = np.log(np.array(rates) / (line.busbw * (1 - tolerance)))
            checks.append(Check(summary.case, line.busbw, tolerance, rate, verdict, note))
        if not fitting:
            checks.append(Check(_case(line), line.busbw, tolerance, None, MISSING, "not in this run"))
    index = _tested(checks, margins)
    verdict, reason = _of_table(checks, index)
    if elsewhere:
        reason += f"; {elsewhere} line{'s are' if elsewhere > 1 else ' is'} for other hardware"
    return CheckedTable(tuple(checks), verdict, reason, index)


def _bandwidth(summary: Summary) -> tuple[Interval | None, str, str]:
    """Measured bus bandwidth, and why it cannot be tested, with the verdict that follows; "" where it can."""
    measured = None
    if summary.time_s is not None:
        time_s = summary.time_s
        value, low, high = (busbw(summary.case, seconds) for seconds in (time_s.value, time_s.high, time_s.low))
        measured = Interval(value, low, high, time_s.kind) if value and low and high else None
    if measured is None:
        why = "ranks shared a GPU: no bandwidth is given" if summary.case.oversubscribed else "no time was measured"
        return None, summary.failures[0].text if summary.failures else why, MISSING
    if not measured.known:
        note = "one imported number: nothing is known of what it scatters by; import several launches"
        return measured, note, INCONCLUSIVE
    if summary.launches < 2:
        return measured, "one launch: how launches differ is unknown, so it neither passes nor fails", INCONCLUSIVE
    return measured, "", ""


def _tolerance(line: Expectation, expected: Expectations) -> float:
    """The share by which a line may be missed: its own, or the table's; a threshold may not be missed."""
    usual = 0.0 if line.kind == "threshold" else expected.tolerance
    return usual if line.tolerance is None else line.tolerance


def least_of_two_nodes(expected: Expectations, pair: Case, gpus: frozenset[str]) -> float:
    """The bus bandwidth that a table demands of two nodes. pair: what is measured of them. Raises UnmeasurableError.

    Lines are compared by operation, backend, GPU and ranks a node; sizes and metrics are not.
    """
    place = Place(gpus, 2)
    fitting = [
        line
        for line in expected.expect
        if (line.operation, line.backend, line.nodes) == (pair.op, pair.backend, 2) and _placed(line, pair, place)
    ]
    if not fitting:
        raise UnmeasurableError(f"no line of the table is for {pair.op} on {pair.backend} between two nodes like these")
    if len({line.busbw for line in fitting}) > 1:
        fabrics = " and ".join(str(line.fabric) for line in fitting)
        raise UnmeasurableError(f"the table has lines for {fabrics}, which nobody can tell apart here: use --least")
    return fitting[0].busbw * (1 - _tolerance(fitting[0], expected))


def _tested(checks: list[Check], margins: Mapping[int, Floats]) -> Interval | None:
    """Put the verdicts of the lines that can be tested into `checks`; returns the index of the table."""
    if not margins:
        return None
    estimates = verdicts.paired(list(margins.values()))
    half, _ = verdicts.half_width(estimates, 1 - CONFIDENCE)
    for position, margin, width in zip(margins, estimates.difference.tolist(), half.tolist(), strict=True):
        verdict = PASS if margin - width >= 0 else FAIL if margin + width < 0 else INCONCLUSIVE
        note = "above its limit in the mean" if verdict == INCONCLUSIVE and margin >= 0 else ""
        checks[position] = replace(checks[position], verdict=verdict, note=note)
    if len({len(logs) for logs in margins.values()}) > 1:
        return None
    together = verdicts.paired([np.mean(list(margins.values()), axis=0)])
    (width,), _ = verdicts.half_width(together, 1 - CONFIDENCE)
    middle = float(together.difference[0])
    low, value, high = (float(np.exp(middle + shift)) for shift in (-width, 0, width))
    return Interval(value, low, high, "over launches")


def _of_table(checks: Sequence[Check], index: Interval | None) -> tuple[str, str]:
    """Verdict and reason of the table."""
    of_lines = {check.verdict for check in checks}
    for grave, reason in ((FAIL, "a line surely misses its limit"), (MISSING, "a line was not measured")):
        if grave in of_lines:
            return grave, reason
    if of_lines == {PASS}:
        return PASS, "every line surely reaches its limit"
    if index is None:
        return INCONCLUSIVE, "lines are open, and cannot be tested together"
    open_ = [check for check in checks if check.verdict == INCONCLUSIVE]
    if index.low >= 1 and all(check.note.startswith("above") for check in open_):
        return PASS, "the table as a whole surely reaches its limits, and each line does in its mean"
    return INCONCLUSIVE, "a line is below its limit in its mean" if index.low >= 1 else "the whole is not sure"


def _names_hardware(line: Expectation) -> bool:
    return not (line.gpu is None and line.nodes is None and line.ranks_per_node is None)


def _placed(line: Expectation, case: Case, place: Place | None) -> bool:
    """Whether the ranks ran on the hardware that the line names, if it names one."""
    if not _names_hardware(line):
        return True
    if place is None:
        return False
    return (
        (line.gpu is None or all(re.search(rf"\b{re.escape(line.gpu)}", name, re.IGNORECASE) for name in place.gpus))
        and line.nodes in {None, place.hosts}
        and line.ranks_per_node in {None, case.world_size / place.hosts}
    )


def _fits(line: Expectation, case: Case) -> bool:
    wanted = _case(line)
    if (case.op, case.backend, case.dtype) != (wanted.op, wanted.backend, wanted.dtype):
        return False
    if line.world_size not in {None, case.world_size} or line.size not in {None, case.size_bytes}:
        return False
    free = {name for name in OPEN if getattr(line, name) is None}
    # What the plan sets is not compared: depth follows from the metric; a case whose ranks share a GPU is MISSING.
    compared = (option.name for option in OPTIONS if option.key and option.name not in free)
    return all(getattr(case, name) == getattr(wanted, name) for name in compared)


def _case(line: Expectation) -> Case:
    """The case that a line describes; fields that it leaves out are at their defaults."""
    named = ((option.name, getattr(line, option.name)) for option in OPTIONS if option.key)
    options = {name: value for name, value in named if value is not None}
    ranks = line.world_size or (line.nodes or 1) * (line.ranks_per_node or 1)
    return Case(line.operation, line.backend, ranks, line.dtype, line.size or 0, **options)
