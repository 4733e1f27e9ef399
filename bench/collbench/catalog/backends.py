"""Define every backend: its device, the features that it lacks, and rates to estimate the time of a run.

Does not import torch and does not look at the machine: `collbench/machine/host.py` finds out which backends can be used
here (`records.Machine`), and `cases.unsupported` compares them with the needs of a case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.catalog.collectives import OPERATIONS, placement, ranks_together
from collbench.catalog.dtypes import DTYPES, dtype_named
from collbench.catalog.metrics import metric_of
from collbench.model.notices import Kind, Notice
from collbench.model.records import Case


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to communicate."""

    name: str
    # Either "cpu" or "cuda". On "cuda" each rank has one GPU.
    device: str
    description: str
    # Rough cost of a small (`latency_s`) and of a large (`bytes_per_s`) all-reduce at two ranks. `plan` estimates the
    # time of a run from them if the iteration count is fixed; no measurement uses them.
    latency_s: float
    bytes_per_s: float
    # Either "torch" or "mpi4py".
    library: str = "torch"
    # Dtypes that the backend cannot even copy.
    unsupported_dtypes: frozenset[str] = frozenset()
    # Dtypes that the backend copies but cannot reduce.
    unsupported_reduce_dtypes: frozenset[str] = frozenset()
    # Maps an operation or reduce op to the dtypes that only this operation or reduce op refuses.
    unsupported_dtypes_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Maps a reduce op to the dtypes that it refuses in a group of one rank.
    unsupported_alone: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Reduce ops that the backend has for no dtype.
    unsupported_reduce_ops: frozenset[str] = frozenset()
    # Maps an operation to how this backend carries it out, for the report.
    implementation_notes: Mapping[str, str] = field(default_factory=dict)
    # Least compute capability of a GPU that reduces float8, such as 90 for 9.0; None means no condition.
    float8_capability: int | None = None
    # True if a waiting rank keeps its core busy.
    polls: bool = False
    # Name of the threads that wait for the backend's connections, one for each group; empty if it has none.
    loop_thread: str = ""
    # Largest number of elements in a call; None means any number.
    most_elements: int | None = None
    # Maps an operation to the first version of torch whose backend has it, if that is not the oldest version.
    since: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Time to start a set of ranks once torch is loaded.
    start_s: float = 0.3  # measured with gloo


_FLOAT8 = frozenset(name for name in DTYPES if name.startswith("float8"))
_COMPLEX = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "complex")
_BITWISE = frozenset({"band", "bor", "bxor"})
_SLICE = "gloo has no reduce-scatter of its own: it reduces everything on every rank and keeps a part"
_WHOLE_RING = "always a ring, in segments of at most 1 MiB: latency grows with the number of ranks"

BACKENDS = {
    backend.name: backend
    for backend in (
        # Rates: all_reduce on a 2-core virtual machine over loopback.
        Backend(
            "gloo",
            "cpu",
            "TCP between CPU processes; works everywhere",
            1e-3,
            0.9e9,
            unsupported_dtypes=_FLOAT8 | {"int16"},
            unsupported_dtypes_of={"gather": _COMPLEX},
            unsupported_reduce_ops=frozenset({"premul_sum"}),
            implementation_notes={
                "all_reduce": _WHOLE_RING,
                "reduce_scatter": _SLICE,
                "reduce_scatter_list": _SLICE,
                "reduce": "a ring reduce-scatter, then a gather to the root",
                "broadcast": "a binomial tree",
                "barrier": "a dissemination barrier",
            },
            loop_thread="gloo_tcp_loop",
            since={"all_to_all_list": (2, 12)},
        ),
        # Rates: order of magnitude for two GPUs connected by PCIe. Start: CUDA's context, NCCL's communicator, and the
        # clock of the GPU; estimated, not measured.
        Backend(
            "nccl",
            "cuda",
            "NVIDIA GPUs, one a rank",
            5e-5,
            10e9,
            unsupported_dtypes=frozenset({"int16"}),
            unsupported_dtypes_of={
                # torch views complex numbers as pairs of real numbers, except in these operations.
                **dict.fromkeys(("gather", "reduce_scatter", "reduce_scatter_list"), _COMPLEX),
                "premul_sum": _FLOAT8,
            },
            unsupported_alone={"avg": _FLOAT8},  # src/device/onerank.cu of NCCL 2.28 has no kernel for them
            float8_capability=90,
            start_s=3.0,
            unsupported_reduce_ops=_BITWISE,
            implementation_notes={
                "gather": "made of sends and receives",
                "scatter": "made of sends and receives",
            },
        ),
        # Rates: Open MPI over shared memory on a 2-core virtual machine. Data that is only copied is sent as words of
        # the dtype's size, so any dtype works.
        Backend(
            "mpi",
            "cpu",
            "MPI through mpi4py; shared memory between processes of one machine",
            2e-5,
            2e9,
            library="mpi4py",
            unsupported_reduce_dtypes=_FLOAT8 | {"float16", "bfloat16"},
            unsupported_reduce_ops=frozenset({"avg", "premul_sum"}),
            implementation_notes={
                "all_gather_list": "MPI_Allgatherv into one buffer",
                "reduce_scatter": "in place, each rank's share is left at the beginning of its buffer",
                "reduce_scatter_list": "MPI_Reduce_scatter from one buffer",
                "all_to_all_list": "MPI_Alltoallv between two buffers",
                **dict.fromkeys(("sendrecv_pair", "sendrecv_ring", "pairwise"), "MPI_Sendrecv"),
            },
            polls=True,
            most_elements=2**31 - 1,  # MPI-3 counts elements in an int; Open MPI 5 has no calls with larger counts
        ),
    )
}


