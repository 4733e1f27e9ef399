"""Compare results of the same sums bit by bit: repeated, in other processes, in larger messages, with other options.

In: a plan, and the folders with the results that ranks received (`bits.launch`), for one side or two. Out: a `BitsRow`
for each operation, dtype, backend, world size and variation:

    call again       the second call in the same process
    fresh launch     other processes
    ranks            each rank with rank 0, for operations whose result is the same on all ranks
    larger message   the same elements, as the beginning of each share of a larger message, which is cut differently
    …                each option of the configuration that must not change the result: placement, alignment, memory, env
    side B           another interpreter or environment

Hashes of blocks are compared first; the bits of a block are read only if its hashes differ.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.model.projection import SIZES, grouped
from collbench.model.records import OPTIONS, Case, Json, Plan
from collbench.packages.bits.conclusions import Baseline, BitsRow, Compared, Differing
from collbench.packages.bits.planning import BLOCK, CALLS, VARIED, family, place, reference

AGAIN, LAUNCH, RANKS, LARGER, SIDE = "call again", "fresh launch", "ranks", "larger message", "side B"
# The variations that need no option of the configuration.
BUILT_IN = (AGAIN, LAUNCH, RANKS, LARGER, SIDE)
# Operations whose whole result every rank receives.
_SHARED = {"all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_list", "broadcast"}
# Elements as unsigned integers of their size.
Bits = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Result:
    """The data that one rank received in one call."""

    case: Case
    rank: int
    # Hashes of the blocks.
    hashes: tuple[str, ...]
    # Number of elements of each part; the parts follow each other.
    parts: tuple[int, ...]
    # File of the raw bytes.
    path: Path

    @cached_property
    def bits(self) -> Bits:
        """Return the elements as unsigned integers."""
        return np.memmap(self.path, dtype=f"u{DTYPES[self.case.dtype].itemsize}", mode="r")

    @property
    def count(self) -> int:
        return sum(self.parts)


def compared(plan: Plan, sides: Sequence[tuple[Path, Sequence[Sequence[Json]]]]) -> list[BitsRow]:
    """Return a row per operation, dtype, backend, world size and variation. sides: folder and facts of each side."""
    results: dict[tuple[int, Case, int, int], list[Result]] = {}
    wrong: dict[Case, int] = defaultdict(int)
    for side, (folder, facts) in enumerate(sides):
        for position, (launch, lines) in enumerate(zip(plan.order, facts, strict=True)):
            for number, (case, line) in enumerate(zip(launch.cases, lines, strict=True)):
                for call in range(CALLS):
                    results[side, case, launch.number, call] = list(
                        _results(case, line, place(folder, position), number, call)
                    )
                wrong[_row_of(case)] += sum(rank["wrong"] for rank in line["ranks"])
    rows: dict[tuple[Case, str], list[Differing]] = defaultdict(list)
    for case, variation, pairs, description in _comparisons(plan, results):
        rows[_row_of(case), variation].append(_differing(pairs, plan.settings.seed, description))
    made = [
        BitsRow(case, variation, tuple(comparisons), _moves(case), wrong[case])
        for (case, variation), comparisons in rows.items()
    ]
    return sorted(made, key=_in_order)


def _in_order(row: BitsRow) -> tuple[object, ...]:
    """Return the sort key of a row: sums before data that are only moved; variations that need no option first."""
    case, built_in = row.case, row.variation in BUILT_IN
    place = BUILT_IN.index(row.variation) if built_in else len(BUILT_IN)
    return row.moves, case.op, case.dtype, case.backend, case.world_size, place, row.variation


def _results(case: Case, line: Json, folder: Path, number: int, call: int) -> Iterator[Result]:
    for rank, facts in enumerate(line["ranks"]):
        same = facts["hashes"][0] == facts["hashes"][call]
        path = folder / f"{number}-{rank}{'' if same else f'-{call}'}"
        yield Result(case, rank, tuple(facts["hashes"][call]), tuple(facts["parts"]), path)


def _moves(case: Case) -> bool:
    return not OPERATIONS[case.op].reduces


def _row_of(case: Case) -> Case:
    """Return the case that represents a row: without a size, and with the options in VARIED at their defaults."""
    return SIZES.residue(family(case))


# ── pairs of results that are compared ───────────────────────────────────────────────────────────
Pairs = list[tuple[Result, Result]]


def _comparisons(
    plan: Plan, results: dict[tuple[int, Case, int, int], list[Result]]
) -> Iterator[tuple[Case, str, Pairs, Compared]]:
    """Yield (case, variation, pairs of results with the baseline first, description of the compared results)."""
    bases = {key: _base(cases) for key, cases in grouped(plan.cases, family).items()}
    sizes = SIZES.tables(bases.values(), lambda base: base)
    for (side, case, launch, call), received in results.items():
        first = results[0, case, 1, 0]
        if call:
            yield (
                case,
                AGAIN,
                list(zip(results[side, case, launch, 0], received, strict=True)),
                Compared(Baseline.FIRST_CALL, launch),
            )
            continue
        if side:
            if launch == 1:
                yield case, SIDE, list(zip(first, received, strict=True)), Compared(Baseline.SIDE_A)
            continue
        if launch > 1:
            yield case, LAUNCH, list(zip(first, received, strict=True)), Compared(Baseline.FIRST_LAUNCH, launch)
            continue
        if case.op in _SHARED:
            yield case, RANKS, [(received[0], other) for other in received[1:]], Compared(Baseline.RANK_0)
        base = bases[family(case)]
        if case != base:
            pairs = list(zip(results[0, base, 1, 0], received, strict=True))
            yield case, variation(case, base), pairs, Compared(Baseline.OTHER_OPTION, option=variation(base, case))
    for same in sizes.values():
        *smaller, largest = sorted(same, key=lambda case: case.size_bytes)
        for case in smaller:
            yield (
                case,
                LARGER,
                list(zip(results[0, case, 1, 0], results[0, largest, 1, 0], strict=True)),
                Compared(Baseline.LARGER, size_bytes=largest.size_bytes),
            )


def _base(cases: Sequence[Case]) -> Case:
    """Return the baseline of cases that differ in options in VARIED: the fewest options off default, else the first."""
    return min(cases, key=lambda case: len(_changed(case, family(case))))


def variation(case: Case, base: Case) -> str:
    """Format the options in which a case differs from the case that it is compared with."""
    return ", ".join(f"{name} {getattr(case, name) or 'default'}" for name in _changed(case, base))


def _changed(case: Case, other: Case) -> list[str]:
    names = (option.name for option in OPTIONS if option.name in VARIED)
    return [name for name in names if getattr(case, name) != getattr(other, name)]


# ── differences between two results ──────────────────────────────────────────────────────────────
def _differing(pairs: Iterable[tuple[Result, Result]], seed: int, compared: Compared) -> Differing:
    elements = differing = furthest = size_bytes = 0
    nearer = [0, 0]
    first = None
    for base, varied in pairs:
        size_bytes = min(base.case.size_bytes, varied.case.size_bytes)
        in_base, in_varied = _places(base, varied)
        elements += len(in_base)
        blocks = _blocks_that_differ(base, varied)
        if blocks is not None:
            keep = np.isin(in_base // BLOCK, blocks)
            in_base, in_varied = in_base[keep], in_varied[keep]
        if not len(in_base):
            continue
        bits = base.bits[in_base], varied.bits[in_varied]
        differ = np.flatnonzero(bits[0] != bits[1])
        if not len(differ):
            continue
        differing += len(differ)
        first = first or (varied.rank, int(in_base[differ[0]]))
        chosen = bits[0][differ], bits[1][differ]
        furthest = max(furthest, int(distance_ulp(*chosen).max()))
        for side, count in enumerate(_nearer(base, chosen, in_base[differ], seed)):
            nearer[side] += count
    return Differing(size_bytes, elements, differing, furthest, first, (nearer[0], nearer[1]), compared)


def _places(base: Result, varied: Result) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the same elements in both: all, or the beginning of each part of the larger message."""
    if base.parts == varied.parts:
        places = np.arange(base.count)
        return places, places
    begins = np.cumsum([0, *varied.parts[:-1]])
    inside = [begin + np.arange(length) for begin, length in zip(begins, base.parts, strict=True)]
    return np.arange(base.count), np.concatenate(inside)


