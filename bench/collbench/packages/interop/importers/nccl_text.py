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
from collbench.model.records import Json
from collbench.packages.interop.catalog import DTYPES_LACKING, MATRIX_FILE, NO_REDUCE_OP, REDUCE_OPS, SPREAD
from collbench.packages.interop.importers.context import COMMAND, INTERLEAVED, Context, LogFact, LogFacts
from collbench.packages.interop.importers.logs import INSIDE, LogLine, command_in
from collbench.packages.interop.importers.readings import DTYPES, Printed, printed

PLACES = {"out-of-place": "out", "in-place": "in"}
TIMES = {"time", "cputime"}
# Columns with the number of wrong elements.
COUNTS = {"#wrong", "wrong"}
# Words in the line on blocking calls → role of the barrier.
BARRIERS = {"time excludes barrier": "barrier outside", "no barrier": "no barrier", "": "barrier"}
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
_VALUE = r"\s*([-+]?(?:(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)\*?|N/A)(?![\d.])"
# The beginning of a value: a row that ends in the middle of a value cannot be continued.
_TORN = re.compile(r"\s*[-+.\d]|\s*N/")
_LEAD = re.compile(rf"(?:\s*({'|'.join([*REDUCE_OPS, NO_REDUCE_OP])})\b)?(?:\s*(-?\d+)(?![\d.]))?")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*)"
)
_SETTINGS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
_NUMBERS = re.compile(r"((?:(?:warmup|agg) )?\biters|graph):\s*(\d+)")
_VERSION = re.compile(r"([nr]ccl|)-tests:? version:? (\S+)(?:.*-library=(\d+))?", re.IGNORECASE)
_UNEVEN = re.compile(r"ALLTOALLV_PRINT_SUMMARY: mode=(?:generated\b.*\bspread=([\d.]+)|matrix)")
_NAMED = re.compile(r"test (starting|concluded)(?::\s*(?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?(?:\.exe)?[\s\"']*$)?")
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


@dataclass(slots=True)
class Row:
    """One row of a table, for one size."""

    size: int
    count: int
    dtype: str
    redop: str = NO_REDUCE_OP
    # None if the row has no column for the root.
    root: int | None = None
    halves: list[Half] = field(default_factory=list)
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
    # Lines of the list of devices: rank, group (the colour of NCCL_TESTS_SPLIT), hostname, device_name.
    ranks: list[Json] = field(default_factory=list)
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
    # How the times of ranks are combined, in words. None if unknown.
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
    # Number of variables that are not allowed; None if the file does not have all environment variables of the tool.
    dropped: int | None = None
    debug: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def copies(self) -> int:
        """Return the number of processes that each ran a separate world: without MPI, each calls itself rank 0."""
        return max(Counter(device["rank"] for device in self.ranks).values(), default=1)

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks of one world: `expected_ranks`, else from the list of devices.

        None without a list, and if the list contradicts the command line and the settings.
        """
        if self.expected_ranks is not None:
            return self.expected_ranks
        if not self.ranks or self.ranks_cut:
            return None
        ranks = max(device["rank"] for device in self.ranks) + 1
        started = None if self.processes is None else self.processes * self.per_process
        whole_list = ranks % self.per_process == 0 and started in {None, ranks}
        return ranks if whole_list or self.copies > 1 else None

    @property
    def colours(self) -> dict[int, int]:
        """Return rank → group."""
        return {device["rank"]: device["group"] for device in self.ranks}

    @property
    def divided(self) -> bool:
        """Return whether NCCL_TESTS_SPLIT divided the ranks into several groups."""
        return len({*self.colours.values()}) > 1


def version_of(code: int) -> str:
    """Format NCCL's version number as text: 22902 is 2.29.2; before 2.9 numbers were shorter: 2708 is 2.7.8."""
    major, minor = (10000, 100) if code >= 10000 else (1000, 100)
    return f"{code // major}.{code % major // minor}.{code % 100}"