def unsupported_operation(op: str, backend: Backend) -> Notice | None:
    """Return the reason why the backend does not have the operation; None if it has it."""
    why = OPERATIONS[op].why_not_mpi if backend.library != "torch" else None
    return None if why is None else why()


LOW_CAPABILITY = Kind(
    "low-capability", "{backend} reduces {dtype} from compute capability {least:.1f} on; the GPU has {has:.1f}"
)


def unsupported_by_gpu(case: Case, capability: int | None) -> Notice | None:
    """Return the reason why GPUs of this compute capability cannot run the case; None if they can or if unknown."""
    least = BACKENDS[case.backend].float8_capability
    if capability is None or least is None or capability >= least:
        return None
    if case.dtype not in _FLOAT8 or not OPERATIONS[case.op].reduces:
        return None
    return LOW_CAPABILITY(backend=case.backend, dtype=case.dtype, least=least / 10, has=capability / 10)


RR_POLLING = Kind(
    "rr-polling", "ranks of {backend} wait by polling: with scheduling: rr no other process could run on their cores"
)
NO_LOOP_THREAD = Kind(
    "no-loop-thread", "scheduling: batch is for the threads of gloo that wait for the network; {backend} has none"
)
OVER_BY_THEN = Kind(
    "over-by-then", "scheduling: batch applies to the threads of a group once it is made: {op} is over by then"
)


def unsupported_scheduling(case: Case) -> Notice | None:
    """Return the reason why the case's scheduling makes no sense for its backend or operation; None if it does."""
    backend = BACKENDS[case.backend]
    if case.scheduling == "rr" and backend.polls:
        return RR_POLLING(backend=case.backend)
    if case.scheduling == "batch" and not backend.loop_thread:
        return NO_LOOP_THREAD(backend=case.backend)
    if case.scheduling == "batch" and OPERATIONS[case.op].startup:
        return OVER_BY_THEN(op=case.op)
    return None


NEEDS_NCCL = Kind("needs-nccl", "registered memory needs NCCL on GPUs")
NO_ASYNC = Kind("no-async", "{op} has no asynchronous call")
ONLY_UNEVEN = Kind("only-uneven", "{backend} divides an all-to-all by all_to_all_uneven only")
MOST_ELEMENTS = Kind("most-elements", "{backend} counts at most {most} elements; this would be {elements}")


def unsupported_by_backend(case: Case) -> Notice | None:
    """Return the first reason why the case's backend cannot run it; None if it can."""
    backend, op = BACKENDS[case.backend], case.op
    elements = case.size_bytes // dtype_named(case.dtype).itemsize
    if backend.device != "cuda" and case.memory != "plain":
        return NEEDS_NCCL()
    if (reason := _unsupported_metric(case)) is not None:
        return reason
    if case.call not in OPERATIONS[op].calls:
        return NO_ASYNC(op=op)
    if reason := unsupported_operation(op, backend) or _unsupported_dtype(case) or _unsupported_placement(case):
        return reason
    if case.splits and backend.library != "torch":
        return ONLY_UNEVEN(backend=case.backend)
    if (reason := unsupported_scheduling(case)) is not None:
        return reason
    if backend.most_elements is not None and elements > backend.most_elements:
        return MOST_ELEMENTS(backend=case.backend, most=backend.most_elements, elements=elements)
    return None


