"""Translate names of operations, dtypes and reduce ops between nccl-tests and CollBench.

The names are from the README and `common.cu` of nccl-tests 2.19. Names that only nccl-tests has are listed too, so that
they can be refused with a reason. Does not import torch.

alltoallv_perf (`src/alltoallv.cu` of NVIDIA/nccl-tests, 2026; its header describes it): T is the total that a rank
sends. Rank i sends T · ((1 − s)/n + s · d / (n(n−1)/2)) to the rank d places after it, rounded down to 16 bytes; s is
NCCL_TESTS_ALLTOALLV_SPREAD (1). With NCCL_TESTS_ALLTOALLV_MATRIX_FILE, a matrix of bytes replaces this formula, and the
column `count` is 0. The bus bandwidth is (n−1)/n of the algorithm bandwidth, however much data stays on a rank.
"""

from collections.abc import Mapping

# Name of the test, such as `alltoall` in `alltoall_perf` → operation.
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "sendrecv": "sendrecv_ring",
}
OPERATIONS_LACKING = {"hypercube": "rounds of exchanges along the axes of a cube"}
# The test with uneven shares, our operation for it, and variables that set the division: a spread (0 to 1) or a matrix.
UNEVEN_TEST, UNEVEN_OPERATION = "alltoallv", "all_to_all"
SPREAD, MATRIX_FILE, DEFAULT_SPREAD = "NCCL_TESTS_ALLTOALLV_SPREAD", "NCCL_TESTS_ALLTOALLV_MATRIX_FILE", 1.0
# The message from one rank to another is rounded down to a multiple of this many bytes.
UNEVEN_ALIGNMENT = 16

DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
# torch cannot reduce these dtypes on any backend.
DTYPES_LACKING = ("uint32", "uint64")

REDUCE_OPS = {"sum": "sum", "prod": "product", "min": "min", "max": "max", "avg": "avg", "mulsum": "premul_sum"}
# Values that nccl-tests prints for an operation without a reduce op, and for an operation without a root.
NO_REDUCE_OP, NO_ROOT = "none", -1


def capitalised(operation: str) -> str:
    """Return the name of an operation in NCCL's Inspector and rccl-tests, such as `AllReduce`."""
    return "AlltoAll" if operation == "all_to_all" else "".join(word.capitalize() for word in operation.split("_"))


# Our operation → its name in the JSON of rccl-tests.
RCCL_NAMES = {op: capitalised(op) for op in OPERATIONS.values()} | {"sendrecv_ring": "SendRecv"}


def operation_of(test: str) -> str | None:
    """Return our operation for a test of nccl-tests, such as `alltoall`; None if there is no such operation."""
    return UNEVEN_OPERATION if test == UNEVEN_TEST else OPERATIONS.get(test)


def uneven_bytes(ranks: int, elements: int, itemsize: int, spread: float) -> int:
    """Return the bytes that each rank sends in alltoallv_perf (its column `size`). elements: its column `count`."""
    total = elements * ranks * itemsize
    if ranks == 1:
        return total // UNEVEN_ALIGNMENT * UNEVEN_ALIGNMENT
    distances = ranks * (ranks - 1) // 2
    shares = ((1 - spread) * (total / ranks) + spread * (distance * total / distances) for distance in range(ranks))
    return sum(int(share) // UNEVEN_ALIGNMENT * UNEVEN_ALIGNMENT // itemsize * itemsize for share in shares)


def test_named(operation: str) -> str:
    """Return nccl-tests' test for an operation, such as `alltoall_perf`; made from our name if there is no test."""
    return f"{name_in(OPERATIONS, operation)}_perf"


def name_in(names: Mapping[str, str], ours: str) -> str:
    """Return nccl-tests' name in one of the tables above; our name if nccl-tests has none."""
    return next((name for name, own in names.items() if own == ours), ours)
