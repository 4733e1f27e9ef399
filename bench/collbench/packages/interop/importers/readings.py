"""Define input and result of readers of other tools' output, and helpers for all readers. No format is known here.

In: a path. Out: a `Source`; `logs` removes labels and envelopes from its lines. A reader takes a source and the user's
`Options` and returns a `ReadFile`: numbers, left-out rows with reasons, facts that the file lacks, and all assumptions
of the reader. Errors are one-line ForeignErrors.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from collbench.catalog.collectives import OPERATIONS
from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice
from collbench.model.records import Aggregate, Case, Failure, Json
from collbench.model.units import MOST_RANKS, format_bytes
from collbench.packages.interop import catalog as theirs
from collbench.packages.interop.importers import logs
from collbench.packages.interop.importers.logs import LogLine

# The log of the longest sweep with NCCL_DEBUG=INFO is a few megabytes; a larger file is not the log of a benchmark.
LIMIT_BYTES = 64 * 2**20
# A file with a larger share of undecodable or NUL characters is not text; a log may contain a few garbled characters.
MOST_GARBLED = 0.05
# First bytes of a packed file → format of packing.
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
T = TypeVar("T", int, str)


# Reasons for which both readers leave rows out; the number of rows is a value of the notice.
LEFT_OUT = "left out: {rows:count row}: "
UNREADABLE_ROWS = Kind("unreadable-rows", f"{LEFT_OUT}cut off or unreadable")
NO_COUNTERPART = Kind("no-counterpart", f"{LEFT_OUT}{{test}} has no counterpart here")
SIZE_0 = Kind("size-0", f"{LEFT_OUT}size 0")
OTHER_DTYPE = Kind("other-dtype", f"{LEFT_OUT}dtype {{dtype:.40}}, which CollBench does not have")


# ── files ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read."""

    path: Path
    sha256: str
    text: str

    # Name of the file without its folder.
    @property
    def name(self) -> str:
        return self.path.name.encode(errors="replace").decode()

    def lines(self) -> list[LogLine]:
        """Return the lines that the tool printed, without colours, labels and the envelopes of log collectors."""
        return logs.lines(self.text)


def read_source(path: Path) -> Source:
    """Read a file as text; raises ForeignError if it cannot be read, is empty, packed, not text or over LIMIT_BYTES."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ForeignError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    text = raw.decode("utf-8-sig", errors="replace")  # with or without a byte-order mark
    packed = next((kind for start, kind in PACKED.items() if raw.startswith(start)), None)
    problems = (
        (len(raw) > LIMIT_BYTES, f"larger than {format_bytes(LIMIT_BYTES)}: not a table of results"),
        (not raw.strip(), "empty"),
        (packed, f"packed with {packed}; unpack it first"),
        (text.count("\ufffd") + text.count("\0") > MOST_GARBLED * len(text), "not UTF-8 text"),
    )
    if (problem := next((words for holds, words in problems if holds), None)) is not None:
        raise ForeignError(f"{path}: {problem}")
    return Source(path, hashlib.sha256(raw).hexdigest(), text)


# ── numbers as text ──────────────────────────────────────────────────────────────────────────────
# Whole numbers up to this limit are exact in JSON readers and floats; larger numbers are not results of measurements.
LARGEST_WHOLE = 2**53
_NUMBER = re.compile(r"[-+]?(\d+)(?:\.(\d*))?(?:e([-+]?\d{1,2}))?", re.IGNORECASE)


class Printed(NamedTuple):
    """A printed number, and the limits between which its exact value lies."""

    value: float
    low: float
    high: float


def within(value: float, half: float) -> Printed:
    """Return value ± half."""
    return Printed(value, value - half, value + half)


def printed(text: str) -> Printed | None:
    """Parse `113.70` as 113.7 ± 0.005, half a unit of the last digit; return None if it is not a number."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else within(float(match[0]), 0.5 * 10.0 ** (int(match[3] or 0) - len(match[2] or "")))


