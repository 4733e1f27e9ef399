"""Read the output of nccl-tests and rccl-tests, text or JSON: one `Number` for each placement of each row.

In: a `Source`. Out: a `ReadFile`. The times in the file are used unchanged; its bandwidths only serve to find or check
the number of ranks and the meaning of size. `nccl_text` and `nccl_json` parse the layouts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from collbench.catalog.collectives import OPERATIONS, usual
from collbench.catalog.dtypes import dtype_named
from collbench.catalog.subgroups import of_colours
from collbench.model.divisions import WORLD, Division, Splits
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice
from collbench.model.records import Aggregate, Case, Failure
from collbench.model.units import US
from collbench.packages.interop import catalog as theirs
from collbench.packages.interop.importers import nccl_json, nccl_text, readings
from collbench.packages.interop.importers.logs import LogLine
from collbench.packages.interop.importers.nccl_json import AVERAGES
from collbench.packages.interop.importers.nccl_text import Half, Row, Section
from collbench.packages.interop.importers.readings import LEFT_OUT, Number, Options, ReadFile, Source

BACKEND = "nccl"
# Beginning of CollBench's own output in nccl-tests' layout. Its times have another meaning, and the run has more data.
OURS = "# CollBench version "
DEFAULT_REDUCE_OP = "sum"
# With -z 3 a time begins when its process calls; else it lasts from one call to the next (`BenchTime` in common.cu).
APART = "barrier outside"
BLOCKING = {
    "": " back to back",
    "barrier": ", each waited for and followed by a barrier that is part of the time",
    "no barrier": ", each waited for",
    APART: ", each waited for and followed by a barrier that is not part of the time",
}
# A log line may begin with a bracket too: [1,0]<stdout>.
_JSON = re.compile(r"\s*(?:\{|\[\s*[{\]])")
# Limit of busbw/algbw for many ranks: for all_reduce, and for all other operations.
TWICE, ONCE = 2.0, 1.0


def read(source: Source, options: Options) -> ReadFile:
    """Read all executions in one file. Raises ForeignError if there is none, or if a necessary fact is missing."""
    reading = ReadFile()
    where = str(source.path)
    lines = source.lines()
    if any(line.text.startswith(OURS) for line in lines):
        raise ForeignError(f"{where}: CollBench wrote it, from a run of its own: use that run ({OURS}…; run NAME)")
    sections = _sections(source, lines)
    measured = [section for section in sections if section.rows]
    for section in sections:
        reading.left_out[readings.UNREADABLE_ROWS()] += section.cut
        reading.unread += section.unread
    if not measured:
        tests = [section.test for section in sections if section.test]
        cut = f": its rows cannot be read, such as line {reading.unread[0].number}" if reading.unread else ""
        ended = f": {tests[0]}_perf ended before its first row" if tests else " of nccl-tests in it"
        raise ForeignError(f"{where}: no table of results{cut or ended}")
    for section in measured:
        _read_section(section, options, source, reading)
    return reading


def _sections(source: Source, lines: Sequence[LogLine]) -> list[Section]:
    """Return the executions, from the tools' JSON, else from text: a collector's log also begins like JSON."""
    where, failure = str(source.path), None
    if _JSON.match(source.text):
        try:
            return nccl_json.sections(source.text, where)
        except ForeignError as error:
            failure = error
    sections = nccl_text.sections(lines, where)
    if failure is not None and not any(section.rows or section.cut for section in sections):
        raise failure
    return sections


COPIES = Kind(
    "copies",
    "{copies} copies ran at the same time, each with {ranks:count rank} of its own (a test built without MPI): "
    "their rows count as launches, and none of them measures communication between the copies",
)
OPERATION_BY_NAME = Kind(
    "operation-by-name", "unknown: the collective is not in the file: it was taken from the file's name"
)
RANKS_BY_RATES = Kind(
    "ranks-by-rates", "unknown: the list of ranks is not in the file: their number was computed from busbw/algbw"
)
CPU_TIME = Kind("cpu-time", f"{LEFT_OUT}CPU time of issuing the calls (-C 1), not the time of the operation")
UNNAMED_DIVISION = Kind("unnamed-division", f"{LEFT_OUT}NCCL_TESTS_SPLIT divided the ranks in an unsupported way")
CONTRADICTION = Kind("contradiction", f"{LEFT_OUT}numbers of the row contradict each other, or the test")


def _read_section(section: Section, options: Options, source: Source, reading: ReadFile) -> None:
    """Add the numbers of one execution."""
    reading.rows += len(section.rows)
    reading.tools.append(section.tool or "nccl-tests of unknown version")
    stated = theirs.operation_of(section.test) if section.test is not None else None
    if section.test is not None and stated is None:
        reading.left_out[readings.NO_COUNTERPART(test=f"{section.test}_perf")] += len(section.rows)
        return
    if section.cpu_time:
        reading.left_out[CPU_TIME()] += len(section.rows)
        return
    if stated is None and options.operation is None and (stated := readings.operation_in(source.name)) is not None:
        reading.unknown.append(OPERATION_BY_NAME())
    op = options.chosen("operation", stated, source)
    ranks = _ranks(section, op, options, source, reading)
    division = of_colours([section.colours.get(rank, -1) for rank in range(ranks)]) if section.divided else WORLD
    if division.sets:
        reading.left_out[UNNAMED_DIVISION()] += len(section.rows)
        return
    _describe(section, ranks, reading)
    together = ranks // len(set(section.colours.values()) or {0})
    rows = []
    for row in section.rows:
        if (objection := _objection(row, section, op, ranks, together)) is not None:
            reading.left_out[objection] += 1
        else:
            rows.append(row)
    _check_rates(rows, op, together, reading)
    for row in rows:
        case = _case(row, section, op, ranks, division)
        if section.test == theirs.UNEVEN_TEST:
            reading.notes.append(BUSIEST_RANK())
            if theirs.SPREAD not in section.variables and section.dropped is None:
                reading.unknown.append(SPREAD_ASSUMED(variable=theirs.SPREAD, spread=theirs.DEFAULT_SPREAD))
            spread = round(_spread(section), 6)
            case = replace(case, splits=Splits("distance", spread) if spread else None)
        reading.numbers += _numbers(row, section, case, reading)


def _ranks(section: Section, op: str, options: Options, source: Source, reading: ReadFile) -> int:
    """Return the number of ranks: from the list of devices, else from busbw/algbw if this ratio depends on it alone."""
    listed, computed = section.world_size, None
    if section.copies > 1:
        reading.notes.append(COPIES(copies=section.copies, ranks=listed))
    fixed = readings.bus_factor(op, 2) == readings.bus_factor(op, 4)
    if not fixed and not section.divided and section.test != theirs.UNEVEN_TEST:
        halves = [half for row in section.rows for half in row.halves]
        rates = ((half.algbw, half.busbw) for half in halves if half.algbw and half.busbw)
        computed = readings.ranks_by_rates(rates, TWICE if op == "all_reduce" else ONCE)
    if listed is None and computed is not None:
        reading.unknown.append(RANKS_BY_RATES())
    elif computed not in {None, listed}:
        if options.world_size is None:
            different = f"lists {listed} ranks, but busbw is for {computed}; give their number: --world-size N"
            raise ForeignError(f"{source.path}: {different}")
        return options.chosen("world_size", None, source)
    return options.chosen("world_size", computed if listed is None else listed, source)


BUSIEST_RANK = Kind(
    "busiest-rank",
    "alltoallv_perf: the bus bandwidth here counts the bytes that the busiest rank sends to others; the tool "
    "counts (n-1)/n of all its bytes, however many stay on it",
)
SPREAD_ASSUMED = Kind(
    "spread-assumed", "unknown: {variable}, how alltoallv_perf divided: the tool's default, {spread:g}, is assumed"
)
_UNEVEN = f"{LEFT_OUT}alltoallv_perf"
OTHER_DIVISION = Kind("other-division", f"{_UNEVEN} of rccl-tests, which divides data in its own way")
MATRIX_OF_BYTES = Kind("matrix-of-bytes", f"{_UNEVEN} with a matrix of bytes, which is not in the file")
NOT_BY_SPREAD = Kind(
    "not-by-spread", f"{_UNEVEN}: sizes do not follow from a spread of {{spread:g}}, so its division is unknown"
)
NEGATIVE_SIZE = Kind("negative-size", f"{LEFT_OUT}a negative size: integer overflow")
OTHER_REDUCE_OP = Kind("other-reduce-op", f"{LEFT_OUT}reduce op {{reduce_op:.40}}, which CollBench does not have")
STRANGE_ROOT = Kind("strange-root", f"{LEFT_OUT}a root that is not one of the ranks")


def _objection(row: Row, section: Section, op: str, ranks: int, together: int) -> Notice | None:
    """Return why a row cannot be a case: it has no counterpart, or its numbers contradict each other or the test."""
    operation = OPERATIONS[op]
    if row.size <= 0:
        return NEGATIVE_SIZE() if row.size else readings.SIZE_0()
    if row.dtype not in readings.DTYPES:
        return readings.OTHER_DTYPE(dtype=row.dtype)
    if row.redop not in {*theirs.REDUCE_OPS, theirs.NO_REDUCE_OP}:
        return OTHER_REDUCE_OP(reduce_op=row.redop)
    if operation.rooted and (row.root or 0) >= ranks:
        return STRANGE_ROOT()
    itemsize = dtype_named(readings.DTYPES[row.dtype]).itemsize
    if section.test == theirs.UNEVEN_TEST:
        if "rccl" in (section.tool or ""):
            return OTHER_DIVISION()
        if theirs.MATRIX_FILE in section.variables or row.count == 0:
            return MATRIX_OF_BYTES()
        follows = theirs.uneven_bytes(together, row.count, itemsize, _spread(section)) == row.size
        return None if follows else NOT_BY_SPREAD(spread=_spread(section))
    wrong = row.count > 0 and row.count * itemsize * operation.pieces(together) != row.size
    wrong |= operation.reduces and row.redop == theirs.NO_REDUCE_OP
    for half in row.halves:
        if half.time is not None and half.algbw is not None and half.time.value >= readings.LEAST_US:
            wrong |= not readings.agrees(row.size, half.time, half.algbw)
    return CONTRADICTION() if wrong else None


def _spread(section: Section) -> float:
    """Return the share by which alltoallv_perf divided unevenly, from 0 to 1."""
    stated = readings.printed(section.variables.get(theirs.SPREAD, ""))
    return theirs.DEFAULT_SPREAD if stated is None else min(1.0, max(0.0, stated.value))


DROPPED_VARIABLES = Kind("dropped-variables", "dropped from the file's environment dump: {count:count variable}")
OUT_OF_BOUNDS = Kind("out-of-bounds", "the tool itself reports out of bounds values: {found} FAILED")
IMPORTED_DEBUG_OUTPUT = Kind("imported-debug-output", "NCCL_DEBUG=INFO wrote while it measured")
PARALLEL_INIT = Kind("parallel-init", "parallel init: one thread for each GPU of a process")
RECORDED_ERROR = Kind("recorded-error", "the file records an error: {error}")
WITHOUT_FIRST_CALLS = Kind("without-first-calls", "without the first {calls:count call} per case, as -K asked")
_TIMED = "times of single calls, by events {} them: the mean is the slowest process's"
TIMED_AROUND_CALLS = Kind("timed-around-calls", _TIMED.format("around"))
TIMED_BETWEEN_CALLS = Kind("timed-between-calls", _TIMED.format("between"))
STATISTICS_OF_SINGLE_CALLS = Kind(
    "statistics-of-single-calls",
    "the file also has statistics of single calls, by events between them: the mean of all was taken, which every "
    "version prints",
)
AVERAGE_ASSUMED = Kind(
    "average-assumed", "unknown: how ranks were combined (-a): the tool's default, their average, is assumed"
)
CALLS_UNKNOWN = Kind("calls-unknown", "unknown: the number of calls behind a time")


def _describe(section: Section, ranks: int, reading: ReadFile) -> None:
    """Add to the reading where one execution ran, reasons to doubt its numbers, and facts that the file lacks.

    In JSON only the first device of a process is listed: its other devices are assumed to have the same host and name.
    """
    listed = {d["rank"]: {name: d[name] for name in ("hostname", "device_name")} for d in section.ranks}
    each = ranks // len(listed) if listed else 0
    if each and section.copies == 1 and sorted(listed) == list(range(0, ranks, each)):
        places = [{"rank": rank, **listed[rank - rank % each]} for rank in range(ranks)]
        reading.launches.append({"backend": BACKEND, "world_size": ranks, "ranks": places})
    devices = Counter(device["device_name"] for device in section.ranks if device["device_name"])
    facts = {
        "hosts": list(dict.fromkeys(device["hostname"] for device in section.ranks if device["hostname"])),
        "devices": ", ".join(f"{count} × {name}" for name, count in sorted(devices.items())),
        "nccl": section.nccl,
        "variables": section.variables,
    }
    reading.facts.append({name: fact for name, fact in facts.items() if fact})
    halves = [half for row in section.rows for half in row.halves]
    skipped, single = max((half.skipped for half in halves), default=0), any(half.each_us for half in halves)
    timed = TIMED_AROUND_CALLS if section.blocking == APART else TIMED_BETWEEN_CALLS
    # Notice → whether the file gives the reason for it.
    notes = {
        DROPPED_VARIABLES(count=section.dropped): section.dropped,
        OUT_OF_BOUNDS(found=section.out_of_bounds): section.out_of_bounds,
        IMPORTED_DEBUG_OUTPUT(): section.debug,
        PARALLEL_INIT(): section.parallel_init,
        **{RECORDED_ERROR(error=error): True for error in section.errors},
        WITHOUT_FIRST_CALLS(calls=skipped): skipped,
        timed(): single,
        STATISTICS_OF_SINGLE_CALLS(): section.timed_each and not single,
    }
    reading.notes += [note for note, holds in notes.items() if holds]
    if section.average is None:
        reading.unknown.append(AVERAGE_ASSUMED())
    if section.iterations is None:
        reading.unknown.append(CALLS_UNKNOWN())


def _case(row: Row, section: Section, op: str, ranks: int, division: Division) -> Case:
    """Return the case of a row in its usual placement."""
    calls = (section.iterations or row.iterations or 0) * section.aggregated
    metric = "graph" if section.graph else "isolated" if section.blocking else "pipelined"
    return Case(
        op,
        BACKEND,
        ranks,
        readings.DTYPES[row.dtype],
        row.size,
        reduce_op=theirs.REDUCE_OPS.get(row.redop, DEFAULT_REDUCE_OP),
        metric=metric,
        depth=max(1, calls) if metric != "isolated" else 1,
        root=max(0, row.root or 0),
        groups=division,
        memory="registered" if section.registered else "plain",
    )


NO_TIME_IN_HALF = Kind("no-time-in-half", f"{LEFT_OUT}no time in one half of the row")


def _numbers(row: Row, section: Section, case: Case, reading: ReadFile) -> Iterable[Number]:
    iterations = section.iterations or row.iterations
    for half in row.halves:
        placed = usual(replace(case, placement=half.place))
        wrong = readings.printed(half.wrong.rstrip("*"))
        if wrong is not None and wrong.value:
            failure = Failure("wrong", None, f"nccl-tests counted {wrong.value:.0f} wrong elements")
            yield Number(placed, None, failure, False, row.context)
        elif half.time is None or half.time.value < readings.LEAST_US:
            reading.left_out[NO_TIME_IN_HALF()] += 1
        else:
            calls = (iterations - half.skipped) * section.aggregated if iterations else None
            each_s = tuple(tuple(time * US for time in process) for process in half.each_us)
            statistic = _statistic(section, iterations, half)
            apart = section.blocking == APART and bool(each_s)
            aggregate = Aggregate(half.time.value * US, statistic, calls, each_s, apart)
            yield Number(placed, aggregate, None, None if wrong is None else True, row.context)


def _statistic(section: Section, iterations: int | None, half: Half) -> str:
    """Describe how a time of this execution was obtained."""
    calls = f"{iterations} calls" if iterations else "an unknown number of calls"
    if section.aggregated > 1:
        calls = f"{iterations or 'an unknown number of'} groups of {section.aggregated} calls"
    manner = BLOCKING[section.blocking]
    if section.graph:
        manner = f" captured in a CUDA graph that was launched {section.graph} times"
    around = "before and after" if section.blocking == APART else "after"
    events = f", with an event recorded {around} each" if section.timed_each else ""
    left_out = f", without the first {half.skipped}" if half.skipped else ""
    # Times of single calls are those of the slowest rank.
    average = AVERAGES["3"] if half.each_us else section.average or AVERAGES["1"]
    return f"mean of {calls}{left_out}{manner}{events}, {average}"


STRANGE_RATES = Kind(
    "strange-rates",
    "{wrong} of {checked} bus bandwidths of the file do not follow from size, time and {ranks} ranks (at "
    "{size_bytes} B: {printed:g} GB/s in the file, {computed:.3g} computed)",
)


def _check_rates(rows: Iterable[Row], op: str, together: int, reading: ReadFile) -> None:
    """Add a notice if bus bandwidths do not follow from size, time and `together`, the number of ranks of a group."""
    factor, checked, wrong = readings.bus_factor(op, together), 0, list[tuple[int, float, float]]()
    for row in rows if together > 1 else ():  # for one rank some versions print 0, others algbw
        for half in row.halves:
            if half.time is None or half.busbw is None:
                continue
            checked += 1
            if half.time.value >= readings.LEAST_US and not readings.agrees(row.size * factor, half.time, half.busbw):
                wrong.append((row.size, half.busbw.value, row.size * factor / (half.time.value * US) / 1e9))
    for size, rate, computed in wrong[:1]:
        values = {"ranks": together, "size_bytes": size, "printed": rate, "computed": computed}
        reading.notes.append(Notice(STRANGE_RATES, {"wrong": len(wrong), "checked": checked, **values}))
