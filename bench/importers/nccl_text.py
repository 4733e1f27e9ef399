"""Parse the text of nccl-tests and rccl-tests, from version 2.0 on, into sections, by header and not by column number.

Layouts differ: 2.0 to 2.9 have an `error` column, later
ones `#wrong` and `root`; rows of alltoall may lack the redop that the header names; per-iteration columns, time
stamps and rccl's `algo proto nchannels` follow the last half. Messages of NCCL and MPI may stand between rows and
inside them: a row that breaks off is continued where its rest appears. The leading `#` may be missing.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.catalog.nccl_tests_names import DTYPES_LACKING, NO_REDUCE_OP, REDUCE_OPS
from bench.importers.found import Printed, printed, whole
from bench.importers.names import DTYPES
from bench.importers.nccl_sections import DeviceRow, Half, Row, Section
from bench.model.errors import ForeignError

PLACES = {"out-of-place": "out", "in-place": "in"}
TIMES = {"time", "cputime"}
# Columns whose number is a count of wrong elements; `error` is the largest deviation.
COUNTS = {"#wrong", "wrong"}
ERRORS = COUNTS | {"error"}
# With more blanks than this before its only half, a row has an empty first half (nccl-tests writes 32 where it replays
# in place only).
EMPTY_HALF = 28

_ROW = re.compile(r"(?<![\w.:#-])(-?\d+)\s+(-?\d+)\s+([a-z]\w*)(?=\s|$)(.*)")
# A value has no leading zeros, so a `0` that runs into a host's number (`012`) is not taken for one.
_VALUE = r"[-+]?(?:(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?|inf|nan)\*?|N/A"
_VALUES = re.compile(rf"\s*({_VALUE})(?![\d.])", re.IGNORECASE)
_WORD = re.compile(r"\s*([a-z]+)\b")
_ROOT = re.compile(r"\s*(-?\d+)(?![\d.])")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*)"
)
# Columns of nccl-tests 1 and of the tests that came with NCCL 1, which wrote milliseconds.
_COLUMNS_OF_1 = {"bytes", "N"}
_SETTINGS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
_ITERATIONS = re.compile(r"(warmup|agg)?\s*\biters:\s*(\d+)")
_TEST = re.compile(r"(?<![\w-])(\w+?)_perf(?:_mpi)?\b(?!\.)")


@dataclass(frozen=True, slots=True)
class Header:
    """The line with the names of the columns. lead: the columns between type and the first time.

    block: the columns of one half. places: which halves there are.
    """

    lead: tuple[str, ...] = ("redop", "root")
    block: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
    places: tuple[str, ...] = ("out", "in")


@dataclass(slots=True)
class _Begun:
    """A row that is being read. size: None if it is too large. gap: number of blanks before its first half."""

    size: int | None
    count: int
    dtype: str
    redop: str
    root: int | None
    halves: list[list[str]]
    gap: int = 0


def sections(lines: Iterable[str], where: str) -> list[Section]:
    """The executions in a log, in its order, including those without a row. Raises ForeignError for version 1."""
    reader = _Reader(where)
    for line in lines:
        reader.take(line)
    return reader.end()


class _Reader:
    """Reads the lines once. At most one row is incomplete at any time, and it belongs to the current section.

    hint: the test that a command line named, for the next section that does not name its own.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.header: Header | None = None
        self.places: tuple[str, ...] = ()
        self.now = Section()
        self.done: list[Section] = []
        self.closed = False
        self.hint: str | None = None
        self.begun: _Begun | None = None

    def end(self) -> list[Section]:
        """All sections, the last one included."""
        self._finish_row()
        return [*self.done, self.now]

    def take(self, line: str) -> None:
        """Read one line, from which labels have been removed."""
        match = _ROW.search(line)
        if match is not None and self._row(match):
            return
        if self.begun is not None and self._more(line):
            return
        for words, reaction in _REACTIONS:
            if words in line:
                reaction(self, line)
        test = _TEST.search(line)
        if test is not None and "Collective test" not in line:
            self.hint = test[1]

    # ── sections ─────────────────────────────────────────────────────────────────────────────────
    def _begin(self, if_closed: bool = False) -> None:
        """Begin a new section if this one has ranks or rows already (if_closed: only if its table has ended)."""
        if not (self.closed if if_closed else self.now.ranks or self.now.rows or self.now.cut):
            return
        self._finish_row()
        self.done.append(self.now)
        self.now, self.header, self.places, self.closed = Section(), None, (), False

    def version(self, line: str) -> None:
        self._begin()
        match = re.search(r"((?:nccl|rccl)-tests)(?::)? version:? (\S+)", line, re.IGNORECASE)
        if match:
            self.now.tool = f"{match[1]} {match[2]}".rstrip(" :+")
        library = re.search(r"-library=(\d+)", line)
        if library:
            self.now.nccl = self.now.nccl or version_of(whole(library[1]) or 0)

    def starting(self, line: str) -> None:
        self._begin()
        match = re.search(r"starting:\s*(?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?\s*$", line)
        if match:
            self.now.test = match[1]

    def concluded(self, line: str) -> None:
        match = re.search(r"concluded:\s*(?:\S*/)?(\w+?)(?:_perf)?(?:_mpi)?\s*$", line)
        if match and self.now.test is None:
            self.now.test = match[1]
        self.closed = True

    def settings(self, line: str) -> None:
        if _SETTINGS.search(line) is None:
            return
        self._begin()
        counts = {kind: whole(count) for kind, count in _ITERATIONS.findall(line)}
        self.now.iterations, self.now.aggregated = counts.get("") or None, counts.get("agg") or 1
        self.now.validation = _after("validation", line)
        self.now.graph = _after("graph", line) or 0

    def blocking(self, line: str) -> None:
        self.now.blocking = "no barrier" if "no barrier" in line else "barrier"

    def each(self, line: str) -> None:
        self.now.timed_each = True

    def parallel(self, line: str) -> None:
        self.now.parallel_init = True

    def device(self, line: str) -> None:
        match = _RANK.search(line)
        if match:
            self._begin(if_closed=True)
            rank, group, host, name = match.groups()
            device = name.strip().rstrip(".").strip()
            self.now.ranks.append(DeviceRow(whole(rank) or 0, whole(group or "0") or 0, host or "", device))
            self.now.ranks_cut = self.now.ranks_cut or line.endswith("...")

    def nccl(self, line: str) -> None:
        match = re.search(r"[NR]CCL version[ :]+(\d+\.\d+[\d.]*)", line)
        if match:
            self.now.nccl = match[1].rstrip(".")

    def info(self, line: str) -> None:
        self.now.debug = True

    def bounds(self, line: str) -> None:
        match = re.search(r"Out of bounds values\s*:\s*(\d+)", line)
        if match:
            self._finish_row()
            self.now.out_of_bounds, self.closed = whole(match[1]), True

    # ── the table ────────────────────────────────────────────────────────────────────────────────
    def halves(self, line: str) -> None:
        self.places = tuple(PLACES[name] for name in re.findall(r"out-of-place|in-place", line))

    def columns(self, line: str) -> None:
        names = line.replace("#wrong", " #wrong ").replace("# ", " ").split()
        if set(names) >= _COLUMNS_OF_1:
            raise ForeignError(f"{self.where}: written by nccl-tests 1 or older; text of versions from 2.0 on is read")
        starts = [i for i, name in enumerate(names) if name in TIMES]
        if "busbw" not in names or not starts:
            return
        self._begin(if_closed=True)
        self._finish_row()
        lead = names[names.index("type") + 1 : starts[0]] if "type" in names[: starts[0]] else []
        end = starts[1] if len(starts) > 1 else 1 + max(i for i, name in enumerate(names) if name in {*ERRORS, "busbw"})
        places = self.places if len(self.places) == len(starts) else ("out", "in")[: len(starts)]
        self.header = Header(tuple(lead), tuple(names[starts[0] : end]), places)
        self.now.cpu_time = "cputime" in names
        self.now.counts_errors = bool(COUNTS & set(names)) or not ERRORS & set(names)

    def _row(self, match: re.Match[str]) -> bool:
        """Begin a row; False if the line is none."""
        size, count, dtype, rest = match.groups()
        header = self.header or Header()
        redop, root, at = _lead(rest, header, whole(size) or 0)
        halves, behind = _halves(rest[at:], header)
        if not halves and dtype not in DTYPES and dtype not in DTYPES_LACKING:
            return False
        self._finish_row()
        gap = len(rest[at:]) - len(rest[at:].lstrip())
        self.begun = _Begun(whole(size), whole(count) or 0, dtype, redop, root, halves, gap)
        if len(halves) >= len(header.places) or _VALUES.match(behind):
            self._finish_row()  # complete, or cut within a half, whose rest could not be recognised
        return True

    def _more(self, line: str) -> bool:
        """Read the rest of a row that was begun; False if the line does not hold it."""
        assert self.begun is not None  # noqa: S101 - the caller has looked
        header = self.header or Header()
        halves, behind = _halves(line, header)
        if not halves:
            return False
        self.begun.halves += halves
        if len(self.begun.halves) >= len(header.places) or _VALUES.match(behind):
            self._finish_row()
        return True

    def _finish_row(self) -> None:
        begun, header = self.begun, self.header or Header()
        self.begun = None
        if begun is None:
            return
        places = header.places
        if len(begun.halves) == 1 < len(places) and begun.gap > EMPTY_HALF:
            places = places[1:]
        blocks = tuple(_block(place, half, header) for place, half in zip(places, begun.halves, strict=False))
        self.now.cut += len(begun.halves) < len(places)
        if blocks and begun.size is None:
            self.now.cut += 1
        elif blocks and begun.size is not None:
            self.now.test, self.hint = self.now.test or self.hint, None
            row = Row(begun.size, begun.count, begun.dtype, begun.redop, begun.root, blocks)
            self.now.rows.append(row)


