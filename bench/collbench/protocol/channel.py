"""Open TCP connections between the processes of a run; both ends prove that they know a key.

In: an address and a key. Out: an `AuthenticatedConnection`, over which `messages` sends and receives. Does not
interpret messages.

The end that listens sends its version and a nonce. Each end then proves by HMAC-SHA256 that it knows the key. A proof
covers the role of its end, both nonces and the listener's address as that end sees it, so it cannot be reflected,
replayed, or relayed from another address. Every later message carries an HMAC over its number and content; its key is
used for one connection and one direction. A man in the middle can drop messages, but not change, repeat or add them.
Nothing is encrypted: everybody who can read a cluster's network can read the results.

Messages are framed by `multiprocessing.connection.Connection`. Authentication is some thirty lines of our own on the
standard library's hmac. The `authkey` of multiprocessing is not enough: its `Listener.accept` checks callers one by one
without a time limit, so a caller that sends nothing locks out all others; each end answers a challenge that the other
end alone chose (MD5 until Python 3.11) and that is bound to no address; later messages are not protected at all. TLS
needs certificates on every host, and pyzmq's CURVE needs a socket that a forked rank cannot inherit.

Until the other end is authenticated, only as many bytes are read from it as CollBench sends, all within one deadline.
"""

import contextlib
import errno
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Generator, Iterable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Self, TypeVar

from collbench.machine import network

# Changes with the protocol, so that two versions detect the difference instead of waiting for each other.
GREETING = b"collbench 4 "
NONCE_BYTES = PROOF_BYTES = 32
# Time limit of the whole authentication, in seconds. Both ends need milliseconds; a stranger may send nothing at all,
# or a byte now and then.
PROOF_S = 10
# Time limit for a message that has begun, in seconds; a sender that needs longer is stuck.
MESSAGE_S = 30
# Largest message, in bytes: a line for samples.jsonl can have several megabytes.
MOST_BYTES = 2**28
# Length of a message, which a `Connection` sends before it.
FRAME_BYTES = 4
# TCP keep-alive: after SILENT_S seconds without data the kernel sends ASK_TIMES probes, ASK_AGAIN_S seconds apart.
SILENT_S, ASK_AGAIN_S, ASK_TIMES = 10, 5, 3
# All processes of a large job may connect in the same second.
BACKLOG = 1024

T = TypeVar("T")
# Reads from a connection without waiting: yields how many bytes it needs next, is sent these bytes, results in a T.
Reading = Generator[int, bytes, T]