METRIC_NEEDS_GPUS = Kind("metric-needs-gpus", "metric {metric} needs GPUs: {metric:what is timed}")
METRIC_OF_TORCH = Kind("metric-of-torch", "metric {metric} is for torch's operations on buffers")
NO_GRAPH = Kind("no-graph", "a CUDA graph cannot include {op}, which waits on the CPU")


def _unsupported_metric(case: Case) -> Notice | None:
    backend, operation, metric = BACKENDS[case.backend], OPERATIONS[case.op], metric_of(case)
    if metric.device not in {None, backend.device}:
        return METRIC_NEEDS_GPUS(metric=case.metric)
    if metric.captured and not operation.typed:
        return NO_GRAPH(op=case.op)
    if metric.makes_group and (not operation.typed or backend.library != "torch"):
        return METRIC_OF_TORCH(metric=case.metric)
    return None


LACKS = Kind("lacks", "{backend} has no {what}")
LACKS_DTYPE = Kind("lacks-dtype", "{backend} has no {what} of {dtype}")
LACKS_ALONE = Kind("lacks-alone", "{backend} has no {what} of {dtype} with one rank")
ONLY_COPIES = Kind("only-copies", "{backend} copies {dtype} and does not reduce it")


def _unsupported_dtype(case: Case) -> Notice | None:
    """Return the reason why the backend does not copy or reduce this dtype, or lacks the reduce op; else None."""
    name, op, dtype, reduce_op = case.backend, case.op, case.dtype, case.reduce_op
    backend, reduces = BACKENDS[name], OPERATIONS[op].reduces
    refused = backend.unsupported_dtypes_of
    if dtype in backend.unsupported_dtypes:
        return LACKS(backend=name, what=dtype)
    if dtype in refused.get(op, ()):
        return LACKS_DTYPE(backend=name, what=op, dtype=dtype)
    if reduces and dtype in backend.unsupported_reduce_dtypes:
        return ONLY_COPIES(backend=name, dtype=dtype)
    if reduces and dtype in refused.get(reduce_op, ()):
        return LACKS_DTYPE(backend=name, what=reduce_op, dtype=dtype)
    if reduces and dtype in backend.unsupported_alone.get(reduce_op, ()) and ranks_together(case) == 1:
        return LACKS_ALONE(backend=name, what=reduce_op, dtype=dtype)
    if reduces and reduce_op in backend.unsupported_reduce_ops:
        return LACKS(backend=name, what=reduce_op)
    return None


NO_BUFFERS = Kind("no-buffers", "{op} has no buffers")
NO_COPY = Kind("no-copy", "{op} is not measured with a copy")
UNEVEN_COPY = Kind("uneven-copy", "uneven shares are not copied back")
ASYNC_COPY = Kind("async-copy", "no asynchronous call copies the received data of {op}")
_COPIED = "{copied:after `placements: [copied]` measures it |placed by copy}"
ONLY_PLACED = Kind("only-placed", "{op} works only {usual:place}", _COPIED)
TORCH_IN_PLACE = Kind("torch-in-place", "torch's {op} works in place", _COPIED)


def _unsupported_placement(case: Case) -> Notice | None:
    """Return the reason why the operation lacks the placement, with the placement that a copy makes instead, if any."""
    op, operation, where = case.op, OPERATIONS[case.op], placement(case)
    usual, into = operation.placements[0], where == "copied" and operation.copied == "in"
    copied = where if where == operation.copied else None
    if where not in operation.placements and not operation.typed:
        return NO_BUFFERS(op=op)
    if where == "copied" and not operation.copied:
        return NO_COPY(op=op)
    if into and case.splits:
        return UNEVEN_COPY()
    if into and case.call == "async":
        return ASYNC_COPY(op=op)
    if where not in (*operation.placements, "copied"):
        return ONLY_PLACED(op=op, usual=usual, copied=copied)
    if BACKENDS[case.backend].library == "torch" and where == "out" and usual == "in":
        return TORCH_IN_PLACE(op=op, copied=copied)
    return None
