"""Join a process group, make a call, make more groups and leave; inspect this process before and after each step.

In: an encoded `InitJob`. Out: a file for each rank, FOLDER/rank-N.json, with an `Observed`. CollBench makes no group
of its own, so that all changes result from the library. Needs Linux: everything is read from /proc/self.
"""

import contextlib
import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.catalog.backends import BACKENDS
from bench.model.records import Json
from bench.packages.joining.process_state import BEFORE, CALLED, GROUPS, JOINED, LEFT, InitJob, Observed, ProcessState
from bench.protocol.rank_context import RankContext
from bench.rank import mpi, process_group
from bench.rank.process import run_rank
from bench.store import encoding

POLICIES = {os.SCHED_OTHER: "normal", os.SCHED_BATCH: "batch", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}
ELEMENTS = 1024
# Signals that the C library handles as soon as a process has a second thread.
OF_LIBC = {32, 33}
# Waiting time for threads that were asked to end.
END_WAIT_S = 0.3
JOIN_TIMEOUT_S = 60
# Two functions: one makes a call of all ranks; the other makes another group of all ranks, and a call in it.
Member = tuple[Callable[[], object], Callable[[], object]]


def main(context: RankContext, encoded: bytes) -> None:
    """Run a rank's process; never return."""

    def work() -> Json:
        job: InitJob = encoding.decoded(encoded, InitJob)
        torch_library = BACKENDS[job.launch.backend].library == "torch"
        library = torch_group(context, job.launch.backend) if torch_library else mpi_world()
        stages = observed(library, job.groups, ready=lambda: _begin(context))
        versions = {"torch": torch.__version__} if torch_library else {"MPI": mpi.version()}
        if job.launch.backend == "nccl":
            versions["NCCL"] = process_group.nccl_version() or "?"
        record = Observed(context.rank, stages, job.groups, versions)
        Path(job.folder, f"rank-{context.rank}.json").write_bytes(encoding.encoded(record))
        return {}

    run_rank(context, work)


def _begin(context: RankContext) -> None:
    context.send({"kind": "ready", "facts": {"rank": context.rank}, "waits_in": []})
    context.wait_for_go()


def observed(
    library: AbstractContextManager[Member], groups: int, ready: Callable[[], None] = lambda: None
) -> dict[str, ProcessState]:
    """Return the state of the process at each stage. ready: called after joining, before the first call."""
    stages = {BEFORE: snapshot()}
    with library as (call, new_group):
        stages[JOINED] = snapshot()
        ready()
        call()
        stages[CALLED] = snapshot()
        for _ in range(groups):
            new_group()
        stages[GROUPS] = snapshot()
    gc.collect()
    time.sleep(END_WAIT_S)
    stages[LEFT] = snapshot()
    return stages


# ── libraries ────────────────────────────────────────────────────────────────────────────────────
@contextlib.contextmanager
def torch_group(context: RankContext, backend: str) -> Iterator[Member]:
    """Begin and end torch.distributed on this backend, as a training script does."""
    device = torch.device("cpu")
    if BACKENDS[backend].device == "cuda":
        device = torch.device("cuda", context.device % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(context.rendezvous.partition(":")[2], context.world_size),
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=JOIN_TIMEOUT_S),
    )
    tensor = torch.ones(ELEMENTS, device=device)

    def call(group: dist.ProcessGroup | None = None) -> None:
        dist.all_reduce(tensor, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()

    yield call, lambda: call(dist.new_group(timeout=timedelta(seconds=JOIN_TIMEOUT_S)))
    dist.destroy_process_group()


@contextlib.contextmanager
def mpi_world() -> Iterator[Member]:
    """Begin and end MPI, which begins when mpi4py is imported."""
    import numpy as np
    from mpi4py import MPI

    data, kept = np.ones(ELEMENTS, dtype=np.float32), list[Any]()

    def new_group() -> None:
        kept.append(MPI.COMM_WORLD.Dup())
        kept[-1].Allreduce(MPI.IN_PLACE, data)

    yield lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, data), new_group
    for communicator in kept:
        communicator.Free()
    MPI.Finalize()


# ── the process ──────────────────────────────────────────────────────────────────────────────────
def look() -> Json:
    """Return the part of the state of this process that `run` keeps; empty if the system has no /proc."""
    if not Path("/proc/self/status").exists():
        return {}
    kept = asdict(snapshot())
    return {name: kept[name] for name in ("affinity", "threads", "files", "policies", "memory_bytes")}


def snapshot() -> ProcessState:
    """Return the state of this process now."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    threads, policies, files = Counter[str](), Counter[str](), Counter[str]()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            threads[(task / "comm").read_text().strip()] += 1
            policies[POLICIES.get(os.sched_getscheduler(int(task.name)), "other")] += 1
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder that is being listed
            files[_kind(str(entry.readlink()))] += 1
    caught = int(status["SigCgt"], 16)
    return ProcessState(
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        threads=dict(threads),
        files=dict(files),
        policies=dict(policies),
        memory_bytes=1024 * int(status["VmRSS"].split()[0]),
        variables=tuple(sorted(_variables())),
        signals=tuple(number for number in range(1, 65) if caught >> (number - 1) & 1 and number not in OF_LIBC),
    )


def _kind(target: str) -> str:
    """Return the kind of an open file: socket, pipe, eventpoll, or file."""
    kind, _, rest = target.partition(":")
    return rest.strip("[]") if kind == "anon_inode" else kind if rest else "file"


def _variables() -> Iterator[str]:
    """Yield the names in the environment that C code sees; Python's copy does not follow its changes."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    number = 0
    while entry := environ[number]:
        yield entry.partition(b"=")[0].decode(errors="replace")
        number += 1
