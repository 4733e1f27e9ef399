"""Define what every reader returns, and the arithmetic that the readers share.

In: numbers as a tool printed them. Out: `Number` and `Reading` values; nothing here knows a format or touches a file.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.catalog.operations import OPERATIONS
from bench.model.errors import ForeignError
from bench.model.records import MOST_RANKS, Aggregate, Case, Failure, Json

# Whole numbers up to here are exact wherever they are kept (JSON readers, floats); larger ones were not measured.
LARGEST_WHOLE = 2**53
# Relative error that a rate may have beyond its printed digits: some tools compute in single precision.
SLACK = 1e-4


@dataclass(frozen=True, slots=True)
class Options:
    """What the user states where a file does not say it. operation: by our name."""

    world_size: int | None = None
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """A number and half a unit of its last printed digit: the exact value lies in value ± half."""

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
    """One time of one case, or why there is none. verified: did the tool find the result right? None if unknown."""

    case: Case
    aggregate: Aggregate | None
    failure: Failure | None = None
    verified: bool | None = None


@dataclass(slots=True)
class Reading:
    """What one file holds. rows: lines of its tables, including those left out.

    tools: with their versions. left_out: reason → how many rows. notes: what a reader must know before believing
    the numbers. unknown: what the file does not tell. facts: where the tool ran: hosts, devices, nccl, variables.
    """

    rows: int = 0
    numbers: list[Number] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    facts: Json = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def lacks(self, text: str) -> None:
        """Add something that the file does not tell, unless it is there already."""
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
    """A whole number, blanks around it allowed; None for any other text, or from LARGEST_WHOLE on."""
    try:
        number = int(text.strip()[:LONGEST_NUMBER])
    except ValueError:
        return None
    return number if abs(number) < LARGEST_WHOLE else None


# ── placements ───────────────────────────────────────────────────────────────────────────────────
def placement(op: str, place: str) -> str:
    """ "usual" for the placement that the table of operations lists first, else the placement itself."""
    return "usual" if place == OPERATIONS[op].placements[0] else place


# ── bandwidths against times ─────────────────────────────────────────────────────────────────────
def bus_factor(op: str, ranks: int) -> float:
    """Factor from algorithm to bus bandwidth; 0 where nothing crosses a bus."""
    factor = OPERATIONS[op].bus_factor
    return factor(ranks) if factor is not None and ranks > 1 else 0.0


def agrees(bytes_moved: float, times_s: Printed, rate: Printed) -> bool:
    """Whether a printed rate in GB/s is bytes over time, within the printed digits of both."""
    slow = bytes_moved / times_s.high / 1e9 if times_s.high > 0 else float("inf")
    fast = bytes_moved / times_s.low / 1e9 if times_s.low > 0 else float("inf")
    return slow * (1 - SLACK) <= rate.high and rate.low <= fast * (1 + SLACK)


def ranks_by_rates(rates: Iterable[tuple[Printed, Printed]], most: float) -> int | None:
    """n from pairs of algbw and busbw, where busbw/algbw = most (n-1)/n; None if the digits do not determine it."""
    low, high = 0.0, most
    for algbw, busbw in rates:
        if algbw.low > 0:
            low, high = max(low, busbw.low / algbw.high), min(high, busbw.high / algbw.low)
    if not low <= high < most:
        return None
    # ratio = most (n - 1) / n, so n = most / (most - ratio)
    fewest, largest = math.ceil(most / (most - low) - SLACK), math.floor(most / (most - high) + SLACK)
    return fewest if fewest == largest else None


# ── what files may not say ───────────────────────────────────────────────────────────────────────
def chosen_operation(found: str | None, options: Options, where: str) -> str:
    """Our name of the collective, from the file or the user. Raises ForeignError if neither says it, or they differ."""
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
    """The number of ranks, by the same rule."""
    if found is None and options.world_size is None:
        raise ForeignError(f"{where}: does not say how many ranks took part; give their number: --world-size N")
    if found is not None and options.world_size not in {None, found}:
        raise ForeignError(f"{where}: says that {found} ranks took part, so --world-size {options.world_size} is wrong")
    ranks = found or int(options.world_size or 0)
    if not 1 <= ranks <= MOST_RANKS:
        raise ForeignError(f"{where}: says that {ranks} ranks took part, which cannot be")
    return ranks
