"""Make the data of every operation: one sequence of small integers, in which each rank begins at another position.

In: a seed, a dtype, a reduce op, a number of ranks. Out: tensors to fill buffers with, and tensors that a right result
equals, reduced here in integer arithmetic and not by a backend. The sequence repeats with a prime period, which no
segment size divides, and each buffer of a pool begins one element further, so that data of another position, rank or
call are noticed.
"""

import functools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from bench.catalog.dtypes import DTYPES, LARGEST_VALUE, PREMULTIPLIER, largest_value

# Largest prime below 2**18: 1 MiB of float32, which stays in a cache while it is copied out.
PERIOD = 262_139
# Distance between the beginnings of two neighbouring ranks: no multiple of the prime PERIOD, so that no two of fewer
# than PERIOD ranks begin at the same position.
SHIFT = 104_729
# Hardly an input or a result has this value (as a bool it is True): an element that still has it was not received.
POISON = 101

Integers = NDArray[np.int64]
_COMBINE = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@functools.lru_cache(maxsize=4)  # the sizes of a launch share their data
def sequence(seed: int, dtype: str, reduce_op: str | None, ranks: int, device: torch.device) -> torch.Tensor:
    """Two periods of the inputs. reduce_op: None where nothing is reduced, so that any small integer can be used."""
    return _tensor(_inputs(seed, dtype, reduce_op, ranks), dtype, device)


@functools.lru_cache(maxsize=4)
def reduced(seed: int, dtype: str, reduce_op: str, ranks: int, device: torch.device) -> torch.Tensor:
    """Two periods of what reducing the inputs of `ranks` ranks gives."""
    inputs = _inputs(seed, dtype, reduce_op, ranks)
    total = functools.reduce(_COMBINE[reduce_op], (np.roll(inputs, -SHIFT * rank) for rank in range(ranks)))
    if DTYPES[dtype].kind == "bool":
        total = np.minimum(total, 1)
    if reduce_op == "avg":
        total = total // ranks  # the inputs are multiples of it
    if reduce_op == "premul_sum":
        total = total * PREMULTIPLIER
    return _tensor(total, dtype, device)


def begin_of(rank: int) -> int:
    """The position in the sequence at which the data of a rank begin."""
    return rank * SHIFT % PERIOD


def rows(data: torch.Tensor, begin: int, first: int, count: int, length: int) -> torch.Tensor:
    """The data of buffers first, first + 1, …, from position `begin` on: shape (count, length), a view of `data`.

    data: two periods. count and length: at most PERIOD // 2, as in the pieces of `chunks`.
    """
    # With strides (1, 1) a single row looks to torch like a transposed column: copying it would take 30 times as long.
    return data.as_strided((count, length), (1 if count > 1 else length, 1), (begin + first) % PERIOD)


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """start … stop in pieces of at most PERIOD // 2, so that a view of `rows` stays within two periods."""
    half = PERIOD // 2
    for begin in range(start, stop, half):
        yield begin, min(stop, begin + half)


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> tuple[int, int] | None:
    """Row and column of the first element that differs; tolerance: relative, 0 for none."""
    if got.element_size() == 1:  # torch cannot compare float8
        is_bool = got.dtype == torch.bool
        got, want = got.view(torch.uint8), want.view(torch.uint8)
        if is_bool:  # gloo adds bools as bytes: 2 is true as well
            got, want = got.clamp(max=1), want.clamp(max=1)
    if torch.equal(got, want) or (tolerance and torch.allclose(got, want, rtol=tolerance, atol=tolerance)):
        return None
    row, column = (got != want).nonzero()[0].tolist()
    return row, column


def tolerance(dtype: str, reduce_op: str, ranks: int) -> float:
    """Relative error that a right result may have: 0, but for averages, as some backends multiply by a rounded 1/n."""
    return ranks * torch.finfo(getattr(torch, dtype)).eps if reduce_op == "avg" else 0.0


def _inputs(seed: int, dtype: str, reduce_op: str | None, ranks: int) -> Integers:
    """One period of the inputs; of complex numbers, their real parts."""
    kind, dice = DTYPES[dtype].kind, np.random.default_rng([seed])
    largest = LARGEST_VALUE if reduce_op is None else largest_value(dtype, reduce_op, ranks)
    if kind == "bool" or (kind == "unsigned" and reduce_op == "product"):
        return dice.integers(0, 2, PERIOD)
    if reduce_op == "product":
        return 2 * dice.integers(0, 2, PERIOD) - 1
    values = dice.integers(0 if kind == "unsigned" else -largest, largest, PERIOD, endpoint=True)
    return values * ranks if reduce_op == "avg" else values


def _tensor(values: Integers, dtype: str, device: torch.device) -> torch.Tensor:
    """Two periods as a tensor; the imaginary part of a complex number is the next real part."""
    twice = torch.from_numpy(np.tile(values, 2)).to(torch.float64)
    if DTYPES[dtype].kind == "complex":
        twice = torch.complex(twice, twice.roll(-1))
    return twice.to(getattr(torch, dtype)).to(device)