class AuthenticatedConnection:
    """One end of an authenticated connection; it can be sent to a child process, once.

    Raises OSError if a message is not the message that the other end sent.
    """

    def __init__(self, raw: Connection, send_key: bytes, receive_key: bytes) -> None:
        self._raw, self._send_key, self._receive_key = raw, send_key, receive_key
        self._sent = self._received = 0
        self.fileno, self.poll, self.close = raw.fileno, raw.poll, raw.close

    def send_bytes(self, data: bytes) -> None:
        """Send one message."""
        self._raw.send_bytes(data + _tag(self._send_key, self._sent, data))
        self._sent += 1

    def recv_bytes(self) -> bytes:
        """Return the next message. Raises EOFError when the other end is gone."""
        return self._checked(self._raw.recv_bytes(MOST_BYTES))

    def reading(self) -> Reading[bytes]:
        """Return the next message, as `recv_bytes` does."""
        (size,) = struct.unpack("!i", (yield FRAME_BYTES))
        if not PROOF_BYTES <= size <= MOST_BYTES:
            raise OSError("the received bytes are not a message")
        return self._checked((yield size))

    def _checked(self, framed: bytes) -> bytes:
        """Return the content of a message that has arrived."""
        data, tag = framed[:-PROOF_BYTES], framed[-PROOF_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._received, data)):
            self.close()
            raise OSError("a message was changed on its way")
        self._received += 1
        return data

    def __getstate__(self) -> tuple[Connection, bytes, bytes, int, int]:
        return self._raw, self._send_key, self._receive_key, self._sent, self._received

    def __setstate__(self, state: tuple[Connection, bytes, bytes, int, int]) -> None:
        self.__init__(*state[:3])  # type: ignore[misc]
        self._sent, self._received = state[3:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# A pipe to a child process on this host, or a connection to another process.
Line = Connection | AuthenticatedConnection


def _tag(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")


def derived(key: bytes, purpose: str) -> bytes:
    """Derive a key for one purpose, such as one launch; `key` cannot be computed from it."""
    return hmac.digest(key, b"derived|" + purpose.encode(), "sha256")


# ── the end that listens ─────────────────────────────────────────────────────────────────────────
def listen(host: str, ports: Iterable[int]) -> socket.socket | None:
    """Return a socket that listens on the first free port; None if all are taken.

    Raises OSError if `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Otherwise closed connections of an earlier run block the port for a minute.
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


def answer(caller: socket.socket, key: bytes) -> Reading[AuthenticatedConnection]:
    """Return the connection to an accepted caller; raise AuthenticationError if the caller does not know the key.

    The connection has a descriptor of its own: `caller` is closed, and the deadline kept, by whoever runs this.
    """
    place, nonce = _text_of(caller.getsockname()), secrets.token_bytes(NONCE_BYTES)
    caller.sendall(GREETING + nonce)
    context = nonce + (yield NONCE_BYTES) + place
    _check((yield PROOF_BYTES), key, b"worker", context)
    caller.sendall(_proof(key, b"parent", context))
    return _proven(caller.dup(), _proof(key, b"to the worker", context), _proof(key, b"to the parent", context))


# ── the end that connects ────────────────────────────────────────────────────────────────────────
def connect(host: str, port: int, key: bytes, seconds: float) -> AuthenticatedConnection:
    """Connect within `seconds`. Raises OSError if nobody listens there, AuthenticationError if the keys differ."""
    answerer = socket.create_connection((host, port), timeout=seconds)
    deadline = time.monotonic() + PROOF_S
    try:
        if not _greets(answerer, deadline):
            raise AuthenticationError("another program or version listens there: choose another MASTER_PORT")
        place, nonce = _text_of(answerer.getpeername()), secrets.token_bytes(NONCE_BYTES)
        context = _read_exactly(answerer, NONCE_BYTES, deadline) + nonce + place
        answerer.sendall(nonce + _proof(key, b"worker", context))
        _check(_read_exactly(answerer, PROOF_BYTES, deadline), key, b"parent", context)
        return _proven(answerer, _proof(key, b"to the parent", context), _proof(key, b"to the worker", context))
    except (EOFError, OSError):
        answerer.close()
        raise AuthenticationError("the other end does not know the key: set one COLLBENCH_SECRET everywhere") from None
    except AuthenticationError:
        answerer.close()
        raise


def _greets(answerer: socket.socket, deadline: float) -> bool:
    """Return whether CollBench listens there: other programs send another greeting, or wait for data first."""
    with contextlib.suppress(EOFError, OSError):
        return _read_exactly(answerer, len(GREETING), deadline) == GREETING
    return False


def _read_exactly(raw: socket.socket, count: int, deadline: float) -> bytes:
    """Return the next `count` bytes, and read no more. Raises EOFError, and OSError at the deadline (monotonic)."""
    data = b""
    while len(data) < count:
        raw.settimeout(max(0.0, deadline - time.monotonic()))
        piece = raw.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _proven(raw: socket.socket, send_key: bytes, receive_key: bytes) -> AuthenticatedConnection:
    raw.settimeout(None)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line = Connection(raw.detach())
    limit(line, MESSAGE_S)
    set_keepalive(line, SILENT_S)
    return AuthenticatedConnection(line, send_key, receive_key)


def _proof(key: bytes, role: bytes, context: bytes) -> bytes:
    return hmac.digest(key, role + b"|" + context, "sha256")


def _check(proof: bytes, key: bytes, role: bytes, context: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(key, role, context)):
        raise AuthenticationError("the other end does not know the key")


def _text_of(address: tuple[object, ...]) -> bytes:
    """Return host and port of a socket's address as text, which is the same on both ends."""
    host, port = address[:2]
    return f"{str(host).partition('%')[0]} {port}".encode()


def limit(line: Line, seconds: int) -> None:
    """Let every later read or write of this end fail after `seconds`; 0 means never.

    The kernel enforces it, because a `Connection` has no time limit; `poll` is not affected.
    """
    value = struct.pack("ll", seconds, 0)
    with _socket_of(line) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        view.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def set_keepalive(line: Line, seconds: int) -> None:
    """Break the connection if the other host is silent for `seconds` and then answers no keep-alive probe.

    On loopback the kernel reports the end of a process at once, and a stopped process may be continued.
    """
    values = {
        socket.TCP_KEEPIDLE: seconds,
        socket.TCP_KEEPINTVL: ASK_AGAIN_S,
        socket.TCP_KEEPCNT: ASK_TIMES,
        socket.TCP_USER_TIMEOUT: 1000 * (seconds + ASK_TIMES * ASK_AGAIN_S),
    }
    with _socket_of(line) as view:
        for option, value in values.items() if not network.is_loopback(view.getpeername()[0]) else ():
            view.setsockopt(socket.IPPROTO_TCP, option, value)


def _socket_of(line: Line) -> socket.socket:
    """Return the connection as a socket on a duplicate descriptor; closing the socket leaves the connection open."""
    return socket.socket(fileno=os.dup(line.fileno()))
