"""Define every backend: its device, the features that it lacks, and rates to estimate the time of a run.

Does not import torch and does not look at the machine: `collbench/machine/host.py` finds out which backends can be used
here (`records.Machine`), and the rules in `catalog.rules` compare them with the needs of a case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.catalog.dtypes import DTYPES


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


FLOAT8 = frozenset(name for name in DTYPES if name.startswith("float8"))
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
            unsupported_dtypes=FLOAT8 | {"int16"},
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
                "premul_sum": FLOAT8,
            },
            unsupported_alone={"avg": FLOAT8},  # src/device/onerank.cu of NCCL 2.28 has no kernel for them
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
            unsupported_reduce_dtypes=FLOAT8 | {"float16", "bfloat16"},
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
