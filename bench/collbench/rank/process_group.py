"""Join torch's process groups: the measured group, and a gloo control group; use features that only NCCL has.

In: a `RankContext` and the name of a backend. Out: a `TorchGroup`. The control group carries gathered results, so that
they share no queue with timed calls; before that, each of its members proves that it knows the launch's key.
"""

import contextlib
import functools
import hmac
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from collbench.catalog.backends import BACKENDS
from collbench.catalog.subgroups import Subgroups
from collbench.catalog.variables import SHARED_GPU
from collbench.machine import host
from collbench.protocol.channel import NONCE_BYTES, derived
from collbench.protocol.rank_context import RankContext
from collbench.rank import torch_names
from collbench.rank.collectives import COLLECTIVES, LibraryCalls, Subgroup, barrier_of, rest
from collbench.rank.device import Device, device_of
from collbench.rank.group import Group, PlainUnpickler, T

# The parent ends a hang after the run's timeout and names the rank to blame. The group's own timeout, which reports
# less, comes later: it is for ranks whose parent has ended.
GROUP_TIMEOUT_FACTOR = 2


class TorchGroup(Group):
    """torch's initialised process group."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        backend: str,
        device: Device,
        # The group in which results are gathered; None for the world.
        control: dist.ProcessGroup | None,
        barrier: Callable[[], object],
        # Scheduling as in a case; it also applies to further groups.
        scheduling: str = "normal",
        # Called after each group that is made, because many groups take longer to make than a rank may be silent.
        tick: Callable[[], None] = rest,
        # Time-out of the calls of further groups; None for torch's default, 10 or 30 minutes.
        timeout: timedelta | None = None,
    ) -> None:
        calls = LibraryCalls({name: collective.call for name, collective in COLLECTIVES.items()}, barrier_of)
        super().__init__(rank, world_size, device, calls)
        self.barrier, self._tick = barrier, tick
        self._backend, self._control, self._scheduling = backend, control, scheduling
        self._timeout = timeout
        self._alone: Subgroup | None = None
        if device.enqueues:
            self.align = functools.partial(dist.all_reduce, torch.zeros(1, device=device.handle))
            self.align()  # connects the ranks before anything is timed

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.world_size
        with plain_objects():  # `joined` has verified the members; nothing has verified the network between them
            dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def send_number(self, rank: int, number: int) -> None:
        dist.send(torch.tensor([number]), rank, group=self._control)

    def receive_number(self, rank: int) -> int:
        number = torch.zeros(1, dtype=torch.int64)
        dist.recv(number, rank, group=self._control)
        return int(number)

    def single_rank_subgroup(self) -> Subgroup:
        if self._alone is None:  # about 1 ms, and no other rank takes part
            with _scheduled(self._backend, self._scheduling, 1):
                alone = dist.new_group(
                    [self.rank], timeout=self._timeout, backend=self._backend, use_local_synchronization=True
                )
            self._alone = Subgroup(0, 1, alone)
        return self._alone

    def leave(self, subgroup: Subgroup) -> None:
        # new_group returns on a rank once that rank is connected; closing its connections then would fail other ranks.
        self.barrier()
        if not subgroup.idle:
            dist.destroy_process_group(subgroup.handle)

    def _connect(self, division: Subgroups, number: int | None, together: bool) -> Any:
        if together and self.device.enqueues:  # one by one, each of 256 pairs of nodes would split the world again
            ranks = [list(members) for members in division.groups]
            return dist.split_group(split_ranks=ranks, timeout=self._timeout)
        # torch requires that every rank makes every group, in the same order.
        handles = []
        with _scheduled(self._backend, self._scheduling, int(number is not None)):
            for members in division.groups:
                options: Any = {"timeout": self._timeout, "backend": self._backend}
                handles.append(dist.new_group(list(members), **options))
                self._tick()
        return None if number is None else handles[number]


@contextmanager
def joined(context: RankContext, backend: str, timeout_s: float, scheduling: str = "normal") -> Iterator[Group]:
    """Join the other ranks; leave the group at the end of the context if nothing was raised in it.

    Raises RuntimeError if a member of the control group does not know the key of the launch.

    scheduling: as in a case; only `batch` is applied here, because real-time scheduling must begin before torch starts
    threads.
    """
    device = torch.device("cpu")
    if BACKENDS[backend].device == "cuda":
        gpus = torch.cuda.device_count()
        if not gpus:
            raise RuntimeError("the driver shows GPUs, but CUDA sees none: see CUDA_VISIBLE_DEVICES and nvidia-smi")
        device = torch.device("cuda", context.device % gpus)
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=GROUP_TIMEOUT_FACTOR * timeout_s)
    with _scheduled(backend, scheduling, 2):
        began = time.perf_counter_ns()
        dist.init_process_group(
            backend,
            # Other processes can read the keys of a TCPStore: the prefix hides nothing; it separates launches and jobs.
            store=dist.PrefixStore(derived(context.key, "store").hex(), _store(context, timeout_s)),
            rank=context.rank,
            world_size=context.world_size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        joined_ns = (began, time.perf_counter_ns() - began)
        control = dist.new_group(backend="gloo", timeout=timeout)
    prove_membership(context, control)
    barrier = functools.partial(dist.barrier, group=control) if context.barrier is None else context.barrier.wait
    group = TorchGroup(
        context.rank,
        context.world_size,
        backend,
        device_of(device),
        control,
        barrier,
        scheduling,
        context.tick,
        timeout,
    )
    group.joined_ns = joined_ns
    yield group
    # Not in a `finally`: leaving a broken group can block, and the process ends anyway.
    dist.destroy_process_group()


@contextmanager
def _scheduled(backend: str, scheduling: str, groups: int) -> Iterator[None]:
    """Apply the scheduling to the loop threads of this many groups, which this rank joins within the context."""
    if scheduling != "batch":
        yield
        return
    name = BACKENDS[backend].loop_thread
    before = host.threads_named(name)
    yield
    host.use_batch(name, before, groups)


def _store(context: RankContext, timeout_s: float) -> dist.Store:
    """Return the store through which ranks exchange their addresses.

    A TCPStore of torch listens on every interface of its machine, unless it gets a socket that listens already.
    """
    kind, _, place = context.rendezvous.partition(":")
    if kind == "file":
        return dist.FileStore(place, context.world_size)
    address, _, port = place.rpartition(":")
    timeout = timedelta(seconds=GROUP_TIMEOUT_FACTOR * timeout_s)
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    if context.listener is None:
        return dist.TCPStore(address, int(port), context.world_size, False, **options)
    return dist.TCPStore(
        address, int(port), context.world_size, True, master_listen_fd=context.listener.detach(), **options
    )


# ── the members of the group ─────────────────────────────────────────────────────────────────────


def prove_membership(context: RankContext, group: dist.ProcessGroup) -> None:
    """Raise RuntimeError unless every member of a gloo group knows the key of the launch.

    gloo and torch's store do not authenticate: any process that reaches their ports in time takes the place of a rank.
    So each member draws a nonce and proves, for all nonces, that it knows the key. Both calls are gloo's all-gather of
    tensors, which uses the same connections as the later all-gather of objects, and unpickles nothing.
    """

    def gathered(own: bytes) -> list[bytes]:
        tensors = [torch.zeros(len(own), dtype=torch.uint8) for _ in range(context.world_size)]
        dist.all_gather(tensors, torch.frombuffer(bytearray(own), dtype=torch.uint8), group=group)
        return [tensor.numpy().tobytes() for tensor in tensors]

    nonces = b"".join(gathered(secrets.token_bytes(NONCE_BYTES)))
    wanted = [derived(context.key, f"rank {rank} {nonces.hex()}") for rank in range(context.world_size)]
    for rank, proof in enumerate(gathered(wanted[context.rank])):
        if not hmac.compare_digest(proof, wanted[rank]):
            raise RuntimeError(f"rank {rank} does not know the key of this launch: something else took its place")


@contextmanager
def plain_objects() -> Iterator[None]:
    """Let torch's collectives on Python objects load plain data only within this context, in every group."""
    usual = torch_names.private(distributed_c10d, "_unpickler")
    vars(distributed_c10d)["_unpickler"] = PlainUnpickler
    try:
        yield
    finally:
        vars(distributed_c10d)["_unpickler"] = usual


