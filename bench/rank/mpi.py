"""Join the processes of an MPI job: what `group` is for torch, through mpi4py.

In: a `Seat` whose variables make this process a rank of MPI (`mpirun`). Out: a `Group` made of communicators. Results
are gathered, and the barrier is made, on a communicator of their own, so that they share no queue with what is timed.

The barrier is MPI's and not the semaphores of `gate`: a call of MPI takes microseconds, and ranks that sleep in a
semaphore wake up many microseconds apart (docs/method.md, "MPI"). mpi4py is loaded in the functions: loading it
initialises MPI.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.machine import confine, network
from bench.protocol.rank_context import Seat
from bench.rank import mpi_calls
from bench.rank.process_group import Group
from bench.rank.subgroup import Calls, Team
from bench.records import Case
from bench.subgroups import WORLD, layout


@contextmanager
def joined(seat: Seat, backend: str, timeout_s: float, sync: str = "barrier", ctas: int = 0) -> Iterator[Group]:
    """Meet the other ranks; leave MPI at the end of the context if nothing was raised in it.

    timeout_s, ctas: MPI knows neither; the parent ends a hang.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (seat.rank, seat.world_size):
        raise RuntimeError(
            f"MPI takes this for rank {world.Get_rank()} of {world.Get_size()}: mpirun is of another MPI than the one "
            f"that mpi4py has loaded ({version()})"
        )
    # Only with another transport than shared memory, such as OMPI_MCA_btl=self,tcp, does a rank listen at all.
    confine.to_interface(os.getpid(), network.interface_of(network.LOOPBACK) or "")
    control = world.Dup()
    barrier = control.Barrier
    if sync == "deadline" and seat.gate is not None:
        seat.gate.calibrate()
        barrier = seat.gate.meet_at_deadline
    yield _group(seat, world, control, barrier)
    # Not in a `finally`: it waits for the other ranks.
    MPI.Finalize()


def _group(seat: Seat, world: Any, control: Any, barrier: Any) -> Group:
    def gather(value: Any) -> list[Any]:
        everyone: list[Any] = control.allgather(value)
        return everyone

    def tell(other: int, number: int) -> None:
        control.send(number, other)

    def hear(other: int) -> int:
        return int(control.recv(source=other))

    @functools.cache
    def divided(groups: str) -> Team:
        division = layout(groups, seat.world_size)
        number = division.of(seat.rank)
        members = division.groups[number]
        turn = (number, len(division.groups)) if division.one else (0, 1)
        return Team(members.index(seat.rank), len(members), world.Split(number, seat.rank), *turn)

    def team(case: Case) -> Team:
        return Team(seat.rank, seat.world_size, world) if case.groups == WORLD else divided(case.groups)

    def alone() -> Team:
        from mpi4py import MPI

        return Team(0, 1, MPI.COMM_SELF)

    table = Calls(mpi_calls.CALLS, mpi_calls.OBJECT_CALLS, mpi_calls.barrier)
    return Group(seat.rank, seat.world_size, torch.device("cpu"), barrier, gather, tell, hear, team, alone, table)


def version() -> str:
    """The MPI library that is loaded, such as "Open MPI v5.0.11"."""
    from mpi4py import MPI

    return str(MPI.Get_library_version()).split("\n")[0].split(",")[0].strip("\0 ")
