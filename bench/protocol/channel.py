"""TCP connections between the processes of a run, on which both ends prove that they know a key.

In: an address and a key. Out: a `Connection`, over which `messages` sends and receives. Does not interpret messages.

The key keeps out strangers, and other jobs that find the port by accident. Nothing is encrypted: whoever can read a
cluster's network can read the numbers, too.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

# Time limit for proving the key, in seconds. Both ends need milliseconds; a stranger may send nothing at all.
PROOF_S = 10
# Time limit for one message that has begun, in seconds; beyond it, its sender is stuck.
MESSAGE_S = 30
# TCP keep-alive: after SILENT_S seconds without data the kernel sends ASK_TIMES probes, ASK_AGAIN_S seconds apart.
SILENT_S, ASK_AGAIN_S, ASK_TIMES = 10, 5, 3
# All processes of a large job may connect in the same second.
BACKLOG = 1024


# ── the end that listens ─────────────────────────────────────────────────────────────────────────────────
def listen(host: str, ports: Iterable[int]) -> socket.socket | None:
    """A socket that listens on the first free port; None if all are taken.

    Raises OSError where `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Otherwise closed connections of an earlier run hold the port for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
        else:
            return listener
    return None


def answer(caller: socket.socket, key: bytes) -> Connection:
    """The connection to an accepted caller; raises AuthenticationError if the caller does not know the key."""
    return _proven(caller, key, asked=True)


# ── the end that connects ─────────────────────────────────────────────────────────────────────────────────────
def connect(host: str, port: int, key: bytes, seconds: float) -> Connection:
    """Connect within `seconds`. Raises OSError if nobody listens there, AuthenticationError if the keys differ."""
    return _proven(socket.create_connection((host, port), timeout=seconds), key, asked=False)


def _proven(raw: socket.socket, key: bytes, asked: bool) -> Connection:
    raw.settimeout(None)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line = Connection(raw.detach())
    limit(line, PROOF_S)
    set_keepalive(line, SILENT_S)
    try:
        for step in (deliver_challenge, answer_challenge) if asked else (answer_challenge, deliver_challenge):
            step(line, key)
    # Python 3.11 raises AssertionError if the other end speaks another protocol.
    except (AuthenticationError, AssertionError, EOFError, OSError):
        line.close()
        raise AuthenticationError("the other end does not know the key") from None
    limit(line, MESSAGE_S)
    return line


def limit(line: Connection, seconds: int) -> None:
    """Let every later read or write of this end fail after `seconds`; 0 means never.

    The kernel enforces it, because a `Connection` has no time limit; `poll` is not affected.
    """
    value = struct.pack("ll", seconds, 0)
    with _socket_of(line) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        view.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def set_keepalive(line: Connection, seconds: int) -> None:
    """Break the connection if the other host is silent for `seconds` and then answers no keep-alive probe."""
    values = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": ASK_AGAIN_S,
        "TCP_KEEPCNT": ASK_TIMES,
        "TCP_USER_TIMEOUT": 1000 * (seconds + ASK_TIMES * ASK_AGAIN_S),
    }
    with _socket_of(line) as view:
        for name, value in values.items():
            if hasattr(socket, name):  # macOS lacks some of them
                view.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _socket_of(line: Connection) -> socket.socket:
    """The connection as a socket on a duplicate descriptor: closing the socket does not close the connection."""
    return socket.socket(fileno=os.dup(line.fileno()))
