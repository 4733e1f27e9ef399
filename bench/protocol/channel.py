"""TCP connections between the processes of a run, on which both ends prove that they know a key.

In: an address and a key. Out: a `Connection`, over which `messages` sends and receives. Does not know what a message
means.

The key keeps out strangers, and other jobs that find the port by accident. What is sent is not encrypted: whoever
can read a cluster's network can read the numbers, too.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

# Both ends answer within milliseconds; a stranger who says nothing is not waited for longer.
PROOF_S = 10
# A message that has begun arrives whole within this time, or its sender is stuck.
MESSAGE_S = 30
# When a whole host goes silent, its kernel is asked after so long, and again so often, so many seconds apart.
SILENT_S, ASK_AGAIN_S, ASK_TIMES = 10, 5, 3
# All ranks of a large job may knock in the same second.
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
            # Closed connections of an earlier run hold the port for a minute otherwise.
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
    """The connection to a caller; raises AuthenticationError if it does not know the key."""
    return _proven(caller, key, asked=True)


# ── the end that connects ─────────────────────────────────────────────────────────────────────────────────────
def connect(host: str, port: int, key: bytes, seconds: float) -> Connection:
    """A connection to whoever listens there; raises OSError if nobody does, AuthenticationError without the key."""
    return _proven(socket.create_connection((host, port), timeout=seconds), key, asked=False)


def _proven(raw: socket.socket, key: bytes, asked: bool) -> Connection:
    raw.settimeout(None)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line = Connection(raw.detach())
    limit(line, PROOF_S)
    bear_silence(line, SILENT_S)
    try:
        for step in (deliver_challenge, answer_challenge) if asked else (answer_challenge, deliver_challenge):
            step(line, key)
    # AssertionError: how Python 3.11 says that the other end speaks another language.
    except (AuthenticationError, AssertionError, EOFError, OSError):
        line.close()
        raise AuthenticationError("the other end does not know the key") from None
    limit(line, MESSAGE_S)
    return line


def limit(line: Connection, seconds: int) -> None:
    """From now on each read or write of this end fails after so many seconds; 0: never.

    It is the kernel's own limit, because a `Connection` has none; `poll` is not affected.
    """
    value = struct.pack("ll", seconds, 0)
    with _socket_of(line) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        view.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def bear_silence(line: Connection, seconds: int) -> None:
    """From now on this end breaks off when the other host has been silent for so long, and then does not answer."""
    values = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": ASK_AGAIN_S,
        "TCP_KEEPCNT": ASK_TIMES,
        "TCP_USER_TIMEOUT": 1000 * (seconds + ASK_TIMES * ASK_AGAIN_S),
    }
    with _socket_of(line) as view:
        for name, value in values.items():
            if hasattr(socket, name):  # macOS has not all of them
                view.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _socket_of(line: Connection) -> socket.socket:
    """The same connection as a socket, whose closing does not close it."""
    return socket.socket(fileno=os.dup(line.fileno()))
