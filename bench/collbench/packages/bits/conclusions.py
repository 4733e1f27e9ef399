"""Define the conclusions of `bits`: differences between results of two calls, bit by bit."""

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.records import Case


class Variation(StrEnum):
    """What two results differ in. All other variations are options that must not change a result, such as alignment."""

    AGAIN = "call again"  # the second call in the same process
    LAUNCH = "fresh launch"  # other processes
    RANKS = "ranks"  # each rank with rank 0, for operations whose result is the same on all ranks
    LARGER = "larger message"  # the same elements begin each share of a larger message, which is cut differently
    SIDE = "side B"  # another interpreter or environment


@dataclass(frozen=True, slots=True)
class Compared:
    """Description of the results that are compared."""

    # The launch of the results, if launches or their calls are compared.
    launch: int = 0
    # The case of the baseline, if cases are compared: an option in words, or the size of a larger message.
    option: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Differing:
    """Two results of the same sum, or of the same data moved, compared bit by bit."""

    # Size of the message; for two messages, the smaller size.
    size_bytes: int
    # Number of elements that were compared, on all ranks.
    elements: int
    # Number of these elements that differ.
    differing: int
    # Largest distance between two of these elements, in units in the last place.
    furthest_ulp: int
    # Rank, and the first element of its result that differs. None if all elements are equal.
    first: tuple[int, int] | None
    # Number of differing elements that are closer to the exact sum in (baseline, variation). (0, 0) without that sum.
    nearer: tuple[int, int]
    compared: Compared

    @property
    def share(self) -> float:
        return self.differing / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True)
class BitsRow:
    """All comparisons of one operation, dtype, backend and world size under one variation."""

    case: Case
    variation: str
    comparisons: tuple[Differing, ...]
    # True if data are only moved, so that any difference is a defect.
    moves: bool
    # Number of elements that did not arrive as they were sent, on all ranks.
    wrong: int = 0

    @property
    def identical(self) -> bool:
        return not any(comparison.differing for comparison in self.comparisons)
