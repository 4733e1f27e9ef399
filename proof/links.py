"""Make links of known rate or delay on one machine, with the suite's own ranks at their ends.

In: a rate ("100mbit", as `tc` reads it) or a one-way delay. Out: a `Network` of namespaces, one per rank, which
lives as long as its context and leaves nothing behind, and `NamespacedLauncher`, which starts ranks in them.
Does not judge measurements. Needs Linux and root: `unsupported` returns what is missing. Ranks have to end
before their network: ranks that are still running are killed.

Measurements over these links, with torch 2.x's gloo, on 2 cores with almost no other load on the machine:

Rate. World 2, median bandwidth of an all-reduce over the payload limit (1448 of each 1514 bytes of a frame), and
the range of its 10 iterations: 100 mbit, 8 MiB: 0.999 (0.987 – 1.005); 200 mbit, 2 MiB: 0.999 (0.994 – 1.026);
1 gbit, 32 MiB: 0.990 (0.968 – 1.000); 2 gbit, 64 MiB: 0.975 – 0.987 (0.835 – 0.998), with a burst of 512 kb 0.993.
Conditions: the burst has to exceed 64 KiB (with 64kb, 1 gbit gives 0.78: tbf splits large packets and TCP sends
again); the send buffer has to be small (with the kernel's default, 100 mbit gives 0.97, ranging from 0.89). Smaller
packets (gso_max_size) cost CPU time, at 2 gbit a fifth of the rate. After a pause, tbf sends one burst without delay,
6 % of 2 MiB: warm up once, and prefer sizes far above the burst.

Delay. World 2, time in excess of the time at delay 0, in units of the one-way delay, at 10 ms: all-reduce of 8 B: 3;
1 KiB: 4.1; 4 KiB: 4; 64 KiB: 5.2; isend + irecv on both ranks: 2.0; send to a recv: 2.0; ping-pong: 3.0. Gloo's
receiver reports that it is ready before the sender sends, so a step takes 2 delays, and the ring's 2(n-1) steps 4;
if the next receive is posted early enough, its notice travels together with data (8 B, ping-pong). 64 KiB exceed
TCP's first window, which costs one more delay. The relay writes 3 – 8 µs after a packet is due (median; 95 %: 12 µs);
the remaining time of a round trip, 80 – 450 µs in the median, is mostly the waking of receivers on an idle machine.
"""

import contextlib
import ctypes
import fcntl
import functools
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from collbench.launch import launcher
from collbench.launch.ranks import NO_LOG, Ranks
from collbench.protocol import rank_context

# Where `ip netns` keeps its namespaces: files that hold them open.
FOLDER = Path("/var/run/netns")
PREFIX = "collbench-"
# A burst has to exceed the largest packet that TCP hands down (64 KiB before segmentation) or tbf cuts it up.
BURST, LATENCY = "128kb", "100ms"
# Smallest, initial and largest send buffer of a socket, in bytes. Gloo's "ready to receive" waits behind the data
# in the buffer: with the kernel's default of megabytes, a slow link is idle for 3 % of the time.
SEND_BUFFER = "4096 131072 131072"
TUN = Path("/dev/net/tun")
RELAY = Path(__file__).with_name("relay.py")
# linux/if_tun.h, linux/sched.h
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
# Packets that a TUN device keeps until the relay reads them; the default, 500, is less than one large send.
TUN_QUEUE = 20_000
_numbers = itertools.count()


@dataclass(frozen=True)
class Network:
    """One namespace, interface and address per rank, in the order of the ranks."""

    namespaces: tuple[str, ...]
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]