# ── text to sections ─────────────────────────────────────────────────────────────────────────────
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
        self.where, self.context = where, Context()
        self.done: list[Section] = []
        # Test and number of processes that a command line named, for the section that begins below it, if the section
        # does not state them.
        self.command: tuple[str | None, int | None] = (None, None)
        # The row that is being read, the line in which it began, the texts of its halves, and the number of blanks
        # before them.
        self.row: Row | None = None
        self.line, self.gap = LogLine(0, ""), 0
        self.halves: list[tuple[str, ...]] = []
        # Facts of the current table.
        self.facts: LogFacts = {}
        self._begin_section()

    def _begin_section(self) -> None:
        self.section, self.stage = Section(), _Reached.NOTHING
        # Columns of one half, and placements of the halves that the table has; "" if unknown.
        self.columns: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
        self.places: tuple[str, ...] = ("out", "in")
        # Placements that were named since the last header.
        self.named_places: tuple[str, ...] = ()
        # True if a header was read; if the table has ended.
        self.titled = self.closed = False

    def _end_section(self) -> None:
        self.finish_row()
        self.done.append(self.section)
        self._begin_section()
        self.context.settings.clear()

    def _reach(self, stage: _Reached) -> None:
        """Set the stage of the current section; begin a new section if the current section is past this stage."""
        if self.stage > stage:
            self._end_section()
        self.stage = stage

    def _use_command(self) -> None:
        """Take test and processes from the last command line if the section lacks them; no later section uses it."""
        test, processes = self.command
        self.section.test, self.section.processes = self.section.test or test, self.section.processes or processes
        self.command = None, None

    def _count_as_unread(self, line: LogLine) -> None:
        self.section.cut += 1
        self.section.unread.append(line)

    def take(self, numbered: LogLine) -> None:
        """Read one line, from which labels have been removed."""
        line = numbered.text
        if self._reads_row(numbered):
            return
        in_table = (self.section.rows or self.section.cut or self.titled) and not self.closed
        if in_table and (_BEGINS_LIKE_A_ROW.match(line) or _PART_OF_A_ROW.match(line)):
            self._count_as_unread(numbered)
            return
        self._learn(line)
        command, stated = _command(line), _STATED.search(line)
        if stated and command is None and _Reached.NOTHING < self.stage < _Reached.ROWS:
            name, text = (" ".join(_PID.sub("", part).split()) for part in (stated[1], stated[0]))
            known = self._stated(name)  # of a copy that runs at the same time
            self.context.settings[name] = LogFact(known if text in known else f"{known} {text}".strip())
        elif stated or command is not None or not _FRAME.search(line):
            self.context.take(numbered, COMMAND if command else "")
        if "-place" in line and (_ONLY_PLACES.fullmatch(line) or "algbw" in line):
            found = (PLACES[name] for name in re.findall(r"out-of-place|in-place", line))
            self.named_places = tuple(dict.fromkeys([*self.named_places, *found]))
        if "algbw" in line:
            self._read_header(numbered)
        if bounds := re.search(r"Out of bounds values\s*:\s*(\d+)", line):
            self.finish_row()
            self.section.out_of_bounds, self.closed = int(bounds[1]), True
        if command is not None:
            if self.section.rows or self.section.cut or self.row is not None:
                self._end_section()  # rows above a command do not belong to it
            self.command = command

    def _stated(self, name: str) -> str:
        return self.context.settings.get(name, LogFact("")).text

    def _learn(self, line: str) -> None:
        """Read facts on the tool, its settings and the devices from a line; a line may contain several facts."""
        if version := _VERSION.search(line):
            if self.stage != _Reached.SETTINGS:  # rccl-tests of 2024 prints the version below the settings
                self._reach(_Reached.VERSION)
            self.section.tool = f"{version[1]}-tests {version[2]}".rstrip(" :+") if version[1] else self.section.tool
            if version[3]:
                self.section.nccl = self.section.nccl or version_of(int(version[3]))
        if named := _NAMED.search(line):
            test = named[2]
            if named[1] == "starting":
                again = self.stage == _Reached.STARTING
                self._reach(_Reached.STARTING)
                if again and test and self.section.test not in {None, test}:
                    raise ForeignError(f"{self.where}: {INTERLEAVED} ({self.section.test}; {test})")
                self.section.test = test or self.section.test
            else:
                self.section.test, self.closed = self.section.test or test, True
        if settings := _SETTINGS.search(line):
            again = " ".join(line[settings.start() :].split()) in self._stated("nThread")
            if self.stage == _Reached.SETTINGS and not again:
                self._end_section()
            self._reach(_Reached.SETTINGS)
            self.section.per_process = max(1, int(settings[1])) * max(1, int(settings[2]))
            self._use_command()
            counts = {kind: int(count) for kind, count in _NUMBERS.findall(line)}
            self.section.iterations, self.section.aggregated = counts.get("iters") or None, counts.get("agg iters") or 1
            self.section.graph = counts.get("graph", 0)
        if "Blocking Enabled" in line:
            self.section.blocking = next(role for words, role in BARRIERS.items() if words in line)
        if summary := _UNEVEN.search(line):
            self.section.variables[SPREAD if summary[1] else MATRIX_FILE] = summary[1] or "a matrix"
        for words, attribute in FLAGS.items():
            if words in line:
                setattr(self.section, attribute, True)
        if device := _RANK.search(line):
            if self.closed:
                self._end_section()
            self.stage = max(self.stage, _Reached.RANKS)
            rank, group, host, name = device.groups()
            where = {"hostname": host, "device_name": name.strip().rstrip(".").strip()}
            self.section.ranks.append({"rank": int(rank), "group": int(group or 0), **where})
            self.section.ranks_cut = self.section.ranks_cut or line.endswith("...")
        if library := re.search(r"[NR]CCL version[ :]+(\d+\.\d+[\d.]*)", line):
            self.section.nccl = library[1].rstrip(".")

    def _read_header(self, line: LogLine) -> None:
        text = re.sub(r"\([^)]*\)", " ", line.text)  # units
        names = text.replace("#wrong", " #wrong ").replace("# ", " ").split()
        starts = [at for at, name in enumerate(names) if name in TIMES]
        if "busbw" not in names or not starts:
            return
        if OLD_COLUMNS & set(names):
            raise ForeignError(f"{self.where}: {TOO_OLD}")
        places, self.named_places = self.named_places, ()
        if "size" not in names or len(starts) < len(places):
            problem = "this line has a part of a header: columns were cut off, or a narrow terminal wrapped the lines"
            raise ForeignError(f"{self.where}:{line.number}: {problem}; give the output as nccl-tests printed it")
        if self.closed:
            self._end_section()
        self.finish_row()
        last = max(at for at, name in enumerate(names) if name in {*COUNTS, "busbw"})
        self.columns = tuple(names[starts[0] : starts[1] if len(starts) > 1 else 1 + last])
        # Which half an only half is must be stated.
        self.places = places if len(places) == len(starts) else ("out", "in") if len(starts) == 2 else ("",)
        self.titled, self.section.cpu_time = True, "cputime" in names

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────
    def _reads_row(self, line: LogLine) -> bool:
        """Begin a row, or read the rest of the row that was begun; return False if the line has neither."""
        match = _ROW.search(line.text)
        row = self.row if match is None else Row(int(match[1]), int(match[2]), match[3])
        if row is None:
            return False
        text = rest = line.text if match is None else INSIDE.sub("", match[4])
        if row.root is None and (match is not None or not self.halves):  # the row begins, or was torn before its root
            redop, row.root, rest = _lead(text)
            row.redop = redop or row.redop
        halves, behind = self._halves(rest)
        if match is None and not halves:
            if rest != text and rest.strip():  # the line ends within a half
                self.finish_row()
            return False
        if match is not None:
            if row.dtype not in DTYPES and (row.root is None if halves else row.dtype not in DTYPES_LACKING):
                return False
            if halves and row.root is None:
                raise ForeignError(f"{self.where}: a row without a root: {TOO_OLD}")
            self.finish_row()
            self.stage = _Reached.ROWS
            if self.section.rows and row.size > self.section.rows[-1].size:
                self.context.lines = {}
            else:  # a table, or the same rows once more
                self.facts = self.context.table()
            row.context, self.row, self.line, self.halves = self.facts, row, line, []
            self.gap = 0 if "\t" in line.text else len(rest) - len(rest.lstrip())
        self.halves += halves
        # A row that is cut within a half is finished, too: the rest of the half could not be recognised.
        if len(self.halves) >= len(self.places) or _TORN.match(behind):
            self.finish_row()
        if match is not None and _ROW.search(behind):  # two rows whose line feed was lost
            self._reads_row(LogLine(line.number, behind))
        return True

    def _halves(self, text: str) -> tuple[list[tuple[str, ...]], str]:
        """Return the values of the complete halves at the beginning of a text, and the text that follows them."""
        half, halves = re.compile(_VALUE * len(self.columns), re.IGNORECASE), list[tuple[str, ...]]()
        while len(halves) < len(self.places) and (match := half.match(text)) is not None:
            halves.append(match.groups())
            text = text[match.end() :]
        return halves, text

    def finish_row(self) -> None:
        """Add the row that was begun to the section, as far as it was read."""
        row, self.row = self.row, None
        if row is None:
            return
        places = self.places
        if len(self.halves) == 1 < len(places):  # blanks were collapsed if there are fewer than nccl-tests prints
            places = places[1:] if self.gap > EMPTY_HALF else places if self.gap >= LEAST_GAP else ("", *places)
        for place, texts in zip(places, self.halves, strict=False):
            named = dict(zip(self.columns, texts, strict=True))
            wrong = next((named[name] for name in COUNTS if name in named), "N/A")
            if place:
                rates = printed(named.get("algbw", "")), printed(named["busbw"])
                row.halves.append(Half(place, printed(texts[0]), *rates, wrong))
        if len(row.halves) < len(places):
            self._count_as_unread(self.line)
        if row.halves:
            self._use_command()
            self.section.rows.append(row)


def _command(line: str) -> tuple[str, int | None] | None:
    """Return the test that a command line starts and the number of processes (None if unknown); None without a test."""
    if (launched := command_in(line, _TEST)) is not None:
        return launched.program[1], launched.processes
    alone = _ALONE.search(line)
    return None if alone is None else (alone[1] or alone[2], None)


def _lead(text: str) -> tuple[str | None, int | None, str]:
    """Return reduce op and root of a row (None if it has none), and the text that follows them."""
    _, redop, root, rest = _LEAD.split(text, maxsplit=1)
    return redop, int(root) if root else None, rest
