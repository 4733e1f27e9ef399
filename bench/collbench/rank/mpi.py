"""Join the processes of an MPI job through mpi4py, and build MPI's call of each collective.

In: a `RankContext` whose variables make this process a rank of MPI (`mpirun`). Out: an `MpiGroup`. The barrier and the
gathering of results use a communicator of their own, so that they share no queue with timed calls.

The barrier is MPI's, not the semaphores of `protocol/rank_context.py`: a call of MPI takes microseconds, and ranks
that sleep in a semaphore wake up many microseconds apart (docs/method.md, "MPI"). mpi4py is loaded in the functions:
loading it initialises MPI, which only a rank may do.

The buffers are torch tensors on the CPU, as for other backends; MPI gets their memory with a datatype. Data that are
only copied are sent as words of the element's size, because MPI has no float16, bfloat16 or float8. If torch takes a
list of tensors, the call of MPI takes a count for each piece (the v-variants, Reduce_scatter), with the same pieces.
"""

import errno
import functools
import os
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from collbench.catalog.collectives import placement
from collbench.catalog.dtypes import DTYPES
from collbench.catalog.subgroups import Subgroups
from collbench.machine import environment, network
from collbench.model.records import Case
from collbench.protocol.rank_context import RankContext
from collbench.rank.collectives import BuildCall, Call, CallArguments, LibraryCalls, Subgroup
from collbench.rank.device import Host
from collbench.rank.group import Group, T, pickled, unpickled

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True

