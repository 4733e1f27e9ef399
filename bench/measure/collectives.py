"""One builder a collective: its buffers, the call that is timed, and whether its result is right.

In: a Case, the Group, the Arena of this rank. Out: a `Workload`. A new collective is one entry in
`bench/operations.py` and one builder here; a test ties the two.

Data (docs/method.md, "Data"): small random integers, different for each rank and element, so that any
order of summation gives the same, exact result. They repeat with a prime period, which no segment size
divides: a block that lands in the wrong place does not go unnoticed.
"""

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from bench.measure.group import Group
from bench.operations import DTYPES, calls_before_refill, largest_value, rounds
from bench.plan import buffer_bytes, pool_slots, scratch_bytes
from bench.records import Case

# Largest prime below 2**18: 1 MiB of float32, which stays in a cache while it is copied out.
PERIOD = 262_139
# So many calls are made once and kept: making twenty before each pipelined stretch lets the ranks idle long enough
# to be seen in it (2 % at 4 KiB). More would be memory for nothing.
MOST_READY = 64
# No input has this value, in any dtype: an element that still has it was not received.
POISON = 31

Call = Callable[[], object]


class Workload(Protocol):
    """A collective that can be called again and again, and checked."""

    def prepare(self) -> Call:
        """The next call, ready to be timed; refills buffers where the data needs it. Untimed."""

    def reserve(self, calls: int) -> None:
        """Make sure that the next so many calls need no refill between them. Untimed."""

    def verify(self) -> str | None:
        """None if all results since the last refill are right, else a sentence on the first wrong one."""

    def alone(self) -> Call | None:
        """The same call in a group of this rank alone, which shows what dispatching costs; None if it has none."""


