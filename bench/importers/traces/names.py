"""Names of collectives and dtypes in recordings, and what they are here.

In: a name as a format writes it. Out: the operation in `operations`, or the dtype in `dtypes`.
Sources: torch's `record_param_comms` and ProcessGroup classes, 2023 to 2026, and NCCL's inspector.
"""

import re

# Without prefixes (nccl:, gloo:, c10d::), in lower case, without leading and trailing underscores.
OPERATIONS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather_list",
    "all_gather": "all_gather_list",
    "allgather_base": "all_gather",
    "all_gather_base": "all_gather",
    "allgather_into_tensor": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter_list",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all_to_all_list",
    "alltoall": "all_to_all_list",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all_uneven",
    "alltoallv": "all_to_all_uneven",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
DTYPES = {
    "float": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
    "half": "float16",
    "c10::half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "c10::float8_e5m2": "float8_e5m2",
    "long": "int64",
    "long int": "int64",
    "int64": "int64",
    "int": "int32",
    "int32": "int32",
    "short": "int16",
    "char": "int8",
    "signed char": "int8",
    "int8": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "uint8": "uint8",
    "bool": "bool",
}
_PREFIX = re.compile(r"^(nccl|gloo|c10d|mpi|ucc|xccl|rccl):+")
_PEER = re.compile(r"^(send|recv) (?:\d+->(?P<to>\d+)|\d+<-(?P<source>\d+))$")


def rank_of(file: str) -> int | None:
    """The rank in the name of a file, such as `et_rank3.json` or `0.json.gz`; None without a number."""
    stem = file.rsplit("/", 1)[-1].split(".json")[0]
    found = re.search(r"rank\D{0,2}(\d+)", stem) or re.search(r"(\d+)\D*$", stem)
    return int(found[1]) if found else None


def operation_of(name: str) -> str:
    """The operation; what is not known keeps its name, without the backend."""
    bare = _PREFIX.sub("", name.strip())
    bare = bare.split(" ")[0] if _PEER.match(bare) else bare
    return OPERATIONS.get(bare.strip("_").lower(), bare)


def peer_of(name: str) -> int | None:
    """The peer that the name of a send or receive tells, such as `nccl:send 0->3`: within its group."""
    found = _PEER.match(_PREFIX.sub("", name.strip()))
    return int(found["to"] or found["source"]) if found else None


def dtype_of(name: object) -> str | None:
    """The dtype; None if it is not one of these."""
    return DTYPES.get(str(name).strip().lower()) if name else None