WORDS = {1: "BYTE", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T", 16: "C_DOUBLE_COMPLEX"}
NUMBERS = {f"int{width}": f"INT{width}_T" for width in (8, 16, 32, 64)} | {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "uint8": "UINT8_T",
    "bool": "UINT8_T",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
OPS = {"sum": "SUM", "product": "PROD", "max": "MAX", "min": "MIN", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# A bool is sent as a byte, which must stay 0 or 1: its sum is the maximum, its product the minimum.
BOOL_OPS = OPS | {"sum": "MAX", "product": "MIN"}
INTERFACE_SETTING = "OMPI_MCA_btl_tcp_if_include"
# mpirun's daemon answers a rank that ends, and records its end afterwards. On a busy machine a rank can disconnect
# before: it counts as lost, and the next launch hangs (OpenPMIx issues 3931, 4113). Low priority gives the daemon time.
NICE_AT_END = 12
# In a job each rank listens at a port of its own: from LOWEST_PORT on, RANKS ports for each of JOBS jobs. Linux gives
# higher ports to outgoing connections.
PORT_SETTINGS = {socket.AF_INET: "OMPI_MCA_btl_tcp_port_min_v4", socket.AF_INET6: "OMPI_MCA_btl_tcp_port_min_v6"}
LOWEST_PORT, JOBS, RANKS = 20_000, 199, 64
# Linux keeps the port of an ended connection for 60 s.
LONGEST_WAIT_S = 65


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


class MpiGroup(Group):
    """The process group of all ranks of MPI."""

    def __init__(self, context: RankContext, world: Any, control: Any) -> None:
        calls = LibraryCalls(CALLS, _barrier)
        super().__init__(context.rank, context.world_size, Host(), calls, world)
        self.barrier = control.Barrier
        self._control = control  # a communicator of the same ranks, for the barrier and for gathered results

    def gather(self, value: T) -> list[T]:
        data, sizes = pickled(value), np.empty(self.world_size, dtype=np.int64)
        self._control.Allgather(np.array([len(data)]), sizes)
        gathered = bytearray(int(sizes.sum()))
        self._control.Allgatherv(data, [gathered, sizes.tolist()])
        ends = sizes.cumsum().tolist()
        return [unpickled(gathered[end - size : end]) for size, end in zip(sizes.tolist(), ends, strict=True)]

    def send_number(self, rank: int, number: int) -> None:
        self._control.Send(np.array([number]), rank)

    def receive_number(self, rank: int) -> int:
        number = np.empty(1, dtype=np.int64)
        self._control.Recv(number, rank)
        return int(number[0])

    @property
    def world(self) -> Any:
        """Return mpi4py's communicator of all ranks."""
        return self._world

    def single_rank_subgroup(self) -> Subgroup:
        return Subgroup(0, 1, _mpi().COMM_SELF)

    def _connect(self, division: Subgroups, number: int | None, together: bool) -> Any:
        return self._world.Split(len(division.groups) if number is None else number, self.rank)


@contextmanager
def joined(context: RankContext, backend: str, timeout_s: float, scheduling: str = "normal") -> Iterator[Group]:
    """Join the other ranks; leave MPI at the end of the context if nothing was raised in it.

    timeout_s, scheduling: not used, because MPI has neither; the parent ends a hang.
    """
    in_job = context.rendezvous.startswith("tcp:")  # also for a job on this host only
    if in_job:
        _listen_where_known(context)
        if context.on_one_host and INTERFACE_SETTING not in environment.variables():
            # Ranks listen on loopback only, so they must not call each other elsewhere.
            environment.adopt({INTERFACE_SETTING: network.interface_of(network.LOOPBACK) or ""})
    MPI = _mpi()  # noqa: N806 - its name everywhere
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (context.rank, context.world_size):
        raise RuntimeError(
            f"MPI takes this for rank {world.Get_rank()} of {world.Get_size()}: mpirun is of another MPI than the one "
            f"that mpi4py has loaded ({version()})"
        )
    if context.on_one_host:  # a rank listens only with a transport other than shared memory: OMPI_MCA_btl=self,tcp
        network.confine(os.getpid(), network.interface_of(network.LOOPBACK) or "")
    control = world.Dup()
    yield MpiGroup(context, world, control)
    if in_job:
        os.nice(NICE_AT_END)
    # Not in a `finally`: finalising waits for the other ranks.
    MPI.Finalize()


def _listen_where_known(context: RankContext) -> None:
    """Let Open MPI listen at the port that this rank had in the job's last launch, once that port is free.

    mpirun's daemons report to other ranks the first port that they learned, and a fresh process cannot correct it. A
    port stays in use for a minute if its side was the first to end a connection (TIME_WAIT).
    """
    if not environment.variables().keys().isdisjoint(PORT_SETTINGS.values()):
        return  # the user chose the ports
    job = zlib.crc32(environment.job_variables().get("PMIX_NAMESPACE", "").encode())
    port = LOWEST_PORT + job % JOBS * RANKS + context.rank % RANKS
    environment.adopt({setting: str(port) for setting in PORT_SETTINGS.values()})
    environment.adopt({setting.replace("_min_", "_range_"): "1" for setting in PORT_SETTINGS.values()})
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not _is_free(port) and time.monotonic() < deadline:
        context.tick()
        time.sleep(0.2)


def _is_free(port: int) -> bool:
    """Return whether a rank can listen at this port in every address family of this host."""
    for family in PORT_SETTINGS:
        try:
            with socket.socket(family) as probe:
                probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True


def version() -> str:
    """Return the name and version of the loaded MPI library, such as "Open MPI v5.0.11"."""
    return str(_mpi().Get_library_version()).split("\n")[0].split(",")[0].strip("\0 ")


def buffer_of(tensor: torch.Tensor) -> list[Any]:
    """Return a tensor's memory and datatype, as mpi4py takes them."""
    mpi = _mpi()
    memory = mpi.buffer.frombuffer(tensor.detach().view(-1).view(torch.uint8).numpy())  # keeps the tensor
    return [memory, getattr(mpi, NUMBERS[str(tensor.dtype).removeprefix("torch.")])]


def in_place() -> Any:
    """Return MPI's IN_PLACE."""
    return _mpi().IN_PLACE


# ── the calls ────────────────────────────────────────────────────────────────────────────────────
def _data(
    s: CallArguments, tensor: torch.Tensor, reduced: bool = False, pieces: Sequence[int] | None = None
) -> list[Any]:
    """Return a buffer as mpi4py takes it: memory, counts and displacements of `pieces` if given, datatype.

    Without `pieces`, mpi4py counts the elements itself, and divides by the number of ranks if MPI needs the count of a
    share. reduced: whether the elements are reduced, so that MPI must know their number type.
    """
    mpi, dtype = _mpi(), DTYPES[s.case.dtype]
    memory = mpi.buffer.frombuffer(tensor.view(torch.uint8).numpy())  # keeps the tensor
    parts = [] if pieces is None else [(pieces, [0, *accumulate(pieces)][:-1])]
    return [memory, *parts, getattr(mpi, NUMBERS[dtype.name] if reduced else WORDS[dtype.itemsize])]


def _sent(s: CallArguments, reduced: bool = False) -> Any:
    """Return the outgoing buffer, or MPI's IN_PLACE."""
    return _mpi().IN_PLACE if placement(s.case) == "in" else _data(s, s.outgoing, reduced)


def _even(s: CallArguments, tensor: torch.Tensor) -> list[int]:
    return [tensor.numel() // s.subgroup.size] * s.subgroup.size


def _op(case: Case) -> Any:
    return getattr(_mpi(), (BOOL_OPS if case.dtype == "bool" else OPS)[case.reduce_op])


def _call(s: CallArguments, name: str, *arguments: Any, **named: Any) -> Call:
    """Build a call of the communicator's method of this name, or of the method's nonblocking variant."""
    method = f"I{name.lower()}" if s.case.call == "async" else name
    return functools.partial(getattr(s.subgroup.handle, method), *arguments, **named)


def _reduce_scatter(s: CallArguments) -> Call:
    outgoing = _data(s, s.outgoing, reduced=True)
    if placement(s.case) == "in":  # one buffer: the outgoing data, at whose beginning MPI puts the result
        return _call(s, "Reduce_scatter_block", _mpi().IN_PLACE, outgoing, _op(s.case))
    return _call(s, "Reduce_scatter_block", outgoing, _data(s, s.incoming, reduced=True), _op(s.case))


def _reduce(s: CallArguments) -> Call:
    if not s.is_root:
        return _call(s, "Reduce", _data(s, s.outgoing, reduced=True), None, _op(s.case), s.case.root)
    return _call(s, "Reduce", _sent(s, reduced=True), _data(s, s.incoming, reduced=True), _op(s.case), s.case.root)


def _all_to_all(s: CallArguments, sent: Sequence[int], received: Sequence[int]) -> Call:
    return _call(s, "Alltoallv", _data(s, s.outgoing, pieces=sent), _data(s, s.incoming, pieces=received))


def _send_recv(s: CallArguments) -> Call:
    if s.transfer.to is not None:
        return _call(s, "Send", _data(s, s.outgoing), s.transfer.to)
    return _call(s, "Recv", _data(s, s.incoming), s.transfer.source)


def _both_ways(s: CallArguments) -> Call:
    outgoing, incoming = _data(s, s.outgoing), _data(s, s.incoming)
    return _call(s, "Sendrecv", outgoing, s.transfer.to, recvbuf=incoming, source=s.transfer.source)


CALLS: dict[str, BuildCall] = {
    "all_reduce": lambda s: _call(
        s, "Allreduce", _sent(s, reduced=True), _data(s, s.incoming, reduced=True), _op(s.case)
    ),
    "all_gather": lambda s: _call(s, "Allgather", _sent(s), _data(s, s.incoming)),
    "all_gather_list": lambda s: _call(s, "Allgatherv", _sent(s), _data(s, s.incoming, pieces=_even(s, s.incoming))),
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_list": lambda s: _call(
        s,
        "Reduce_scatter",
        _data(s, s.outgoing, reduced=True),
        _data(s, s.incoming, reduced=True),
        _even(s, s.outgoing),
        _op(s.case),
    ),
    "broadcast": lambda s: _call(s, "Bcast", _data(s, s.incoming), s.case.root),
    "reduce": _reduce,
    "gather": lambda s: _call(
        s,
        "Gather",
        _sent(s) if s.is_root else _data(s, s.outgoing),
        _data(s, s.incoming) if s.is_root else None,
        s.case.root,
    ),
    "scatter": lambda s: _call(
        s,
        "Scatter",
        _data(s, s.outgoing) if s.is_root else None,
        _mpi().IN_PLACE if s.is_root and placement(s.case) == "in" else _data(s, s.incoming),
        s.case.root,
    ),
    "all_to_all": lambda s: _call(s, "Alltoall", _data(s, s.outgoing), _data(s, s.incoming)),
    "all_to_all_list": lambda s: _all_to_all(s, _even(s, s.outgoing), _even(s, s.outgoing)),
    "all_to_all_uneven": lambda s: _all_to_all(s, s.transfer.sent, s.transfer.received),
    "send_recv": _send_recv,
    "sendrecv_pair": _both_ways,
    "sendrecv_ring": _both_ways,
    "pairwise": _both_ways,
}


def _barrier(subgroup: Subgroup, case: Case) -> Call:
    """Return the barrier call of the subgroup."""
    call: Call = subgroup.handle.Ibarrier if case.call == "async" else subgroup.handle.Barrier
    return call
