"""Find the name that a user meant by another spelling, and list the names that are allowed.

In: what was written, and the names that exist. Out: words for the end of an error message. Knows no configuration.
"""

import difflib
import re
from collections.abc import Sequence

# What other tools and libraries call the same thing, in lower case without separators. One spelling may mean a dtype
# and an operation: a name is proposed only where it is allowed.
OTHER_NAMES = {
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16", "brain16"), "bfloat16"),
    **dict.fromkeys(("fp8", "f8", "float8", "e4m3", "e4m3fn", "fp8e4m3"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2", "fp8e5m2"), "float8_e5m2"),
    **dict.fromkeys(("i64", "long"), "int64"),
    **dict.fromkeys(("i32", "int", "integer"), "int32"),
    **dict.fromkeys(("i16", "short"), "int16"),
    **dict.fromkeys(("i8", "char"), "int8"),
    **dict.fromkeys(("u8", "byte"), "uint8"),
    **dict.fromkeys(("complex", "cfloat"), "complex64"),
    "cdouble": "complex128",
    **dict.fromkeys(("alltoall", "all2all", "a2a"), "all_to_all"),
    **dict.fromkeys(("alltoallv", "all2allv"), "all_to_all_uneven"),
    "allgatherinto": "all_gather",
    "reducescattertensor": "reduce_scatter",
    "bcast": "broadcast",
    **dict.fromkeys(("p2p", "sendrecv"), "send_recv"),
    **dict.fromkeys(("cpu", "tcp"), "gloo"),
    **dict.fromkeys(("cuda", "gpu", "rccl"), "nccl"),
    **dict.fromkeys(("openmpi", "mpich", "mpi4py"), "mpi"),
    **dict.fromkeys(("mean", "average"), "avg"),
    "add": "sum",
    **dict.fromkeys(("prod", "mul"), "product"),
    "and": "band",
    "or": "bor",
    "xor": "bxor",
    "latency": "isolated",
    **dict.fromkeys(("backtoback", "throughput", "bandwidth"), "pipelined"),
    **dict.fromkeys(("graphs", "cudagraph", "cudagraphs"), "graph"),
    **dict.fromkeys(("distributeddataparallel", "ddptorch"), "ddp"),
    **dict.fromkeys(("fsdp", "fullyshard"), "fsdp2"),
    **dict.fromkeys(("zero", "zerostage1"), "zero1"),
    **dict.fromkeys(("bucket", "buckets", "bucketed"), "overlap_bucket"),
    **dict.fromkeys(("overlap", "individual", "overlapindividual"), "overlap_param"),
}
# What stands before the list of names that are allowed.
ALLOWED = " allowed: "
# Below this likeness difflib proposes names that nobody meant.
LIKENESS = 0.6


def near(written: str, names: Sequence[str]) -> list[str]:
    """The names that were most likely meant: none, one, or all that continue what was written (`xl`: `xl-2025`, …)."""
    plain = _plain(written)
    same = [name for name in names if _plain(name) == plain]
    if same:
        return same[:1]
    if OTHER_NAMES.get(plain) in names:
        return [OTHER_NAMES[plain]]
    longer = [name for name in names if plain and name.lower().startswith(f"{written.lower()}-")]
    return longer or difflib.get_close_matches(written.lower(), names, n=1, cutoff=LIKENESS)


def _plain(name: str) -> str:
    return re.sub(r"[-_ .]", "", name.lower())


def allowed(written: object, names: Sequence[str], others: str = "") -> str:
    """`; did you mean 'gloo'? allowed: gloo, nccl`. others: what is allowed besides the names."""
    found = near(str(written), names)
    meant = f"; did you mean {' or '.join(map(repr, found))}?" if found else ";"
    return f"{meant}{ALLOWED}{', '.join(filter(None, (*names, others)))}"