# Text in a line → the method that reads it. A line may contain several.
_REACTIONS: tuple[tuple[str, Callable[[_Reader, str], None]], ...] = (
    ("-tests version", _Reader.version),
    ("-tests: Version", _Reader.version),
    ("test starting", _Reader.starting),
    ("test concluded", _Reader.concluded),
    ("nThread", _Reader.settings),
    ("Blocking Enabled", _Reader.blocking),
    ("Per-Iteration Report", _Reader.each),
    ("Parallel Init Enabled", _Reader.parallel),
    ("Rank", _Reader.device),
    ("CCL version", _Reader.nccl),
    ("NCCL INFO", _Reader.info),
    ("-place", _Reader.halves),
    ("algbw", _Reader.columns),
    ("Out of bounds", _Reader.bounds),
)


def version_of(code: int) -> str:
    """NCCL's version as a number → as text: 22902 is 2.29.2, and before 2.9 it was 2708 for 2.7.8."""
    major, minor, patch = (10000, 100, code % 100) if code >= 10000 else (1000, 100, code % 100)
    return f"{code // major}.{code % major // minor}.{patch}"


def _after(word: str, line: str) -> int | None:
    match = re.search(rf"{word}:\s*(\d+)", line)
    return whole(match[1]) if match else None


def _lead(rest: str, header: Header, size: int) -> tuple[str, int | None, int]:
    """Redop, root, and the position of the first half; a row may lack columns that the header names."""
    at, redop, root = 0, NO_REDUCE_OP, None
    word = _WORD.match(rest)
    if word and (word[1] in REDUCE_OPS or word[1] == NO_REDUCE_OP):
        redop, at = word[1], word.end()
    number = _ROOT.match(rest, at) if "root" in header.lead else None
    # The number may be a time: one of 10 ms or more has no decimals either.
    if number and not _begins_with_time(rest[at:], rest[number.end() :], header, size):
        root, at = whole(number[1]), number.end()
    return redop, root, at


