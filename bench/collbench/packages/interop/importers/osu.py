"""Read the output of the OSU Micro-Benchmarks (MPI, and NCCL or RCCL in their xccl tests): one `Number` per row.

In: a `Source`. Out: a `ReadFile`. Collectives are timed one by one with a barrier between, averaged over calls and
ranks: metric isolated. `osu_latency` is half a round trip; `osu_bw` and `osu_bibw` send windows of messages back to
back: metric pipelined. All tests use the same buffers for every call (`hot`), one to send and another to receive (out
of place). The number of ranks is not in the output: it is 2 for pairs, else it comes from the command line that
started the test, from `#Using NCCL` lines, or from the user. mpi4py's demos and OMB-Py print such tables, too.

OSU's size is one rank's message (to one other rank, for all-to-all). Our size counts all n shares for all_gather,
gather, scatter and all_to_all (`catalog.collectives`), so OSU's size is multiplied by the number of ranks
there. osu_reduce_scatter splits its size among the ranks, so its size is the total already.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collbench.catalog.collectives import OPERATIONS, usual
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind
from collbench.model.records import Aggregate, Case, Failure
from collbench.packages.interop.importers import readings
from collbench.packages.interop.importers.context import COMMAND, INTERLEAVED, Context, LogFacts
from collbench.packages.interop.importers.logs import Command, LogLine, command_in
from collbench.packages.interop.importers.readings import LEFT_OUT, Number, Options, ReadFile, Source

# Title in the header (lower-case letters only, without `latency`) → operation.
TESTS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all",
    "alltoallpersonalizedexchange": "all_to_all", "bcast": "broadcast", "broadcast": "broadcast", "reduce": "reduce",
    "reducescatter": "reduce_scatter", "gather": "gather", "scatter": "scatter", "barrier": "barrier", "": "send_recv",
}  # fmt: skip
# The same for tests that send windows of messages and print a bandwidth.
WINDOWS = {"bandwidth": "send_recv", "bidirectionalbandwidth": "sendrecv_pair"}
# Operations whose size in the output is the size of one of n shares; operations between two ranks.
SCALED, PAIRS = {"all_gather", "all_to_all", "gather", "scatter"}, {"send_recv", "sendrecv_pair"}
# Number of messages that osu_bw and osu_bibw send before they wait; -W changes it, and the output does not show -W.
WINDOW = 64
_OF_WINDOWS = f"of windows of {WINDOW} messages (unless -W said otherwise)"
# Operation, and whether it is in windows → how a time is obtained, in words.
MANNERS = {
    ("send_recv", False): "half of each round trip",
    ("send_recv", True): f"size over the bandwidth {_OF_WINDOWS}",
    ("sendrecv_pair", True): f"size over half of the bandwidth of both directions {_OF_WINDOWS}",
}
USUAL_MANNER = "each timed alone between barriers, averaged over ranks"
# Datatypes of older versions, which do not print them: for reductions, and for tests that only move bytes.
OLD_REDUCED, OLD_MOVED = "MPI_FLOAT", "MPI_CHAR"

_TITLE = re.compile(
    r"#\s*(?:(?P<tool>OSU|OMB-Py)\s+(?P<library>\S+)|(?P<demo>MPI))\s+(?P<title>.*?)\s*Test\b\s*"
    r"(?:v\.?\s?(?P<version>\d\S*))?\s*$",
    re.IGNORECASE,
)
TOOLS = {"osu": "OSU Micro-Benchmarks", "omb-py": "OMB-Py", "": "mpi4py's demos of OSU Micro-Benchmarks"}
_NON_BLOCKING = re.compile("non-?blocking ", re.IGNORECASE)
_COLUMN = re.compile(
    r"(?:(?:Avg|Min|Max)\s)?Latency\s?\(us\)|Bandwidth\s?\([MG]B/s\)|MB/s|Messages/s|P\d+\sTail\s(?:Lat|BW)\((?:us|MB/s)\)"
    r"|(?:Pure|Min|Max)\sComm\.\(us\)|Coll\.\sInit\(us\)|Transmit\sSize|Size|[A-Z][\w./%()-]*"
)
_HEADER = re.compile(r"[#\s]*(?:Size\b|(?:Avg )?Latency|Overall|Bandwidth)")
_BUFFERS = re.compile(r"Buffer on \w+.*|Memory on \w+.*")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+)")
PROGRAM = re.compile(r"\bosu_\w+")
_SIZED = re.compile(r"(\d+)\s+(\S.*)")
_VALUE = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?|pass|fail|n/?a", re.IGNORECASE)
# OSU prints at least two decimals of a result; a result with fewer decimals was cut.
_RESULT = re.compile(r"\d+\.\d{2,}(?:e[-+]?\d+)?")
_BEGINS_LIKE_A_ROW = re.compile(r"\s*\d+(?:\.\d+)?(?:\s|$)")
# A row without a title or a header above it.
_LOOSE_ROW = re.compile(r"\s*\d+\s+\d+\.\d{2}(?:\s|$)")
RESULTS = ("Avg Latency", "Latency", "Bandwidth")


@dataclass(slots=True)
class _Table:
    """The output of one test. A fact that its own lines lack is None: nothing is taken from the previous table."""

    # Key of TOOLS.
    tool: str = "osu"
    library: str | None = None
    title: str | None = None
    version: str | None = None
    datatype: str | None = None
    columns: list[str] = field(default_factory=list)
    command: Command | None = None
    # Number of messages `#Using NCCL` or `#Using RCCL`: one per rank.
    using: int = 0
    # False if a buffer is in host memory.
    on_device: bool = True
    # Size and values of each row, by column, or by number without a header. The size is None in a table without a
    # column for it (a barrier).
    rows: list[tuple[int | None, dict[str, str]]] = field(default_factory=list)
    # Facts of the table, as in `context`.
    facts: LogFacts = field(default_factory=dict)
    # Line of a row of another table, whose title came before this one's.
    mixed: int | None = None
    unread: list[LogLine] = field(default_factory=list)

    @property
    def ranks(self) -> int | None:
        """Return the number of ranks; None if the log does not give it, or gives two different numbers."""
        numbers = {self.command.processes} if self.command is not None and self.command.processes else set()
        numbers |= {self.using} if self.using > 1 else set()
        return numbers.pop() if len(numbers) == 1 else None


NO_TITLE = Kind("no-title", f"{LEFT_OUT}in a table without a title")


def read(source: Source, options: Options) -> ReadFile:
    """Read all tests in one file. Raises ForeignError if there is none, or if the number of ranks is missing."""
    tables = [table for table in _tables(source.lines()) if table.rows or table.unread]
    if not any(table.rows for table in tables):
        raise ForeignError(f"{source.path}: no table of results of the OSU Micro-Benchmarks in it")
    reading = ReadFile()
    titled = any(table.title is not None for table in tables)
    for table in tables:
        if table.mixed is not None:
            raise ForeignError(f"{source.path}:{table.mixed}: {INTERLEAVED}")
        reading.left_out[readings.UNREADABLE_ROWS()] += len(table.unread)
        reading.unread += table.unread
        if titled and table.title is None:
            reading.rows += len(table.rows)
            reading.left_out[NO_TITLE()] += len(table.rows)
        elif table.rows:
            _read_table(table, options, source, reading)
    return reading


# ── text to tables ───────────────────────────────────────────────────────────────────────────────
def _tables(lines: Sequence[LogLine]) -> list[_Table]:
    """Return the tables of a log. A command line, a title, and a header below rows each begin a new table."""
    tables, context = [_Table()], Context()
    prefix: re.Pattern[str] | None = None  # text that a logger wrote in front of the title
    for line in lines:
        table, text = tables[-1], line.text
        # The title begins at the last `#`: a search from every `#` could take long.
        mark = text.rfind("#")
        if (command := command_in(text, PROGRAM)) is not None:
            tables.append(_Table(command=command))
            context.take(line, COMMAND)
        elif (title := _TITLE.match(" ".join(text[mark:].split()))) is not None:
            prefix = _prefix_pattern(text[:mark])
            context.take(line, "title")
            tool, library = (title["tool"] or "").lower(), title["library"] or title["demo"]
            new = _Table(tool, library, title["title"], title["version"])
            if not table.rows and table.title is None:
                started = readings.operation_in(table.command.program[0]) if table.command is not None else None
                fits = started is None or _test_of(title["title"])[0] in {None, started}
                new.command, new.using = table.command if fits else None, table.using
            tables.append(new)
        else:
            if prefix is None and _HEADER.match(text[mark:]):
                prefix = _prefix_pattern(text[:mark])
            begins = prefix.match(text) if prefix else None
            _take(LogLine(line.number, text[begins.end() :] if begins else text), tables, context)
    context.end()
    return tables


def _test_of(title: str) -> tuple[str | None, bool]:
    """Return the operation that a title names (None if there is none), and whether it is in windows."""
    name = re.sub(r"^non-?blocking |latency$|[^a-z]", "", title.lower().strip())
    return {**TESTS, **WINDOWS}.get(name), name in WINDOWS


def _take(line: LogLine, tables: list[_Table], context: Context) -> None:
    """Read a line that is neither a command nor a title."""
    table, text = tables[-1], line.text
    row = _row(text, table.columns) if table.title is not None or table.columns else None
    # The size of the row before; no row comes after one without a size.
    last = next((math.inf if size is None else size for size, _ in table.rows[-1:]), None)
    if "#Using NCCL" in text or "#Using RCCL" in text:
        if table.rows:
            tables.append(table := _Table())
        table.using += text.count("#Using")
    elif "OSU " in text and "Test" in text:  # a title that cannot be read
        tables.append(_Table())
    elif (datatype := _DATATYPE.search(text)) is not None:
        if table.rows:  # with -T all, one title is followed by a table for each datatype
            table = replace(table, columns=[], rows=[], unread=[])
            tables.append(table)
        table.datatype = datatype[1]
    elif (buffers := _BUFFERS.search(text)) is not None:
        table.on_device = "HOST" not in buffers[0]
        context.take(line, "buffers")
    elif _HEADER.match(text) and ("us" in text or "B/s" in text):
        if table.rows:
            tables.append(table := _Table())
        plain = re.sub(r"\bSize \(B\)", "Size", text.replace("[", "(").replace("]", ")"))
        table.columns = _COLUMN.findall(plain.lstrip("# "))
    elif row is not None and (last is None or last < (row[0] or 0)):  # sizes increase
        if not table.rows:
            table.facts = context.table()
        context.lines, context.settings = {}, {}
        table.rows.append(row)
    elif row or (_LOOSE_ROW if table.title is None and not table.columns else _BEGINS_LIKE_A_ROW).match(text):
        table.unread.append(line)
        if row and len(tables) > 1 and tables[-2].title is not None and not tables[-2].rows:
            table.mixed = line.number  # two titles came first, and now rows of both
    else:
        context.take(line)


def _prefix_pattern(prefix: str) -> re.Pattern[str] | None:
    """Return a pattern for a logger's prefix of each line: the same words, any numbers; None for an empty prefix."""
    if not prefix.strip():
        return None
    words = re.sub(r"\d+", r"\\d+", re.escape(prefix.strip()))
    return re.compile(r"\s*" + re.sub(r"(?:\\?\s)+", r"\\s+", words) + r"\s?")


