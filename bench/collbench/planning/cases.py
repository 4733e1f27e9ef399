"""Expand a `Config` into cases, and give the reason why a machine cannot measure a case.

In: a `Config` or a `Case`, and a `Machine`. Out: the cases, or a reason as a notice. Starts nothing.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from collbench.catalog import collectives, splits, subgroups
from collbench.catalog.backends import BACKENDS, unsupported_by_backend, unsupported_by_gpu
from collbench.catalog.collectives import OPERATIONS, ranks_together
from collbench.catalog.dtypes import dtype_named, unsupported_reduction
from collbench.catalog.metrics import METRICS, ONE_BY_ONE
from collbench.catalog.operation import Operation
from collbench.catalog.variables import SHARED_GPU
from collbench.config.models import Config
from collbench.config.options import ALL, values_of
from collbench.model.divisions import WORLD
from collbench.model.notices import Kind, Notice
from collbench.model.records import OPTIONS, Case, Machine
from collbench.planning.footprint import buffer_bytes, scratch_bytes, temporary_bytes

# Memory of a rank apart from the buffers of its case: private pages of an idle torch process (about 60 MiB measured)
# and the backend's own buffers.
RANK_OVERHEAD_BYTES = 100 * 2**20
# Share for the ranks; the rest is for the page cache, the parent process and the other processes of the machine.
USABLE_SHARE_OF_MEMORY = 0.8
# Memory of a rank on its GPU apart from buffers: CUDA's context, NCCL's communicator and channels.
GPU_OVERHEAD_BYTES = 2**30


def combinations(config: Config, machine: Machine) -> Iterable[Case]:
    """Return each configured case once, without the cases of packages.

    Values of options that an operation does not have add no cases.
    """
    distinct: dict[str, Case] = {}
    operators = [OPERATIONS[name] for name in config.operations if OPERATIONS[name].rank is None]
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
    return (
        unsupported_here(case, machine)
        or unsupported_anywhere(case)
        or _unsupported_by_memory(case, machine, pool_bytes, flush_bytes)
    )


OLDER_TORCH = Kind("older-torch", "{backend} of torch {had} has no {op}; torch {has} has it")
TOO_FEW_GPUS = Kind(
    "too-few-gpus",
    "{ranks:count rank}, each with a GPU of its own: this machine has {gpus} (oversubscribe_gpu: true only tests "
    "that it works)",
)
PAT = Kind("pat", "PAT has no all-reduce, by which ranks are aligned: write NCCL_ALGO=allgather:pat;reducescatter:pat")
SHARED_VARIABLE = Kind("shared-variable", "ranks that share a GPU need {name}={value}, so it cannot be varied")
JOB_RANKS = Kind("job-ranks", "the job has {ranks:count rank}")
WHOLE_JOB = Kind("whole-job", "in a job, {backend} measures all of its ranks: {ranks}")


def unsupported_here(case: Case, machine: Machine) -> Notice | None:
    """Return why this machine cannot measure the case at any size: ranks, backend, GPUs; None if it can."""
    if machine.ranks is not None:
        if case.world_size > machine.ranks:
            return JOB_RANKS(ranks=machine.ranks)
        if BACKENDS[case.backend].library == "mpi4py" and case.world_size < machine.ranks:
            return WHOLE_JOB(backend=case.backend, ranks=machine.ranks)
    if case.backend in machine.backends_missing:
        return machine.backends_missing[case.backend]
    first = BACKENDS[case.backend].since.get(case.op)
    if first is not None and machine.torch is not None and machine.torch < first:
        had, has = (".".join(map(str, version)) for version in (machine.torch, first))
        return OLDER_TORCH(backend=case.backend, op=case.op, had=had, has=has)
    if case.scheduling in machine.scheduling_missing:
        return machine.scheduling_missing[case.scheduling]
    if BACKENDS[case.backend].device == "cuda" and case.world_size > machine.gpus and not case.oversubscribed:
        return TOO_FEW_GPUS(ranks=case.world_size, gpus=machine.gpus)
    if case.memory != "plain" and machine.registered_missing is not None:
        return machine.registered_missing
    if (reason := unsupported_by_gpu(case, machine.gpu_capability)) is not None:
        return reason
    if case.backend == "nccl" and dict(case.settings.pairs).get("NCCL_ALGO", "").upper() == "PAT":
        return PAT()
    taken = [name for name, _ in case.settings.pairs if name in SHARED_GPU] if case.oversubscribed else []
    if taken:
        return SHARED_VARIABLE(name=taken[0], value=SHARED_GPU[taken[0]])
    return None


FEWEST_RANKS = Kind("fewest-ranks", "{op} needs {fewest:count rank} or more")
NO_ROOT = Kind("no-root", "there is no rank {root}: it has {ranks} ranks, from 0")
PAIRS_ALL = Kind("pairs-all", "{op} pairs all ranks of the world, so it has no groups")
SERIAL_GROUPS = Kind("serial-groups", "groups that call one after the other are timed call by call")
PART_OF_PIECES = Kind(
    "part-of-pieces", "{size_bytes} B is not a whole number of {pieces} pieces of {dtype} of {itemsize} B"
)
PART_OF_ELEMENT = Kind("part-of-element", "{size_bytes} B is not a whole number of {dtype} elements of {itemsize} B")


def unsupported_anywhere(case: Case) -> Notice | None:
    """Return why no machine can measure the case (ranks, backend or data); None if some machine can."""
    operation, dtype = OPERATIONS[case.op], dtype_named(case.dtype)
    if (reason := subgroups.unsupported(case.groups, case.world_size)) is not None:
        return reason
    if operation.paired and case.groups != WORLD:
        return PAIRS_ALL(op=case.op)
    if case.depth > 1 and subgroups.divide(case.groups, case.world_size).serial:
        return SERIAL_GROUPS()
    together = ranks_together(case)
    if together < operation.fewest_ranks:
        return FEWEST_RANKS(op=case.op, fewest=operation.fewest_ranks)
    if case.root >= together:
        return NO_ROOT(root=case.root, ranks=together)
    if (reason := unsupported_by_backend(case)) is not None:
        return reason
    if case.splits and (reason := splits.unsupported(case.splits, together)) is not None:
        return reason
    pieces = operation.pieces(together)
    if case.size_bytes % (pieces * dtype.itemsize):
        size, itemsize = case.size_bytes, dtype.itemsize
        if pieces == 1:
            return PART_OF_ELEMENT(size_bytes=size, dtype=case.dtype, itemsize=itemsize)
        return PART_OF_PIECES(size_bytes=size, pieces=pieces, dtype=case.dtype, itemsize=itemsize)
    return unsupported_reduction(case.dtype, case.reduce_op, together) if operation.reduces else None


HOST_MEMORY = Kind(
    "host-memory",
    "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
    "used ({share:share} of the available memory)",
)
GPU_MEMORY = Kind(
    "gpu-memory",
    "needs {ranks} × {rank_bytes:rounded bytes} of memory{place:after  on a }; {usable_bytes:rounded bytes} may be "
    "used ({share:share} of the free memory)",
)


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
    return temporary_bytes(case) + GPU_OVERHEAD_BYTES if on_gpu else RANK_OVERHEAD_BYTES


def sharing_memory(case: Case, machine: Machine) -> int:
    """Return the number of ranks that share the memory of one GPU or host."""
    if BACKENDS[case.backend].device == "cuda":
        return math.ceil(case.world_size / max(1, machine.gpus)) if case.oversubscribed else 1
    return min(case.world_size, machine.ranks_a_host or case.world_size)


def usable_bytes(machine: Machine, on_gpu: bool) -> float | None:
    """Return the bytes that all ranks on one GPU or host may use together; None if unknown."""
    free = machine.gpu_free_bytes if on_gpu else machine.memory_available_bytes
    return None if free is None else USABLE_SHARE_OF_MEMORY * free
