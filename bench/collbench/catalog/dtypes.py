"""Define dtypes and reduce ops: which combinations exist, and which data keep results exact.

The data are small integers, so that a result is exact and the same in any order of summation (docs/method.md, "Data").
The dtype limits how large they may be, and how often a buffer may be reduced in place; this module computes both
limits. Does not import torch.
"""

import math
from dataclasses import dataclass
from typing import Literal

DtypeKind = Literal["float", "integer", "unsigned", "bool", "complex"]

# Small enough for many exact sums in a row in float32, and large enough that the data of ranks differ.
LARGEST_VALUE = 8
# Factor by which NCCL's premul_sum multiplies each input. A power of two, so exact in every dtype.
PREMULTIPLIER = 2


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type of elements."""

    name: str
    itemsize: int
    # The dtype represents every integer of magnitude up to 2**exact_bits exactly.
    exact_bits: int
    kind: DtypeKind


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """A way to combine elements."""

    name: str
    # Kinds of dtypes that the reduce op is defined for.
    kinds: frozenset[DtypeKind]
    # True if reducing a result once more makes it larger.
    grows: bool = False


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", 4, 24, "float"),
        Dtype("float64", 8, 53, "float"),
        Dtype("float16", 2, 11, "float"),
        Dtype("bfloat16", 2, 8, "float"),
        Dtype("float8_e4m3fn", 1, 4, "float"),
        Dtype("float8_e5m2", 1, 3, "float"),
        Dtype("int64", 8, 62, "integer"),
        Dtype("int32", 4, 30, "integer"),
        Dtype("int16", 2, 14, "integer"),
        Dtype("int8", 1, 6, "integer"),
        Dtype("uint8", 1, 7, "unsigned"),
        Dtype("bool", 1, 0, "bool"),
        Dtype("complex64", 8, 24, "complex"),
        Dtype("complex128", 16, 53, "complex"),
    )
}
# Reduce ops that add.
_SUMS = frozenset({"sum", "avg", "premul_sum"})
# Dtype of operations that move no data. It is not an element type; no configuration may name it.
BYTES = Dtype("bytes", 1, 0, "unsigned")

_REAL: frozenset[DtypeKind] = frozenset({"float", "integer", "unsigned", "bool"})
_WHOLE: frozenset[DtypeKind] = frozenset({"integer", "unsigned", "bool"})
REDUCE_OPS = {
    reduce_op.name: reduce_op
    for reduce_op in (
        ReduceOp("sum", _REAL | {"complex"}, grows=True),  # a sum of bools is a logical or
        ReduceOp("avg", frozenset({"float", "complex"})),
        ReduceOp("product", _REAL),
        ReduceOp("max", _REAL),
        ReduceOp("min", _REAL),
        ReduceOp("band", _WHOLE),
        ReduceOp("bor", _WHOLE),
        ReduceOp("bxor", _WHOLE),
        ReduceOp("premul_sum", frozenset({"float"}), grows=True),
    )
}


def dtype_named(name: str) -> Dtype:
    """Return the dtype of this name, which may also be BYTES."""
    return BYTES if name == BYTES.name else DTYPES[name]


def growth(dtype: str, reduce_op: str, ranks: int) -> int:
    """Return the factor by which a result is multiplied when all ranks reduce it in place once more."""
    if not REDUCE_OPS[reduce_op].grows or DTYPES[dtype].kind == "bool":
        return 1
    return ranks * (PREMULTIPLIER if reduce_op == "premul_sum" else 1)


def unit(dtype: str, reduce_op: str, ranks: int) -> int:
    """Return the factor of all inputs: for avg over few ranks, or not a power of two, the number of ranks; else 1."""
    return ranks if reduce_op == "avg" and (ranks & (ranks - 1) or ranks**2 <= _limit(dtype)) else 1


def largest_value(dtype: str, reduce_op: str, ranks: int) -> int:
    """Return v such that inputs in [-v, v], times `unit`, give an exact result; 0 if some inputs must be 0."""
    if DTYPES[dtype].kind == "bool" or reduce_op == "product":
        return 1  # for a product only 1 and -1: any product of them is 1 or -1
    if reduce_op not in _SUMS:
        return min(LARGEST_VALUE, _limit(dtype))
    return min(LARGEST_VALUE, _most(dtype, reduce_op, ranks) // ranks)


def spacing(dtype: str, reduce_op: str, ranks: int) -> int | None:
    """Return k such that results are exact if each element is ±1 on every k-th rank and 0 on other ranks; else None.

    It is 1 if all ranks may have other values than 0. A sum of bfloat16 can thus be verified over 512 ranks, too.
    """
    if largest_value(dtype, reduce_op, ranks) >= 1:
        return 1
    most = _most(dtype, reduce_op, ranks)
    return math.ceil(ranks / (most - 1)) if most > 1 else None


def _limit(dtype: str) -> int:
    return int(2 ** DTYPES[dtype].exact_bits)


def _most(dtype: str, reduce_op: str, ranks: int) -> int:
    """Return the largest sum over ranks of |inputs|, in units, for an exact result with no error hidden by rounding."""
    if (dtype, reduce_op) == ("float8_e4m3fn", "avg") and ranks > 2**9:
        return 0  # its smallest number is 1/512
    most = _limit(dtype) // unit(dtype, reduce_op, ranks) // (PREMULTIPLIER if reduce_op == "premul_sum" else 1)
    if reduce_op == "avg" and (rounds := rounding(dtype, ranks)):
        most = min(most, math.ceil(1 / rounds) - 2)
    return most


def rounding(dtype: str, ranks: int) -> float:
    """Return the relative error that an average may have: n roundings, as a library may multiply by a rounded 1/n."""
    return ranks * 2.0 ** (1 - DTYPES[dtype].exact_bits) if ranks & (ranks - 1) else 0.0


def calls_before_refill(dtype: str, reduce_op: str, ranks: int) -> int | None:
    """Return how often a buffer may be reduced in place before verification needs a refill; None: any number."""
    if ranks == 1 and reduce_op != "premul_sum":
        return None
    if largest_value(dtype, reduce_op, ranks) < 1 or (reduce_op == "avg" and unit(dtype, reduce_op, ranks) < ranks):
        return 1  # a further result would not be exact
    if reduce_op == "bxor":
        return 1  # after one call all inputs are equal and cancel out
    if reduce_op == "product":
        return 1  # the next result would be the sign to the power of the number of ranks
    factor = growth(dtype, reduce_op, ranks)
    if factor == 1:
        return None
    limit, value, calls = _limit(dtype), largest_value(dtype, reduce_op, ranks) * factor, 1
    while value * factor <= limit:
        value *= factor
        calls += 1
    return calls
