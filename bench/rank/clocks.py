"""Bound how far each rank's monotonic clock is ahead of rank 0's, where ranks read different clocks.

In: a joined group. Out: `Bounds` of each rank, not estimates. Rank 0 takes a stamp, rank r answers with its own stamp,
rank 0 takes a second one. The answer was made between the two, so the offset lies between answer − second and
answer − first stamp (Cristian 1989). The bounds of all rounds are intersected. Where all ranks read one clock, as on
one host, nothing is measured.
"""

import time
from typing import NamedTuple

from bench.machine import host
from bench.rank.process_group import Group

ROUNDS = 20


class Bounds(NamedTuple):
    """A rank's clock minus rank 0's is between low and high, in ns, at `at_ns` on rank 0's clock."""

    at_ns: int
    low_ns: int
    high_ns: int


def bounds(group: Group) -> list[Bounds] | None:
    """On rank 0, the bounds of each rank; None on the other ranks, and where all ranks read the same clock."""
    clocks = group.gather(host.clock())
    if len(set(clocks)) == 1:
        return None
    found = [Bounds(time.perf_counter_ns(), 0, 0)]
    for other in range(1, group.world_size):
        if group.rank == 0:
            found.append(_ask(group, other))
        elif group.rank == other:
            _answer(group)
    return found if group.rank == 0 else None


def _ask(group: Group, other: int) -> Bounds:
    low, high, at = -(2**62), 2**62, 0
    for _ in range(ROUNDS):
        first = time.perf_counter_ns()
        group.send_number(other, 0)
        answer = group.receive_number(other)
        second = time.perf_counter_ns()
        low, high, at = max(low, answer - second), min(high, answer - first), second
    return Bounds(at, low, high)


def _answer(group: Group) -> None:
    for _ in range(ROUNDS):
        group.receive_number(0)
        group.send_number(0, time.perf_counter_ns())
