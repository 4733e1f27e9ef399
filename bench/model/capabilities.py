"""Define what planning needs to know of a machine, and what a configuration demands of a job.

Facts, frozen; `machine/host.py` finds them out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """What planning needs to know of this host, or of a job's hosts.

    `machine/host.py` reads it, and `launch/compatibility.py` merges those of a job; `plan` reads nothing.

    backends_missing: backend → why it cannot be used here; every other backend can be used.
    gpus: number of CUDA devices that this process may use; in a job, of ranks that have one of their own.
    realtime_missing: why real-time scheduling cannot be used here; None if it can.
    ranks, ranks_a_host: number of ranks of the job, in all and at most on one host; memory_available_bytes is then
        that of the host with least. None if there is no job: then as many ranks as wanted are started on this host.
    gpu_free_bytes: memory that is free on the GPU with least; None without GPUs, or if NVML does not tell.
    gpu_capability: compute capability of the least GPU, such as 90 for 9.0; None without GPUs, or if it is not told.
    registered_missing: why buffers cannot be registered with NCCL here; None if they can, or without GPUs.
    """

    hostname: str
    cores: int
    memory_available_bytes: int
    last_level_cache_bytes: int
    gpus: int
    backends_missing: dict[str, str]
    realtime_missing: str | None = None
    ranks: int | None = None
    ranks_a_host: int | None = None
    gpu_free_bytes: int | None = None
    gpu_capability: int | None = None
    registered_missing: str | None = None


@dataclass(frozen=True, slots=True)
class Demands:
    """What a configuration or a plan requires of a job.

    gpus: whether each rank needs a GPU of its own, or with shared_gpus any GPU. ranks: the largest world size.
    """

    gpus: bool
    shared_gpus: bool
    ranks: int
