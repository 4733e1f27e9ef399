"""Get the names of torch that not every version has: private names, and names added or removed since 2.9.

In: the owner of a name. Out: the object with that name, or a RuntimeError that states the missing name and its use. The
table covers the versions from 2.9 to 2.15, as in their packages (2.9.1, 2.10.0, 2.11.0, 2.12.1, 2.14.1 and
2.15.0 were read); a test compares it, and every other name of torch that is used, with the installed version.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch

OLDEST, NEWEST = (2, 9), (2, 15)


@dataclass(frozen=True, slots=True)
class Name:
    """A name of torch."""

    path: str
    # The feature that needs the name.
    needed_for: str
    # The first and the last version that has the name: `since` and `until`.
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] = NEWEST


NAMES = (
    Name("torch.cuda._sleep", "device times on GPUs"),
    Name("torch._utils._flatten_dense_tensors", "gradients in one flat tensor"),
    Name("torch._utils._unflatten_dense_tensors", "gradients in one flat tensor"),
    Name("torch.distributed._make_nccl_premul_sum", "reduce_ops: premul_sum"),
    Name("torch.distributed.distributed_c10d._coalescing_manager", "all_reduce_coalesced"),
    Name("torch.distributed.distributed_c10d._unpickler", "gathered timings"),
    Name("torch.distributed.ProcessGroup._get_backend", "memory: registered and symmetric"),
    Name("torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data", "the buckets of torch's DDP"),
    # Public, but not in all versions: the newer name is used if it exists.
    Name("torch.distributed.all_gather_single", "all_gather", since=(2, 13)),
    Name("torch.distributed.all_gather_into_tensor", "all_gather, before 2.13"),
    Name("torch.distributed.reduce_scatter_single", "reduce_scatter", since=(2, 13)),
    Name("torch.distributed.reduce_scatter_tensor", "reduce_scatter, before 2.13"),
)
_NEEDED_FOR = {name.path.rpartition(".")[2]: name.needed_for for name in NAMES}


def private(owner: Any, name: str) -> Any:
    """Return a private attribute of a torch module (or of its dotted name) or object; raise RuntimeError without it."""
    try:
        return getattr(importlib.import_module(owner) if isinstance(owner, str) else owner, name)
    except (ImportError, AttributeError):
        where = owner if isinstance(owner, str) else type(owner).__name__
        raise RuntimeError(
            f"torch {torch.__version__} has no {where}.{name}, which {_NEEDED_FOR[name]} needs: versions "
            f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))} have it"
        ) from None


def version() -> tuple[int, int]:
    """Return the version of torch that is loaded: major and minor number."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def newest(owner: Any, *names: str) -> Any:
    """Return the first of these names that the loaded torch has; raise RuntimeError if it has none of them."""
    for name in names:
        if (value := getattr(owner, name, None)) is not None:
            return value
    raise RuntimeError(f"torch {torch.__version__} has none of {', '.join(names)}")
