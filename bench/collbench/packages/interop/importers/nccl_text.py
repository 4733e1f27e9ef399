"""Parse the text of nccl-tests 2.10 and later and of rccl-tests into sections, by header and not by column number.

In: lines. Out: a `Section` for each execution, with the names of the tool. Layouts differ: per-iteration columns, time
stamps and rccl's `algo proto nchannels` follow the last half. Messages of NCCL and MPI may appear between rows and
inside rows: a row that breaks off is continued where its rest appears. The leading `#` may be missing.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from collbench.model.errors import ForeignError
from collbench.packages.interop.catalog import DTYPES_LACKING, MATRIX_FILE, NO_REDUCE_OP, REDUCE_OPS, SPREAD
from collbench.packages.interop.importers.context import COMMAND, INTERLEAVED, Context, LogFact, LogFacts
from collbench.packages.interop.importers.logs import LogLine, command_in, without_labels
from collbench.packages.interop.importers.readings import DTYPES, Printed, printed, whole

PLACES = {"out-of-place": "out", "in-place": "in"}
TIMES = {"time", "cputime"}
# Columns with the number of wrong elements.
COUNTS = {"#wrong", "wrong"}
# Words in a line → field of `Section` that they make true.
FLAGS = {"Per-Iteration Report": "timed_each", "Parallel Init Enabled": "parallel_init", "NCCL INFO": "debug"}
# Columns of nccl-tests before 2.10: the largest deviation, and the number of elements.
OLD_COLUMNS = {"error", "N"}
READ = "nccl-tests 2.10 or newer"
TOO_OLD = f"written by an older nccl-tests; output of {READ} is read"
# If more blanks than this precede the only half of a row, its first half is empty (nccl-tests writes 32 blanks where it
# replays in place only).
EMPTY_HALF = 28
# nccl-tests prints at least this many blanks between the root and the first half.
LEAST_GAP = 2
_PID = re.compile(r"\bpid\s+\d+", re.IGNORECASE)

_ROW = re.compile(r"(?<![\w.:#-])(-?\d+)\s+(-?\d+)\s+([a-z]\w*)(?=\s|$)(.*)")
# A value has no leading zeros, so a `0` that runs into a host's number (`012`) is not taken for a value.
_VALUE = r"[-+]?(?:(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)\*?|N/A"
_VALUES = re.compile(rf"\s*({_VALUE})(?![\d.])", re.IGNORECASE)
# The beginning of a value: a row that ends in the middle of a value cannot be continued.
_TORN = re.compile(r"\s*[-+.\d]|\s*N/")
_WORD = re.compile(r"\s*([a-z]+)\b")
_ROOT = re.compile(r"\s*(-?\d+)(?![\d.])")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*)"
)
_SETTINGS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
_ITERATIONS = re.compile(r"(warmup|agg)?\s*\biters:\s*(\d+)")
_UNEVEN = re.compile(r"ALLTOALLV_PRINT_SUMMARY: mode=(?:generated\b.*\bspread=([\d.]+)|matrix)")
_NAMED = re.compile(r"(?:starting|concluded):\s*(?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?(?:\.exe)?[\s\"']*$")
_BEGINS_LIKE_A_ROW = re.compile(r"\s*-?\d+(?:\.\d+)?\s+-?[\d.]+(?:\s|$)")
# The line above the names of the columns; a sentence may have its words, too.
_ONLY_PLACES = re.compile(r"(?:[^#]*#)?\s*(?:(?:out-of-place|in-place)\s*){1,2}")
# In an open table: the rest of a row that another line interrupted.
_PART_OF_A_ROW = re.compile(r"\s*-?\d+\s*$|.*\b[a-z]\w*\s+(?:sum|prod|min|max|avg|mulsum|none)\s+-?\d+(?:\s|$)")
# Lines of an execution that state its settings, and lines that say nothing of them.
_STATED = re.compile(r"(nThread|Rank\s+\d+|\w+-tests:? version|[NR]CCL version|Blocking Enabled|Parallel Init).*", re.I)
_FRAME = re.compile(r"test (?:starting|concluded)|Using devices|Out of bounds|Avg bus|-place|algbw|\(us\)")
_TEST = re.compile(r"(?<![\w-])(\w+?)_perf(?:_mpi)?(?:\.exe)?\b(?!\.)")
# A command line without a launcher: after a prompt, or with an option.
_ALONE = re.compile(
    r"^\s*(?:(?:\S*[$#%>+]+\s+)(?:\w+=\S*\s+)*(?:\S*/)?(\w+?)_perf(?:_mpi)?(?:\.exe)?(?:\s|$)"
    r"|(?:\w+=\S*\s+)*(?:\S*/)?(\w+?)_perf(?:_mpi)?(?:\.exe)?\s+-)"
)


# ── one execution, from text or from JSON ────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One line of the list of devices."""

    rank: int
    # Colour of NCCL_TESTS_SPLIT.
    group: int
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class Half:
    """One of the two halves of a row."""

    # Placement: "out" or "in".
    place: str
    # Time in microseconds.
    time: Printed | None
    algbw: Printed | None
    busbw: Printed | None
    # Text of the column #wrong: a count, or N/A.
    wrong: str
    # Times of calls, per process if the file separates processes, without the first `skipped` (-K). Empty if missing.
    each_us: tuple[tuple[float, ...], ...] = ()
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, for one size."""

    size: int
    count: int
    dtype: str
    redop: str
    # None if the row has no column for the root.
    root: int | None
    halves: tuple[Half, ...]
    iterations: int | None = None
    # Facts of its table, as in `context`.
    context: LogFacts = field(default_factory=dict)


@dataclass(slots=True)
class Section:
    """One execution of a test."""

    # Name such as `all_reduce` for `all_reduce_perf`.
    test: str | None = None
    tool: str | None = None
    nccl: str | None = None
    ranks: list[DeviceRow] = field(default_factory=list)
    # True if the list of devices is known to be incomplete.
    ranks_cut: bool = False
    expected_ranks: int | None = None
    # Number of ranks per process, from the line with the settings.
    per_process: int = 1
    # Number of processes, from the launcher's command line.
    processes: int | None = None
    # The product of iterations and aggregated is the number of calls that are timed together.
    iterations: int | None = None
    aggregated: int = 1
    graph: int = 0
    blocking: str = ""
    # How the times of ranks are combined: "rank0", "avg", "min" or "max". None if unknown.
    average: str | None = None
    registered: bool = False
    cpu_time: bool = False
    timed_each: bool = False
    parallel_init: bool = False
    # Number of rows that the tool itself found wrong.
    out_of_bounds: int | None = None
    rows: list[Row] = field(default_factory=list)
    # Number of rows that could not be read completely, and the lines of a text in which these rows begin.
    cut: int = 0
    unread: list[LogLine] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    # True if the file has all environment variables of the tool; `variables` has only the allowed variables.
    environment: bool = False
    debug: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def copies(self) -> int:
        """Return the number of processes that each ran a separate world: without MPI, each calls itself rank 0."""
        return max(Counter(device.rank for device in self.ranks).values(), default=1)

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks of one world: `expected_ranks`, else from the list of devices.

        None without a list, and if the list contradicts the command line and the settings.
        """
        if self.expected_ranks is not None:
            return self.expected_ranks
        if not self.ranks or self.ranks_cut:
            return None
        ranks = max(device.rank for device in self.ranks) + 1
        started = None if self.processes is None else self.processes * self.per_process
        whole_list = ranks % self.per_process == 0 and started in {None, ranks}
        return ranks if whole_list or self.copies > 1 else None

    @property
    def colours(self) -> dict[int, int]:
        """Return rank → group."""
        return {device.rank: device.group for device in self.ranks}