def _row(line: str, columns: Sequence[str]) -> tuple[int | None, dict[str, str]] | None:
    """Return size and values of a row, without a comment after it; None if the line is not a row."""
    sized = not columns or columns[0] == "Size"
    match = _SIZED.fullmatch(line.strip()) if sized else None
    values = (match[2] if match else line).split()
    names = [*columns[sized:]] or [*map(str, range(len(values)))]
    numbers = [*map(_VALUE.fullmatch, values)]
    behind = numbers[len(names) : len(names) + 1]
    if (sized and match is None) or not values or len(values) < len(names) or not all(numbers[: len(names)]):
        return None
    return None if any(behind) else ((int(match[1]) if match else None), dict(zip(names, values, strict=False)))


# ── tables to numbers ────────────────────────────────────────────────────────────────────────────
SCALED_SIZES = Kind(
    "scaled-sizes", "{operation}: sizes were multiplied by {ranks}: OSU counts one rank's share, here all are counted"
)
RANKS_NEXT_TO_OUTPUT = Kind(
    "ranks-next-to-output", "unknown: the number of ranks is not in the output: it was taken from the text next to it"
)
DATATYPE_ASSUMED = Kind(
    "datatype-assumed",
    "unknown: the datatype is not in the output: {reduced} for reductions and {moved} for the rest is assumed",
)
WINDOW_ASSUMED = Kind(
    "window-assumed", "unknown: how many messages a window had (-W): the default of {messages} is assumed"
)
NO_SIZE = Kind("no-size", f"{LEFT_OUT}no size")
NO_TIME_IN_ROW = Kind("no-time-in-row", f"{LEFT_OUT}no time, or one that was cut")
OTHER_COLUMNS = Kind("other-columns", f"{LEFT_OUT}columns that do not fit the title")
LIBRARY_UNKNOWN = Kind(
    "library-unknown", "unknown: the library: OMB-Py calls it MPI, also where torch's gloo or another took its place"
)


