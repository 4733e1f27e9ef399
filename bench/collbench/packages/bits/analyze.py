"""Compare results of the same sums bit by bit: repeated, in other processes, in larger messages, with other options.

In: a plan, and for one side or two the facts of the ranks. Out: a `BitsRow` for each operation, dtype, backend, world
size and variation.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import DTYPES
from collbench.model.projection import SIZES, grouped
from collbench.model.records import Case, Json, Plan
from collbench.packages.bits.conclusions import BitsRow, Compared, Differing, Variation
from collbench.packages.bits.planning import CALLS, VARIED, family, reference

# Operations whose whole result every rank receives.
_SHARED = {"all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_list", "broadcast"}
# Elements as unsigned integers of their size.
Bits = NDArray[np.unsignedinteger[Any]]


class Result(NamedTuple):
    """The data that one rank received in one call: elements in each part; the file of the bytes, part after part."""

    rank: int
    parts: list[int]
    file: str


# (side, case, launch, call) → result of each rank.
Results = dict[tuple[int, Case, int, int], list[Result]]


def compared(plan: Plan, sides: Sequence[Sequence[Sequence[Sequence[Json]]]]) -> list[BitsRow]:
    """Return a row per operation, dtype, backend, world size and variation: first sums, then data that are only moved.

    sides: for each side, the facts of each rank by launch and case.
    """
    results: Results = {}
    wrong: dict[Case, int] = defaultdict(int)
    for side, launches in enumerate(sides):
        for launch, by_case in zip(plan.order, launches, strict=True):
            for case, facts in zip(launch.cases, by_case, strict=True):
                for call in range(CALLS):
                    received = [Result(rank, of["parts"], of["files"][call]) for rank, of in enumerate(facts)]
                    results[side, case, launch.number, call] = received
                wrong[_row_of(case)] += sum(of_rank["wrong"] for of_rank in facts)
    rows: dict[tuple[Case, str], list[Differing]] = defaultdict(list)
    for case, name, bases, others, description in _comparisons(plan, results):
        rows[_row_of(case), name].append(_differing(case, bases, others, plan.settings.seed, description))
    unsorted = (
        BitsRow(case, name, tuple(comparisons), not OPERATIONS[case.op].reduces, wrong[case])
        for (case, name), comparisons in rows.items()
    )
    return sorted(unsorted, key=_in_order)


def _in_order(row: BitsRow) -> tuple[object, ...]:
    """Return the sort key of a row; variations that need no option come first."""
    case, place = row.case, [*Variation, row.variation].index(row.variation)
    return row.moves, case.op, case.dtype, case.backend, case.world_size, place, row.variation


def _row_of(case: Case) -> Case:
    """Return the case that represents a row: without a size, and with the options in VARIED at their defaults."""
    return SIZES.residue(family(case))


# ── results that are compared ────────────────────────────────────────────────────────────────────
def _comparisons(plan: Plan, results: Results) -> Iterator[tuple[Case, str, list[Result], list[Result], Compared]]:
    """Yield (case, variation, results of the baseline, results compared with them, description of the baseline)."""
    # The baseline of cases that differ in options in VARIED has the fewest options off default.
    families = grouped(plan.cases, family).items()
    bases = {usual: min(cases, key=lambda case: len(case.extras)) for usual, cases in families}
    for (side, case, launch, call), received in results.items():
        first = results[0, case, 1, 0]
        if call:
            yield case, Variation.AGAIN, results[side, case, launch, 0], received, Compared(launch)
        elif side and launch == 1:
            yield case, Variation.SIDE, first, received, Compared()
        elif launch > 1 and not side:
            yield case, Variation.LAUNCH, first, received, Compared(launch)
        elif not side:
            if case.op in _SHARED:
                yield case, Variation.RANKS, received[:1] * (len(received) - 1), received[1:], Compared()
            if case != (base := bases[family(case)]):
                other = Compared(option=variation(base, case))
                yield case, variation(case, base), results[0, base, 1, 0], received, other
    for same in SIZES.tables(bases.values(), lambda base: base).values():
        *smaller, largest = sorted(same, key=lambda case: case.size_bytes)
        for case in smaller:
            larger = Compared(size_bytes=largest.size_bytes)
            yield case, Variation.LARGER, results[0, case, 1, 0], results[0, largest, 1, 0], larger


def variation(case: Case, base: Case) -> str:
    """Format the options in which a case differs from the case that it is compared with."""
    values = [(option.name, case.value(option.name), base.value(option.name)) for option in VARIED]
    return ", ".join(f"{name} {value or 'default'}" for name, value, other in values if value != other)


# ── differences between two results ──────────────────────────────────────────────────────────────
def _differing(
    case: Case, bases: Sequence[Result], others: Sequence[Result], seed: int, description: Compared
) -> Differing:
    """Compare the results of ranks. case: of the baseline, which is not larger."""
    elements = differing = furthest = 0
    nearer = np.zeros(2, int)
    first = None
    for base, varied in zip(bases, others, strict=True):
        bits, varied_bits = _bits(case, base), _bits(case, varied)
        if varied.parts != base.parts:  # the same elements are the beginning of each part of the larger message
            parts = np.split(varied_bits, np.cumsum(varied.parts[:-1]))
            varied_bits = np.concatenate([part[:length] for part, length in zip(parts, base.parts, strict=True)])
        elements += len(bits)
        places = np.flatnonzero(bits != varied_bits)
        if len(places):
            differing += len(places)
            first = first or (varied.rank, int(places[0]))
            pair = bits[places], varied_bits[places]
            furthest = max(furthest, int(distance_ulp(*pair).max()))
            exact = reference(case, seed, base.rank, len(bits))
            if exact is not None:
                nearer += _nearer(pair, case.dtype, exact[places])
    return Differing(
        case.size_bytes, elements, differing, furthest, first, (int(nearer[0]), int(nearer[1])), description
    )


def _bits(case: Case, result: Result) -> Bits:
    """Return the elements of a result as unsigned integers."""
    return np.fromfile(result.file, f"u{DTYPES[case.dtype].itemsize}") if result.parts else np.zeros(0, "u1")


def distance_ulp(base: Bits, varied: Bits) -> Bits:
    """Return the distance of two floats in representable numbers (ULP), from their bits as unsigned integers."""
    sign = np.uint64(1) << np.uint64(8 * base.dtype.itemsize - 1)
    # Integers in the order of the floats; both zeros have the same.
    wide = (bits.astype(np.uint64) for bits in (base, varied))
    one, other = (np.where(bits < sign, sign + bits, sign - (bits - sign)) for bits in wide)
    return np.asarray(np.maximum(one, other) - np.minimum(one, other))


def _nearer(pair: Sequence[Bits], dtype: str, exact: NDArray[np.longdouble]) -> tuple[int, int]:
    """Count the elements that are nearer to the exact sum in the first result, and in the second."""
    if dtype == "bfloat16":
        pair, dtype = [bits.astype(np.uint32) << np.uint32(16) for bits in pair], "float32"
    with np.errstate(invalid="ignore"):  # an element may be NaN, which is not nearer to any number
        before, after = (np.abs(bits.view(dtype).astype(np.float64) - exact) for bits in pair)
    return int((before < after).sum()), int((after < before).sum())
