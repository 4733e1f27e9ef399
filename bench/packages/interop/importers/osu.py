"""Read the output of the OSU Micro-Benchmarks (MPI, and NCCL or RCCL of their xccl tests): one `Number` per row.

In: a `Source`. Out: a `Reading`. Collectives are timed one by one with a barrier between, averaged over calls and
ranks: metric isolated. `osu_latency` is half a round trip; `osu_bw` and `osu_bibw` send windows of messages back to
back: metric pipelined. All of them use the same buffers each time (`hot`), one to send and another to receive (out
of place). The number of ranks is not in the output: it is 2 for pairs, else it comes from a launcher's command line,
from `#Using NCCL` lines, or from the user.

What OSU calls size is one rank's message (to one other rank, for all-to-all). Ours counts all n shares for all_gather,
gather, scatter and all_to_all (`operations.py`), so for these it is multiplied by the number of ranks.
osu_reduce_scatter splits its size among the ranks, so it is the total already.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench.catalog.collectives import OPERATIONS, usual
from bench.model.errors import ForeignError
from bench.model.records import Aggregate, Case, Failure
from bench.packages.interop.importers.readings import (
    DTYPES,
    LEAST_US,
    Number,
    Options,
    Reading,
    Source,
    chosen_operation,
    chosen_ranks,
    operation_in,
    printed,
    whole,
)


@dataclass(frozen=True, slots=True)
class Test:
    """One of OSU's tests."""

    op: str
    # True if the size is that of one of n shares.
    scaled: bool = False
    # True if the test is between two ranks.
    pair: bool = False
    # True if the test sends windows of messages and prints a bandwidth.
    window: bool = False
    # How a time is obtained, in words.
    manner: str = "each timed alone between barriers, averaged over ranks"


# Messages that osu_bw and osu_bibw send before they wait; -W changes it, and the output does not say so.
WINDOW = 64
_WINDOWS = f"of windows of {WINDOW} messages (unless -W said otherwise)"
# By the title in the header: lower-case letters only, without `latency`.
TESTS = {
    "allreduce": Test("all_reduce"),
    "allgather": Test("all_gather", scaled=True),
    "alltoall": Test("all_to_all", scaled=True),
    "alltoallpersonalizedexchange": Test("all_to_all", scaled=True),
    "bcast": Test("broadcast"),
    "broadcast": Test("broadcast"),
    "reduce": Test("reduce"),
    "reducescatter": Test("reduce_scatter"),
    "gather": Test("gather", scaled=True),
    "scatter": Test("scatter", scaled=True),
    "barrier": Test("barrier"),
    "": Test("send_recv", pair=True, manner="half of each round trip"),
    "bandwidth": Test("send_recv", pair=True, window=True, manner=f"size over the bandwidth {_WINDOWS}"),
    "bidirectionalbandwidth": Test(
        "sendrecv_pair", pair=True, window=True, manner=f"size over half of the bandwidth of both directions {_WINDOWS}"
    ),
}
# Datatypes of older versions, which do not print them: of reductions, and of tests that only move bytes.
OLD_REDUCED, OLD_MOVED = "MPI_FLOAT", "MPI_CHAR"

_TITLE = re.compile(r"#\s*OSU\s+(\S+)\s+(.*?)\s*Test\b\s*(?:v\.?\s?(\d\S*))?\s*$", re.IGNORECASE)
_COLUMN = re.compile(
    r"(?:(?:Avg|Min|Max)\s)?Latency\s?\(us\)|Bandwidth\s?\(MB/s\)|MB/s|Messages/s|P\d+\sTail\s(?:Lat|BW)\((?:us|MB/s)\)"
    r"|(?:Pure|Min|Max)\sComm\.\(us\)|Coll\.\sInit\(us\)|Transmit\sSize|Size|[A-Z][\w./%()-]*"
)
_HEADER = re.compile(r"[#\s]*(?:Size\b|(?:Avg )?Latency|Overall|Bandwidth)")
_BUFFERS = re.compile(r"Buffer on \w+.*|Memory on \w+.*")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+)")
# The parts of a launcher's command line, each searched for behind the one before: as one pattern they would take half a
# second for a hostile line.
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|orterun|prterun|mpirun_rsh|aprun|jsrun|flux run)\b")
_RANKS = re.compile(r"\s(?:-n|-np|--np|--ntasks)[\s=]{0,3}(\d+)\b")
_PROGRAM = re.compile(r"\bosu_\w+")
_SIZED = re.compile(r"(\d+)\s+(\S.*)")
_VALUE = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?|pass|fail|n/?a", re.IGNORECASE)


