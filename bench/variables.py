"""Which environment variables may be set for ranks, and which may be written down.

Both are allow-lists. A variable set for a rank can be a way into the process. The whole environment holds credentials:
of this machine (`machine.environment`) and of the machine that another tool ran on (`importers`). Reads no environment.
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
    """The variables of the allow-list, by name."""
    return {name: value for name, value in sorted(variables) if ALLOWED.fullmatch(name)}
