"""A case as something that can be called again and again, and checked: its buffers, calls and data.

In: a Case, the Group, the Arena of this rank. Out: a `Workload`. What is sent and what must arrive is told by
`collectives`, what it consists of by `patterns`, and how a library calls it by `calls` or `mpi_calls`.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from bench import operations
from bench.dtypes import DTYPES, growth
from bench.measure import patterns
from bench.measure.calls import Call, Spot
from bench.measure.collectives import BUILDERS, Exchange
from bench.measure.group import Group
from bench.measure.team import Team
from bench.operations import OPERATIONS
from bench.pools import buffer_bytes, fresh_calls, pool_slots, scratch_bytes
from bench.records import Case

# So many calls are made once and kept: making twenty before each pipelined stretch lets the ranks idle long enough
# to be seen in it (2 % at 4 KiB). More would be memory for nothing.
MOST_READY = 64
# Received objects wait for the check that follows the timed calls: as many of the last ones as this holds.
MOST_KEPT_BYTES = 64 * 2**20
# The call in a group of one shows what dispatching costs, whatever the size: a small one will do.
ALONE_BYTES = 64 * 2**10


class Workload(Protocol):
    """A collective that can be called again and again, and checked."""

    def prepare(self) -> Call:
        """The next call, ready to be timed; refills buffers where the data needs it. Untimed."""

    def reserve(self, calls: int) -> None:
        """Make sure that the next so many calls need no refill between them. Untimed."""

    def verify(self) -> str | None:
        """None if all results since the last check are right, else a sentence on the first wrong one."""

    def spoil(self) -> bool:
        """Change one element of what was received last, as a fault would; False where nothing was received."""

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
    workload: Workload
    if case.op in BUILDERS:
        workload = Moves(case, group, arena, pool_bytes, seed)
    elif OPERATIONS[case.op].sized:
        workload = Objects(case, group, seed)
    else:
        workload = Barrier(case, group)
    nbytes = scratch_bytes(case, pool_bytes)
    return Flushed(workload, nbytes, group.device) if nbytes else workload


class Moves:
    """An operation on buffers: a pool of them, each used until its data would no longer be exact, then refilled.

    Every buffer has its own place in the sequence of data, and a poisoned incoming part.
    """

    def __init__(self, case: Case, group: Group, arena: Arena, pool_bytes: int, seed: int) -> None:
        self._case, self._group, self._seed = case, group, seed
        self._team = group.team(case)
        self._turns = turns(case, self._team)
        self._slots = pool_slots(case, pool_bytes)
        pool = arena.take(buffer_bytes(case, pool_bytes), getattr(torch, case.dtype))
        self._pool = pool.view(self._slots, -1)
        self._fresh = fresh_calls(case) or 2**62
        grows = operations.placement(case) == "in" and OPERATIONS[case.op].reduces
        self._growth = growth(case.dtype, case.reduce_op, self._team.size) if grows else 1
        self._sum = None
        reduce_op = case.reduce_op if OPERATIONS[case.op].reduces else None
        self._data = patterns.sequence(seed, case.dtype, reduce_op, self._team.size, group.device)
        self._tolerance = 0.0
        if reduce_op is not None:
            self._sum = patterns.reduced(seed, case.dtype, reduce_op, self._team.size, group.device)
            self._tolerance = patterns.tolerance(case.dtype, reduce_op, self._team.size)
        self._mark = _marked_element(self._turns)
        self._turn = self._calls = 0
        # Of each buffer: how often it was used since it was filled, and in which turn last (-1: not since the check).
        # Only of those that were used at all: a pool of small buffers has millions.
        self._used: list[int] = []
        self._last: list[int] = []
        self._stale: list[tuple[int, int]] = []
        self._latest: tuple[int, Exchange] | None = None  # the last call that was not a rest, and its buffer
        self._ready: dict[tuple[int, int], Call] = {}
        self._fill(0, self._slots)

    def prepare(self) -> Call:
        if self._stale:
            self._refill_stale()
        times, slot = divmod(self._calls, self._slots)
        if times == self._fresh:
            self._start_anew()
            slot = 0
        turn = self._turn
        self._turn = (turn + 1) % len(self._turns)
        self._calls += 1
        exchange = self._turns[turn]
        if slot == len(self._used):
            self._used.append(0)
            self._last.append(-1)
        if exchange is not None:  # a rest leaves in the buffer what is there
            self._used[slot] += 1
            self._last[slot] = turn
            self._latest = (slot, exchange)
            if self._mark is not None:  # all of it would warm the caches
                self._pool[slot, self._mark : self._mark + 1].fill_(patterns.POISON)
        call = self._ready.get((slot, turn))
        if call is None:
            call = self._call_of(slot, turn)
            if slot < MOST_READY:
                self._ready[slot, turn] = call
        return call

    def reserve(self, calls: int) -> None:
        if self._calls + calls > self._fresh * self._slots:
            self._start_anew()

    def verify(self) -> str | None:
        for first, stop in self._runs():
            if self._last[first] < 0:
                continue
            wrong = self._wrong(first, stop, self._last[first], self._used[first])
            if wrong is not None:
                return wrong
            self._stale.append((first, stop))
        return None

    def spoil(self) -> bool:
        blocks = [block for block in self._latest[1].blocks if block.length] if self._latest else []
        if not blocks or not self._latest:
            return False
        element = self._pool[self._latest[0], blocks[0].start : blocks[0].start + 1]
        if self._case.dtype == "bool":
            element.logical_not_()
        else:  # of a number the highest bits, which no tolerance forgives
            element.view(torch.uint8)[-1:].bitwise_xor_(0x40)
        return True

    def alone(self) -> Call | None:
        if OPERATIONS[self._case.op].fewest_ranks > 1:
            return None
        pieces = OPERATIONS[self._case.op].pieces(1)
        unit = pieces * DTYPES[self._case.dtype].itemsize
        size = max(unit, min(self._case.size_bytes, ALONE_BYTES) // unit * unit)
        case = dataclasses.replace(self._case, size_bytes=size, world_size=1, groups="world", root=0, call="sync")
        team = self._group.alone()
        (exchange,) = turns(case, team)
        assert exchange is not None  # noqa: S101 - nobody rests alone
        nbytes = operations.buffer_bytes(case)
        buffer = torch.zeros(nbytes, dtype=torch.uint8, device=self._group.device).view(self._pool.dtype)
        return self._group.calls.on_buffers[case.op](_spot(team, case, exchange, buffer))

    def _call_of(self, slot: int, turn: int) -> Call:
        exchange = self._turns[turn]
        if exchange is None:
            return _rest
        spot = _spot(self._team, self._case, exchange, self._pool[slot])
        return self._group.calls.on_buffers[self._case.op](spot)

    def _start_anew(self) -> None:
        self._fill(0, self._slots)
        self._used.clear()
        self._last.clear()
        self._stale.clear()
        self._calls = 0

    def _refill_stale(self) -> None:
        """What was checked is filled anew before it is used again, so that the next check sees new results."""
        for first, stop in self._stale:
            self._fill(first, stop)
        self._used.clear()
        self._last.clear()
        self._stale.clear()
        self._calls = 0

    def _fill(self, first: int, stop: int) -> None:
        """Poison what is received, then write what is sent."""
        exchange = next((turn for turn in self._turns if turn is not None), None)
        if exchange is None:
            return
        (send, end), (start, until) = exchange.sends, exchange.receives
        if (send, end) != (start, until):
            self._pool[first:stop, start:until].fill_(patterns.POISON)
        begin = patterns.begin_of(self._team.rank)
        for row, last_row in patterns.stretches(first, stop):
            for column, last in patterns.stretches(send, end):
                data = patterns.rows(self._data, begin + column - send, row, last_row - row, last - column)
                self._pool[row:last_row, column:last].copy_(data)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Buffers next to each other that were used alike."""
        changes = np.flatnonzero(np.diff(self._last).astype(bool) | np.diff(self._used).astype(bool)) + 1
        borders = [0, *changes.tolist(), len(self._used)]
        return pairwise(borders) if self._used else iter(())

    def _wrong(self, first: int, stop: int, turn: int, times: int) -> str | None:
        """What differs in buffers first … stop, which were used so often and last in this turn."""
        exchange = self._turns[turn]
        for block in exchange.blocks if exchange is not None else ():
            source, begin = self._data, block.offset
            if block.rank is not None:
                begin += patterns.begin_of(block.rank)
            else:
                assert self._sum is not None  # noqa: S101 - only what reduces has such a block
                source = self._sum if times == 1 or self._growth == 1 else self._sum * self._growth ** (times - 1)
            for row, last_row in patterns.stretches(first, stop):
                for column, last in patterns.stretches(0, block.length):
                    want = patterns.rows(source, begin + column, row, last_row - row, last - column)
                    got = self._pool[row:last_row, block.start + column : block.start + last]
                    found = patterns.difference(got, want, self._tolerance)
                    if found is not None:
                        at, value, right = found, got[found], want[found]
                        whose = "" if block.rank is None else f" of rank {block.rank}'s data"
                        return (
                            f"element {block.offset + column + at[1]}{whose} in buffer {row + at[0]} is "
                            f"{value.item()}, expected {right.item()}"
                        )
        return None


