"""Join a process group of torch: the measured one, and a gloo control group beside it.

In: a `RankContext` and the name of a backend. Out: a `Group`, which has only what measuring needs of a process group.
The control group carries gathered results, so that they share no queue with what is timed.
"""

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.catalog.backends import BACKENDS
from bench.catalog.subgroups import WORLD, divide
from bench.machine import environment, host
from bench.model.records import Case, Json
from bench.protocol.rank_context import RankContext
from bench.rank import collectives, nccl
from bench.rank.device import Device, device_of
from bench.rank.transfer import LibraryCalls, Subgroup, rest

# The parent ends a hang after the run's timeout and names the rank to blame. The group's own timeout, which tells less,
# comes later: it is for ranks whose parent is gone.
GROUP_TIMEOUT_FACTOR = 2


def _lacking(_: Any) -> Any:
    raise NotImplementedError("this library makes no further groups here")


@dataclass(frozen=True, slots=True)
class Group:
    """A joined process group.

    device: where the buffers of this rank live. align: enqueues a call for which the devices of all ranks wait;
    nothing where calls are done when they return. barrier: returns on every rank once all have called it.
    gather: every rank's value, in order of rank, on every rank; it travels as JSON, so a tuple arrives as a list.
    send_number(rank, number) and receive_number(rank): a
    number to a rank, and from one. subgroup: the ranks that call a case together; every rank must ask for the same
    cases in the same order. single_rank_subgroup: this rank alone, on the same backend, made when it is first asked
    for. calls: how the library that communicates calls each operation. new_subgroup: as `subgroup`, in groups that are
    made by this call; leave: ends such a group. joined_ns: start, on the host's clock, and duration of joining.
    """

    rank: int
    world_size: int
    device: Device
    align: Callable[[], object]
    barrier: Callable[[], None]
    gather: Callable[[Any], list[Any]]
    send_number: Callable[[int, int], None]
    receive_number: Callable[[int], int]
    subgroup: Callable[[Case], Subgroup]
    single_rank_subgroup: Callable[[], Subgroup]
    calls: LibraryCalls
    new_subgroup: Callable[[Case], Subgroup] = _lacking
    leave: Callable[[Subgroup], None] = _lacking
    joined_ns: tuple[int, int] = (0, 0)

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        self.device.synchronize()


@contextmanager
def joined(context: RankContext, backend: str, timeout_s: float, ctas: int = 0) -> Iterator[Group]:
    """Join the other ranks; leave the group at the end of the context if nothing was raised in it.

    ctas: CTAs of NCCL's communicators; 0: NCCL chooses.
    """
    device = torch.device("cpu")
    if BACKENDS[backend].device == "cuda":
        seen = torch.cuda.device_count()
        if not seen:
            raise RuntimeError("the driver shows GPUs, but CUDA sees none: see CUDA_VISIBLE_DEVICES and nvidia-smi")
        device = torch.device("cuda", context.device % seen)
        torch.cuda.set_device(device)
    began = time.perf_counter_ns()
    dist.init_process_group(
        backend,
        store=_store(context, timeout_s),
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=GROUP_TIMEOUT_FACTOR * timeout_s),
        device_id=device if device.type == "cuda" else None,
        pg_options=nccl.options(ctas),
    )
    joined_ns = (began, time.perf_counter_ns() - began)
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=GROUP_TIMEOUT_FACTOR * timeout_s))
    barrier = functools.partial(dist.barrier, group=control) if context.barrier is None else context.barrier.wait
    group = make_group(context.rank, context.world_size, backend, device_of(device), control, barrier, ctas)
    yield replace(group, joined_ns=joined_ns)
    # Not in a `finally`: leaving a broken group can block, and the process ends anyway.
    dist.destroy_process_group()


