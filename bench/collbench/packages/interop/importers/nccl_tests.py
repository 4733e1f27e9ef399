"""Read the output of nccl-tests and rccl-tests, text or JSON: one `Number` for each placement of each row.

In: a `Source`. Out: a `Reading`. The times in the file are used unchanged; its bandwidths only serve to find or check
the number of ranks and the meaning of size. `nccl_text` and `nccl_json` parse the layouts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from collbench.catalog.collectives import OPERATIONS, usual
from collbench.catalog.dtypes import dtype_named
from collbench.catalog.splits import parse as parse_splits
from collbench.catalog.subgroups import of_colours
from collbench.model.divisions import WORLD, Division
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice
from collbench.model.records import Aggregate, Case, Failure, Json
from collbench.model.units import US
from collbench.packages.interop import catalog as nccl_tests_names
from collbench.packages.interop.catalog import DEFAULT_SPREAD, MATRIX_FILE, SPREAD, UNEVEN_TEST, uneven_bytes
from collbench.packages.interop.importers import nccl_json, nccl_text, readings
from collbench.packages.interop.importers.logs import LogLine
from collbench.packages.interop.importers.nccl_text import Half, Row, Section
from collbench.packages.interop.importers.readings import LEFT_OUT, Number, Options, Reading, Source

BACKEND = "nccl"
# Beginning of CollBench's own output in nccl-tests' layout. Its times have another meaning, and the run has more data.
OURS = "# CollBench version "
DEFAULT_REDUCE_OP = "sum"
AVERAGES = {
    "rank0": "of rank 0",
    "avg": "averaged over ranks",
    "min": "minimum over ranks",
    "max": "maximum over ranks",
}
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


def read(source: Source, options: Options) -> Reading:
    """Read all executions in one file. Raises ForeignError if there is none, or if a necessary fact is missing."""
    reading = Reading()
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


def _read_section(section: Section, options: Options, source: Source, reading: Reading) -> None:
    """Add the numbers of one execution."""
    where = str(source.path)
    reading.rows += len(section.rows)
    reading.tools.append(section.tool or "nccl-tests of unknown version")
    stated = nccl_tests_names.operation_of(section.test) if section.test is not None else None
    if section.test is not None and stated is None:
        reading.left_out[readings.NO_COUNTERPART(test=f"{section.test}_perf")] += len(section.rows)
        return
    if section.cpu_time:
        reading.left_out[CPU_TIME()] += len(section.rows)
        return
    if stated is None and options.operation is None and (stated := readings.operation_in(source.name)) is not None:
        reading.unknown.append(OPERATION_BY_NAME())
    op = readings.chosen_operation(stated, options, where)

    # The number of ranks: from the list of devices, else from busbw/algbw if this ratio depends on it.
    world_size = section.world_size
    if section.copies > 1:
        reading.notes.append(COPIES(copies=section.copies, ranks=world_size))
    by_rates = _ranks_by_rates(section, op)
    if world_size is None and by_rates is not None:
        world_size = by_rates
        reading.unknown.append(RANKS_BY_RATES())
    elif by_rates is not None and by_rates != world_size:
        if options.world_size is None:
            raise ForeignError(
                f"{where}: lists {world_size} ranks, but busbw is for {by_rates}; give their number: --world-size N"
            )
        world_size = None
    ranks = readings.chosen_ranks(world_size, options, where)
    division = _division(section, ranks)
    if division is None:
        reading.left_out[UNNAMED_DIVISION()] += len(section.rows)
        return

    _describe(section, ranks, reading)
    together = ranks // len(set(section.colours.values()) or {0})
    rows = []
    for row in section.rows:
        if not _usable(row, ranks if OPERATIONS[op].rooted else None, reading):
            continue
        if section.test != UNEVEN_TEST and _contradicts(row, op, together):
            reading.left_out[CONTRADICTION()] += 1
        else:
            rows.append(row)
    _check_rates(rows, op, together, reading)
    for row in rows:
        splits = _splits(row, section, together, reading) if section.test == UNEVEN_TEST else ""
        if splits is not None:
            uneven = parse_splits(splits) if splits else None
            case = replace(_case(row, section, op, ranks, division), splits=uneven)
            reading.numbers += [replace(n, context=row.context) for n in _numbers(row, section, case, reading)]


def _contradicts(row: Row, op: str, together: int) -> bool:
    """Return whether elements, time, algorithm bandwidth or reduce op of a row contradict its size or the operation."""
    operation, itemsize = OPERATIONS[op], dtype_named(readings.DTYPES[row.dtype]).itemsize
    if row.count > 0 and row.count * itemsize * operation.pieces(together) != row.size:
        return True
    if operation.reduces and row.redop == nccl_tests_names.NO_REDUCE_OP:
        return True
    return any(
        half.time is not None
        and half.algbw is not None
        and half.time.value >= readings.LEAST_US
        and not readings.agrees(row.size, half.time, half.algbw)
        for half in row.halves
    )


def _ranks_by_rates(section: Section, op: str) -> int | None:
    """Compute the number of ranks from busbw/algbw; None if this ratio does not depend on it, or not on it alone."""
    divided = len(set(section.colours.values())) > 1
    if readings.bus_factor(op, 2) == readings.bus_factor(op, 4) or divided or section.test == UNEVEN_TEST:
        return None
    halves = [half for row in section.rows for half in row.halves]
    rates = ((half.algbw, half.busbw) for half in halves if half.algbw and half.busbw)
    return readings.ranks_by_rates(rates, TWICE if op == "all_reduce" else ONCE)


def _division(section: Section, ranks: int) -> Division | None:
    """Return the division of ranks by NCCL_TESTS_SPLIT, as in `Case.groups`; None if the division has no name here."""
    if len({*section.colours.values()}) < 2:
        return WORLD
    division = of_colours([section.colours.get(rank, -1) for rank in range(ranks)])
    return None if division.sets else division


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


def _splits(row: Row, section: Section, together: int, reading: Reading) -> str | None:
    """Return how alltoallv_perf divided a row, as text; "" if evenly. If unknown, count the reason and return None."""
    variables = section.variables
    reason: Notice | None = None
    stated = readings.printed(variables.get(SPREAD, ""))
    spread = DEFAULT_SPREAD if stated is None else min(1.0, max(0.0, stated.value))
    if "rccl" in (section.tool or ""):
        reason = OTHER_DIVISION()
    elif MATRIX_FILE in variables or row.count == 0:
        reason = MATRIX_OF_BYTES()
    elif uneven_bytes(together, row.count, dtype_named(readings.DTYPES[row.dtype]).itemsize, spread) != row.size:
        reason = NOT_BY_SPREAD(spread=spread)
    if reason is not None:
        reading.left_out[reason] += 1
        return None
    if stated is None and section.dropped is None:
        reading.unknown.append(SPREAD_ASSUMED(variable=SPREAD, spread=spread))
    reading.notes.append(BUSIEST_RANK())
    return f"distance:{spread:.6f}".rstrip("0").rstrip(".") if spread else ""


def _launch(section: Section, ranks: int) -> Json | None:
    """Return where the ranks of one execution ran, as in environment.json; None if the file does not list all ranks.

    In JSON only the first device of a process is listed: its other devices are assumed to have the same host and name.
    """
    devices = {device.rank: device for device in section.ranks}
    each = ranks // len(devices) if devices else 0
    if not each or section.copies > 1 or sorted(devices) != list(range(0, ranks, each)):
        return None
    ranked_devices = [(rank, devices[rank - rank % each]) for rank in range(ranks)]
    return {
        "backend": BACKEND,
        "world_size": ranks,
        "ranks": [{"rank": rank, "hostname": d.host, "device_name": d.device} for rank, d in ranked_devices],
    }


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


def _describe(section: Section, ranks: int, reading: Reading) -> None:
    """Add to the reading where one execution ran, reasons to doubt its numbers, and facts that the file lacks."""
    facts = reading.facts
    if (launch := _launch(section, ranks)) is not None:
        reading.launches.append(launch)
    for device in section.ranks:
        if device.host and device.host not in facts.setdefault("hosts", []):
            facts["hosts"].append(device.host)
    devices = Counter(device.device for device in section.ranks if device.device)
    if devices:
        facts["devices"] = ", ".join(f"{count} × {name}" for name, count in sorted(devices.items()))
    if section.nccl:
        facts["nccl"] = section.nccl
    if section.variables:
        facts["variables"] = {**facts.get("variables", {}), **section.variables}
    if section.dropped:
        reading.notes.append(DROPPED_VARIABLES(count=section.dropped))
    if section.out_of_bounds:
        reading.notes.append(OUT_OF_BOUNDS(found=section.out_of_bounds))
    if section.debug:
        reading.notes.append(IMPORTED_DEBUG_OUTPUT())
    if section.parallel_init:
        reading.notes.append(PARALLEL_INIT())
    reading.notes += [RECORDED_ERROR(error=error) for error in section.errors]
    skipped = {half.skipped for row in section.rows for half in row.halves} - {0}
    if skipped:
        reading.notes.append(WITHOUT_FIRST_CALLS(calls=max(skipped)))
    if any(half.each_us for row in section.rows for half in row.halves):
        apart = section.blocking == APART
        reading.notes.append((TIMED_AROUND_CALLS if apart else TIMED_BETWEEN_CALLS)())
    elif section.timed_each:
        reading.notes.append(STATISTICS_OF_SINGLE_CALLS())
    if section.average is None:
        reading.unknown.append(AVERAGE_ASSUMED())
    if section.iterations is None:
        reading.unknown.append(CALLS_UNKNOWN())


NEGATIVE_SIZE = Kind("negative-size", f"{LEFT_OUT}a negative size: integer overflow")
OTHER_REDUCE_OP = Kind("other-reduce-op", f"{LEFT_OUT}reduce op {{reduce_op:.40}}, which CollBench does not have")
STRANGE_ROOT = Kind("strange-root", f"{LEFT_OUT}a root that is not one of the ranks")


def _usable(row: Row, ranks: int | None, reading: Reading) -> bool:
    """Return whether a row can be a case; if not, count the reason. ranks: number of ranks; None without a root."""
    if row.size == 0:
        reason = readings.SIZE_0()
    elif row.size < 0:
        reason = NEGATIVE_SIZE()
    elif row.dtype not in readings.DTYPES:
        reason = readings.OTHER_DTYPE(dtype=row.dtype)
    elif row.redop not in nccl_tests_names.REDUCE_OPS and row.redop != nccl_tests_names.NO_REDUCE_OP:
        reason = OTHER_REDUCE_OP(reduce_op=row.redop)
    elif ranks is not None and (row.root or 0) >= ranks:
        reason = STRANGE_ROOT()
    else:
        return True
    reading.left_out[reason] += 1
    return False


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
        reduce_op=nccl_tests_names.REDUCE_OPS.get(row.redop, DEFAULT_REDUCE_OP),
        metric=metric,
        depth=max(1, calls) if metric != "isolated" else 1,
        root=max(0, row.root or 0),
        groups=division,
        memory="registered" if section.registered else "plain",
    )


NO_TIME_IN_HALF = Kind("no-time-in-half", f"{LEFT_OUT}no time in one half of the row")


def _numbers(row: Row, section: Section, case: Case, reading: Reading) -> Iterable[Number]:
    for half in row.halves:
        placed = usual(replace(case, placement=half.place))
        failure, verified = _verdict(half)
        if failure is not None:
            yield Number(placed, None, failure, verified)
        elif half.time is None or half.time.value < readings.LEAST_US:
            reading.left_out[NO_TIME_IN_HALF()] += 1
        else:
            iterations = section.iterations or row.iterations
            calls = (iterations - half.skipped) * section.aggregated if iterations else None
            each_s = tuple(tuple(time * US for time in process) for process in half.each_us)
            statistic = _statistic(section, iterations, half.skipped, slowest=bool(each_s))
            apart = section.blocking == APART and bool(each_s)
            yield Number(placed, Aggregate(half.time.value * US, statistic, calls, each_s, apart), None, verified)


def _statistic(section: Section, iterations: int | None, skipped: int, slowest: bool) -> str:
    """Describe how a time of this execution was obtained. slowest: True for times of single calls (slowest rank)."""
    calls = f"{iterations} calls" if iterations else "an unknown number of calls"
    if section.aggregated > 1:
        calls = f"{iterations or 'an unknown number of'} groups of {section.aggregated} calls"
    manner = BLOCKING[section.blocking]
    if section.graph:
        manner = f" captured in a CUDA graph that was launched {section.graph} times"
    around = "before and after" if section.blocking == APART else "after"
    events = f", with an event recorded {around} each" if section.timed_each else ""
    left_out = f", without the first {skipped}" if skipped else ""
    return f"mean of {calls}{left_out}{manner}{events}, {AVERAGES['max' if slowest else section.average or 'avg']}"


def _verdict(half: Half) -> tuple[Failure | None, bool | None]:
    """Return the tool's check of the result: (failure, False) if wrong, (None, True) if right, else (None, None)."""
    count = readings.printed(half.wrong.rstrip("*"))
    if count is None:
        return None, None
    if count.value == 0:
        return None, True
    return Failure("wrong", None, f"nccl-tests counted {count.value:.0f} wrong elements"), False


STRANGE_RATES = Kind(
    "strange-rates",
    "{wrong} of {checked} bus bandwidths of the file do not follow from size, time and {ranks} ranks (at "
    "{size_bytes} B: {printed:g} GB/s in the file, {computed:.3g} computed)",
)


def _check_rates(rows: Iterable[Row], op: str, together: int, reading: Reading) -> None:
    """Add a notice if bus bandwidths do not follow from size, time and `together`, the number of ranks of a group."""
    if together == 1:
        return  # for one rank some versions print 0, others algbw
    factor, checked, wrong = readings.bus_factor(op, together), 0, []
    for row in rows:
        for half in row.halves:
            if half.time is None or half.busbw is None:
                continue
            checked += 1
            time_s = half.time.value * US
            if time_s > 0 and not readings.agrees(row.size * factor, half.time, half.busbw):
                wrong.append((row.size, half.busbw.value, row.size * factor / time_s / 1e9))
    if wrong:
        size, rate, computed = wrong[0]
        values: dict[str, float] = {"wrong": len(wrong), "checked": checked, "ranks": together}
        values |= {"size_bytes": size, "printed": rate, "computed": computed}
        reading.notes.append(Notice(STRANGE_RATES, values))
