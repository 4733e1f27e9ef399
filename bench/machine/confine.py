"""Keep the listening sockets of a child process to the loopback interface, where the program itself offers no way.

In: its process id. Out: the addresses that could not be confined. mpirun is such a program: it listens on every
interface for daemons on other hosts, whatever its parameters say (PRRTE 3: `oob_tcp_listener.c` binds to INADDR_ANY),
and any process that connects could pass for such a daemon.

On Linux a process can duplicate a descriptor of its child (pidfd_getfd, Linux 5.6) and bind that socket to an
interface (SO_BINDTODEVICE, without privileges from 5.7 on). On other systems the socket stays open and is returned.
"""

import ctypes
import os
import socket

import psutil

# Number of the system call pidfd_getfd, the same on every architecture of Linux (asm-generic/unistd.h).
PIDFD_GETFD = 438
LOOPBACKS = ("127.", "::1")


def to_interface(pid: int, interface: str) -> list[str]:
    """Bind the listening TCP sockets of a child to an interface; returns the addresses that could not be bound."""
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
    except (AttributeError, OSError):  # not Linux, an old kernel, or a container that forbids it
        return False
    return True


def _borrowed(pid: int, descriptor: int) -> socket.socket:
    """A duplicate, in this process, of the child's socket."""
    handle = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)
    if ours < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=ours)