@dataclass(slots=True)
class _Table:
    """The output of one test."""

    library: str = ""
    title: str | None = None
    version: str | None = None
    datatype: str | None = None
    columns: list[str] = field(default_factory=list)
    # None if the log does not name the number of ranks.
    ranks: int | None = None
    # False if a buffer is in host memory.
    on_device: bool = True
    # Size and values of each row. The size is None in a table without such a column (a barrier).
    rows: list[tuple[int | None, list[str]]] = field(default_factory=list)


def read(source: Source, options: Options) -> Reading:
    """All tests in one file. Raises ForeignError if there is none, or if the number of ranks is missing."""
    tables = [table for table in _tables(source.lines()) if table.rows]
    if not tables:
        raise ForeignError(f"{source.path}: no table of results of the OSU Micro-Benchmarks in it")
    reading = Reading()
    for table in tables:
        _read_table(table, options, source, reading)
    return reading


# ── text to tables ───────────────────────────────────────────────────────────────────────────────
def _tables(lines: Sequence[str]) -> list[_Table]:
    tables = [_Table()]
    commanded: int | None = None  # ranks by the launcher's command line
    using = 0  # ranks by their `#Using NCCL` lines
    for line in lines:
        table = tables[-1]
        if (ranks_told := _commanded(line)) is not None:
            commanded, using = whole(ranks_told), 0
        using += "#Using NCCL" in line or "#Using RCCL" in line
        # The last of all marks begins it: a search from each of them could take long.
        if (title := _TITLE.match(" ".join(line[line.rfind("#") :].split()))) is not None:
            # None if neither tells the number of ranks, or the two differ.
            ranks = commanded or (using if using > 1 else None)
            if commanded and using > 1 and commanded != using:
                ranks = None
            tables.append(_Table(title[1], title[2], title[3], ranks=ranks))
            using = 0
        elif (datatype := _DATATYPE.search(line)) is not None:
            if table.rows:  # with -T all, one title is followed by a table for each datatype
                table = _Table(table.library, table.title, table.version, ranks=table.ranks)
                tables.append(table)
            table.datatype = datatype[1]
        elif (buffers := _BUFFERS.search(line)) is not None:
            table.on_device = "DEVICE" in buffers[0] or "MANAGED" in buffers[0]
        elif _HEADER.match(line) and ("(us)" in line or "MB/s" in line):
            table.columns = _COLUMN.findall(line.lstrip("# "))
        elif (row := _row(line, table)) is not None:
            table.rows.append(row)
    return tables


def _commanded(line: str) -> str | None:
    """The number of ranks in a launcher's command line; None if it is none that starts a test."""
    line = " ".join(line.split())
    launcher = _LAUNCHER.search(line)
    ranks = _RANKS.search(line, launcher.end()) if launcher else None
    return ranks[1] if ranks and _PROGRAM.search(line, ranks.end()) else None


def _row(line: str, table: _Table) -> tuple[int | None, list[str]] | None:
    """Size and values of a row; None if it is no row."""
    if table.title is None and not table.columns:
        return None
    sized = not table.columns or table.columns[0] == "Size"
    match = _SIZED.fullmatch(line.strip()) if sized else None
    values = (match[2] if match else line).split()
    if (sized and match is None) or not values or not all(_VALUE.fullmatch(value) for value in values):
        return None
    return (whole(match[1]) if match else None), values