# ── features that only NCCL has ──────────────────────────────────────────────────────────────────
# Written to the documented behaviour of torch's ProcessGroupNCCL; `make test-gpu` runs it if there is a GPU.
def shared_gpu(rank: int) -> dict[str, str]:
    """Return environment settings of a rank that shares its GPU; to be set before its first communicator is made."""
    return SHARED_GPU | {"NCCL_HOSTID": f"{SHARED_GPU['NCCL_HOSTID']}-r{rank}"}


@contextlib.contextmanager
def registered_memory(device: torch.device, groups: Sequence[Any], symmetric: bool) -> Iterator[Callable[[], None]]:
    """Let allocations come from NCCL's allocator until the yielded function is called, which registers them.

    At the end of the context the memory is freed and must not be used any more. Raises RuntimeError if NCCL's allocator
    is refused. groups: this rank's groups that will use the memory (None: the whole world), each connected; the ranks
    of a group register together. symmetric: register as windows, at the same place on every rank.
    """
    world, *backends = [
        torch_names.private(group or dist.group.WORLD, "_get_backend")(device) for group in (None, *groups)
    ]
    try:
        pool = torch.cuda.MemPool(world.mem_allocator)
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
    # Deregister before the communicators are left, and before the pool, which this function keeps alive, is freed.
    for backend in reversed(registered):
        backend.deregister_mem_pool(pool)


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a GPU from CUDA, in the format of NVML, so that both can be compared."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def nccl_version() -> str:
    """Return the NCCL version that is loaded, which can differ from the version that torch was built with."""
    runtime = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    version = runtime() if runtime is not None else torch.cuda.nccl.version()
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