def _begins_with_time(text: str, behind: str, header: Header, size: int) -> bool:
    """Whether a row has no root: only then is it complete, and its time and algorithm bandwidth agree.

    They have to agree because a row with a root that was cut has as many numbers as a complete one without a root.
    """
    halves, _ = _halves(text, header)
    if len(halves) < len(header.places) or len(_halves(behind, header)[0]) == len(header.places):
        return False
    block = _block("", halves[0], header)
    if block.time is None or block.algbw is None or block.time.value <= 0:
        return False
    # Wide limits: in old versions all-gather's algbw contains (n-1)/n, and small ones are printed as 0.00.
    return block.algbw.low <= 1.1 * size / block.time.value / 1e3 <= 2.5 * block.algbw.high


def _halves(text: str, header: Header) -> tuple[list[list[str]], str]:
    """The complete halves at the beginning of a text, and the text that follows them."""
    halves: list[list[str]] = []
    at = 0
    while len(halves) < len(header.places):
        half: list[str] = []
        end = at
        while len(half) < len(header.block) and (match := _VALUES.match(text, end)) is not None:
            half.append(match[1])
            end = match.end()
        if len(half) < len(header.block):
            break
        halves.append(half)
        at = end
    return halves, text[at:]


def _block(place: str, half: list[str], header: Header) -> Half:
    named = dict(zip(header.block, half, strict=True))
    error = next((named[name] for name in header.block if name in ERRORS), "N/A")
    return Half(place, _first(named, *TIMES), _first(named, "algbw"), _first(named, "busbw"), error)


def _first(named: dict[str, str], *names: str) -> Printed | None:
    return next((printed(named[name]) for name in names if name in named), None)