# ── tables to numbers ────────────────────────────────────────────────────────────────────────────
def _read_table(table: _Table, options: Options, source: Source, reading: Reading) -> None:
    """Add the numbers of one table."""
    reading.rows += len(table.rows)
    reading.tools.append(f"OSU Micro-Benchmarks {table.version or 'of unknown version'}")
    test, asynchronous = _test(table, options, source)
    if test is None:
        reading.left_out[f"{table.library} {table.title} has no counterpart here"] += len(table.rows)
        return
    if table.datatype is not None and table.datatype not in DTYPES:
        reading.left_out[f"dtype {table.datatype:.40}, which CollBench does not have"] += len(table.rows)
        return
    ranks = 2 if test.pair else chosen_ranks(table.ranks, options, str(source.path))
    if not test.pair and table.ranks is not None and options.world_size is None:
        reading.unknown.append("the number of ranks is not in the output: it was taken from what stands beside it")
    operation = OPERATIONS[test.op]
    if table.datatype is None and operation.typed:
        reading.unknown.append(
            "the datatype is not in the output: MPI_FLOAT for reductions and MPI_CHAR for the rest is assumed"
        )
    datatype = table.datatype or (OLD_REDUCED if operation.reduces else OLD_MOVED)
    library, _, device = table.library.upper().partition("-")
    case = usual(
        Case(  # without its size
            test.op,
            "mpi" if library == "MPI" else "nccl",
            ranks,
            DTYPES[datatype],
            0,
            buffers="hot",
            metric="pipelined" if test.window else "isolated",
            depth=WINDOW if test.window else 1,
            placement="in" if operation.placements == ("in",) else "out",
            call="async" if asynchronous else "sync",
            # MPI on a GPU's memory is not to be mixed up with MPI on a host's.
            memory="device" if device and table.on_device and library == "MPI" else "plain",
        )
    )
    if test.scaled:
        reading.notes.append(
            f"{test.op}: sizes were multiplied by {ranks}: OSU counts one rank's share, here all are counted"
        )
    if test.window:
        reading.unknown.append(f"how many messages a window had (-W): the default of {WINDOW} is assumed")
    for size, values in table.rows:
        if not size and operation.sized:
            reading.left_out["size 0" if size == 0 else "no size"] += 1
        elif number := _number(table, test, case, size or 0, values):
            reading.numbers.append(number)
        else:
            reading.left_out["no time"] += 1


def _test(table: _Table, options: Options, source: Source) -> tuple[Test | None, bool]:
    """The test, and whether it is the asynchronous one; None for what has no counterpart."""
    if table.title is None:
        op = chosen_operation(operation_in(source.name), options, str(source.path))
        return next((test for test in TESTS.values() if test.op == op and not test.window), None), False
    title = table.title.lower().removesuffix("latency").strip()
    asynchronous = title.startswith(("non-blocking ", "nonblocking "))
    title = re.sub(r"^non-?blocking ", "", title)
    test = TESTS.get(re.sub(r"[^a-z]", "", title))
    if not table.library.upper().startswith(("MPI", "NCCL", "RCCL", "XCCL")) or "_" in table.library:
        return None, False
    if test is not None and options.operation not in {None, test.op}:
        raise ForeignError(
            f"{source.path}: says that it measured {test.op}, so --operation {options.operation} is wrong"
        )
    return test, asynchronous


def _number(table: _Table, test: Test, case: Case, size: int, values: list[str]) -> Number | None:
    """The number of one row; None if it has no time."""
    placed = replace(case, size_bytes=size * (case.world_size if test.scaled else 1))
    columns = table.columns[1:] if table.columns[:1] == ["Size"] else table.columns
    named = dict(zip(columns, values, strict=False))
    validation = named.get("Validation", "").lower()
    if validation == "fail":
        return Number(placed, None, Failure("wrong", None, "OSU's own validation says Fail"), False)
    # The column of the test's result; a table without a header has it first.
    asynchronous = case.call == "async"
    starts = ("Pure Comm.(us)",) if asynchronous else ("Avg Latency", "Latency", "Bandwidth")
    results = [value for start in starts for name, value in named.items() if name.startswith(start)]
    value = printed(results[0] if results else "" if asynchronous and named else values[0])
    if value is None or value.value < LEAST_US:
        return None
    iterations = whole(named.get("Iterations", ""))
    if test.window:
        time_s = placed.size_bytes * (2 if test.op == "sendrecv_pair" else 1) / (value.value * 1e6)
        manner = test.manner
    else:
        time_s = value.value * 1e-6
        manner = f"mean of {f'{iterations} calls' if iterations else 'all calls'}, {test.manner}"
    if asynchronous:
        manner += ", without computation beside it"
    return Number(placed, Aggregate(time_s, manner, iterations), None, True if validation == "pass" else None)