def _read_table(table: _Table, options: Options, source: Source, reading: ReadFile) -> None:
    """Add the numbers of one table."""
    reading.rows += len(table.rows)
    reading.tools.append(f"{TOOLS[table.tool]} {table.version or 'of unknown version'}")
    op, window = _test(table, options, source)
    if op is None:
        reading.left_out[readings.NO_COUNTERPART(test=f"{table.library} {table.title}")] += len(table.rows)
        return
    if any(name.startswith(RESULTS) and name.startswith("Bandwidth") != window for name in table.columns):
        reading.left_out[OTHER_COLUMNS()] += len(table.rows)
        return
    if table.datatype is not None and table.datatype not in readings.DTYPES:
        reading.left_out[readings.OTHER_DTYPE(dtype=table.datatype)] += len(table.rows)
        return
    ranks = 2 if op in PAIRS else options.chosen("world_size", table.ranks, source)
    if op not in PAIRS and table.ranks is not None and options.world_size is None:
        reading.unknown.append(RANKS_NEXT_TO_OUTPUT())
    operation = OPERATIONS[op]
    if table.datatype is None and operation.typed:
        reading.unknown.append(DATATYPE_ASSUMED(reduced=OLD_REDUCED, moved=OLD_MOVED))
    datatype = table.datatype or (OLD_REDUCED if operation.reduces else OLD_MOVED)
    library, _, device = (table.library or "").upper().partition("-")
    if library == "MPI" and table.tool == "omb-py":
        if options.backend is None:
            reading.unknown.append(LIBRARY_UNKNOWN())
        backend = options.backend or "mpi"
    else:
        stated = None if table.title is None else "mpi" if library == "MPI" else "nccl"
        backend = options.chosen("backend", stated, source)
    case = usual(
        Case(  # without its size
            op,
            backend,
            ranks,
            readings.DTYPES[datatype],
            0,
            buffers="hot",
            metric="pipelined" if window else "isolated",
            depth=WINDOW if window else 1,
            placement="in" if operation.placements == ("in",) else "out",
            call="async" if _NON_BLOCKING.match(table.title or "") else "sync",
            # MPI on GPU memory must not be mixed with MPI on host memory.
            memory="device" if device and table.on_device and backend == "mpi" else "plain",
        )
    )
    if op in SCALED:
        reading.notes.append(SCALED_SIZES(operation=op, ranks=ranks))
    if window:
        reading.unknown.append(WINDOW_ASSUMED(messages=WINDOW))
    for size, values in table.rows:
        placed = replace(case, size_bytes=(size or 0) * (ranks if op in SCALED else 1))
        if not size and operation.sized:
            reading.left_out[(readings.SIZE_0 if size == 0 else NO_SIZE)()] += 1
        elif number := _number(table, placed, values):
            reading.numbers.append(number)
        else:
            reading.left_out[NO_TIME_IN_ROW()] += 1


