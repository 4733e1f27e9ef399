"""Read the output of the OSU Micro-Benchmarks (MPI, and NCCL or RCCL in their xccl tests): one `Number` per row.

In: a `Source`. Out: a `Reading`. Collectives are timed one by one with a barrier between, averaged over calls and
ranks: metric isolated. `osu_latency` is half a round trip; `osu_bw` and `osu_bibw` send windows of messages back to
back: metric pipelined. All tests use the same buffers for every call (`hot`), one to send and another to receive (out
of place). The number of ranks is not in the output: it is 2 for pairs, else it comes from the command line that
started the test, from `#Using NCCL` lines, or from the user. mpi4py's demos and OMB-Py print such tables, too.

OSU's size is one rank's message (to one other rank, for all-to-all). Our size counts all n shares for all_gather,
gather, scatter and all_to_all (`catalog.collectives`), so OSU's size is multiplied by the number of ranks
there. osu_reduce_scatter splits its size among the ranks, so its size is the total already.
"""

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
from collbench.packages.interop.importers.readings import LEFT_OUT, Number, Options, Reading, Source


@dataclass(frozen=True, slots=True)
class Test:
    """One of OSU's tests."""

    op: str
    # True if the size in the output is the size of one of n shares.
    scaled: bool = False
    # True if the test is between two ranks.
    pair: bool = False
    # True if the test sends windows of messages and prints a bandwidth.
    window: bool = False
    # How a time is obtained, in words.
    manner: str = "each timed alone between barriers, averaged over ranks"


# Number of messages that osu_bw and osu_bibw send before they wait; -W changes it, and the output does not show -W.
WINDOW = 64
_WINDOWS = f"of windows of {WINDOW} messages (unless -W said otherwise)"
# Title in the header (lower-case letters only, without `latency`) → test.
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
# Datatypes of older versions, which do not print them: for reductions, and for tests that only move bytes.
OLD_REDUCED, OLD_MOVED = "MPI_FLOAT", "MPI_CHAR"

_TITLE = re.compile(
    r"#\s*(?:(?P<tool>OSU|OMB-Py)\s+(?P<library>\S+)|(?P<demo>MPI))\s+(?P<title>.*?)\s*Test\b\s*"
    r"(?:v\.?\s?(?P<version>\d\S*))?\s*$",
    re.IGNORECASE,
)
TOOLS = {"osu": "OSU Micro-Benchmarks", "omb-py": "OMB-Py", "": "mpi4py's demos of OSU Micro-Benchmarks"}
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
    # Size and values of each row. The size is None in a table without a column for it (a barrier).
    rows: list[tuple[int | None, list[str]]] = field(default_factory=list)
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


def read(source: Source, options: Options) -> Reading:
    """Read all tests in one file. Raises ForeignError if there is none, or if the number of ranks is missing."""
    tables = [table for table in _tables(source.lines()) if table.rows or table.unread]
    if not any(table.rows for table in tables):
        raise ForeignError(f"{source.path}: no table of results of the OSU Micro-Benchmarks in it")
    reading = Reading()
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
                new.command, new.using = _fitting(table.command, new.title), table.using
            tables.append(new)
        else:
            if prefix is None and _HEADER.match(text[mark:]):
                prefix = _prefix_pattern(text[:mark])
            begins = prefix.match(text) if prefix else None
            _take(LogLine(line.number, text[begins.end() :] if begins else text), tables, context)
    context.end()
    return tables


def _fitting(command: Command | None, title: str | None) -> Command | None:
    """Return the command; None if it started another test than the title names."""
    started = readings.operation_in(command.program[0]) if command is not None else None
    test = TESTS.get(re.sub(r"[^a-z]", "", (title or "").lower().removesuffix("latency")))
    return None if started is not None and test is not None and test.op != started else command


