"""Expand a `Config` into cases, and give the reason why a machine cannot measure a case.

In: a `Config` or a `Case`, and a `Machine`. Out: the cases, or a reason as a notice. Starts nothing.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from collbench.catalog import collectives
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, ranks_together
from collbench.catalog.metrics import METRICS, ONE_BY_ONE
from collbench.catalog.operation import Operation
from collbench.catalog.rules import ANYWHERE, HERE, Facts
from collbench.config.models import Config
from collbench.config.options import ALL, values_of
from collbench.model.notices import Kind, Notice, first
from collbench.model.records import OPTIONS, Case, Machine
from collbench.planning.footprint import FLATTENED, buffer_bytes, scratch_bytes

# Memory of a rank apart from the buffers of its case: private pages of an idle torch process (about 60 MiB measured)
# and the backend's own buffers.
RANK_OVERHEAD_BYTES = 100 * 2**20
# Share for the ranks; the rest is for the page cache, the parent process and the other processes of the machine.
USABLE_SHARE_OF_MEMORY = 0.8
# Memory of a rank on its GPU apart from buffers: CUDA's context, NCCL's communicator and channels.
GPU_OVERHEAD_BYTES = 2**30


def combinations(config: Config, machine: Machine) -> Iterable[Case]:
    """Return each configured case once, without the cases of sections.

    Values of options that an operation does not have add no cases.
    """
    distinct: dict[str, Case] = {}
    operators = [OPERATIONS[name] for name in config.operations if OPERATIONS[name].section is None]
    products = itertools.product(operators, worlds(config, machine), config.dtypes, config.size_list or [0])
    for operation, (backend, n), dtype, size in products:
        shared = oversubscribed(config, machine, backend, n)
        metric = ONE_BY_ONE if operation.paired or operation.startup else None
        for chosen in option_values(config, operation, n, metric):
            depth = config.pipeline_depth if METRICS[chosen["metric"]].several else 1
            case = Case(operation.name, backend, n, dtype, size, depth=depth, oversubscribed=shared, **chosen)
            # `roots: all` gives the ranks of the world; a group has only the first of these roots.
            if config.roots != ALL or case.root < ranks_together(case):
                case = _whole_pieces(collectives.usual(case))
                distinct.setdefault(case.key, case)
    return distinct.values()


def worlds(config: Config, machine: Machine) -> list[tuple[str, int]]:
    """Return every backend with each of its world sizes."""
    return [(backend, n) for backend in config.backends for n in world_sizes(config, machine, backend)]


def world_sizes(config: Config, machine: Machine, backend: str) -> list[int]:
    """Return the configured world sizes; else powers of two up to the size of the job or machine, and that size.

    A world of one rank does not communicate: it is measured if there is only one GPU, and shows the cost of a call.
    """
    if config.world_sizes:
        return config.world_sizes
    on_gpus = BACKENDS[backend].device == "cuda"
    most = max(1 if on_gpus else 2, machine.ranks or (machine.gpus if on_gpus else machine.cores))
    return sorted({n for k in range(1, most.bit_length()) if (n := 2**k) <= most} | {most})


def oversubscribed(config: Config, machine: Machine, backend: str, world_size: int) -> bool:
    """Return whether ranks share a GPU: the configuration allows it, and there are more ranks than GPUs."""
    return config.oversubscribe_gpu and BACKENDS[backend].device == "cuda" and world_size > machine.gpus


def option_values(
    config: Config, operation: Operation, world_size: int, metric: str | None = None
) -> Iterable[dict[str, Any]]:
    """Yield every combination of the values that a configuration lists for the options of an operation.

    metric: the only metric of the operation; None: those of the configuration.
    """
    options = [option for option in OPTIONS if option.key and operation.has(option)]
    values = {option.name: values_of(config, option, world_size) for option in options}
    if metric is not None:
        values["metric"] = [metric]
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def _whole_pieces(case: Case) -> Case:
    """Return the case with its size rounded down to equal pieces, as in nccl-tests."""
    if OPERATIONS[case.op].pieces(ranks_together(case)) == 1:
        return case
    unit = collectives.size_unit(case)
    size = case.size_bytes // unit * unit
    return replace(case, size_bytes=size, asked_bytes=case.size_bytes) if size not in {0, case.size_bytes} else case


def unsupported(case: Case, machine: Machine, pool_bytes: int, flush_bytes: int) -> Notice | None:
    """Return why this machine, or the job that a launcher started, cannot measure the case; None if it can."""
    reason = first((*HERE, *ANYWHERE), Facts(case, machine))
    return reason or _unsupported_by_memory(case, machine, pool_bytes, flush_bytes)


_NEEDS = (
    "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
    "used ({share:share} of the"
)
HOST_MEMORY = Kind("host-memory", f"{_NEEDS} available memory)")
GPU_MEMORY = Kind("gpu-memory", f"{_NEEDS} free memory)")


def _unsupported_by_memory(case: Case, machine: Machine, pool_bytes: int, flush_bytes: int) -> Notice | None:
    on_gpu, together = BACKENDS[case.backend].device == "cuda", sharing_memory(case, machine)
    rank_bytes = buffer_bytes(case, pool_bytes) + scratch_bytes(case, flush_bytes) + overhead_bytes(case)
    usable = usable_bytes(machine, on_gpu)
    if usable is None or together * rank_bytes <= usable:
        return None
    return (GPU_MEMORY if on_gpu else HOST_MEMORY)(
        ranks=together,
        rank_bytes=rank_bytes,
        place="GPU" if on_gpu else "host" if machine.ranks else None,
        usable_bytes=usable,
        share=USABLE_SHARE_OF_MEMORY,
    )


def overhead_bytes(case: Case) -> int:
    """Return the bytes of a rank apart from the buffers of its case, on its GPU or its host."""
    on_gpu = BACKENDS[case.backend].device == "cuda"
    return GPU_OVERHEAD_BYTES + case.size_bytes * (case.op in FLATTENED) if on_gpu else RANK_OVERHEAD_BYTES


def sharing_memory(case: Case, machine: Machine) -> int:
    """Return the number of ranks that share the memory of one GPU or host."""
    if BACKENDS[case.backend].device == "cuda":
        return math.ceil(case.world_size / max(1, machine.gpus)) if case.oversubscribed else 1
    return min(case.world_size, machine.ranks_a_host or case.world_size)


def usable_bytes(machine: Machine, on_gpu: bool) -> float | None:
    """Return the bytes that all ranks on one GPU or host may use together; None if unknown."""
    free = machine.gpu_free_bytes if on_gpu else machine.memory_available_bytes
    return None if free is None else USABLE_SHARE_OF_MEMORY * free
