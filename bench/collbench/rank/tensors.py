"""Run the operations on tensors: fill buffers that the next calls use, hand out calls, check the results, refill.

In: a case, a joined `Group`, the rank's `Arena`. Out: the `Workload` of that case. `collectives` defines the data to
send and to receive, and `collectives` or `mpi` builds the library's call.

The data are one sequence of small integers, in which each rank begins at a different position. The expected results
are reduced here in integer arithmetic, not by a backend. The sequence repeats with a prime period, which no segment
size divides, and each buffer of a pool begins one element further, so that data of a wrong position, rank or call are
detected.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from collbench.catalog import collectives
from collbench.catalog.collectives import ALIGNMENT, OPERATIONS
from collbench.catalog.dtypes import (
    DTYPES,
    LARGEST_VALUE,
    PREMULTIPLIER,
    growth,
    largest_value,
    rounding,
    spacing,
    unit,
)
from collbench.catalog.rules import unsupported_by_backend
from collbench.model.divisions import WORLD
from collbench.model.records import Case
from collbench.planning.footprint import aligned, buffer_bytes, calls_between_refills, pool_slots
from collbench.rank.collectives import COLLECTIVES, Call, CallArguments, Subgroup, Transfer, built, rest
from collbench.rank.group import Group
from collbench.rank.workload import Workload

# Calls on this many buffers are built once and kept. Building twenty before a pipelined iteration lets the ranks idle
# long enough to change its time (2 % at 4 KiB). Keeping more would waste memory.
MOST_READY = 64
# Largest size of the call in a group of one rank: the dispatch cost does not depend on the size.
SINGLE_RANK_BYTES = 64 * 2**10
# Largest prime below 2**18: 1 MiB of float32, which stays in a cache while it is copied out.
PERIOD = 262_139
# Data on a GPU are repeated to about this many bytes: launching a kernel takes longer than copying 1 MiB.
GPU_BYTES = 2**25
# Distance between the first positions of two neighbouring ranks: not a multiple of the prime PERIOD, so that no two of
# fewer than PERIOD ranks begin at the same position.
SHIFT = 104_729
# Inputs and results rarely have this value (as a bool it is True): an element that still has it was not received.
POISON = 101

Integers = NDArray[np.int64]
_COMBINE = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


class Arena:
    """One allocation per rank and launch, from which cases take their pools, so that cases cause no page faults."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        # Its pages are mapped when buffers are filled, which is before the calls on them are timed.
        room = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        start = -room.data_ptr() % ALIGNMENT
        self._bytes = room[start : start + nbytes]
        self._scratch = self._bytes[:0]
        self._taken = 0

    @property
    def nbytes(self) -> int:
        return int(self._bytes.numel())

    def take(self, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the next `nbytes` as a flat tensor, aligned as by `footprint.aligned`."""
        start, self._taken = self._taken, self._taken + aligned(nbytes)
        if start + nbytes > self.nbytes:
            raise ValueError(f"{start + nbytes} bytes wanted of an arena of {self.nbytes}")
        return self._bytes[start : start + nbytes].view(dtype)

    def clear(self) -> None:
        """Make all memory free to be taken again."""
        self._taken = 0

    def free(self) -> None:
        """Free the memory; tensors taken from it must not be used any more."""
        self._bytes = self._bytes.new_empty(0)

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Return a scratch buffer outside the arena, zero at first, which all cases share."""
        if self._scratch.numel() < nbytes:
            self._scratch = torch.zeros(nbytes, dtype=torch.uint8, device=self._bytes.device)
        return self._scratch[:nbytes]


class TensorOperation(Workload):
    """An operation on a pool of buffers, each used until its data would no longer be exact, then refilled.

    Every buffer begins at its own position in the sequence of data, and its incoming part is poisoned. `tick` is called
    after each chunk that is filled or checked, because tens of GiB take longer than a rank may be silent.
    """

    def __init__(
        self, case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int, tick: Callable[[], None] = rest
    ) -> None:
        self._case, self._group, self._seed, self._tick = case, group, seed, tick
        self._subgroup = group.subgroup(case)
        self._turns = turns(case, self._subgroup)
        self._slots = pool_slots(case, pool_bytes)
        pool = arena.take(buffer_bytes(case, pool_bytes), getattr(torch, case.dtype))
        offset = 1 if case.alignment == "unaligned" else 0
        self._pool = pool.view(self._slots, -1)[:, offset:]
        self._fresh = calls_between_refills(case) or 2**62
        grows = collectives.placement(case) == "in" and OPERATIONS[case.op].reduces
        self._growth = growth(case.dtype, case.reduce_op, self._subgroup.size) if grows else 1
        self._sum = None
        reduce_op = case.reduce_op if OPERATIONS[case.op].reduces else None
        self._data = _sequence(seed, case.dtype, reduce_op, self._subgroup.size, group.device.handle)
        self._tolerance = rounding(case.dtype, self._subgroup.size) if reduce_op == "avg" else 0.0
        if reduce_op is not None:
            self._sum = _reduced(seed, case.dtype, reduce_op, self._subgroup.size, group.device.handle)
        self._mark = _marked_element(self._turns)
        self._turn = self._calls = 0
        # For each buffer: number of uses since it was filled, and the turn of the last use (-1: only rests so far).
        # Buffers not reached yet have no entry: a pool of small buffers has millions.
        self._used: list[int] = []
        self._last: list[int] = []
        self._stale: list[tuple[int, int]] = []
        self._latest: tuple[int, Transfer] | None = None  # buffer and transfer of the last call that was not a rest
        self._ready: dict[tuple[int, int], Call] = {}
        self._filled = 0  # number of filled buffers, from the first on

    def prepare(self) -> Call:
        if self._stale:
            self._refill_stale()
        times, slot = divmod(self._calls, self._slots)
        if times == self._fresh:
            self.renew()
            slot = 0
        if slot >= self._filled:
            self._fill_up_to(slot + 1)
        turn = self._turn
        self._turn = (turn + 1) % len(self._turns)
        self._calls += 1
        transfer = self._turns[turn]
        if slot == len(self._used):
            self._used.append(0)
            self._last.append(-1)
        if transfer is not None:  # a rest does not change the buffer
            self._used[slot] += 1
            self._last[slot] = turn
            self._latest = (slot, transfer)
            if self._mark is not None:  # one element only: poisoning all would warm the caches
                self._pool[slot, self._mark : self._mark + 1].fill_(POISON)
        call = self._ready.get((slot, turn))
        if call is None:
            call = rest
            if transfer is not None:
                arguments = _arguments(self._subgroup, self._case, transfer, self._pool[slot])
                call = built(self._group.calls, arguments)
            if slot < MOST_READY:
                self._ready[slot, turn] = call
        return call

    def ready(self, most: int) -> list[Call]:
        if self._stale:
            self._refill_stale()
        # As many calls as possible without refilling a buffer, or marking it again after it was used.
        before_refill = self._fresh * self._slots - self._calls
        before_reuse = self._slots - self._calls % self._slots if self._mark is not None else most
        return [self.prepare() for _ in range(max(1, min(most, before_refill, before_reuse, MOST_READY)))]

    def reserve(self, calls: int) -> None:
        if self._stale:
            self._refill_stale()
        if self._calls + calls > self._fresh * self._slots:
            self.renew()
        self._fill_up_to(min(self._slots, self._calls + calls))

    def move_to(self, subgroup: Subgroup) -> None:
        """Make further calls in another group of the same ranks."""
        self._subgroup = subgroup
        self._ready.clear()

    def verify(self) -> str | None:
        for first, stop in self._runs():
            rested = self._last[first] < 0  # not checked, but then begins with the first buffer as other ranks do
            wrong = None if rested else self._wrong(first, stop, self._last[first], self._used[first])
            if wrong is not None:
                return wrong
            self._stale.append((first, stop))
        return None

    def renew(self) -> None:
        """Refill as many buffers as were filled, and begin with the first buffer."""
        stop, self._filled = self._filled, 0
        self._fill_up_to(stop)
        self._begin_with_the_first()

    def corrupt(self) -> bool:
        spans = [span for span in self._latest[1].arrives if span.length] if self._latest else []
        if not spans or not self._latest:
            return False
        element = self._pool[self._latest[0], spans[0].start : spans[0].start + 1]
        if self._case.dtype == "bool":
            element.logical_not_()
        else:  # a high bit of the number: larger than any tolerance
            element.view(torch.uint8)[-1:].bitwise_xor_(0x40)
        return True

    def single_rank_call(self) -> Call | None:
        if OPERATIONS[self._case.op].fewest_ranks > 1:
            return None
        pieces = OPERATIONS[self._case.op].pieces(1)
        unit = pieces * DTYPES[self._case.dtype].itemsize
        size = max(unit, min(self._case.size_bytes, SINGLE_RANK_BYTES) // unit * unit)
        case = dataclasses.replace(
            self._case, size_bytes=size, world_size=1, groups=WORLD, root=0, call="sync", splits=None
        )
        if unsupported_by_backend(case) is not None:
            return None
        subgroup = self._group.single_rank_subgroup()
        (transfer,) = turns(case, subgroup)
        assert transfer is not None  # noqa: S101 - nobody rests alone
        nbytes = collectives.room_bytes(case)
        buffer = torch.zeros(nbytes, dtype=torch.uint8, device=self._group.device.handle).view(self._pool.dtype)
        return built(self._group.calls, _arguments(subgroup, case, transfer, buffer))

    def _fill_up_to(self, stop: int) -> None:
        if stop > self._filled:
            self._fill(self._filled, stop)
            self._filled = stop

    def _refill_stale(self) -> None:
        """Refill checked buffers before they are used again, so that the next check sees new results."""
        for first, stop in self._stale:
            self._fill(first, stop)
        self._begin_with_the_first()

    def _begin_with_the_first(self) -> None:
        self._used.clear()
        self._last.clear()
        self._stale.clear()
        self._calls = 0

    def _fill(self, first: int, stop: int) -> None:
        """Poison the elements to receive, then write the data to send."""
        transfers = [turn for turn in self._turns if turn is not None]
        if not transfers:
            return
        (send, end), start = transfers[0].sends, transfers[0].receives[0]
        until = max(transfer.receives[1] for transfer in transfers)
        if (send, end) != (start, until):
            self._pool[first:stop, start:until].fill_(POISON)
        begin = _begin_of(self._subgroup.rank)
        for row, last_row, column, last in _pieces(first, stop, send, end, self._data):
            data = _rows(self._data, begin + column - send, row, last_row - row, last - column)
            self._pool[row:last_row, column:last].copy_(data)
            self._tick()

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield (first, stop) of adjacent buffers that were used equally often, and last in the same turn."""
        changes = np.flatnonzero(np.diff(self._last).astype(bool) | np.diff(self._used).astype(bool)) + 1
        borders = [0, *changes.tolist(), len(self._used)]
        return pairwise(borders) if self._used else iter(())

    def _wrong(self, first: int, stop: int, turn: int, times: int) -> str | None:
        """Return the first wrong element in buffers first … stop, each used `times` times, last in `turn`, or None."""
        transfer = self._turns[turn]
        for span in transfer.arrives if transfer is not None else ():
            source, begin = self._data, span.offset
            if span.rank is not None:
                begin += _begin_of(span.rank)
            else:
                assert self._sum is not None  # noqa: S101 - only what reduces has such a span
                source = self._sum if times == 1 or self._growth == 1 else self._sum * self._growth ** (times - 1)
            for row, last_row, column, last in _pieces(first, stop, 0, span.length, source):
                want = _rows(source, begin + column, row, last_row - row, last - column)
                got = self._pool[row:last_row, span.start + column : span.start + last]
                at = _difference(got, want, self._tolerance)
                self._tick()
                if at is not None:
                    origin = "" if span.rank is None else f" of rank {span.rank}'s data"
                    return (
                        f"element {span.offset + column + at[1]}{origin} in buffer {row + at[0]} is "
                        f"{got[at].item()}, expected {want[at].item()}"
                    )
        return None


def turns(case: Case, subgroup: Subgroup) -> list[Transfer | None]:
    """Return the transfer of this rank in each iteration of a cycle; None for an iteration in which it rests."""
    length = case.size_bytes // DTYPES[case.dtype].itemsize
    transfer_of = COLLECTIVES[case.op].transfer
    if subgroup.idle:
        return [None] * collectives.cycle(case)
    if subgroup.subgroups > 1:  # one after the other
        own = transfer_of(subgroup, case, length, 0)
        return [own if turn == subgroup.number else None for turn in range(subgroup.subgroups)]
    return [transfer_of(subgroup, case, length, turn) for turn in range(collectives.cycle(case))]


def _arguments(subgroup: Subgroup, case: Case, transfer: Transfer, buffer: torch.Tensor) -> CallArguments:
    return CallArguments(subgroup, case, transfer, buffer[slice(*transfer.sends)], buffer[slice(*transfer.receives)])


def _marked_element(exchanges: list[Transfer | None]) -> int | None:
    """Return an element that is received and not sent: poisoned before each call, it shows whether data arrived."""
    transfer = next((transfer for transfer in exchanges if transfer is not None), None)
    if transfer is None:
        return None
    (send, end), (start, until) = transfer.sends, transfer.receives
    return next((at for at in (start, until - 1) if start < until and not send <= at < end), None)


# ── the data ─────────────────────────────────────────────────────────────────────────────────────
@functools.lru_cache(maxsize=4)  # the sizes of a launch share their data
def _sequence(seed: int, dtype: str, reduce_op: str | None, ranks: int, device: torch.device) -> torch.Tensor:
    """Return periods of the inputs. reduce_op: None if nothing is reduced, so that any small integer can be used."""
    return _tensor(_inputs(seed, dtype, reduce_op, ranks), dtype, device)


@functools.lru_cache(maxsize=4)
def _reduced(seed: int, dtype: str, reduce_op: str, ranks: int, device: torch.device) -> torch.Tensor:
    """Return periods of the reduced inputs of `ranks` ranks."""
    inputs = _inputs(seed, dtype, reduce_op, ranks)
    total = functools.reduce(_COMBINE[reduce_op], (np.roll(inputs, -SHIFT * rank) for rank in range(ranks)))
    if DTYPES[dtype].kind == "bool":
        total = np.minimum(total, 1)
    if reduce_op == "premul_sum":
        total = total * PREMULTIPLIER
    return _tensor(total / ranks if reduce_op == "avg" else total, dtype, device)


def _begin_of(rank: int) -> int:
    """Return the position in the sequence at which the data of a rank begin."""
    return rank * SHIFT % PERIOD


def _rows(data: torch.Tensor, begin: int, first: int, count: int, length: int) -> torch.Tensor:
    """Return the data of buffers first, first + 1, … from position `begin` on: a view of `data`, shape (count, length).

    data: two periods or more. count and length: no larger than `_pieces` makes them.
    """
    # With strides (1, 1) a single row looks to torch like a transposed column: copying it would take 30 times as long.
    return data.as_strided((count, length), (1 if count > 1 else length, 1), (begin + first) % PERIOD)


def _pieces(first: int, stop: int, begin: int, end: int, data: torch.Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Divide rows first … stop, columns begin … end into pieces for `_rows`, each no larger than half of `data`."""
    most = (data.numel() - PERIOD) // 2
    columns = max(1, min(most, end - begin))
    for row in range(first, stop, rows := max(1, most // columns)):
        for column in range(begin, end, columns):
            yield row, min(stop, row + rows), column, min(end, column + columns)


def _difference(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> tuple[int, int] | None:
    """Return row and column of the first different element, or None; tolerance: relative and absolute, 0 for none."""
    if got.dtype == torch.bool:  # gloo adds bools as bytes: 2 is true as well
        got, want = got.view(torch.uint8).clamp(max=1), want.view(torch.uint8).clamp(max=1)
    elif got.element_size() == 1 and got.is_floating_point():  # torch cannot compare float8
        got, want = got.float(), want.float()
    if torch.equal(got, want) or (tolerance and torch.allclose(got, want, rtol=tolerance, atol=tolerance)):
        return None
    row, column = (got != want).nonzero()[0].tolist()
    return row, column


def _inputs(seed: int, dtype: str, reduce_op: str | None, ranks: int) -> Integers:
    """Draw one period of the inputs; for complex numbers, of their real parts."""
    kind, dice = DTYPES[dtype].kind, np.random.default_rng([seed])
    largest = LARGEST_VALUE if reduce_op is None else largest_value(dtype, reduce_op, ranks)
    if kind == "bool" or (kind == "unsigned" and reduce_op == "product"):
        return dice.integers(0, 2, PERIOD)
    if reduce_op == "product":
        return 2 * dice.integers(0, 2, PERIOD) - 1
    if reduce_op is None or (distance := spacing(dtype, reduce_op, ranks)) == 1:
        values = dice.integers(0 if kind == "unsigned" else -largest, largest, PERIOD, endpoint=True)
    else:
        places = np.arange(0, PERIOD, distance) * SHIFT % PERIOD  # neighbouring ranks begin SHIFT apart
        values = np.zeros(PERIOD, dtype=np.int64)
        values[places] = 1 if kind == "unsigned" else 2 * dice.integers(0, 2, len(places)) - 1
    return values if reduce_op is None else values * unit(dtype, reduce_op, ranks)


def _tensor(values: NDArray[Any], dtype: str, device: torch.device) -> torch.Tensor:
    """Return two periods as a tensor, more on a GPU; the imaginary part of a complex number is the next real part."""
    period = torch.from_numpy(values).to(torch.float64)
    if DTYPES[dtype].kind == "complex":
        period = torch.complex(period, period.roll(-1))
    period = period.to(getattr(torch, dtype)).to(device)
    return period.repeat(2 if device.type == "cpu" else max(2, GPU_BYTES // period.nbytes))
