"""Pass packets between two TUN devices, each at least a known delay after its arrival.

In: two descriptors of TUN devices (non-blocking), and the delay in nanoseconds. Out: every packet read from one device
is written to the other, in order. Ends with its standard input, so with its parent, in any case.
Runs as a separate process and imports only the standard library. Does not lose or reorder packets.
"""

import contextlib
import os
import select
import sys
import time
from collections import deque

# A sleep ends up to this much too late on an idle machine; the rest of the wait is spent polling.
LATE_NS = 300_000
# Larger than any packet: a TUN device returns one packet per read.
PACKET_BYTES = 65_536
# Packets read from one device before the other device has its turn.
TURN = 32


def relay(first: int, second: int, ends: int, delay_ns: int) -> None:
    """Pass packets until `ends` is readable, which means its end of file."""
    waiting: dict[int, deque[tuple[int, bytes]]] = {first: deque(), second: deque()}
    other = {first: second, second: first}
    while True:
        ready, _, _ = select.select([ends, first, second], [], [], _sleep_s(waiting))
        if ends in ready:
            return
        for device in ready:
            _take(device, waiting[other[device]], delay_ns)
        for device, packets in waiting.items():
            while packets and packets[0][0] <= time.monotonic_ns():
                _write(device, packets.popleft()[1])


def _sleep_s(waiting: dict[int, deque[tuple[int, bytes]]]) -> float | None:
    due = [packets[0][0] for packets in waiting.values() if packets]
    if not due:
        return None
    return max(0, min(due) - time.monotonic_ns() - LATE_NS) * 1e-9


def _take(device: int, packets: deque[tuple[int, bytes]], delay_ns: int) -> None:
    """Read the waiting packets of a device."""
    for _ in range(TURN):
        try:
            packet = os.read(device, PACKET_BYTES)
        except BlockingIOError:
            break
        packets.append((time.monotonic_ns() + delay_ns, packet))


def _write(device: int, packet: bytes) -> None:
    # a device that is down or full loses the packet, like a link; TCP sends it again
    with contextlib.suppress(OSError):
        os.write(device, packet)


if __name__ == "__main__":
    # A link needs no core of its host: the relay has priority over the ranks whose packets it holds.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    relay(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.fileno(), int(sys.argv[3]))
