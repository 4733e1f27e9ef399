"""Find interfaces and addresses that reach the other hosts of a job, and confine listening sockets to an interface.

Out: interface names and addresses as text. Sends nothing but name look-ups: the kernel knows the routes.
"""

import ctypes
import ipaddress
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from collbench.model.notices import Kind, Notice, Rule, first

LOOPBACK = "127.0.0.1"
LOOPBACK_IPV6 = "::1"
LOOPBACKS = ("127.", "::1")
# Pause between look-ups, in seconds: the name of a host that has just started may be unknown for a while (Kubernetes).
RESOLVE_AGAIN_S = 1.0
# Number of the system call pidfd_getfd, the same on every architecture of Linux (asm-generic/unistd.h).
PIDFD_GETFD = 438


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has this address; None if no interface has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(own.address.partition("%")[0] == address for own in addresses):
            return name
    return None


def networks(addresses: Iterable[Any]) -> set[str]:
    """Return the networks of an interface, such as `10.0.0.0/24`, from psutil's addresses; without link-local ones."""
    found = set()
    for address in addresses:
        if address.family in {socket.AF_INET, socket.AF_INET6} and address.netmask:
            bits = int(ipaddress.ip_address(address.netmask)).bit_count()
            own = ipaddress.ip_interface(f"{address.address.partition('%')[0]}/{bits}")
            if not own.is_link_local:
                found.add(str(own.network))
    return found


def network_of(address: str) -> str:
    """Return the network that an address of this host is in; empty if no interface has it."""
    every = (own for addresses in psutil.net_if_addrs().values() for own in addresses)
    return " ".join(networks(own for own in every if own.address.partition("%")[0] == address))


def loopback_interface() -> str | None:
    """Return the name of the interface with a loopback address (IPv4, else IPv6); None if there is none."""
    return interface_of(LOOPBACK) or interface_of(LOOPBACK_IPV6)


_LOOPBACK = (
    Rule(lambda f: f.name is None,
         Kind("no-loopback", "this host has no loopback interface, over which ranks reach each other")),
    Rule(lambda f: f.name in f.stats and not f.stats[f.name].isup,
         Kind("loopback-down", "the loopback interface {name} is down, and ranks reach each other over it: "
              "ip link set {name} up")),
    Rule(lambda f: not f.numbered,
         Kind("loopback-unnumbered", "the loopback interface {name} has no address, by which ranks reach each other: "
              "ip addr add {address}/8 dev {name}")),
)  # fmt: skip


def unusable_loopback() -> Notice | None:
    """Return why ranks on this host cannot reach each other over the loopback interface; None if they can."""
    name, stats = loopback_interface(), psutil.net_if_stats()
    named = name or ("lo" if "lo" in stats else None)
    return first(_LOOPBACK, SimpleNamespace(name=named, stats=stats, numbered=name is not None, address=LOOPBACK))


def resolve(host: str, deadline: float) -> list[str]:
    """Return the numeric addresses of a host; none if its name is still unknown at the deadline (monotonic)."""
    while True:
        try:
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            # IPv4 first: gloo and NCCL look for it first, too.
            addresses.sort(key=lambda address: address[0] != socket.AF_INET)
            return list(dict.fromkeys(str(address[4][0]) for address in addresses))
        except OSError:
            if time.monotonic() + RESOLVE_AGAIN_S > deadline:
                return []
            time.sleep(RESOLVE_AGAIN_S)


def own_addresses() -> list[str]:
    """Return the addresses of this host that other hosts may reach, IPv4 first."""
    every = [own for addresses in psutil.net_if_addrs().values() for own in addresses]
    numbers = [own.address for family in (socket.AF_INET, socket.AF_INET6) for own in every if own.family == family]
    return [number for number in numbers if "%" not in number and not is_loopback(number)]


def own_address_towards(address: str) -> str | None:
    """Return the address of this host from which packets to `address` leave; None without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # on a datagram socket, this looks up the route and sends nothing
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_towards(address: str) -> str | None:
    """Return the interface that leads to `address`, which may be an address of this host; None without a route."""
    own = own_address_towards(address)
    return interface_of(own) if own else None


def tcp_counters() -> dict[str, int]:
    """Return the TCP segments that this network namespace has sent, and sent again; empty if it does not count them."""
    try:
        text = Path("/proc/net/snmp").read_text()
        names, counts = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
        named = dict(zip(names, map(int, counts), strict=True))
        return {"segments": named["OutSegs"], "segments_again": named["RetransSegs"]}
    except (OSError, KeyError, ValueError):  # hidden
        return {}


def namespace() -> str:
    """Return the network namespace of this process: the same text means the same loopback."""
    return str(Path("/proc/self/ns/net").readlink())


def is_loopback(address: str) -> bool:
    """Return whether the address can be reached from this host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


# ── listening sockets of a child, where the program itself offers no way to confine them ─────────
def confine(pid: int, interface: str) -> list[str]:
    """Bind the listening TCP sockets of a child to an interface; return the addresses that could not be bound.

    mpirun needs this: it listens on every interface for daemons on other hosts, regardless of its parameters
    (PRRTE 3: `oob_tcp_listener.c` binds to INADDR_ANY), and any process that connects could pass for such a daemon.
    A process can bind a duplicate of its child's socket to an interface (SO_BINDTODEVICE, without privileges from
    Linux 5.7 on).
    """
    still_open = []
    for connection in psutil.Process(pid).net_connections(kind="tcp"):
        address = connection.laddr
        if connection.status != psutil.CONN_LISTEN or address.ip.startswith(LOOPBACKS):
            continue
        try:
            with borrowed_socket(pid, connection.fd) as theirs:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        except OSError:  # an old kernel, or a container that forbids it
            still_open.append(f"{address.ip}:{address.port}")
    return still_open


def borrowed_socket(pid: int, descriptor: int) -> socket.socket:
    """Return a duplicate, in this process, of a child's socket (pidfd_getfd, Linux 5.6)."""
    handle = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)
    if ours < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=ours)
