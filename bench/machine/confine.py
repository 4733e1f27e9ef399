"""Keep the listening sockets of a child process to the loopback interface, where the program itself offers no way.

In: its process id. Out: the addresses that stayed open. mpirun is such a program: it listens on every interface for
daemons on other hosts, whatever its parameters say (PRRTE 3: `oob_tcp_listener.c` binds to INADDR_ANY), and whoever
connects could talk to it as such a daemon.

The kernel lets a process borrow a descriptor of its child (pidfd_getfd, Linux 5.6) and bind the socket behind it to
an interface (SO_BINDTODEVICE, without privileges from 5.7 on). Elsewhere it stays open, and that is said.
"""

import ctypes
import os
import socket

import psutil

# The number of the system call, the same on every architecture of Linux (asm-generic/unistd.h).
PIDFD_GETFD = 438
LOOPBACKS = ("127.", "::1")


def to_interface(pid: int, interface: str) -> list[str]:
    """Bind what a child listens on to an interface; which addresses could not be."""
    listening = [
        one
        for one in psutil.Process(pid).net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN and not one.laddr.ip.startswith(LOOPBACKS)
    ]
    return [f"{one.laddr.ip}:{one.laddr.port}" for one in listening if not _bound(pid, one.fd, interface)]


def _bound(pid: int, descriptor: int, interface: str) -> bool:
    try:
        with _borrowed(pid, descriptor) as theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    except (AttributeError, OSError):  # another system than Linux, an old kernel, or a container that forbids it
        return False
    return True


def _borrowed(pid: int, descriptor: int) -> socket.socket:
    """The same socket, as one of our own."""
    handle = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)
    if ours < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=ours)