def _blocks_that_differ(base: Result, varied: Result) -> NDArray[np.int64] | None:
    """Return the blocks whose hashes differ; None if blocks contain different elements, so that all must be read."""
    if base.parts != varied.parts:
        return None
    return np.flatnonzero(np.array(base.hashes) != np.array(varied.hashes))


def distance_ulp(base: Bits, varied: Bits) -> Bits:
    """Return the distance of two floats in representable numbers (ULP), from their bits as unsigned integers."""
    width = base.dtype.itemsize * 8
    sign = np.uint64(1) << np.uint64(width - 1)
    a, b = base.astype(np.uint64), varied.astype(np.uint64)
    sizes = a & (sign - np.uint64(1)), b & (sign - np.uint64(1))
    apart = np.where(sizes[0] > sizes[1], sizes[0] - sizes[1], sizes[1] - sizes[0])
    return np.asarray(np.where((a ^ b) & sign, sizes[0] + sizes[1], apart), dtype=np.uint64)


def _nearer(base: Result, chosen: tuple[Bits, Bits], places: NDArray[np.int64], seed: int) -> tuple[int, int]:
    """Count the elements that are nearer to the higher-precision sum in the first result, and in the second result."""
    exact = reference(base.case, seed, base.rank, base.count)
    if exact is None:
        return 0, 0
    with np.errstate(invalid="ignore"):  # an element may be NaN, which is not nearer to any number
        errors = [np.abs(_as_floats(bits, base.case.dtype) - exact[places]) for bits in chosen]
    return int((errors[0] < errors[1]).sum()), int((errors[1] < errors[0]).sum())


def _as_floats(bits: Bits, dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.ascontiguousarray(bits).view(dtype).astype(np.float64)
