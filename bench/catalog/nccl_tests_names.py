"""Translate names of operations, dtypes and reduce ops between nccl-tests and CollBench.

The names are from the README and `common.cu` of nccl-tests 2.19. What only nccl-tests has is listed too, so that it can
be refused with a reason. Does not import torch.
"""

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
OPERATIONS_LACKING = {"hypercube": "rounds of exchanges along the axes of a cube", "alltoallv": "uneven shares"}

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
# torch reduces neither of them on any backend.
DTYPES_LACKING = ("uint32", "uint64")

REDUCE_OPS = {"sum": "sum", "prod": "product", "min": "min", "max": "max", "avg": "avg", "mulsum": "premul_sum"}
# What nccl-tests prints for an operation without a reduce op, and for one without a root.
NO_REDUCE_OP, NO_ROOT = "none", -1


def test_named(operation: str) -> str:
    """The test of nccl-tests for an operation, such as `alltoall_perf`; made from our name if it has none."""
    return f"{_turned(OPERATIONS).get(operation, operation)}_perf"


def dtype_named(dtype: str) -> str:
    """The name of a dtype in nccl-tests; ours if it has none."""
    return _turned(DTYPES).get(dtype, dtype)


def reduce_op_named(reduce_op: str) -> str:
    """The name of a reduce op in nccl-tests; ours if it has none."""
    return _turned(REDUCE_OPS).get(reduce_op, reduce_op)


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in table.items()}
