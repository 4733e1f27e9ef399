"""The table of collectives and of dtypes: what exists, what `size` means, what moves over the wire.

Knows no torch. To add a collective: one entry here and one builder in `bench/measure/collectives.py`;
a test ties the two. Definitions are those of nccl-tests' PERFORMANCE.md, so that numbers compare.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.records import Case

# Small enough that many sums in a row stay exact in float32, large enough to tell ranks apart.
LARGEST_VALUE = 8


@dataclass(frozen=True, slots=True)
class Dtype:
    """`exact_bits`: every integer of magnitude up to 2**exact_bits is represented exactly."""

    name: str
    itemsize: int
    exact_bits: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective.

    size_means: what `size_bytes` counts, for people.
    bus_factor: world size → the factor from algorithm to bus bandwidth (busbw = algbw * factor).
    buffers: buffers of `size_bytes` that a rank holds, for memory estimates.
    reduces: whether it takes a reduce op. fewest_ranks: below so many it means nothing.
    paired: ranks call it in pairs, round by round (`rounds`), and iterations of different rounds are
        different things; such an operation has no pipelined metric.
    """

    name: str
    size_means: str
    bus_factor: Callable[[int], float]
    buffers: int
    reduces: bool
    fewest_ranks: int = 1
    paired: bool = False
    placements: tuple[str, ...] = ("out",)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", 4, 24),
        Dtype("float64", 8, 53),
        Dtype("float16", 2, 11),
        Dtype("bfloat16", 2, 8),
        Dtype("int64", 8, 62),
        Dtype("int32", 4, 30),
        Dtype("int8", 1, 6),
    )
}

REDUCE_OPS = ("sum", "max", "min")

OPERATIONS = {
    operation.name: operation
    for operation in (
        # A ring sends each byte 2(n-1)/n times: reduce-scatter, then all-gather.
        Operation(
            name="all_reduce",
            size_means="bytes that each rank contributes and receives (in place)",
            bus_factor=lambda n: 2 * (n - 1) / n,
            buffers=1,
            reduces=True,
            placements=("in", "out"),
        ),
        # Both directions at once, so that one slow direction makes the pair slow.
        Operation(
            name="pairwise",
            size_means="bytes that each rank sends to its partner, and receives, at the same time",
            bus_factor=lambda n: 1.0,
            buffers=2,
            reduces=False,
            fewest_ranks=2,
            paired=True,
        ),
    )
}
# Shim until the whole table is there: what importers name.
_OTHERS = ("all_gather", "all_gather_list", "reduce_scatter", "reduce_scatter_list", "gather", "scatter", "all_to_all")
for _name in (*_OTHERS, "broadcast", "reduce", "send_recv", "exchange", "ring", "barrier"):
    OPERATIONS[_name] = Operation(
        _name,
        "bytes",
        (lambda n: (n - 1) / n) if _name in _OTHERS else (lambda n: 1.0),
        1,
        _name in {"reduce", "reduce_scatter", "reduce_scatter_list"},
        placements=("in", "out") if _name in {"broadcast", "reduce"} else ("out",),
    )


def algbw(size_bytes: int, time_s: float) -> float:
    """Algorithm bandwidth in bytes/s: size over time."""
    return size_bytes / time_s


def busbw(op: str, world_size: int, size_bytes: int, time_s: float) -> float | None:
    """Bus bandwidth in bytes/s; None at world size 1, where nothing crosses a bus."""
    if world_size == 1:
        return None
    return algbw(size_bytes, time_s) * OPERATIONS[op].bus_factor(world_size)


def rounds(world_size: int) -> list[list[tuple[int, int]]]:
    """Pairs of ranks, round by round, such that each pair meets once (the circle method).

    n - 1 rounds of n/2 pairs; with an odd number of ranks n rounds, in each of which one rank rests.
    """
    ranks = [*range(world_size), *([-1] if world_size % 2 else [])]
    half = len(ranks) // 2
    schedule = []
    for _ in range(len(ranks) - 1):
        pairs = zip(ranks[:half], reversed(ranks[half:]), strict=True)
        schedule.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ranks = [ranks[0], ranks[-1], *ranks[1:-1]]
    return schedule


def cycle(op: str, world_size: int) -> int:
    """Number of iterations after which an operation starts again with the first of its rounds."""
    return len(rounds(world_size)) if OPERATIONS[op].paired else 1


def calls_before_refill(case: Case) -> int | None:
    """How often a buffer may be reduced in place before a sum is no longer exact; None: any number."""
    if not OPERATIONS[case.op].reduces or case.reduce_op != "sum" or case.world_size == 1:
        return None
    limit, value, calls = int(2 ** DTYPES[case.dtype].exact_bits), largest_value(case) * case.world_size, 1
    while value * case.world_size <= limit:
        value *= case.world_size
        calls += 1
    return calls


def largest_value(case: Case) -> int:
    """Inputs lie in [-v, v] for the v returned here: one sum over the ranks is exact in the dtype."""
    return min(LARGEST_VALUE, int(2 ** DTYPES[case.dtype].exact_bits) // case.world_size)
