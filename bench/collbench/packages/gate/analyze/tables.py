"""Check a run against a table of expected bus bandwidths: a verdict for the table and for each line.

In: `Expectations` and summaries. Out: a `CheckedTable`. All lines are tested together first: otherwise, a machine that
is exactly as fast as expected would fail to pass a table of many lines, because of the noise of one line. Nothing is
printed, and nothing is dropped silently: a line that was not measured is MISSING.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from collbench.analyze.sessions import Place
from collbench.catalog.collectives import busbw
from collbench.model.conclusions import Interval, IntervalKind, Summary
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.notices import Kind, Notice
from collbench.model.projection import grouped
from collbench.model.records import OPTIONS, Case
from collbench.model.units import counted
from collbench.packages.gate.conclusions import Check, CheckedTable, CheckVerdict
from collbench.packages.gate.config import OPEN, Expectation, Expectations
from collbench.stats import verdicts
from collbench.stats.intervals import CONFIDENCE, Floats

Places = Mapping[tuple[str, int], Place]

# Words in the names of other boards: an H100 PCIe or NVL is not the H100 of eight-way servers.
OTHER_BOARD = re.compile(r"PCIe|\bNVL\b", re.IGNORECASE)
PASS, FAIL, INCONCLUSIVE, MISSING = CheckVerdict
NOT_IN_RUN = Kind("not-in-run", "not in this run")


def check(expected: Expectations, summaries: Sequence[Summary], places: Places = MappingProxyType({})) -> CheckedTable:
    """Return one `Check` per line and case that it fits, and the verdict; a line that fits no case is MISSING.

    places: where the ranks ran; without it, lines that name hardware fit no case. Raises ConfigError if the table is
    for other hardware, or has lines for several networks on this hardware, which cannot be distinguished.

    The table passes if the lower bound of its index, the geometric mean of measured / least allowed bandwidth, is at
    least 1, no line fails or is missing, and every line is above its limit on average. A line fails if its interval,
    corrected for the number of lines, is below its limit.
    """
    _check_hardware(expected, summaries, places)
    checks: list[Check] = []
    # Position of a check → logarithms of measured / least bus bandwidth, one per launch.
    margins: dict[int, Floats] = {}
    elsewhere = 0
    for line in expected.expect:
        placed = [s for s in summaries if _placed(line, s.case, places.get((s.case.backend, s.case.world_size)))]
        if not placed and line.names_hardware:
            elsewhere += 1
            continue
        tolerance, wanted = expected.tolerance_of(line), _wanted(line)
        fitting = [s for s in placed if all(getattr(s.case, name) == value for name, value in wanted.items())]
        if line.size is None:  # the line is for the largest size, at each world size
            by_ranks = grouped(fitting, lambda s: s.case.world_size)
            largest = {ranks: max(s.case.size_bytes for s in several) for ranks, several in by_ranks.items()}
            fitting = [s for s in fitting if s.case.size_bytes == largest[s.case.world_size]]
        for summary in fitting:
            rate, note, verdict = _bandwidth(summary)
            if verdict is None:
                verdict = INCONCLUSIVE  # until `_tested` decides
                rates = [busbw(summary.case, seconds) or 0.0 for seconds in summary.means_s]
                margins[len(checks)] = np.log(np.array(rates) / expected.least(line))
            checks.append(Check(summary.case, verdict, line.busbw, tolerance, rate, note, line.source))
        if not fitting:
            ranks = (line.nodes or 1) * (line.ranks_per_node or 1)
            case = Case(**{"world_size": ranks, "size_bytes": 0, **wanted})
            checks.append(Check(case, MISSING, line.busbw, tolerance, None, NOT_IN_RUN(), line.source))
    index = _tested(checks, margins)
    open_notes = [check.note for check in checks if check.verdict == INCONCLUSIVE]
    above = all(note is not None and note.kind is ABOVE_ON_AVERAGE for note in open_notes)
    facts = SimpleNamespace(lines={check.verdict for check in checks}, index=index, all_above=above)
    verdict, reason = next((verdict, reason) for holds, verdict, reason in _VERDICTS if holds(facts))
    return CheckedTable(tuple(checks), verdict, reason(elsewhere=elsewhere), index)


def lines_for_fabric(expected: Expectations, word: str) -> Expectations:
    """Return the lines of one network, and the lines without a network. Raises ConfigError if no line names it."""
    named = [line for line in expected.expect if line.fabric and word.lower() in line.fabric.lower()]
    if not named:
        fabrics = dict.fromkeys(line.fabric for line in expected.expect if line.fabric)
        raise ConfigError(f"no line of the table is for the network {word}; it has {', '.join(fabrics) or 'none'}")
    return expected.model_copy(
        update={"expect": [line for line in expected.expect if line in named or not line.fabric]}
    )


def _check_hardware(expected: Expectations, summaries: Sequence[Summary], places: Places) -> None:
    """Raise ConfigError if a table is for other hardware than these cases, or for several networks of this hardware."""
    if not all(line.names_hardware for line in expected.expect):
        return
    where = {(s.case.backend, s.case.world_size): s.case for s in summaries}
    applicable = [
        [line for line in expected.expect if line.backend == case.backend and _placed(line, case, places.get(key))]
        for key, case in where.items()
    ]
    if not any(applicable):
        here = dict.fromkeys(_here(case, places.get(key)) for key, case in where.items())
        this = " and ".join(here) or "a run without a measured case"
        raise ConfigError(f"for {_hardware(expected.expect)}; this is {this}")
    for placed in applicable:
        for lines in grouped(placed, lambda line: line.operation).values():
            if len({line.fabric for line in lines}) > 1:
                names = " and ".join(dict.fromkeys(str(line.fabric) for line in lines))
                raise ConfigError(f"for this hardware it has lines of {names}: name the network, TABLE:NETWORK")


def _hardware(lines: Sequence[Expectation]) -> str:
    """Return the hardware of lines, such as `8×H100 or 2 nodes of 4×GB200 on nccl`."""
    *most, last = dict.fromkeys(_devices(line.nodes, line.ranks_per_node, line.gpu or "ranks") for line in lines)
    backends = " and ".join(dict.fromkeys(line.backend for line in lines))
    return f"{', '.join(most)}{' or ' if most else ''}{last} on {backends}"


def _here(case: Case, place: Place | None) -> str:
    """Return the hardware of a run, in the words of `_hardware`."""
    if place is None:
        return f"{counted(case.world_size, 'rank')} on {case.backend}, on hardware that the run does not tell"
    names = " and ".join(sorted(place.gpus)) or "unknown devices"
    return f"{_devices(place.hosts, case.world_size // place.hosts, names)} on {case.backend}"


def _devices(nodes: int | None, ranks: int | None, name: str) -> str:
    several = f"{nodes} nodes of " if nodes and nodes > 1 else ""
    return several + (f"{ranks}×" if ranks else "") + name


LINE_FAILED = Kind("line-failed", "{why}")
NO_BANDWIDTH = Kind("no-bandwidth", "ranks shared a GPU: no bandwidth is given")
NO_TIME = Kind("no-time", "no time was measured")
ONE_NUMBER = Kind("one-number", "one imported number: its variation is unknown", "import several launches")
FEW_LAUNCHES_OF_LINE = Kind(
    "few-launches-of-line", "fewer than {fewest} launches: too few to know the variation of launches"
)


def _bandwidth(summary: Summary) -> tuple[Interval | None, Notice | None, CheckVerdict | None]:
    """Return the measured bus bandwidth, and a notice and a verdict if it cannot be tested; both None if it can."""
    measured = None
    if (time_s := summary.time_s) is not None:
        value, low, high = (busbw(summary.case, seconds) for seconds in (time_s.value, time_s.high, time_s.low))
        measured = Interval(value, low, high, time_s.kind) if value and low and high else None
    if measured is None and summary.failures:
        return None, LINE_FAILED(why=summary.failures[0].text), MISSING
    if measured is None:
        return None, (NO_BANDWIDTH if summary.case.oversubscribed else NO_TIME)(), MISSING
    if not measured.known:
        return measured, ONE_NUMBER(), INCONCLUSIVE
    if summary.launches < verdicts.FEWEST_LAUNCHES:
        return measured, FEW_LAUNCHES_OF_LINE(fewest=verdicts.FEWEST_LAUNCHES), INCONCLUSIVE
    return measured, None, None


def least_of_two_nodes(expected: Expectations, pair: Case, gpus: frozenset[str]) -> float:
    """Return the bus bandwidth that a table demands of two nodes. pair: the case that measures them.

    Lines match by operation, backend, GPU and ranks per node, not by size or metric. Raises ConfigError if no line
    matches, UnmeasurableError if matching lines for several networks have different rates.
    """
    place = Place(gpus, 2)
    fitting = [
        line
        for line in expected.expect
        if (line.operation, line.backend, line.nodes) == (pair.op, pair.backend, 2) and _placed(line, pair, place)
    ]
    if not fitting:
        operations = dict.fromkeys(line.operation for line in expected.expect)
        if pair.op not in operations:
            raise ConfigError(f"--against: no line of the table is for {pair.op}; it has {', '.join(operations)}")
        raise ConfigError(f"--against: for {_hardware(expected.expect)}; this is {_here(pair, place)}")
    if len({line.busbw for line in fitting}) > 1:
        names = " and ".join(dict.fromkeys(str(line.fabric) for line in fitting))
        remedy = "give the rate itself, such as --against '250 GB/s'"
        raise UnmeasurableError(f"the table has lines for {names}, which cannot be distinguished here: {remedy}")
    return expected.least(fitting[0])


ABOVE_ON_AVERAGE = Kind("above-on-average", "above its limit on average")


def _tested(checks: list[Check], margins: Mapping[int, Floats]) -> Interval | None:
    """Put the verdicts of the lines that can be tested into `checks`, and return the index of the table."""
    if not margins:
        return None
    estimates = verdicts.paired(list(margins.values()))
    half, _ = verdicts.half_width(estimates, 1 - CONFIDENCE)
    for position, margin, width in zip(margins, estimates.difference.tolist(), half.tolist(), strict=True):
        verdict = PASS if margin - width >= 0 else FAIL if margin + width < 0 else INCONCLUSIVE
        note = ABOVE_ON_AVERAGE() if verdict == INCONCLUSIVE and margin >= 0 else None
        checks[position] = replace(checks[position], verdict=verdict, note=note)
    if len({len(logs) for logs in margins.values()}) > 1:
        return None
    together = verdicts.paired([np.mean(list(margins.values()), axis=0)])
    (width,), _ = verdicts.half_width(together, 1 - CONFIDENCE)
    middle = float(together.difference[0])
    low, value, high = (float(np.exp(middle + shift)) for shift in (-width, 0, width))
    return Interval(value, low, high, IntervalKind.OVER_LAUNCHES)


_ELSEWHERE = "{elsewhere:after ; lines for other hardware: }"
# The first that holds gives the verdict on a table, and the reason.
_VERDICTS: tuple[tuple[Callable[[Any], object], CheckVerdict, Kind], ...] = (
    (lambda f: FAIL in f.lines, FAIL, Kind("a-line-misses", f"a line surely misses its limit{_ELSEWHERE}")),
    (lambda f: MISSING in f.lines, MISSING, Kind("a-line-missing", f"a line was not measured{_ELSEWHERE}")),
    (lambda f: f.lines == {PASS}, PASS, Kind("all-reach", f"every line surely reaches its limit{_ELSEWHERE}")),
    (lambda f: f.index is None, INCONCLUSIVE,
     Kind("not-together", f"lines are open, and cannot be tested together{_ELSEWHERE}")),
    (lambda f: f.index.low >= 1 and f.all_above, PASS,
     Kind("table-reaches", "the table as a whole surely reaches its limits, and each line does on average"
          f"{_ELSEWHERE}")),
    (lambda f: f.index.low >= 1, INCONCLUSIVE,
     Kind("a-line-below", f"a line is below its limit on average{_ELSEWHERE}")),
    (lambda f: True, INCONCLUSIVE, Kind("table-open", f"the table as a whole is open{_ELSEWHERE}")),
)  # fmt: skip


def _placed(line: Expectation, case: Case, place: Place | None) -> bool:
    """Return whether the ranks ran on the hardware that the line names; True if it names none."""
    if place is None or not line.names_hardware:
        return not line.names_hardware
    gpus = line.gpu is None or (bool(place.gpus) and all(_is_gpu(line.gpu, name) for name in place.gpus))
    return gpus and line.nodes in {None, place.hosts} and line.ranks_per_node in {None, case.world_size / place.hosts}


def _is_gpu(word: str, name: str) -> bool:
    """Return whether a GPU is of the kind that a line names. Boards without NVSwitch are a separate kind."""
    boards = [OTHER_BOARD.search(text) is not None for text in (word, name)]
    return re.search(rf"\b{re.escape(word)}", name, re.IGNORECASE) is not None and boards[0] == boards[1]


def _wanted(line: Expectation) -> dict[str, Any]:
    """Return the fields that a case must have; fields that may have any value are left out.

    Options of the plan are not among them: depth follows from the metric; a case whose ranks share a GPU is MISSING.
    """
    options = {option.name: line.option(option.name) for option in OPTIONS if option.key}
    sizes = {"world_size": line.world_size, "size_bytes": line.size}
    fields = {"op": line.operation, "backend": line.backend, "dtype": line.dtype, **sizes, **options}
    return {name: value for name, value in fields.items() if value is not None or name not in {*sizes, *OPEN}}
