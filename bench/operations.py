"""The table of collectives and of dtypes: what exists, what `size` means, what moves over the wire.

Knows no torch. To add a collective: one entry here and one builder in `bench/measure/collectives.py`;
a test ties the two. Definitions are those of nccl-tests' PERFORMANCE.md, so that numbers compare.
"""

from collections.abc import Callable
from dataclasses import dataclass


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
    reduces: whether it takes a reduce op.
    """

    name: str
    size_means: str
    bus_factor: Callable[[int], float]
    buffers: int
    reduces: bool


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
        ),
    )
}


def algbw(size_bytes: int, time_s: float) -> float:
    """Algorithm bandwidth in bytes/s: size over time."""
    return size_bytes / time_s


def busbw(op: str, world_size: int, size_bytes: int, time_s: float) -> float | None:
    """Bus bandwidth in bytes/s; None at world size 1, where nothing crosses a bus."""
    if world_size == 1:
        return None
    return algbw(size_bytes, time_s) * OPERATIONS[op].bus_factor(world_size)
