"""Carry the all-reduces of a rank's strategies, and lend them memory; all strategies of a launch share both.

A transport carries all-reduces over torch's process group, over MPI, or over an emulated FIFO link that costs no CPU.
In: tensors. Out: a `Handle` for each call, to be waited for. Bytes and launch time of each call are recorded, and
on request its completion. The memory contains parameters, optimizer states and buckets, which strategies use in turn.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from collbench.packages.training.planning.link_model import AllReduceCost
from collbench.packages.training.step_records import Link
from collbench.rank.group import Group
from collbench.rank.mpi import MpiGroup, buffer_of, in_place

# A rank waits for the other ranks here (`rank.process`).
WAITS_FOR_RANKS = True

# Most calls in flight at once; a step of the largest model has a few hundred.
SLOTS = 1 << 16
POLL_S = 50e-6


# ── transports ───────────────────────────────────────────────────────────────────────────────────
class Handle(Protocol):
    """A call in flight."""

    def wait(self) -> None:
        """Wait until the sum is in the tensor."""

    def is_completed(self) -> bool:
        """Return True once the sum is in the tensor."""


@dataclass(slots=True)
class SentCall:
    """The record of one call."""

    nbytes: int
    # Times by the transport's `mark`; done_ns is 0 if it is not known.
    launched_ns: Any
    done_ns: Any = 0


class Transport(ABC):
    """A carrier of all-reduces, which records them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        # True to record also the completion time of each call.
        self.stamped = False
        # Calls since the list was last cleared.
        self.sent: list[SentCall] = []
        # Function that marks an instant: the host's clock in ns, unless a stopwatch of the device is used.
        self.mark: Any = time.perf_counter_ns

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> Handle:
        """Begin to sum over ranks, in place."""

    def _note(self, tensor: torch.Tensor) -> SentCall:
        sent = SentCall(tensor.numel() * tensor.element_size(), self.mark())
        self.sent.append(sent)
        return sent


@dataclass(slots=True)
class RankInfo:
    """A rank's place in the process group: its rank, the number of ranks, its device, and its real transport."""

    rank: int
    world_size: int
    device: torch.device
    real: "ProcessGroupTransport | MpiTransport"

    @classmethod
    def of_group(cls, group: Group) -> "RankInfo":
        """Return the place in a joined group, whose library carries the all-reduces."""
        size = group.world_size
        real = MpiTransport(size, group.world) if isinstance(group, MpiGroup) else ProcessGroupTransport(size)
        return cls(group.rank, size, group.device.handle, real)