# ── is it supported here? ─────────────────────────────────────────────────────────────────────────
@functools.cache
def unsupported() -> str | None:
    """Return why shaped links are impossible here; None if they are possible."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (apt install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    return _refused("network namespaces", shaped_pair("1gbit"))


@functools.cache
def unsupported_tun() -> str | None:
    """Return why delayed links are impossible here; None if they are possible."""
    return unsupported() or _refused("TUN devices", delayed_pair(0))


def _refused(what: str, link: contextlib.AbstractContextManager[object]) -> str | None:
    """Return why a link cannot be made here; None if it can."""
    try:
        with link:
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        text = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"{what} are refused here: {(text.strip().splitlines() or ['no reason given'])[0]}"


# ── links ────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def shaped_pair(rate: str, burst: str = BURST, latency: str = LATENCY) -> Iterator[Network]:
    """Make two namespaces and one cable, which carries `rate` in each direction."""
    with ExitStack() as stack:
        network = _namespaces(stack, 2)
        (first, second), (here, there) = network.namespaces, network.interfaces
        _ip(first, "link", "add", here, "type", "veth", "peer", "name", there, "netns", second)
        for rank in range(2):
            _shape(network.namespaces[rank], network.interfaces[rank], rate, burst, latency)
            _plug(network, rank)
        yield network


@contextmanager
def bridged(count: int, rate: str, slow: int | None = None, slow_rate: str | None = None) -> Iterator[Network]:
    """Make `count` namespaces on one switch. Each cable carries `rate` in each direction; rank `slow`: `slow_rate`."""
    with ExitStack() as stack:
        network = _namespaces(stack, count)
        switch = network.namespaces[0].replace("-rank0", "-switch")
        _namespace(stack, switch)
        _ip(switch, "link", "add", "switch", "type", "bridge")
        _ip(switch, "link", "set", "switch", "up")
        for rank, (name, interface) in enumerate(zip(network.namespaces, network.interfaces, strict=True)):
            port = f"port{rank}"
            own_rate = slow_rate if rank == slow and slow_rate else rate
            _ip(switch, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", name)
            _ip(switch, "link", "set", port, "master", "switch", "up")
            _shape(name, interface, own_rate)  # data that the rank sends
            _shape(switch, port, own_rate)  # data that the rank receives
            _plug(network, rank)
        yield network


@contextmanager
def delayed_pair(delay_s: float) -> Iterator[Network]:
    """Make two namespaces. Each packet is delayed by `delay_s` in each direction; packets keep their order."""
    with ExitStack() as stack:
        network = _namespaces(stack, 2)
        devices = []
        for rank, (name, interface) in enumerate(zip(network.namespaces, network.interfaces, strict=True)):
            devices.append(_tun(stack, name, interface))
            _ip(name, "link", "set", interface, "txqueuelen", str(TUN_QUEUE))
            _plug(network, rank)
        stack.enter_context(_relay(devices, delay_s))
        yield network


@contextmanager
def _relay(devices: list[int], delay_s: float) -> Iterator[None]:
    # -S, -E: the relay starts in 15 ms. Its standard input ends with this process, even if this process is killed. It
    # has its own session: Ctrl-C must not cut the link before the ranks have ended.
    command = [sys.executable, "-S", "-E", str(RELAY), *map(str, devices), str(round(delay_s * 1e9))]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=devices, start_new_session=True)
    try:
        yield
        if relay.poll() is not None:
            raise RuntimeError(f"the relay ended early, with status {relay.returncode}")
    finally:
        with _interrupts_later():
            assert relay.stdin is not None
            relay.stdin.close()
            relay.kill()
            relay.wait()


def _tun(stack: ExitStack, namespace: str, name: str) -> int:
    """Return the descriptor of a new TUN device, which exists until the last copy of the descriptor is closed."""
    with inside(namespace):
        device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, device)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _shape(namespace: str, interface: str, rate: str, burst: str = BURST, latency: str = LATENCY) -> None:
    _set(namespace, "ipv4/tcp_wmem", SEND_BUFFER)
    shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", latency]
    _call("tc", "-n", namespace, "qdisc", "add", "dev", interface, *shape)


def _plug(network: Network, rank: int) -> None:
    name, interface = network.namespaces[rank], network.interfaces[rank]
    _ip(name, "address", "add", f"{network.addresses[rank]}/24", "dev", interface)
    _ip(name, "link", "set", interface, "up")


# ── namespaces ───────────────────────────────────────────────────────────────────────────────────
def _namespaces(stack: ExitStack, count: int) -> Network:
    """Make empty namespaces, and choose the names and addresses of the interfaces to add to them."""
    _remove_orphans()
    base = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    network = Network(
        tuple(f"{base}-rank{rank}" for rank in range(count)),
        tuple(f"link{rank}" for rank in range(count)),
        tuple(f"10.77.0.{rank + 1}" for rank in range(count)),
    )
    for name in network.namespaces:
        _namespace(stack, name)
    return network


def _namespace(stack: ExitStack, name: str) -> None:
    stack.callback(_remove, name)  # before the namespace is made: an interrupt can follow at once
    _call("ip", "netns", "add", name)
    _set(name, "ipv6/conf/all/disable_ipv6", "1")  # no neighbour discovery between timed packets
    _ip(name, "link", "set", "lo", "up")


def _set(namespace: str, variable: str, value: str) -> None:
    with inside(namespace):
        Path("/proc/sys/net", variable).write_text(value)


def _remove(name: str) -> None:
    """Remove a namespace with its interfaces, and kill the processes that would keep it alive."""
    with _interrupts_later():
        kill_in(name)
        _call("ip", "netns", "delete", name, check=False)


def kill_in(name: str) -> list[str]:
    """Kill the processes in a namespace, except this one; return the numbers of those that were there."""
    pids = [pid for pid in _call("ip", "netns", "pids", name, check=False).split() if int(pid) != os.getpid()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return pids


def _remove_orphans() -> None:
    """Remove namespaces of processes that were killed before they could remove them."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).split("-")[0]
        if not Path("/proc", pid).exists():
            _remove(path.name)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Move this thread into a namespace for the context; sockets opened in the context stay in the namespace."""
    with Path("/proc/thread-self/ns/net").open() as own:
        try:
            _move_to(name)
            yield
        finally:
            _set_namespace(own.fileno())


def _move_to(name: str) -> None:
    with (FOLDER / name).open() as namespace:
        _set_namespace(namespace.fileno())


def _set_namespace(descriptor: int) -> None:
    if hasattr(os, "setns"):  # from Python 3.12 on
        os.setns(descriptor, CLONE_NEWNET)
    elif ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C until the end of the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _ip(namespace: str, *arguments: str) -> None:
    _call("ip", "-n", namespace, *arguments)


def _call(*command: str, check: bool = True) -> str:
    # its own session: Ctrl-C in the terminal must not end the command halfway
    return subprocess.run(command, capture_output=True, text=True, check=check, start_new_session=True).stdout


# ── ranks in namespaces ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class NamespacedLauncher:
    """A launcher, already entered. Rank r moves into namespace r of the network before it does anything else."""

    launcher: launcher.Launcher
    network: Network

    def start(self, world_size: int, target: str, job: object, log: Path = NO_LOG) -> Ranks:
        if world_size > len(self.network.namespaces):
            raise ValueError(f"{world_size} ranks, but {len(self.network.namespaces)} namespaces")
        return self.launcher.start(world_size, f"{__name__}:enter", (self.network, target, job), log)


def enter(context: rank_context.RankContext, argument: bytes) -> None:
    """Move a rank into its namespace, then run its target. Threads that start later, also gloo's, are in it, too."""
    network, target, job = json.loads(argument)
    _move_to(network["namespaces"][context.rank])
    os.environ["GLOO_SOCKET_IFNAME"] = network["interfaces"][context.rank]
    rank_context.enter(target, context, json.dumps(job).encode())
