"""Pass packets between two TUN devices, each at least a known delay after its arrival, and at a known rate.

In: two descriptors of TUN devices (non-blocking), the delay and the time per byte in nanoseconds. Out: every packet
read from one device is written to the other, in order. Ends with its standard input, so with its parent, in any case.
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


def relay(first: int, second: int, ends: int, delay_ns: int, byte_ns: float) -> None:
    """Pass packets until `ends` is readable, which means its end of file."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {first: deque(), second: deque()}
    other = {first: second, second: first}
    # Time at which the last packet from a device has been sent.
    sent_ns = {first: 0.0, second: 0.0}
    while True:
        ready, _, _ = select.select([ends, first, second], [], [], _sleep_s(waiting))
        if ends in ready:
            return
        for device in ready:
            sent_ns[device] = _take(device, waiting[other[device]], delay_ns, byte_ns, sent_ns[device])
        for device, packets in waiting.items():
            while packets and packets[0][0] <= time.monotonic_ns():
                _write(device, packets.popleft()[1])


def _sleep_s(waiting: dict[int, deque[tuple[float, bytes]]]) -> float | None:
    due = [packets[0][0] for packets in waiting.values() if packets]
    if not due:
        return None
    return max(0, min(due) - time.monotonic_ns() - LATE_NS) * 1e-9


def _take(device: int, packets: deque[tuple[float, bytes]], delay_ns: int, byte_ns: float, sent_ns: float) -> float:
    """Read the waiting packets of a device; return the time at which the last packet has been sent."""
    for _ in range(TURN):
        try:
            packet = os.read(device, PACKET_BYTES)
        except BlockingIOError:
            break
        sent_ns = max(sent_ns, time.monotonic_ns()) + len(packet) * byte_ns
        packets.append((sent_ns + delay_ns, packet))
    return sent_ns


def _write(device: int, packet: bytes) -> None:
    # a device that is down or full loses the packet, like a link; TCP sends it again
    with contextlib.suppress(OSError):
        os.write(device, packet)


if __name__ == "__main__":
    # A link needs no core of its host: the relay has priority over the ranks whose packets it holds.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    relay(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.fileno(), int(sys.argv[3]), float(sys.argv[4]))
