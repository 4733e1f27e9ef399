"""Join the processes of an MPI job through mpi4py, as `process_group` does through torch.

In: a `RankContext` whose variables make this process a rank of MPI (`mpirun`). Out: a `Group` made of communicators.
The barrier and the gathering of results use a communicator of their own, so that they share no queue with what is
timed.

The barrier is MPI's and not the semaphores of `protocol/barrier.py`: a call of MPI takes microseconds, and ranks that
sleep in a semaphore wake up many microseconds apart (docs/method.md, "MPI"). mpi4py is loaded in the functions: loading
it initialises MPI.
"""

import functools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.catalog.subgroups import WORLD, divide
from bench.machine import network
from bench.model.records import Case
from bench.protocol.rank_context import RankContext
from bench.rank import mpi_calls
from bench.rank.device import Host
from bench.rank.process_group import Group
from bench.rank.transfer import Subgroup, rest


@contextmanager
def joined(context: RankContext, backend: str, timeout_s: float, ctas: int = 0) -> Iterator[Group]:
    """Join the other ranks; leave MPI at the end of the context if nothing was raised in it.

    timeout_s, ctas: not used, because MPI has neither; the parent ends a hang.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (context.rank, context.world_size):
        raise RuntimeError(
            f"MPI takes this for rank {world.Get_rank()} of {world.Get_size()}: mpirun is of another MPI than the one "
            f"that mpi4py has loaded ({version()})"
        )
    # A rank listens only with a transport other than shared memory, such as OMPI_MCA_btl=self,tcp.
    network.confine(os.getpid(), network.interface_of(network.LOOPBACK) or "")
    control = world.Dup()
    yield _group(context, world, control, control.Barrier)
    # Not in a `finally`: it waits for the other ranks.
    MPI.Finalize()


def _group(context: RankContext, world: Any, control: Any, barrier: Any) -> Group:
    def gather(value: Any) -> list[Any]:
        return [json.loads(one) for one in control.allgather(json.dumps(value).encode())]

    def send_number(other: int, number: int) -> None:
        control.send(number, other)

    def receive_number(other: int) -> int:
        return int(control.recv(source=other))

    @functools.cache
    def divided(groups: str) -> Subgroup:
        division = divide(groups, context.world_size)
        number = division.of(context.rank)
        if number is None:
            world.Split(len(division.groups), context.rank)
            return Subgroup(0, len(division.groups[0]), None, idle=True)
        members = division.groups[number]
        turn = (number, len(division.groups)) if division.serial else (0, 1)
        return Subgroup(members.index(context.rank), len(members), world.Split(number, context.rank), *turn)

    def subgroup(case: Case) -> Subgroup:
        return Subgroup(context.rank, context.world_size, world) if case.groups == WORLD else divided(case.groups)

    def single_rank_subgroup() -> Subgroup:
        from mpi4py import MPI

        return Subgroup(0, 1, MPI.COMM_SELF)

    return Group(
        context.rank,
        context.world_size,
        Host(),
        rest,
        barrier,
        gather,
        send_number,
        receive_number,
        subgroup,
        single_rank_subgroup,
        mpi_calls.mpi_calls(),
    )


def version() -> str:
    """The MPI library that is loaded, such as "Open MPI v5.0.11"."""
    from mpi4py import MPI

    return str(MPI.Get_library_version()).split("\n")[0].split(",")[0].strip("\0 ")
