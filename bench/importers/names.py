"""Translate names of other tools into ours: collectives, dtypes, reduce ops. Tables and look-ups, nothing else.

A name that is in no table is not guessed: its rows are left out, with the reason.
"""

import re

from bench.catalog import nccl_tests_names

DTYPES = {
    **nccl_tests_names.DTYPES,
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    "MPI_CHAR": "int8", "MPI_SIGNED_CHAR": "int8", "MPI_INT8_T": "int8", "MPI_BYTE": "uint8",
    "MPI_UNSIGNED_CHAR": "uint8", "MPI_UINT8_T": "uint8", "MPI_INT": "int32", "MPI_INT32_T": "int32",
    "MPI_LONG": "int64", "MPI_LONG_LONG": "int64", "MPI_LONG_LONG_INT": "int64", "MPI_INT64_T": "int64",
    "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64",
}  # fmt: skip
DEFAULT_REDUCE_OP = "sum"

# Patterns in the name of a file. Longer names first: reduce_scatter holds reduce, all_gather holds gather.
_IN_FILE_NAMES = {
    r"reduce[-_.]?scatter": "reduce_scatter",
    r"all[-_.]?reduce": "all_reduce",
    r"all[-_.]?gather": "all_gather",
    r"all[-_.]?(?:to|2)[-_.]?all": "all_to_all",
    r"send[-_.]?recv": "sendrecv_ring",
    r"broadcast|bcast": "broadcast",
    r"gather": "gather",
    r"scatter": "scatter",
    r"reduce": "reduce",
}


def operation_in(file_name: str) -> str | None:
    """The collective that a file name contains; None if it contains none, or several."""
    rest, found = file_name.lower(), []
    for pattern, op in _IN_FILE_NAMES.items():
        rest, times = re.subn(pattern, " ", rest)
        found += [op] if times else []
    return found[0] if len(found) == 1 else None
