"""List the environment variables that may be set for ranks, and those that may be recorded.

Both are allow-lists. For ranks, because some variables make a process load foreign code. For records, because an
environment can hold credentials: that of this machine (`machine.environment`), and that in the output of another tool
(`importers`). Reads no environment.
"""

import re
from collections.abc import Iterable

SETTABLE = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "UCC_", "FI_", "OMPI_MCA_")
# Of these, variables that load code, start programs, or write and read files. What the user's own environment holds is
# inherited all the same.
REFUSED = re.compile(
    r".*(PLUGIN|PATH|PRELOAD|LAUNCH_AGENT|RSH|_AGENT).*|.*_(FILE|FILES|DIR|DIRS|LIB|LIBS|PIPE|PARAM_FILES|CMD)",
    re.IGNORECASE,
)
# Lets NCCL accept several ranks on one GPU: it compares hosts and bus ids, so each rank also claims to be on a host of
# its own (NCCL_HOSTID), and can then communicate only through sockets. NCCL_MULTI_RANK_GPU_ENABLE does the same from
# NCCL 2.30.3 on.
SHARED_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_HOSTID": "collbench",
}
# Values that name a file; those that name networks look alike.
FILE, NETWORKS = re.compile(r"/|^[.~]|\.so\b"), re.compile(r"[\d.:a-fA-F]+/\d+(,[\d.:a-fA-F]+/\d+)*")
ALLOWED = re.compile(
    r"(NCCL_|GLOO_|TORCH_|OMP_|MKL_|CUDA_VISIBLE|UCX_|FI_)[A-Z0-9_]*"
    r"|SLURM_(JOB|STEP)_(ID|NUM_NODES|NUM_TASKS|NODELIST|PARTITION|TASKS_PER_NODE|GPUS|CPUS_PER_NODE)"
    # What tunes Open MPI, by its frameworks; its job variables hold paths and addresses.
    r"|OMPI_MCA_(btl|pml|mtl|osc|coll|op|smsc|topo|mpi|mpool|rcache|threads)(?!\w*(_uri|dir|path|file))[A-Z0-9_]*",
    re.IGNORECASE,
)


def allowed(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables that may be recorded, sorted by name."""
    return {name: value for name, value in sorted(variables) if ALLOWED.fullmatch(name)}


def unsettable(name: str, value: str) -> str | None:
    """Why a variable may not be set for ranks; None if it may."""
    if not name.startswith(SETTABLE):
        return f"only these variables may be set for ranks: {', '.join(f'{start}*' for start in SETTABLE)}"
    if REFUSED.fullmatch(name) or (FILE.search(value) and not NETWORKS.fullmatch(value)):
        return "variables that load code, start programs or name files are inherited from the environment only"
    if len(value.split()) > 1:
        return "the value of a variable is one word, without spaces"
    return None
