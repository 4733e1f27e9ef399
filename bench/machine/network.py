"""Interfaces and addresses of this host: facts for the record, and the way to the other hosts of a job.

Out: JSON objects, names and numbers as text. Sends nothing: a route is asked of the kernel. What could not be read
is "not available", never left out.
"""

import ipaddress
import socket
import time
from pathlib import Path

import psutil

from bench.records import NOT_AVAILABLE, Json

LOOPBACK = "127.0.0.1"
# The name of a host that has just started may be unknown for a while (Kubernetes).
RESOLVE_AGAIN_S = 1.0
# An address of nobody (RFC 5737): the way to it is the way out of this host.
ELSEWHERE = "192.0.2.1"


# ── for the record ───────────────────────────────────────────────────────────────────────────────
def interfaces() -> list[Json]:
    """What each interface is, as far as a transfer over it depends on that."""
    addresses, facts = psutil.net_if_addrs(), psutil.net_if_stats()
    return [
        {
            "interface": name,
            "up": stats.isup,
            "mtu": stats.mtu,
            "speed_mbit": stats.speed or NOT_AVAILABLE,
            "loopback": any(address.address == LOOPBACK for address in addresses.get(name, [])),
            "congestion_control": text("/proc/sys/net/ipv4/tcp_congestion_control"),
        }
        for name, stats in facts.items()
    ]


def infiniband() -> list[Json]:
    """InfiniBand ports with their rates."""
    ports = sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    return [
        {
            "device": port.parts[-3],
            "port": port.name,
            "rate": text(str(port / "rate")),
            "state": text(str(port / "state")),
        }
        for port in ports
    ]


def text(path: str) -> str:
    """What a file says; not available where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return NOT_AVAILABLE


# ── the way to other hosts ───────────────────────────────────────────────────────────────────────
def interface_of(address: str) -> str | None:
    """Name of the interface that has this address; None if none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return None


def resolve(host: str, deadline: float) -> str | None:
    """The address of a host as a number; None if nobody knows it until the deadline (monotonic)."""
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            # IPv4 first: gloo and NCCL look for it first, too.
            return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])
        except OSError:
            if time.monotonic() + RESOLVE_AGAIN_S > deadline:
                return None
            time.sleep(RESOLVE_AGAIN_S)


def own_address_towards(address: str) -> str | None:
    """The address of this host that packets to `address` leave from; None without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # of a datagram socket: asks for the route and sends nothing
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_towards(address: str) -> str | None:
    """The interface over which `address` is reached, which may be this host's own."""
    own = own_address_towards(address)
    return interface_of(own) if own else None


def is_loopback(address: str) -> bool:
    """Whether it can be reached from this host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