def version_of(code: int) -> str:
    """Format NCCL's version number as text: 22902 is 2.29.2; before 2.9 numbers were shorter: 2708 is 2.7.8."""
    major, minor = (10000, 100) if code >= 10000 else (1000, 100)
    return f"{code // major}.{code % major // minor}.{code % 100}"


# ── text to sections ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Header:
    """The line with the names of the columns."""

    # Columns of one half.
    columns: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
    # Placements of the halves that the table has; "" if unknown.
    places: tuple[str, ...] = ("out", "in")


@dataclass(slots=True)
class _BegunRow:
    """A row that is being read."""

    line: LogLine
    # None if the size is too large.
    size: int | None
    count: int
    dtype: str
    redop: str
    root: int | None
    halves: list[list[str]]
    # Number of blanks before the first half.
    gap: int


def sections(lines: Iterable[LogLine], where: str) -> list[Section]:
    """Return the executions in a log in order, also executions without a row. Raises ForeignError before 2.10."""
    parser = _Parser(where)
    for line in lines:
        parser.take(line)
    parser.finish_row()
    parser.context.end()
    return [*parser.done, parser.section]


# Progress of an execution: the parts of its output, in the order in which it prints them.
_Reached = IntEnum("_Reached", ["NOTHING", "VERSION", "STARTING", "SETTINGS", "RANKS", "ROWS"], start=0)