def _store(context: RankContext, timeout_s: float) -> dist.Store:
    """The store through which ranks exchange their addresses.

    A TCPStore of torch listens on every interface of its machine, unless it is given a socket that listens already.
    """
    kind, _, place = context.rendezvous.partition(":")
    if kind == "file":
        return dist.FileStore(place, context.world_size)
    host, _, port = place.rpartition(":")
    timeout = timedelta(seconds=GROUP_TIMEOUT_FACTOR * timeout_s)
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    if context.listener is None:
        return dist.TCPStore(host, int(port), context.world_size, False, **options)
    return dist.TCPStore(
        host, int(port), context.world_size, True, master_listen_fd=context.listener.detach(), **options
    )


def make_group(
    rank: int,
    world_size: int,
    backend: str,
    device: Device,
    control: dist.ProcessGroup | None,
    barrier: Callable[[], None],
    ctas: int = 0,
) -> Group:
    """The `Group` of torch's initialised process group. control: the group in which results are gathered."""

    def gather(value: Any) -> list[Any]:
        # Bytes only: torch pickles them, and what the others' bytes say is parsed, not executed.
        everyone: list[Any] = [None] * world_size
        dist.all_gather_object(everyone, json.dumps(value).encode(), group=control)
        return [json.loads(one) for one in everyone]

    def send_number(other: int, number: int) -> None:
        dist.send(torch.tensor([number]), other, group=control)

    def receive_number(other: int) -> int:
        number = torch.zeros(1, dtype=torch.int64)
        dist.recv(number, other, group=control)
        return int(number)

    def made(groups: str) -> Subgroup:
        return _in_new_group(groups, rank, world_size, lambda members: _new_group(members, backend, ctas))

    divided = functools.cache(made)

    def subgroup(case: Case) -> Subgroup:
        return Subgroup(rank, world_size, None) if case.groups == WORLD else divided(case.groups)

    def leave(subgroup: Subgroup) -> None:
        # new_group returns on a rank once it is connected; closing its connections would fail ranks that still connect.
        barrier()
        if not subgroup.idle:
            dist.destroy_process_group(subgroup.handle)

    @functools.cache
    def single_rank_subgroup() -> Subgroup:
        # About 1 ms, and no other rank takes part.
        return Subgroup(0, 1, dist.new_group([rank], backend=backend, use_local_synchronization=True))

    return Group(
        rank,
        world_size,
        device,
        _aligning(device) if device.enqueues else rest,
        barrier,
        gather,
        send_number,
        receive_number,
        subgroup,
        single_rank_subgroup,
        collectives.torch_calls(),
        lambda case: made(case.groups),
        leave,
    )


def _new_group(members: Sequence[int], backend: str, ctas: int) -> Any:
    return dist.new_group(list(members), backend=backend, pg_options=nccl.options(ctas))


def _in_new_group(groups: str, rank: int, world_size: int, make: Callable[[Sequence[int]], Any]) -> Subgroup:
    """This rank in its group of a division, all of whose groups are made."""
    division = divide(groups, world_size)
    # torch requires that every rank makes every group, in the same order.
    handles = [make(members) for members in division.groups]
    number = division.of(rank)
    if number is None:
        return Subgroup(0, len(division.groups[0]), None, idle=True)
    members = division.groups[number]
    turn = (number, len(handles)) if division.serial else (0, 1)
    return Subgroup(members.index(rank), len(members), handles[number], *turn)


def _aligning(device: Device) -> Callable[[], object]:
    """An all-reduce of one element, which also connects the ranks before anything is timed."""
    element = torch.zeros(1, device=device.handle)
    align = functools.partial(dist.all_reduce, element)
    align()
    return align


def facts(group: Group, backend: str) -> Json:
    """Facts that only the rank itself knows."""
    handle = group.device.handle
    return {
        "rank": group.rank,
        "hostname": host.hostname(),
        "device": str(handle),
        "device_name": torch.cuda.get_device_name(handle) if handle.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "nccl": nccl.version() if backend == "nccl" else None,
        "threads": torch.get_num_threads(),
        "clock": host.clock(),
        "variables": environment.variables(),
    }