class ProcessGroupTransport(Transport):
    """A transport over torch's process group."""

    # Zeros that are sent in place of tensors without memory.
    _blank: torch.Tensor | None = None

    def all_reduce(self, tensor: torch.Tensor) -> Handle:
        sent = self._note(tensor)
        if tensor.is_meta:  # zeros are sent in its place, which all calls in flight share
            if self._blank is None or self._blank.numel() < tensor.numel():
                self._blank = torch.zeros(tensor.numel(), dtype=tensor.dtype)
            tensor = self._blank[: tensor.numel()]
        work = dist.all_reduce(tensor, async_op=True)
        return _Stamped(work, sent, self.mark) if self.stamped else work

    def future(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin an all-reduce; return a future of the mean, as communication hooks of DistributedDataParallel do."""
        sent = self._note(tensor)

        def mean(done: Any) -> torch.Tensor:
            sent.done_ns = self.mark()
            out: torch.Tensor = done.value()[0].div_(self.world_size)
            return out

        return dist.all_reduce(tensor, async_op=True).get_future().then(mean)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Copy the values of one rank to all ranks."""
        dist.broadcast(tensor, source)


class MpiTransport(Transport):
    """A transport over MPI's world, for tensors in the memory of the host."""

    def __init__(self, world_size: int, world: Any) -> None:
        super().__init__(world_size)
        # Communicator of mpi4py.
        self._world = world

    def all_reduce(self, tensor: torch.Tensor) -> Handle:
        sent = self._note(tensor)
        return _Requested(self._world.Iallreduce(in_place(), buffer_of(tensor)), sent, self.mark)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Copy the values of one rank to all ranks."""
        self._world.Bcast(buffer_of(tensor), source)


@dataclass(frozen=True, slots=True)
class _Requested:
    """A nonblocking call of MPI. MPI progresses only when queried, so the call is done when a query notices it."""

    request: Any
    sent: SentCall
    mark: Callable[[], Any]

    def wait(self) -> None:
        self.request.Wait()
        self.sent.done_ns = self.sent.done_ns or self.mark()

    def is_completed(self) -> bool:
        done = bool(self.request.Test())
        if done:
            self.sent.done_ns = self.sent.done_ns or self.mark()
        return done


class _Stamped:
    """A call whose completion is recorded when it happens, not when a caller waits for it."""

    def __init__(self, work: Any, sent: SentCall, mark: Callable[[], Any]) -> None:
        def note(_: Any) -> None:  # on a GPU it runs at once, on a stream that waits for the call
            sent.done_ns = mark()

        self._future = work.get_future().then(note)
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        self._future.wait()

    def is_completed(self) -> bool:
        done: bool = self._work.is_completed()
        return done


class EmulatedLink(Transport):
    """A link that carries one all-reduce after the other; each starts once all ranks have launched it.

    Ranks share a file of launch times. No data is moved, and ranks sleep until a call is complete, so a call costs no
    CPU time. After a call is complete and waited for, only its entry in `sent` is kept.
    """

    def __init__(self, link: Link, rank: int, world_size: int, file: Path) -> None:
        super().__init__(world_size)
        self._cost, self._rank = AllReduceCost.emulated(link), rank
        mode: Any = "r+" if file.exists() else "w+"
        self._launched = np.memmap(file, np.int64, mode, shape=(world_size, SLOTS, 2))
        self._count = self._settled = 0
        self._free_ns = 0
        self._open: deque[SentCall] = deque()  # launched calls without known completion; the first is _settled
        # Completes futures, one after the other; it settles calls, too, which needs a lock.
        self._timer = ThreadPoolExecutor(max_workers=1)
        self._lock = threading.Lock()

    def all_reduce(self, tensor: torch.Tensor) -> "_Awaited":
        call = self._note(tensor)
        with self._lock:
            index = self._count
            self._open.append(call)
            self._launched[self._rank, index % SLOTS] = (call.launched_ns, index + 1)
            self._count += 1
        return _Awaited(self, call, index)

    def future(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin an all-reduce; return a future of the tensor, as communication hooks of torch do."""
        future, call = torch.futures.Future(), self.all_reduce(tensor)

        def finish() -> None:
            call.wait()
            future.set_result(tensor)

        self._timer.submit(finish)
        return future

    def settle(self, index: int) -> bool:
        """Compute when each call up to `index` completes. Return False if a rank has not yet launched one of them."""
        with self._lock:
            while self._settled <= index:
                slot = self._launched[:, self._settled % SLOTS]
                if (slot[:, 1] != self._settled + 1).any():
                    return False
                call = self._open.popleft()
                began = max(self._free_ns, int(slot[:, 0].max()))
                taken = float(self._cost(np.array(float(call.nbytes))))
                self._free_ns = call.done_ns = began + int(taken * 1e9)
                self._settled += 1
            return True


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A call of an emulated link."""

    link: EmulatedLink
    call: SentCall
    # Number of the call, counted from 0.
    index: int

    def wait(self) -> None:
        while not self.link.settle(self.index):
            time.sleep(POLL_S)
        left = (self.call.done_ns - time.perf_counter_ns()) / 1e9
        if left > 0:
            time.sleep(left)

    def is_completed(self) -> bool:
        return self.link.settle(self.index) and self.call.done_ns <= time.perf_counter_ns()


# ── memory ───────────────────────────────────────────────────────────────────────────────────────
class SharedTensors:
    """One set of tensors for modules of one model, their optimizers and buckets; the first of each determines shapes.

    Only one strategy trains at a time, and its times do not depend on the values, so ten strategies need little more
    memory than one. Each strategy continues with the values that the last one left. Tensors that torch's
    DistributedDataParallel and fully_shard keep are not shared.
    """

    def __init__(self) -> None:
        self._parameters: list[torch.Tensor] = []
        # Of each parameter; empty before the first step.
        self._states: list[dict[str, torch.Tensor]] = []
        self._buckets: torch.Tensor | None = None

    def adopt(self, module: nn.Module) -> None:
        """Move the module's parameters into the set, with their values."""
        own = list(module.parameters())
        if any(parameter.is_meta for parameter in own):
            return
        if not self._parameters:
            self._parameters = [parameter.data for parameter in own]
            return
        with torch.no_grad():
            for parameter, shared in zip(own, self._parameters, strict=True):
                shared.copy_(parameter)
                parameter.data = shared

    def adopt_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the states of an optimizer that has made a step, such as momentum, into the set if the set has none."""
        self._states = self._states or [optimizer.state.get(parameter, {}) for parameter in _parameters(optimizer)]

    def lend_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the set's states, as zeros, to an optimizer that has made no step, if shapes agree.

        SGD and Adam begin with zeros, too, so training does not change.
        """
        for parameter, states in zip(_parameters(optimizer), self._states, strict=False):
            if all(not state.dim() or state.shape == parameter.shape for state in states.values()):
                optimizer.state[parameter] = {name: state.zero_() for name, state in states.items()}

    def buckets(self, elements: Sequence[int], like: torch.Tensor) -> list[torch.Tensor]:
        """Return a tensor for each bucket, one after the other in the set's memory."""
        total = sum(elements)
        if not total:
            return [like.new_empty(0) for _ in elements]
        if self._buckets is None or self._buckets.numel() < total:
            # Allocate the most that any strategy needs: earlier strategies keep their old memory.
            most = max(total, sum(parameter.numel() for parameter in self._parameters))
            self._buckets = torch.zeros(most, dtype=like.dtype, device=like.device)
        return list(self._buckets[:total].split(list(elements)))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]
