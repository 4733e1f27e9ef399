"""What the readers of all formats hand on, and the arithmetic that they share.

In: numbers as a tool printed them. Out: `Number` and `Reading` values; nothing here knows a format or touches a file.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.errors import ForeignError
from bench.operations import OPERATIONS
from bench.records import MOST_RANKS, Aggregate, Case, Failure, Json

# Whole numbers up to here are exact wherever they are kept (JSON readers, floats); larger ones were not measured.
LARGEST_WHOLE = 2**53
# What a rate may be off beyond the digits that were printed: tools compute in single precision here and there.
SLACK = 1e-4


@dataclass(frozen=True, slots=True)
class Options:
    """What the user adds to files that do not say it. operation: one of ours."""

    world_size: int | None = None
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """A number and half a unit of its last printed digit: the truth lies within."""

    value: float
    half: float

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


@dataclass(frozen=True, slots=True)
class Number:
    """One time of one case, or why there is none. verified: whether the tool found the result right; None: unsaid."""

    case: Case
    aggregate: Aggregate | None
    failure: Failure | None = None
    verified: bool | None = None


@dataclass(slots=True)
class Reading:
    """What one file holds. rows: lines of its tables, also of those left out.

    tools: with their versions. left_out: reason → how many rows. notes: what a reader must know before believing
    the numbers. unknown: what the file does not tell. facts: of where it ran: hosts, devices, nccl, variables.
    """

    rows: int = 0
    numbers: list[Number] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    facts: Json = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Each once, in the order in which they came."""
        if text not in self.notes:
            self.notes.append(text)

    def lacks(self, text: str) -> None:
        """The same for what the file does not tell."""
        if text not in self.unknown:
            self.unknown.append(text)


# ── numbers as text ──────────────────────────────────────────────────────────────────────────────
LONGEST_NUMBER = 40
_NUMBER = re.compile(r"[-+]?(\d+)(?:\.(\d*))?(?:e([-+]?\d{1,2}))?", re.IGNORECASE)


def printed(text: str) -> Printed | None:
    """`113.70` → 113.7 ± 0.005; None for what is no finite number."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > LONGEST_NUMBER:
        return None
    exponent = int(match[3] or 0) - len(match[2] or "")
    return Printed(float(match[0]), 0.5 * 10.0**exponent)


def whole(text: str) -> int | None:
    """A whole number, blanks around it allowed; None for what is none, or too large to be one that was measured."""
    try:
        number = int(text.strip()[:LONGEST_NUMBER])
    except ValueError:
        return None
    return number if abs(number) < LARGEST_WHOLE else None


# ── what a placement is called ───────────────────────────────────────────────────────────────────
def placement(op: str, place: str) -> str:
    """ "usual" for the placement that the table of operations lists first, else the placement itself."""
    return "usual" if place == OPERATIONS[op].placements[0] else place


# ── bandwidths against times ─────────────────────────────────────────────────────────────────────
def bus_factor(op: str, ranks: int) -> float:
    """From algorithm to bus bandwidth; 0 where nothing crosses a bus."""
    factor = OPERATIONS[op].bus_factor
    return factor(ranks) if factor is not None and ranks > 1 else 0.0


def agrees(bytes_moved: float, times_s: Printed, rate: Printed) -> bool:
    """Whether a printed rate in GB/s is bytes over time, as far as the printed digits of both can tell."""
    slow = bytes_moved / times_s.high / 1e9
    fast = bytes_moved / times_s.low / 1e9 if times_s.low > 0 else float("inf")
    return slow * (1 - SLACK) <= rate.high and rate.low <= fast * (1 + SLACK)


def ranks_by_rates(rates: Iterable[tuple[Printed, Printed]], most: float) -> int | None:
    """n from algorithm and bus bandwidths, where busbw/algbw = most (n-1)/n; None where the digits leave a choice."""
    low, high = 0.0, most
    for algbw, busbw in rates:
        if algbw.low > 0:
            low, high = max(low, busbw.low / algbw.high), min(high, busbw.high / algbw.low)
    if not low <= high < most:
        return None
    # ratio = most (n - 1) / n, so n = most / (most - ratio)
    fewest, largest = math.ceil(most / (most - low) - SLACK), math.floor(most / (most - high) + SLACK)
    return fewest if fewest == largest else None


# ── what only the user can add ───────────────────────────────────────────────────────────────────
def chosen_operation(found: str | None, options: Options, where: str) -> str:
    """Our name of the collective: what the file says, or what the user says; both only if they agree."""
    if found is None and options.operation is None:
        raise ForeignError(
            f"{where}: does not say which collective was measured; name it, such as --operation all_reduce "
            "(see: list operations)"
        )
    if found is not None and options.operation not in {None, found}:
        raise ForeignError(
            f"{where}: says that it measured {found}, so --operation {options.operation} cannot be right"
        )
    return found or str(options.operation)


def chosen_ranks(found: int | None, options: Options, where: str) -> int:
    """The same for the number of ranks."""
    if found is None and options.world_size is None:
        raise ForeignError(f"{where}: does not say how many ranks took part; give their number: --world-size N")
    if found is not None and options.world_size not in {None, found}:
        raise ForeignError(f"{where}: says that {found} ranks took part, so --world-size {options.world_size} is wrong")
    ranks = found or int(options.world_size or 0)
    if not 1 <= ranks <= MOST_RANKS:
        raise ForeignError(f"{where}: says that {ranks} ranks took part, which cannot be")
    return ranks
