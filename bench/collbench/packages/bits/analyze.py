"""Compare results of the same sums bit by bit: repeated, in other processes, in larger messages, with other options.

In: a plan, and for one side or two the folder and the facts of the ranks. Out: a `BitsRow` for each operation, dtype,
backend, world size and variation:

    call again       the second call in the same process
    fresh launch     other processes
    ranks            each rank with rank 0, for operations whose result is the same on all ranks
    larger message   the same elements, as the beginning of each share of a larger message, which is cut differently
    …                each option of the configuration that must not change the result: placement, alignment, memory, env
    side B           another interpreter or environment
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.model.projection import SIZES, grouped
from collbench.model.records import OPTIONS, Case, Json, Plan
from collbench.packages.bits.conclusions import Baseline, BitsRow, Compared, Differing
from collbench.packages.bits.planning import CALLS, VARIED, family, place, reference, result_file

AGAIN, LAUNCH, RANKS, LARGER, SIDE = "call again", "fresh launch", "ranks", "larger message", "side B"
# The variations that need no option of the configuration.
BUILT_IN = (AGAIN, LAUNCH, RANKS, LARGER, SIDE)
# Operations whose whole result every rank receives.
_SHARED = {"all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_list", "broadcast"}
# Elements as unsigned integers of their size.
Bits = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """The data that one rank received in one call."""

    case: Case
    rank: int
    # Number of elements of each part; the parts follow each other.
    parts: tuple[int, ...]
    # File of the raw bytes.
    path: Path

    def bits(self) -> Bits:
        """Return the elements as unsigned integers."""
        return np.fromfile(self.path, dtype=f"u{DTYPES[self.case.dtype].itemsize}") if self.parts else np.zeros(0, "u1")


# (side, case, launch, call) → result of each rank.
Results = dict[tuple[int, Case, int, int], list[Result]]


def compared(plan: Plan, sides: Sequence[tuple[Path, Sequence[Sequence[Sequence[Json]]]]]) -> list[BitsRow]:
    """Return a row per operation, dtype, backend, world size and variation.

    sides: for each side, its folder and the facts of each rank by launch and case.
    """
    results: Results = {}
    wrong: dict[Case, int] = defaultdict(int)
    for side, (folder, facts) in enumerate(sides):
        for position, (launch, lines) in enumerate(zip(plan.order, facts, strict=True)):
            for number, (case, ranks) in enumerate(zip(launch.cases, lines, strict=True)):
                for call in range(CALLS):
                    files = [_file(place(folder, position), number, rank, call) for rank in range(len(ranks))]
                    results[side, case, launch.number, call] = [
                        Result(case, rank, tuple(ranks[rank]["parts"]), path) for rank, path in enumerate(files)
                    ]
                wrong[_row_of(case)] += sum(rank["wrong"] for rank in ranks)
    rows: dict[tuple[Case, str], list[Differing]] = defaultdict(list)
    for case, name, bases, others, baseline in _comparisons(plan, results):
        rows[_row_of(case), name].append(_differing(bases, others, plan.settings.seed, baseline))
    unsorted = (
        BitsRow(case, name, tuple(comparisons), not OPERATIONS[case.op].reduces, wrong[case])
        for (case, name), comparisons in rows.items()
    )
    return sorted(unsorted, key=_in_order)


def _file(folder: Path, number: int, rank: int, call: int) -> Path:
    """Return the file with the result of a call: that of the first call if the call gave the same bits."""
    own = result_file(folder, number, rank, call)
    return own if own.exists() else result_file(folder, number, rank, 0)


def _in_order(row: BitsRow) -> tuple[object, ...]:
    """Return the sort key of a row: sums before data that are only moved; variations that need no option first."""
    case = row.case
    place = BUILT_IN.index(row.variation) if row.variation in BUILT_IN else len(BUILT_IN)
    return row.moves, case.op, case.dtype, case.backend, case.world_size, place, row.variation


def _row_of(case: Case) -> Case:
    """Return the case that represents a row: without a size, and with the options in VARIED at their defaults."""
    return SIZES.residue(family(case))


# ── results that are compared ────────────────────────────────────────────────────────────────────
def _comparisons(plan: Plan, results: Results) -> Iterator[tuple[Case, str, list[Result], list[Result], Compared]]:
    """Yield (case, variation, results of the baseline, results compared with them, description of the baseline)."""
    # The baseline of cases that differ in options in VARIED has the fewest options off default.
    families = grouped(plan.cases, family).items()
    bases = {usual: min(cases, key=lambda case: len(_changed(case, usual))) for usual, cases in families}
    for (side, case, launch, call), received in results.items():
        first = results[0, case, 1, 0]
        if call:
            yield case, AGAIN, results[side, case, launch, 0], received, Compared(Baseline.FIRST_CALL, launch)
        elif side and launch == 1:
            yield case, SIDE, first, received, Compared(Baseline.SIDE_A)
        elif launch > 1 and not side:
            yield case, LAUNCH, first, received, Compared(Baseline.FIRST_LAUNCH, launch)
        elif not side:
            if case.op in _SHARED:
                yield case, RANKS, received[:1] * (len(received) - 1), received[1:], Compared(Baseline.RANK_0)
            if case != (base := bases[family(case)]):
                other = Compared(Baseline.OTHER_OPTION, option=variation(base, case))
                yield case, variation(case, base), results[0, base, 1, 0], received, other
    for same in SIZES.tables(bases.values(), lambda base: base).values():
        *smaller, largest = sorted(same, key=lambda case: case.size_bytes)
        for case in smaller:
            larger = Compared(Baseline.LARGER, size_bytes=largest.size_bytes)
            yield case, LARGER, results[0, case, 1, 0], results[0, largest, 1, 0], larger


def variation(case: Case, base: Case) -> str:
    """Format the options in which a case differs from the case that it is compared with."""
    return ", ".join(f"{name} {getattr(case, name) or 'default'}" for name in _changed(case, base))


def _changed(case: Case, other: Case) -> list[str]:
    names = (option.name for option in OPTIONS if option.name in VARIED)
    return [name for name in names if getattr(case, name) != getattr(other, name)]


# ── differences between two results ──────────────────────────────────────────────────────────────
def _differing(bases: Sequence[Result], others: Sequence[Result], seed: int, compared: Compared) -> Differing:
    elements = differing = furthest = 0
    nearer = np.zeros(2, int)
    first = None
    for base, varied in zip(bases, others, strict=True):
        bits, varied_bits = base.bits(), _same_elements(base, varied)
        elements += len(bits)
        places = np.flatnonzero(bits != varied_bits)
        if len(places):
            differing += len(places)
            first = first or (varied.rank, int(places[0]))
            furthest = max(furthest, int(distance_ulp(bits[places], varied_bits[places]).max()))
            nearer += _nearer(base, (bits, varied_bits), places, seed)
    size_bytes = min((result.case.size_bytes for result in (*bases, *others)), default=0)
    return Differing(size_bytes, elements, differing, furthest, first, (int(nearer[0]), int(nearer[1])), compared)


def _same_elements(base: Result, varied: Result) -> Bits:
    """Return the elements that both have: all, or the beginning of each part of the larger message."""
    bits = varied.bits()
    if base.parts == varied.parts:
        return bits
    begins = np.cumsum([0, *varied.parts[:-1]])
    return np.concatenate([bits[begin:][:length] for begin, length in zip(begins, base.parts, strict=True)])


def distance_ulp(base: Bits, varied: Bits) -> Bits:
    """Return the distance of two floats in representable numbers (ULP), from their bits as unsigned integers."""
    sign = np.uint64(1) << np.uint64(base.dtype.itemsize * 8 - 1)
    a, b = base.astype(np.uint64), varied.astype(np.uint64)
    sizes = a & (sign - np.uint64(1)), b & (sign - np.uint64(1))
    apart = np.where(sizes[0] > sizes[1], sizes[0] - sizes[1], sizes[1] - sizes[0])
    return np.asarray(np.where((a ^ b) & sign, sizes[0] + sizes[1], apart), dtype=np.uint64)


def _nearer(base: Result, bits: tuple[Bits, Bits], places: NDArray[np.int64], seed: int) -> tuple[int, int]:
    """Count the elements at `places` that are nearer to the higher-precision sum in the first, and in the second."""
    exact = reference(base.case, seed, base.rank, sum(base.parts))
    if exact is None:
        return 0, 0
    with np.errstate(invalid="ignore"):  # an element may be NaN, which is not nearer to any number
        before, after = (np.abs(_as_floats(side[places], base.case.dtype) - exact[places]) for side in bits)
    return int((before < after).sum()), int((after < before).sum())


def _as_floats(bits: Bits, dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view(dtype).astype(np.float64)