def _test(table: _Table, options: Options, source: Source) -> tuple[str | None, bool]:
    """Return the operation of the test (None if it has no counterpart here), and whether it is in windows."""
    if table.title is None:
        named = readings.operation_in(table.command.program[0] if table.command is not None else source.name)
        op, window = options.chosen("operation", named, source), any("Bandwidth" in name for name in table.columns)
        return (op if op in (WINDOWS if window else TESTS).values() else None), window
    library = (table.library or "").upper()
    if not library.startswith(("MPI", "NCCL", "RCCL", "XCCL")) or "_" in library:
        return None, False
    stated, window = _test_of(table.title)
    return stated and options.chosen("operation", stated, source), window


def _number(table: _Table, case: Case, values: dict[str, str]) -> Number | None:
    """Return the number of one row; None if the row has no time."""
    validation = values.get("Validation", "").lower()
    if validation == "fail":
        failure = Failure("wrong", None, "OSU's own validation reports Fail")
        return Number(case, None, failure, False, table.facts)
    asynchronous, window = case.call == "async", case.metric == "pipelined"
    # The column of the test's result: the first column in a table without a header.
    results = [name for name in values if name.startswith("Pure Comm.(us)" if asynchronous else RESULTS)]
    column = next(iter(results if results or asynchronous else values), None)
    text = "" if column is None else values[column]
    value = readings.printed(text)
    if column is None or value is None or value.value < readings.LEAST_US or not _RESULT.fullmatch(text):
        return None
    iterations = readings.whole(values.get("Iterations", ""))
    manner = MANNERS.get((case.op, window), USUAL_MANNER)
    if window:
        rate = value.value * (1e9 if "GB/s" in column else 1e6)
        time_s = case.size_bytes * (2 if case.op == "sendrecv_pair" else 1) / rate
    else:
        time_s = value.value * 1e-6
        manner = f"mean of {f'{iterations} calls' if iterations else 'all calls'}, {manner}"
    if asynchronous:
        manner += ", without computation at the same time"
    verified = True if validation == "pass" else None
    return Number(case, Aggregate(time_s, manner, iterations), None, verified, table.facts)
