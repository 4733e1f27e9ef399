"""Use what only NCCL has: a number of CTAs a communicator, registered buffers, and several ranks on one GPU.

Written to the documented behaviour of torch's ProcessGroupNCCL; `make test-gpu` runs it where there is a GPU.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

# Lets NCCL accept several ranks on one GPU: it compares hosts and bus ids, so each rank claims to be on a host of its
# own, and can then communicate only through sockets. NCCL_MULTI_RANK_GPU_ENABLE does the same from NCCL 2.30.3 on.
_SHARED_GPU = (
    "NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 "
    "NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MULTI_RANK_GPU_ENABLE=1"
)


def shared_gpu(rank: int) -> str:
    """Environment settings of a rank that shares its GPU; to be set before its first communicator is made."""
    return f"{_SHARED_GPU} NCCL_HOSTID=collbench-r{rank}"


def options(ctas: int) -> Any:
    """Options of a process group with exactly `ctas` CTAs (CUDA blocks); None if it is 0: NCCL chooses."""
    if not ctas:
        return None
    chosen = dist.ProcessGroupNCCL.Options()
    chosen.config.min_ctas = chosen.config.max_ctas = ctas
    return chosen


@contextlib.contextmanager
def registered_memory(device: torch.device) -> Iterator[None]:
    """Context whose allocations come from NCCL's allocator; at its end the world's communicator registers them."""
    backend = dist.group.WORLD._get_backend(device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        yield
    backend.register_mem_pool(pool)


def version() -> str:
    """The NCCL version that is loaded, which can differ from the one torch was built with."""
    runtime = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    found = runtime() if runtime is not None else torch.cuda.nccl.version()
    return ".".join(str(part) for part in found) if isinstance(found, tuple) else str(found)
