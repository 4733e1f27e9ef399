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
from bench.operations import DTYPES
from bench.plan import buffer_bytes, pool_slots, scratch_bytes
from bench.records import Case

# Largest prime below 2**18: 1 MiB of float32, which stays in a cache while it is copied out.
PERIOD = 262_139
LARGEST_VALUE = 8

Call = Callable[[], object]


class Workload(Protocol):
    """A collective that can be called again and again, and checked."""

    def prepare(self) -> Call:
        """The next call, ready to be timed; refills buffers where the data needs it. Untimed."""

    def verify(self) -> str | None:
        """None if all results since the last refill are right, else a sentence on the first wrong one."""


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

    def verify(self) -> str | None:
        return self._inner.verify()


class AllReduce:
    """`all_reduce` over a pool of buffers, each reduced in place until its values would stop being exact."""

    def __init__(self, case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int) -> None:
        dtype = getattr(torch, case.dtype)
        largest = largest_value(case)
        self._slots = pool_slots(case, pool_bytes)
        self._pool = arena.take(buffer_bytes(case, pool_bytes), dtype)
        self._length = case.size_bytes // DTYPES[case.dtype].itemsize
        self._rounds = _rounds_before_refill(case, largest)
        self._growth = case.world_size if case.reduce_op == "sum" else 1
        self._own = tile(seed, group.rank, largest, dtype, group.device)
        self._reduced = reduced_tile(seed, case.reduce_op, case.world_size, largest, dtype, group.device)
        self._call = functools.partial(dist.all_reduce, op=getattr(dist.ReduceOp, case.reduce_op.upper()))
        self._fill()

    def prepare(self) -> Call:
        rounds, slot = divmod(self._calls, self._slots)
        if rounds == self._rounds:
            self._fill()
            slot = 0
        self._calls += 1
        start = slot * self._length
        return functools.partial(self._call, self._pool[start : start + self._length])

    def verify(self) -> str | None:
        rounds, slot = divmod(self._calls, self._slots)
        border = slot * self._length
        return self._wrong(0, border, rounds + 1) or self._wrong(border, self._pool.numel(), rounds)

    def _fill(self) -> None:
        for start in range(0, self._pool.numel(), PERIOD):
            part = self._pool[start : start + PERIOD]
            part.copy_(self._own[: part.numel()])
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
            if not torch.equal(part, want):
                index = int((part != want).nonzero()[0])
                slot, element = divmod(start + index, self._length)
                return f"element {element} of buffer {slot} is {part[index].item()}, expected {want[index].item()}"
            start += part.numel()
        return None


def largest_value(case: Case) -> int:
    """Inputs lie in [-v, v] for the v returned here: one sum over the ranks is exact in the dtype."""
    return min(LARGEST_VALUE, int(2 ** DTYPES[case.dtype].exact_bits) // case.world_size)


def _rounds_before_refill(case: Case, largest: int) -> int:
    """How often a buffer may be reduced in place: each sum multiplies the largest value by the ranks."""
    if case.reduce_op != "sum" or case.world_size == 1:
        return 2**62
    limit, value, rounds = int(2 ** DTYPES[case.dtype].exact_bits), largest * case.world_size, 1
    while value * case.world_size <= limit:
        value *= case.world_size
        rounds += 1
    return rounds


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


BUILDERS: dict[str, Callable[[Case, Group, Arena, int, int], Workload]] = {"all_reduce": AllReduce}