def turns(case: Case, team: Team) -> list[Exchange | None]:
    """What this rank does in each iteration of a cycle."""
    length = case.size_bytes // DTYPES[case.dtype].itemsize
    builder = BUILDERS[case.op]
    if team.teams > 1:  # one after the other
        return [builder(team, case, length, 0) if turn == team.number else None for turn in range(team.teams)]
    return [builder(team, case, length, turn) for turn in range(operations.cycle(case))]


def _spot(team: Team, case: Case, exchange: Exchange, buffer: torch.Tensor) -> Spot:
    return Spot(team, case, exchange, buffer[slice(*exchange.sends)], buffer[slice(*exchange.receives)])


def _marked_element(exchanges: list[Exchange | None]) -> int | None:
    """An element that is received and not sent: poisoned before each call, it shows whether anything arrived."""
    exchange = next((one for one in exchanges if one is not None), None)
    if exchange is None:
        return None
    (send, end), (start, until) = exchange.sends, exchange.receives
    return next((at for at in (start, until - 1) if start < until and not send <= at < end), None)


def _rest() -> None:
    return None


class Objects:
    """An operation on pickled Python objects: byte strings, different on each rank."""

    def __init__(self, case: Case, group: Group, seed: int) -> None:
        self._case, self._group = case, group
        self._team = group.team(case)
        shared = OPERATIONS[case.op].pieces(2) == 2
        only = None if shared else case.root  # each rank's whole object on every rank would be n times the size
        self._objects = _objects(seed, self._team.size, case.size_bytes // (self._team.size if shared else 1), only)
        kept = max(1, min(MOST_READY, MOST_KEPT_BYTES // max(1, case.size_bytes)))
        self._received: deque[list[Any]] = deque(maxlen=kept)
        self._turn = 0

    def prepare(self) -> Call:
        turn, self._turn = self._turn, (self._turn + 1) % self._team.teams
        if turn != self._team.number:
            return _rest
        into: list[Any] = []
        self._received.append(into)
        make = self._group.calls.on_objects[self._case.op]
        call: Call = make(self._team, self._case, self._objects, into)
        return call

    def reserve(self, calls: int) -> None:
        """Nothing is ever refilled."""

    def verify(self) -> str | None:
        want = self._wanted()
        for got in self._received:
            for position, (one, right) in enumerate(zip(got, want, strict=True)):
                if one != right:
                    return f"object {position} is not the one that was sent"
        self._received.clear()
        return None

    def spoil(self) -> bool:
        if not self._received or not self._received[-1]:
            return False
        self._received[-1][0] = b"spoilt"
        return True

    def alone(self) -> Call | None:
        make = self._group.calls.on_objects[self._case.op]
        case = dataclasses.replace(self._case, world_size=1, groups="world", root=0)
        call: Call = make(self._group.alone(), case, [self._objects[self._case.root][:ALONE_BYTES]], [])
        return call

    def _wanted(self) -> list[bytes]:
        """What this rank must have received."""
        match self._case.op:
            case "all_gather_object":
                return self._objects
            case "gather_object":
                return self._objects if self._team.rank == self._case.root else []
            case "broadcast_object":
                return [self._objects[self._case.root]]
            case _:
                return [self._objects[self._team.rank]]


@functools.lru_cache(maxsize=1)
def _objects(seed: int, ranks: int, nbytes: int, only: int | None) -> list[bytes]:
    """One a rank; with `only`, empty ones for all ranks but that one."""
    dice = np.random.default_rng([seed, nbytes])
    return [dice.bytes(nbytes) if only in {None, rank} else b"" for rank in range(ranks)]


class Barrier:
    """A barrier. That nobody leaves before all have come cannot be told from its result: nothing is verified."""

    def __init__(self, case: Case, group: Group) -> None:
        self._team, self._group = group.team(case), group
        self._call: Call = group.calls.barrier(self._team, case)
        self._case, self._turn = case, 0

    def prepare(self) -> Call:
        turn, self._turn = self._turn, (self._turn + 1) % self._team.teams
        return self._call if turn == self._team.number else _rest

    def reserve(self, calls: int) -> None:
        """There is no buffer."""

    def verify(self) -> str | None:
        return None

    def spoil(self) -> bool:
        return False

    def alone(self) -> Call | None:
        call: Call = self._group.calls.barrier(self._group.alone(), dataclasses.replace(self._case, call="sync"))
        return call


class Flushed:
    """A workload before each call of which the caches are filled with something else."""

    def __init__(self, inner: Workload, nbytes: int, device: torch.device) -> None:
        self._inner = inner
        self._scratch = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.reserve, self.verify, self.spoil, self.alone = inner.reserve, inner.verify, inner.spoil, inner.alone

    def prepare(self) -> Call:
        call = self._inner.prepare()
        self._scratch.add_(1)
        return call
