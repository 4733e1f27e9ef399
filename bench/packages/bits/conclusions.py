"""Define what `bits` concludes: how results of two calls differ, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

from bench.model.records import Case


@dataclass(frozen=True, slots=True)
class Differing:
    """Two results of the same sum, or of the same data moved, compared bit by bit.

    size_bytes: of the message; of two messages, of the smaller one. elements: that were compared, on all ranks.
    differing: of these. furthest_ulp: the largest distance between two of them, in units in the last place. first: the
    rank and the first element of its result that differ; None where all are equal. nearer: of the differing
    elements, how many are closer to the exact sum in (baseline, variation); (0, 0) where there is no such sum. where:
    what was compared, in words, such as `launch 2 with launch 1`.
    """

    size_bytes: int
    elements: int
    differing: int
    furthest_ulp: int
    first: tuple[int, int] | None
    nearer: tuple[int, int]
    where: str

    @property
    def share(self) -> float:
        return self.differing / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True)
class BitsRow:
    """All comparisons of one operation, dtype, backend and world size under one variation.

    moves: whether data are only moved, so that any difference is a defect. wrong: elements that arrived otherwise than
    they were sent, on all ranks.
    """

    case: Case
    variation: str
    comparisons: tuple[Differing, ...]
    moves: bool
    wrong: int = 0

    @property
    def identical(self) -> bool:
        return not any(comparison.differing for comparison in self.comparisons)