def whole(text: str) -> int | None:
    """Parse a whole number, blanks around it allowed; None for any other text, or from LARGEST_WHOLE on."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < LARGEST_WHOLE else None


# ── result of a reader ───────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Number:
    """One time of one case, or the reason why there is none."""

    case: Case
    aggregate: Aggregate | None
    failure: Failure | None = None
    # True if the tool found the result right. None if unknown.
    verified: bool | None = None
    # Facts of its table, as in `context`; all numbers of a table share them.
    context: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ReadFile:
    """The content of one file. A notice may be in these lists twice; a run has it once."""

    # Number of lines of the tables, including left-out lines.
    rows: int = 0
    numbers: list[Number] = field(default_factory=list)
    # Tools, with their versions.
    tools: list[str] = field(default_factory=list)
    # Reason → number of rows that were left out for it.
    left_out: Counter[Notice] = field(default_factory=Counter)
    # Lines that begin like a row and could not be read; `left_out` counts them.
    unread: list[LogLine] = field(default_factory=list)
    # Notices that the user must know before trusting the numbers.
    notes: list[Notice] = field(default_factory=list)
    # Notices on facts that the file lacks.
    unknown: list[Notice] = field(default_factory=list)
    # Where each execution ran: hosts, devices, nccl, variables.
    facts: list[Json] = field(default_factory=list)
    # Where each rank of an execution ran, in the form of environment.json.
    launches: list[Json] = field(default_factory=list)


# ── facts that files may lack ────────────────────────────────────────────────────────────────────
# Fact → what a file lacks if it does not state the fact, and what it states, in words.
_FACTS = {
    "operation": (
        "does not name the measured collective; give it, such as --operation all_reduce (see: collbench list "
        "operations)",
        "that it measured {}",
    ),
    "world_size": ("does not contain the number of ranks; give it: --world-size N", "{} ranks"),
    "backend": ("does not name the measured library; give it, such as --backend mpi", "that it measured {}"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The facts that the user states, for files that lack them."""

    world_size: int | None = None
    # Our name of the operation.
    operation: str | None = None
    backend: str | None = None

    def chosen(self, fact: str, stated: T | None, source: Source) -> T:
        """Return what the file states, else what the user gave. Raises ForeignError if neither does, or they differ."""
        (lacking, words), given = _FACTS[fact], getattr(self, fact)
        if stated is not None and given not in {None, stated}:
            option = f"--{fact.replace('_', '-')} {given}"
            raise ForeignError(f"{source.path}: states {words.format(stated)}, so {option} cannot be right")
        value: T | None = given if stated is None else stated
        if value is None:
            raise ForeignError(f"{source.path}: {lacking}")
        if fact == "world_size" and not 1 <= int(value) <= MOST_RANKS:
            raise ForeignError(f"{source.path}: states {value} ranks, which is impossible")
        return value


# ── names ────────────────────────────────────────────────────────────────────────────────────────
# A shorter time is not a time; a rate computed from it would be infinite.
LEAST_US = 0.001
# The meaning of a name that is in no table is not guessed: its rows are left out, with the reason.
DTYPES = {
    **theirs.DTYPES,
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    "MPI_CHAR": "int8", "MPI_SIGNED_CHAR": "int8", "MPI_INT8_T": "int8", "MPI_BYTE": "uint8",
    "MPI_UNSIGNED_CHAR": "uint8", "MPI_UINT8_T": "uint8", "MPI_INT": "int32", "MPI_INT32_T": "int32",
    "MPI_LONG": "int64", "MPI_LONG_LONG": "int64", "MPI_LONG_LONG_INT": "int64", "MPI_INT64_T": "int64",
    "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64",
}  # fmt: skip
# Patterns in the name of a file. Longer names first: reduce_scatter contains reduce, all_gather contains gather.
IN_FILE_NAMES = {
    r"reduce[-_.]?scatter": "reduce_scatter",
    r"all[-_.]?reduce": "all_reduce",
    r"all[-_.]?gather": "all_gather",
    r"all[-_.]?(?:to|2)[-_.]?all": "all_to_all",
    r"send[-_.]?recv": "sendrecv_ring",
    r"broadcast|bcast": "broadcast",
    r"gather": "gather",
    r"scatter": "scatter",
    r"reduce": "reduce",
}


def operation_in(file_name: str) -> str | None:
    """Return the collective that a file name contains; None if it contains no collective, or several."""
    rest, operations = file_name.lower(), []
    for pattern, op in IN_FILE_NAMES.items():
        rest, times = re.subn(pattern, " ", rest)
        operations += [op] if times else []
    return operations[0] if len(operations) == 1 else None


# ── bandwidths against times ─────────────────────────────────────────────────────────────────────
# Relative error that a rate may have beyond its printed digits: some tools compute in single precision.
SLACK = 1e-4


def bus_factor(op: str, ranks: int) -> float:
    """Return the factor from algorithm to bus bandwidth; 0 if nothing crosses a bus."""
    factor = OPERATIONS[op].bus_factor
    return factor(ranks) if factor is not None and ranks > 1 else 0.0


def agrees(bytes_moved: float, time_us: Printed, rate: Printed) -> bool:
    """Return whether a printed rate in GB/s is bytes over time, within the printed digits of both numbers."""
    slow, fast = (bytes_moved / us / 1e3 if us > 0 else math.inf for us in (time_us.high, time_us.low))
    return slow * (1 - SLACK) <= rate.high and rate.low <= fast * (1 + SLACK)


def ranks_by_rates(rates: Iterable[tuple[Printed, Printed]], most: float) -> int | None:
    """Compute n ranks from (algbw, busbw) pairs with busbw/algbw = most (n-1)/n; None if the digits leave it open."""
    low, high = 0.0, most
    for algbw, busbw in rates:
        if algbw.low > 0:
            low, high = max(low, busbw.low / algbw.high), min(high, busbw.high / algbw.low)
    if not low <= high < most:
        return None
    # ratio = most (n - 1) / n, so n = most / (most - ratio)
    fewest, largest = math.ceil(most / (most - low) - SLACK), math.floor(most / (most - high) + SLACK)
    return fewest if fewest == largest else None