def _take(line: LogLine, tables: list[_Table], context: Context) -> None:
    """Read a line that is neither a command nor a title."""
    table, text = tables[-1], line.text
    titled = table.title is not None or bool(table.columns)
    if "#Using NCCL" in text or "#Using RCCL" in text:
        if table.rows:
            tables.append(table := _Table())
        table.using += text.count("#Using")
    elif "OSU " in text and "Test" in text:  # a title that cannot be read
        tables.append(_Table())
    elif (datatype := _DATATYPE.search(text)) is not None:
        if table.rows:  # with -T all, one title is followed by a table for each datatype
            table = replace(table, datatype=None, columns=[], rows=[], unread=[])
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
    elif titled and (row := _row(text, table)) is not None and _follows(row[0], table):
        if not table.rows:
            table.facts = context.table()
        context.lines, context.settings = {}, {}
        table.rows.append(row)
    elif (_BEGINS_LIKE_A_ROW if titled else _LOOSE_ROW).match(text) is not None or (titled and _row(text, table)):
        table.unread.append(line)
        if titled and _row(text, table) and len(tables) > 1 and tables[-2].title is not None and not tables[-2].rows:
            table.mixed = line.number  # two titles came first, and now rows of both
    else:
        context.take(line)


def _follows(size: int | None, table: _Table) -> bool:
    """Return whether a row of this size may come next: sizes increase, and a barrier has one row."""
    if not table.rows:
        return True
    last = table.rows[-1][0]
    return size is not None and last is not None and size > last


def _prefix_pattern(prefix: str) -> re.Pattern[str] | None:
    """Return a pattern for a logger's prefix of each line: the same words, any numbers; None for an empty prefix."""
    if not prefix.strip():
        return None
    words = re.sub(r"\d+", r"\\d+", re.escape(prefix.strip()))
    return re.compile(r"\s*" + re.sub(r"(?:\\?\s)+", r"\\s+", words) + r"\s?")


def _row(line: str, table: _Table) -> tuple[int | None, list[str]] | None:
    """Return size and values of a row, without a comment after it; None if the line is not a row."""
    sized = not table.columns or table.columns[0] == "Size"
    match = _SIZED.fullmatch(line.strip()) if sized else None
    values = (match[2] if match else line).split()
    wanted = max(1, len(table.columns) - sized) if table.columns else len(values)
    behind = values[wanted:]
    values = values[:wanted]
    if (sized and match is None) or not values or not all(_VALUE.fullmatch(value) for value in values):
        return None
    if len(values) < wanted or (behind and _VALUE.fullmatch(behind[0])):
        return None
    return (readings.whole(match[1]) if match else None), values


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


def _read_table(table: _Table, options: Options, source: Source, reading: Reading) -> None:
    """Add the numbers of one table."""
    reading.rows += len(table.rows)
    reading.tools.append(f"{TOOLS[table.tool]} {table.version or 'of unknown version'}")
    test, asynchronous = _test(table, options, source)
    if test is None:
        reason = readings.NO_COUNTERPART(test=f"{table.library} {table.title}")
        reading.left_out[reason] += len(table.rows)
        return
    if any(column.startswith(RESULTS) and column.startswith("Bandwidth") != test.window for column in table.columns):
        reading.left_out[OTHER_COLUMNS()] += len(table.rows)
        return
    if table.datatype is not None and table.datatype not in readings.DTYPES:
        reading.left_out[readings.OTHER_DTYPE(dtype=table.datatype)] += len(table.rows)
        return
    ranks = 2 if test.pair else readings.chosen_ranks(table.ranks, options, str(source.path))
    if not test.pair and table.ranks is not None and options.world_size is None:
        reading.unknown.append(RANKS_NEXT_TO_OUTPUT())
    operation = OPERATIONS[test.op]
    if table.datatype is None and operation.typed:
        reading.unknown.append(DATATYPE_ASSUMED(reduced=OLD_REDUCED, moved=OLD_MOVED))
    datatype = table.datatype or (OLD_REDUCED if operation.reduces else OLD_MOVED)
    library, _, device = (table.library or "").upper().partition("-")
    backend = _backend(table, library, options, source, reading)
    case = usual(
        Case(  # without its size
            test.op,
            backend,
            ranks,
            readings.DTYPES[datatype],
            0,
            buffers="hot",
            metric="pipelined" if test.window else "isolated",
            depth=WINDOW if test.window else 1,
            placement="in" if operation.placements == ("in",) else "out",
            call="async" if asynchronous else "sync",
            # MPI on GPU memory must not be mixed with MPI on host memory.
            memory="device" if device and table.on_device and backend == "mpi" else "plain",
        )
    )
    if test.scaled:
        reading.notes.append(SCALED_SIZES(operation=test.op, ranks=ranks))
    if test.window:
        reading.unknown.append(WINDOW_ASSUMED(messages=WINDOW))
    for size, values in table.rows:
        if not size and operation.sized:
            reading.left_out[(readings.SIZE_0 if size == 0 else NO_SIZE)()] += 1
        elif number := _number(table, test, case, size or 0, values):
            reading.numbers.append(replace(number, context=table.facts))
        else:
            reading.left_out[NO_TIME_IN_ROW()] += 1


