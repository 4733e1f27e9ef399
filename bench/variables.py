"""List the environment variables that may be set for ranks, and those that may be recorded.

Both are allow-lists. For ranks, because some variables make a process load foreign code. For records, because an
environment can hold credentials: that of this machine (`machine.environment`), and that in the output of another tool
(`importers`). Reads no environment.
"""

import re
from collections.abc import Iterable

SETTABLE = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "UCC_", "FI_", "OMPI_MCA_")
ALLOWED = re.compile(
    r"(NCCL_|GLOO_|TORCH_|OMP_|MKL_|CUDA_VISIBLE|UCX_|FI_|SLURM_JOB|SLURM_STEP)[A-Z0-9_]*"
    r"|OMPI_MCA_(?!initial_wdir|btl_sm_backing_directory|PREFIXES|num_procs|cpu_type)[A-Z0-9_]*",
    re.IGNORECASE,
)


def allowed(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables that may be recorded, sorted by name."""
    return {name: value for name, value in sorted(variables) if ALLOWED.fullmatch(name)}
