"""The table of backends: the device they work on, what they lack, how a run on them is estimated.

Knows no torch: whether a backend is *here* is a fact about the machine (`records.Machine`), which
`bench/measure/environment.py` reads; `plan.expand` lays the two side by side.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to communicate.

    device: "cpu" or "cuda"; one GPU a rank on "cuda".
    dtypes_lacking: dtypes that it refuses.
    latency_s, bytes_per_s: rough cost of a small and of a large all-reduce at two ranks, for the
        time that `plan` guesses when the iteration count is fixed. Nothing measured uses them.
    """

    name: str
    device: str
    description: str
    dtypes_lacking: frozenset[str]
    latency_s: float
    bytes_per_s: float


BACKENDS = {
    backend.name: backend
    for backend in (
        # Rates: all_reduce on a 2-core virtual machine over loopback.
        Backend("gloo", "cpu", "TCP between CPU processes; works everywhere", frozenset(), 1e-3, 0.9e9),
        # Rates: order of magnitude of two GPUs joined by PCIe.
        Backend("nccl", "cuda", "NVIDIA GPUs, one a rank", frozenset(), 5e-5, 10e9),
        *(Backend(name, "cpu", "only imported", frozenset(), 1e-4, 1e9) for name in ("mpi", "torch-mpi", "ucc")),
    )
}
