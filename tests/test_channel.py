"""Two processes with one key talk in JSON; strangers, other keys and pickles get nowhere, and nobody waits for them."""

import pickle
import socket
import threading
import time
from multiprocessing import AuthenticationError

import pytest

from bench.protocol import channel, messages

KEY = b"k" * 32


@pytest.fixture
def listener():
    with channel.listen("127.0.0.1", [0]) as found:
        yield found


def joined(listener, key=KEY, other=KEY):
    """Both ends of a connection, or what each end got instead."""
    ends = {}

    def attempt(name, make):
        try:
            ends[name] = make()
        except (AuthenticationError, OSError) as error:
            ends[name] = error

    asked = threading.Thread(target=attempt, args=("asked", lambda: channel.answer(listener.accept()[0], key)))
    asked.start()
    attempt("asks", lambda: channel.connect("127.0.0.1", listener.getsockname()[1], other, 5))
    asked.join()
    return ends["asked"], ends["asks"]


def test_messages_go_both_ways(listener):
    here, there = joined(listener)
    with here, there:
        messages.send(here, {"kind": "go", "text": "ä"})
        assert messages.receive(there) == ({"kind": "go", "text": "ä"}, b"")
        messages.send(there, {"kind": "sampled", "failure": None}, b'{"x":1}' * 100_000)
        assert messages.receive(here) == ({"kind": "sampled", "failure": None}, b'{"x":1}' * 100_000)
        there.close()
        with pytest.raises(EOFError):
            messages.receive(here)


def test_another_key_is_refused_on_both_ends(listener):
    assert all(isinstance(end, AuthenticationError) for end in joined(listener, other=b"x" * 32))


def test_a_silent_stranger_is_not_waited_for(listener, monkeypatch):
    monkeypatch.setattr(channel, "PROOF_S", 1)
    began = time.monotonic()
    with socket.create_connection(listener.getsockname()), pytest.raises(AuthenticationError):
        channel.answer(listener.accept()[0], KEY)
    with pytest.raises(AuthenticationError):  # nobody accepts here: the kernel does
        channel.connect("127.0.0.1", listener.getsockname()[1], KEY, 5)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("garbage", [pickle.dumps({"kind": "go"}), b"[1]", b"{}", b'{"kind', b"GET / HTTP/1.1"])
def test_what_is_no_json_object_is_no_message(listener, garbage):
    here, there = joined(listener)
    with here, there:
        there.send_bytes(garbage)
        with pytest.raises(OSError, match="no message"):
            messages.receive(here)


def test_a_message_that_stops_half_way_is_not_waited_for(listener):
    here, there = joined(listener)
    with here, there:
        channel.limit(here, 1)
        with socket.socket(fileno=there.fileno()) as raw:
            raw.sendall(b"\0\0\1\0half")
            with pytest.raises(OSError):
                messages.receive(here)
            raw.detach()


def test_the_first_free_port_is_taken_and_only_that_address(listener):
    port = listener.getsockname()[1]
    with channel.listen("127.0.0.1", [port, 0]) as other:
        assert other.getsockname()[0] == "127.0.0.1"
    assert channel.listen("127.0.0.1", [port]) is None
    with pytest.raises(OSError):
        channel.listen("192.0.2.1", [0])
