"""Names of other tools → ours: collectives, dtypes, reduce ops. Tables and look-ups, nothing else.

A name that is in no table is not guessed at: its rows are left out, with the reason.
"""

import re

# Of nccl-tests and rccl-tests, as in `all_reduce_perf`.
NCCL_TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    # Each rank sends to its next and receives from the one before.
    "sendrecv": "ring",
}

# Of PARAM's comms.py. Its all_gather and reduce_scatter work on lists of tensors, the _base ones do not.
PARAM = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_list",
    "all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter_list",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
PARAM_BACKENDS = {"nccl": "nccl", "gloo": "gloo", "mpi": "torch-mpi", "ucc": "ucc"}

DTYPES = {
    "float": "float32", "float32": "float32", "half": "float16", "float16": "float16", "double": "float64",
    "float64": "float64", "bfloat16": "bfloat16", "char": "int8", "int8": "int8", "uint8": "uint8", "int": "int32",
    "int32": "int32", "int64": "int64", "long": "int64", "f8e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "fp8_e5m2": "float8_e5m2",
    "MPI_CHAR": "int8", "MPI_SIGNED_CHAR": "int8", "MPI_INT8_T": "int8", "MPI_BYTE": "uint8",
    "MPI_UNSIGNED_CHAR": "uint8", "MPI_UINT8_T": "uint8", "MPI_INT": "int32", "MPI_INT32_T": "int32",
    "MPI_LONG": "int64", "MPI_LONG_LONG": "int64", "MPI_LONG_LONG_INT": "int64", "MPI_INT64_T": "int64",
    "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64",
}  # fmt: skip
# Types of nccl-tests that we have no name for; needed to tell a row that was cut from a line that is none.
OTHER_DTYPES = ("uint32", "uint64")

REDUCE_OPS = {"sum": "sum", "prod": "product", "max": "max", "min": "min", "avg": "avg", "mulsum": "premul_sum"}
# What tools print where nothing is reduced.
NO_REDUCE_OP = "none"
DEFAULT_REDUCE_OP = "sum"

# In the name of a file. Longer ones first: reduce_scatter holds reduce, all_gather holds gather.
_IN_FILE_NAMES = {
    r"reduce[-_.]?scatter": "reduce_scatter",
    r"all[-_.]?reduce": "all_reduce",
    r"all[-_.]?gather": "all_gather",
    r"all[-_.]?(?:to|2)[-_.]?all": "all_to_all",
    r"send[-_.]?recv": "ring",
    r"broadcast|bcast": "broadcast",
    r"gather": "gather",
    r"scatter": "scatter",
    r"reduce": "reduce",
}


def operation_in(file_name: str) -> str | None:
    """The collective that a file name tells; None where it tells none, or several."""
    rest, found = file_name.lower(), []
    for pattern, op in _IN_FILE_NAMES.items():
        rest, times = re.subn(pattern, " ", rest)
        found += [op] if times else []
    return found[0] if len(found) == 1 else None