LIBRARY_UNKNOWN = Kind(
    "library-unknown", "unknown: the library: OMB-Py calls it MPI, also where torch's gloo or another took its place"
)


def _backend(table: _Table, library: str, options: Options, source: Source, reading: Reading) -> str:
    """Return our name of the library that the test measured."""
    where = str(source.path)
    if table.title is None:
        return readings.chosen_backend(None, options, where)
    if library == "MPI" and table.tool == "omb-py":
        if options.backend is None:
            reading.unknown.append(LIBRARY_UNKNOWN())
        return options.backend or "mpi"
    return readings.chosen_backend("mpi" if library == "MPI" else "nccl", options, where)


def _test(table: _Table, options: Options, source: Source) -> tuple[Test | None, bool]:
    """Return the test (None if it has no counterpart here), and whether it is asynchronous."""
    if table.title is None:
        named = readings.operation_in(table.command.program[0] if table.command is not None else source.name)
        op = readings.chosen_operation(named, options, str(source.path))
        window = any(column.startswith("Bandwidth") for column in table.columns)
        return next((test for test in TESTS.values() if test.op == op and test.window == window), None), False
    title = table.title.lower().removesuffix("latency").strip()
    asynchronous = title.startswith(("non-blocking ", "nonblocking "))
    title = re.sub(r"^non-?blocking ", "", title)
    test = TESTS.get(re.sub(r"[^a-z]", "", title))
    library = table.library or ""
    if not library.upper().startswith(("MPI", "NCCL", "RCCL", "XCCL")) or "_" in library:
        return None, False
    if test is not None:
        readings.chosen_operation(test.op, options, str(source.path))
    return test, asynchronous


def _number(table: _Table, test: Test, case: Case, size: int, values: list[str]) -> Number | None:
    """Return the number of one row; None if the row has no time."""
    placed = replace(case, size_bytes=size * (case.world_size if test.scaled else 1))
    columns = table.columns[1:] if table.columns[:1] == ["Size"] else table.columns
    named = dict(zip(columns, values, strict=False))
    validation = named.get("Validation", "").lower()
    if validation == "fail":
        return Number(placed, None, Failure("wrong", None, "OSU's own validation reports Fail"), False)
    # The column of the test's result: the first column in a table without a header.
    asynchronous = case.call == "async"
    starts = ("Pure Comm.(us)",) if asynchronous else RESULTS
    results = [(name, value) for start in starts for name, value in named.items() if name.startswith(start)]
    column, text = results[0] if results else ("", "" if asynchronous and named else values[0])
    value = readings.printed(text)
    if value is None or value.value < readings.LEAST_US or not _RESULT.fullmatch(text):
        return None
    iterations = readings.whole(named.get("Iterations", ""))
    if test.window:
        unit = 1e9 if "GB/s" in column else 1e6
        time_s = placed.size_bytes * (2 if test.op == "sendrecv_pair" else 1) / (value.value * unit)
        manner = test.manner
    else:
        time_s = value.value * 1e-6
        manner = f"mean of {f'{iterations} calls' if iterations else 'all calls'}, {test.manner}"
    if asynchronous:
        manner += ", without computation at the same time"
    return Number(placed, Aggregate(time_s, manner, iterations), None, True if validation == "pass" else None)