class _Parser:
    """Reads the lines once. At most one row is incomplete at any time, and it belongs to the current section.

    A section ends at a line that an execution prints earlier than the lines read so far; the next section keeps nothing
    of it. Copies of a test that run at the same time print the same lines twice, one right after the other.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.header = Header()
        # True if the header was read, not assumed.
        self.titled = False
        self.places: tuple[str, ...] = ()
        self.section = Section()
        self.done: list[Section] = []
        self.stage = _Reached.NOTHING
        # True if the table of the current section has ended.
        self.closed = False
        # Test that a command line named, for the section that begins below it, if the section does not name its test.
        self.hint: str | None = None
        # Number of processes that a launcher's command line names, for the same section.
        self.processes: int | None = None
        self.begun: _BegunRow | None = None
        self.context = Context()
        # Facts of the current table.
        self.facts: LogFacts = {}

    def take(self, numbered: LogLine) -> None:
        """Read one line, from which labels have been removed."""
        line = numbered.text
        if self._begins_row(numbered) or self._continues_row(line):
            return
        if self._in_table() and (_BEGINS_LIKE_A_ROW.match(line) or _PART_OF_A_ROW.match(line)):
            self._count_as_unread(numbered)
            return
        self._learn(line)
        command = _command(line)
        stated = _STATED.search(line)
        if stated and command is None and _Reached.NOTHING < self.stage < _Reached.ROWS:
            name, text = (" ".join(_PID.sub("", part).split()) for part in (stated[1], stated[0]))
            known = self.context.settings.get(name, LogFact("")).text  # of a copy that runs at the same time
            self.context.settings[name] = LogFact(known if text in known else f"{known} {text}".strip())
        elif stated or command is not None or not _FRAME.search(line):
            self.context.take(numbered, COMMAND if command else "")
        if "-place" in line and (_ONLY_PLACES.fullmatch(line) or "algbw" in line):
            found = (PLACES[name] for name in re.findall(r"out-of-place|in-place", line))
            self.places = tuple(dict.fromkeys([*self.places, *found]))
        if "algbw" in line:
            self._read_header(numbered)
        if "Out of bounds" in line and (bounds := re.search(r"Out of bounds values\s*:\s*(\d+)", line)):
            self.finish_row()
            self.section.out_of_bounds, self.closed = whole(bounds[1]), True
        if command is not None:
            if self.section.rows or self.section.cut or self.begun is not None:
                self._end_section()  # rows above a command do not belong to it
            self.hint, self.processes = command

    def _in_table(self) -> bool:
        return bool(self.section.rows or self.section.cut or self.titled) and not self.closed

    def _use_command(self) -> None:
        """Take test and processes from the last command line if the section lacks them; no later section uses it."""
        self.section.test, self.hint = self.section.test or self.hint, None
        self.section.processes, self.processes = self.section.processes or self.processes, None

    def _count_as_unread(self, line: LogLine) -> None:
        self.section.cut += 1
        self.section.unread.append(line)

    def _reach(self, stage: _Reached) -> None:
        """Set the stage of the current section; begin a new section if the current section is past this stage."""
        if self.stage > stage:
            self._end_section()
        self.stage = stage

    def _end_section(self) -> None:
        self.finish_row()
        self.done.append(self.section)
        self.section, self.header, self.places, self.closed = Section(), Header(), (), False
        self.stage, self.titled = _Reached.NOTHING, False
        self.context.settings.clear()

    def _learn(self, line: str) -> None:
        """Read facts on the tool, its settings and the devices from a line; a line may contain several facts."""
        if "-tests version" in line or "-tests: Version" in line:
            if self.stage != _Reached.SETTINGS:  # rccl-tests of 2024 prints the version below the settings
                self._reach(_Reached.VERSION)
            if version := re.search(r"((?:nccl|rccl)-tests)(?::)? version:? (\S+)", line, re.IGNORECASE):
                self.section.tool = f"{version[1]} {version[2]}".rstrip(" :+")
            if library := re.search(r"-library=(\d+)", line):
                self.section.nccl = self.section.nccl or version_of(whole(library[1]) or 0)
        if "test starting" in line:
            again = self.stage == _Reached.STARTING
            self._reach(_Reached.STARTING)
            if test := _NAMED.search(line):
                if again and self.section.test not in {None, test[1]}:
                    raise ForeignError(f"{self.where}: {INTERLEAVED} ({self.section.test}; {test[1]})")
                self.section.test = test[1]
        if "test concluded" in line:
            if (test := _NAMED.search(line)) and self.section.test is None:
                self.section.test = test[1]
            self.closed = True
        if "nThread" in line and (settings := _SETTINGS.search(line)):
            known = self.context.settings.get("nThread", LogFact("")).text
            if self.stage == _Reached.SETTINGS and " ".join(line[settings.start() :].split()) not in known:
                self._end_section()
            self._reach(_Reached.SETTINGS)
            self.section.per_process = max(1, (whole(settings[1]) or 1) * (whole(settings[2]) or 1))
            self._use_command()
            counts = {kind: whole(count) for kind, count in _ITERATIONS.findall(line)}
            self.section.iterations, self.section.aggregated = counts.get("") or None, counts.get("agg") or 1
            graph = re.search(r"graph:\s*(\d+)", line)
            self.section.graph = (whole(graph[1]) if graph else None) or 0
        if "Blocking Enabled" in line:
            excluded, absent = "time excludes barrier" in line, "no barrier" in line
            self.section.blocking = "barrier outside" if excluded else "no barrier" if absent else "barrier"
        if summary := _UNEVEN.search(line):
            self.section.variables[SPREAD if summary[1] else MATRIX_FILE] = summary[1] or "a matrix"
        for words, attribute in FLAGS.items():
            if words in line:
                setattr(self.section, attribute, True)
        if "Rank" in line and (device := _RANK.search(line)):
            if self.closed:
                self._end_section()
            self.stage = max(self.stage, _Reached.RANKS)
            rank, group, host, name = device.groups()
            device_name = name.strip().rstrip(".").strip()
            self.section.ranks.append(DeviceRow(whole(rank) or 0, whole(group or "0") or 0, host or "", device_name))
            self.section.ranks_cut = self.section.ranks_cut or line.endswith("...")
        if "CCL version" in line and (library := re.search(r"[NR]CCL version[ :]+(\d+\.\d+[\d.]*)", line)):
            self.section.nccl = library[1].rstrip(".")

    def _read_header(self, line: LogLine) -> None:
        text = re.sub(r"\([^)]*\)", " ", line.text)  # units
        names = text.replace("#wrong", " #wrong ").replace("# ", " ").split()
        starts = [at for at, name in enumerate(names) if name in TIMES]
        if "busbw" not in names or not starts:
            return
        if OLD_COLUMNS & set(names):
            raise ForeignError(f"{self.where}: {TOO_OLD}")
        places, self.places = self.places, ()
        if "size" not in names or len(starts) < len(places):
            problem = "this line has a part of a header: columns were cut off, or a narrow terminal wrapped the lines"
            raise ForeignError(f"{self.where}:{line.number}: {problem}; give the output as nccl-tests printed it")
        if self.closed:
            self._end_section()
        self.finish_row()
        last = max(at for at, name in enumerate(names) if name in {*COUNTS, "busbw"})
        end = starts[1] if len(starts) > 1 else 1 + last
        # Which half an only half is must be stated: "" if it is not.
        if len(places) != len(starts):
            places = ("out", "in") if len(starts) == 2 else ("",)
        self.header, self.titled = Header(tuple(names[starts[0] : end]), places), True
        self.section.cpu_time = "cputime" in names

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────
    def _begins_row(self, line: LogLine) -> bool:
        """Begin a row; return False if the line does not contain a row."""
        match = _ROW.search(line.text)
        if match is None:
            return False
        size, count, dtype, rest = match.groups()
        rest = without_labels(rest)
        redop, root, at = _lead(rest)
        halves, behind = _halves(rest[at:], self.header)
        if not halves and dtype not in DTYPES and dtype not in DTYPES_LACKING:
            return False
        if halves and root is None and dtype not in DTYPES:
            return False
        if halves and root is None:
            raise ForeignError(f"{self.where}: a row without a root: {TOO_OLD}")
        self.finish_row()
        gap = 0 if "\t" in line.text else len(rest[at:]) - len(rest[at:].lstrip())
        self.stage = _Reached.ROWS
        if self.section.rows and (whole(size) or 0) > self.section.rows[-1].size:
            self.context.lines = {}
        else:  # a table, or the same rows once more
            self.facts = self.context.table()
        self.begun = _BegunRow(line, whole(size), whole(count) or 0, dtype, redop, root, halves, gap)
        self._finish_complete_row(self.begun, behind)
        if _ROW.search(behind):  # two rows whose line feed was lost
            self._begins_row(LogLine(line.number, behind))
        return True

    def _continues_row(self, line: str) -> bool:
        """Read the rest of a row that was begun; return False if the line does not contain it."""
        if self.begun is None:
            return False
        rest = line
        if self.begun.root is None and not self.begun.halves:  # interrupted before its root
            redop, root, at = _lead(line)
            if root is None or (redop == NO_REDUCE_OP) == (self.begun.redop == NO_REDUCE_OP):
                redop = self.begun.redop
            self.begun.redop, self.begun.root, rest = redop, root, line[at:]
        halves, behind = _halves(rest, self.header)
        if not halves:
            if rest != line and rest.strip():  # the line ends within a half
                self.finish_row()
            return False
        self.begun.halves += halves
        self._finish_complete_row(self.begun, behind)
        return True

    def _finish_complete_row(self, begun: _BegunRow, behind: str) -> None:
        """Finish a row that is complete, or cut within a half: the rest of a half could not be recognised."""
        if len(begun.halves) >= len(self.header.places) or _TORN.match(behind):
            self.finish_row()

    def finish_row(self) -> None:
        """Add the row that was begun to the section, as far as it was read."""
        begun, self.begun = self.begun, None
        if begun is None:
            return
        places = self.header.places
        if len(begun.halves) == 1 < len(places):  # blanks were collapsed if there are fewer than nccl-tests prints
            places = places[1:] if begun.gap > EMPTY_HALF else places if begun.gap >= LEAST_GAP else ("", *places)
        placed = [(place, values) for place, values in zip(places, begun.halves, strict=False) if place]
        halves = tuple(_half(place, values, self.header) for place, values in placed)
        if len(halves) < len(places) or begun.size is None:
            self._count_as_unread(begun.line)
        if halves and begun.size is not None:
            self._use_command()
            lead = begun.size, begun.count, begun.dtype, begun.redop, begun.root
            self.section.rows.append(Row(*lead, halves, context=self.facts))


def _command(line: str) -> tuple[str, int | None] | None:
    """Return the test that a command line starts and the number of processes (None if unknown); None without a test."""
    if (launched := command_in(line, _TEST)) is not None and (test := _TEST.search(launched.program)) is not None:
        return test[1], launched.processes
    alone = _ALONE.search(line)
    return None if alone is None else (alone[1] or alone[2], None)


def _lead(rest: str) -> tuple[str, int | None, int]:
    """Return redop, root (None if the row has no root), and the position of the first half."""
    at, redop, root = 0, NO_REDUCE_OP, None
    word = _WORD.match(rest)
    if word and (word[1] in REDUCE_OPS or word[1] == NO_REDUCE_OP):
        redop, at = word[1], word.end()
    if number := _ROOT.match(rest, at):
        root, at = whole(number[1]), number.end()
    return redop, root, at


def _halves(text: str, header: Header) -> tuple[list[list[str]], str]:
    """Return the values of the complete halves at the beginning of a text, and the text that follows them."""
    halves: list[list[str]] = []
    at = 0
    while len(halves) < len(header.places):
        half: list[str] = []
        end = at
        while len(half) < len(header.columns) and (match := _VALUES.match(text, end)) is not None:
            half.append(match[1])
            end = match.end()
        if len(half) < len(header.columns):
            break
        halves.append(half)
        at = end
    return halves, text[at:]


def _half(place: str, values: list[str], header: Header) -> Half:
    named = dict(zip(header.columns, values, strict=True))
    time, algbw, busbw = (
        next((printed(named[name]) for name in names if name in named), None)
        for names in (TIMES, ("algbw",), ("busbw",))
    )
    return Half(place, time, algbw, busbw, next((named[name] for name in header.columns if name in COUNTS), "N/A"))