class Arena:
    """One allocation a rank and launch, from which each case takes its pool: no page faults in between."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        # Zeroed once, so that its pages exist before anything is timed.
        self._bytes = torch.zeros(nbytes, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        return int(self._bytes.numel())

    def take(self, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        """The first `nbytes` as a flat tensor; every case starts anew from the beginning."""
        return self._bytes[:nbytes].view(dtype)


def build(case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int) -> Workload:
    """The workload of a case, filled and ready to be called."""
    workload = BUILDERS[case.op](case, group, arena, pool_bytes, seed)
    nbytes = scratch_bytes(case, pool_bytes)
    return Flushed(workload, nbytes, group.device) if nbytes else workload


class Flushed:
    """A workload before each call of which the caches are filled with something else."""

    def __init__(self, inner: Workload, nbytes: int, device: torch.device) -> None:
        self._inner = inner
        self._scratch = torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def prepare(self) -> Call:
        call = self._inner.prepare()
        self._scratch.add_(1)
        return call

    def reserve(self, calls: int) -> None:
        self._inner.reserve(calls)

    def verify(self) -> str | None:
        return self._inner.verify()

    def alone(self) -> Call | None:
        return self._inner.alone()


class AllReduce:
    """`all_reduce` over a pool of buffers, each reduced in place until its values would stop being exact."""

    def __init__(self, case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int) -> None:
        dtype = getattr(torch, case.dtype)
        largest = largest_value(case)
        self._slots = pool_slots(case, pool_bytes)
        self._pool = arena.take(buffer_bytes(case, pool_bytes), dtype)
        self._length = case.size_bytes // DTYPES[case.dtype].itemsize
        self._rounds = calls_before_refill(case) or 2**62
        self._growth = case.world_size if case.reduce_op == "sum" else 1
        self._own = tile(seed, group.rank, largest, dtype, group.device)
        self._reduced = reduced_tile(seed, case.reduce_op, case.world_size, largest, dtype, group.device)
        self._call = functools.partial(dist.all_reduce, op=getattr(dist.ReduceOp, case.reduce_op.upper()))
        self._myself = group.alone
        self._ready = [self._call_of(slot) for slot in range(min(self._slots, MOST_READY))]
        self._fill()

    def prepare(self) -> Call:
        rounds, slot = divmod(self._calls, self._slots)
        if rounds == self._rounds:
            self._fill()
            slot = 0
        self._calls += 1
        if slot < len(self._ready):
            return self._ready[slot]
        return self._call_of(slot)

    def _call_of(self, slot: int) -> Call:
        start = slot * self._length
        return functools.partial(self._call, self._pool[start : start + self._length])

    def reserve(self, calls: int) -> None:
        if self._calls + calls > self._rounds * self._slots:
            self._fill()

    def alone(self) -> Call | None:
        return functools.partial(self._call, self._pool[: self._length], group=self._myself())

    def verify(self) -> str | None:
        rounds, slot = divmod(self._calls, self._slots)
        border = slot * self._length
        return self._wrong(0, border, rounds + 1) or self._wrong(border, self._pool.numel(), rounds)

    def _fill(self) -> None:
        _repeat(self._own, self._pool)
        self._calls = 0

    def _wrong(self, start: int, stop: int, times: int) -> str | None:
        """What differs in pool[start:stop], whose slots were reduced `times` times."""
        if times == 0:
            return None  # not called since the refill: the rank's own data, nobody's result
        expected = self._reduced * self._growth ** (times - 1)
        while start < stop:
            phase = start % PERIOD
            part = self._pool[start : min(stop, start + PERIOD - phase)]
            want = expected[phase : phase + part.numel()]
            wrong = _difference(part, want)
            if wrong is not None:
                slot, element = divmod(start + wrong, self._length)
                return f"element {element} of buffer {slot} is {part[wrong].item()}, expected {want[wrong].item()}"
            start += part.numel()
        return None


class Pairwise:
    """`send` and `recv` between two ranks at once, with another partner in each round."""

    def __init__(self, case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int) -> None:
        dtype = getattr(torch, case.dtype)
        self._rank = group.rank
        self._slots = pool_slots(case, pool_bytes)
        pool = arena.take(buffer_bytes(case, pool_bytes), dtype)
        self._length = case.size_bytes // DTYPES[case.dtype].itemsize
        self._outgoing, self._incoming = pool.view(2, self._slots, self._length)
        self._partners = [partner(pairs, group.rank) for pairs in rounds(case.world_size)]
        largest = largest_value(case)
        self._data = [tile(seed, rank, largest, dtype, group.device) for rank in range(case.world_size)]
        for buffer in self._outgoing:
            _repeat(self._data[self._rank], buffer)
        self._calls = 0
        self._awaited: dict[int, int] = {}  # slot → whose data must be in it

    def prepare(self) -> Call:
        other = self._partners[self._calls % len(self._partners)]
        slot = self._calls % self._slots
        self._calls += 1
        if other is None:
            return _rest
        self._awaited[slot] = other
        self._incoming[slot][:1].fill_(POISON)  # all of it would warm the caches
        return functools.partial(_exchange, self._incoming[slot], self._outgoing[slot], other)

    def reserve(self, calls: int) -> None:
        """Nothing is ever refilled."""

    def alone(self) -> Call | None:
        return None  # nobody sends to itself

    def verify(self) -> str | None:
        for slot, other in self._awaited.items():
            buffer, data = self._incoming[slot], self._data[other]
            for start in range(0, self._length, PERIOD):
                part = buffer[start : start + PERIOD]
                wrong = _difference(part, data[: part.numel()])
                if wrong is not None:
                    got, want = part[wrong].item(), data[wrong].item()
                    return f"element {start + wrong} received from rank {other} is {got}, expected {want}"
            buffer.fill_(POISON)
        self._awaited.clear()
        return None


def partner(pairs: list[tuple[int, int]], rank: int) -> int | None:
    """Whom a rank meets in a round; None where it rests."""
    return next((a + b - rank for a, b in pairs if rank in (a, b)), None)


def _exchange(incoming: torch.Tensor, outgoing: torch.Tensor, other: int) -> None:
    operations = [dist.P2POp(dist.isend, outgoing, other), dist.P2POp(dist.irecv, incoming, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _rest() -> None:
    return None


def _difference(got: torch.Tensor, want: torch.Tensor) -> int | None:
    """Index of the first element that differs."""
    return None if torch.equal(got, want) else int((got != want).nonzero()[0])


def _repeat(data: torch.Tensor, buffer: torch.Tensor) -> None:
    """Fill a buffer with one period of data after the other."""
    for start in range(0, buffer.numel(), PERIOD):
        part = buffer[start : start + PERIOD]
        part.copy_(data[: part.numel()])


@functools.lru_cache(maxsize=4)  # the sizes of a launch share their data
def tile(seed: int, rank: int, largest: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One period of a rank's input: PERIOD integers in [-largest, largest]."""
    values = np.random.default_rng([seed, rank]).integers(-largest, largest, PERIOD, dtype=np.int8, endpoint=True)
    return torch.from_numpy(values).to(dtype).to(device)


@functools.lru_cache(maxsize=4)
def reduced_tile(
    seed: int, reduce_op: str, world_size: int, largest: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """One period of the result, reduced here from every rank's input and not by the backend."""
    combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[reduce_op]
    inputs = (tile.__wrapped__(seed, rank, largest, dtype, device) for rank in range(world_size))
    return functools.reduce(combine, inputs)


BUILDERS: dict[str, Callable[[Case, Group, Arena, int, int], Workload]] = {
    "all_reduce": AllReduce,
    "pairwise": Pairwise,
}
