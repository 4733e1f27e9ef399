"""Use what only NCCL has: a number of CTAs a communicator, registered buffers, and several ranks on one GPU.

Written to the documented behaviour of torch's ProcessGroupNCCL; `make test-gpu` runs it where there is a GPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from bench.catalog.variables import SHARED_GPU


def shared_gpu(rank: int) -> str:
    """Environment settings of a rank that shares its GPU; to be set before its first communicator is made."""
    every = SHARED_GPU | {"NCCL_HOSTID": f"{SHARED_GPU['NCCL_HOSTID']}-r{rank}"}
    return " ".join(f"{name}={value}" for name, value in every.items())


def options(ctas: int) -> Any:
    """Options of a process group with exactly `ctas` CTAs (CUDA blocks); None if it is 0: NCCL chooses."""
    if not ctas:
        return None
    chosen = dist.ProcessGroupNCCL.Options()
    chosen.config.min_ctas = chosen.config.max_ctas = ctas
    return chosen


@contextlib.contextmanager
def registered_memory(device: torch.device, groups: Sequence[Any], symmetric: bool) -> Iterator[Callable[[], None]]:
    """Context in which allocations come from NCCL's allocator, until `register` is called, which it gives.

    groups: those that will use the memory (None: all of the world), each connected; every rank registers with all of
    them, in the same order. At its end the memory is given back: whatever was allocated must not be used any more.
    symmetric: as windows, at the same place on every rank. Raises RuntimeError where NCCL's allocator is refused.
    """
    backends = [(group or dist.group.WORLD)._get_backend(device) for group in groups]
    try:
        pool = torch.cuda.MemPool(backends[0].mem_allocator)
    except RuntimeError as error:  # torch says "not supported in this NCCL version", which misleads
        raise RuntimeError(f"registered memory needs a GPU that can multicast over NVSwitch ({error})") from None
    registered: list[Any] = []

    def register() -> None:
        allocating.close()
        for backend in backends:
            backend.register_mem_pool(pool, **({"symm": True} if symmetric else {}))
            registered.append(backend)

    with contextlib.ExitStack() as allocating:
        allocating.enter_context(torch.cuda.use_mem_pool(pool))
        yield register
    # Before the communicators are left, and before the pool, which this function keeps alive, is freed.
    for backend in reversed(registered):
        backend.deregister_mem_pool(pool)


def version() -> str:
    """The NCCL version that is loaded, which can differ from the one torch was built with."""
    runtime = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    found = runtime() if runtime is not None else torch.cuda.nccl.version()
    return ".".join(str(part) for part in found) if isinstance(found, tuple) else str(found)
