"""Two processes with one key talk in JSON; strangers, other keys and pickles get nowhere, and nobody waits for them.

Nobody in between gets anywhere either: a relay, or somebody who changes, repeats or turns back a message.
"""

import io
import pickle
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.reduction import ForkingPickler

import pytest

from collbench.protocol import channel, messages
from collbench.protocol.rank_context import Board, barriers

KEY = b"k" * 32


@pytest.fixture
def listener():
    with channel.listen("127.0.0.1", [0]) as server:
        yield server


def answered(caller):
    """Return the connection to a caller; it is waited for."""
    steps = channel.answer(caller, KEY)
    with caller:
        wanted = next(steps)
        while True:
            try:
                wanted = steps.send(channel._read_exactly(caller, wanted, time.monotonic() + channel.PROOF_S))
            except StopIteration as done:
                return done.value


def joined(listener, other=KEY):
    """Return both ends of a connection, or the error that an end got instead. other: the key of the end that asks."""

    def attempt(make, *arguments):
        try:
            return make(*arguments)
        except (AuthenticationError, OSError) as error:
            return error

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(attempt, lambda: answered(listener.accept()[0]))
        asks = attempt(channel.connect, "127.0.0.1", listener.getsockname()[1], other, 5)
        return asked.result(), asks


def test_another_key_is_refused_on_both_ends(listener):
    assert all(isinstance(end, AuthenticationError) for end in joined(listener, other=b"x" * 32))


def test_a_message_that_stops_half_way_is_not_waited_for(listener):
    here, there = joined(listener)
    with here, there:
        channel.limit(here, 1)
        with socket.socket(fileno=there.fileno()) as raw:
            raw.sendall(b"\0\0\1\0half")
            with pytest.raises(OSError):
                messages.receive(here)
            raw.detach()


# ── an attacker in between ───────────────────────────────────────────────────────────────────────
def test_a_relay_proves_nothing(listener):
    """An agent is lured to another port, which passes all its bytes on to the port that the agent meant."""
    with ThreadPoolExecutor(2) as pool, channel.listen("127.0.0.1", [0]) as lure:
        asked = pool.submit(lambda: answered(listener.accept()[0]))
        asks = pool.submit(channel.connect, "127.0.0.1", lure.getsockname()[1], KEY, 5)
        agent, _ = lure.accept()
        with agent, socket.create_connection(listener.getsockname()) as there:
            agent.sendall(there.recv(4096))
            there.sendall(agent.recv(4096))
            with pytest.raises(AuthenticationError, match="does not know the key"):
                asked.result()
        with pytest.raises(AuthenticationError):
            asks.result()


def sent(end, message):
    """Return the bytes of a message as they go over the network."""
    raw, kept = end._raw, []
    end._raw = type("Tap", (), {"send_bytes": staticmethod(kept.append)})()
    messages.send(end, message)
    end._raw = raw
    return kept[0]


@pytest.mark.parametrize(
    ("change", "whose", "before"),
    [
        (lambda frame: frame[:4] + bytes([frame[4] ^ 1]) + frame[5:], "there", 0),
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), "there", 0),
        (lambda frame: frame[:10], "there", 0),
        (lambda frame: frame, "here", 0),
        (lambda frame: frame, "there", 1),
    ],
    ids=["changed", "another tag", "cut", "turned back to its sender", "sent again"],
)
def test_a_message_that_was_changed_is_refused(listener, change, whose, before):
    """before: how often the message itself has arrived."""
    here, there = joined(listener)
    with here, there:
        frame = sent(here, {"kind": "kill", "launch": 1})
        for _ in range(before):
            here._raw.send_bytes(frame)
            assert messages.receive(there)[0] == {"kind": "kill", "launch": 1}
        sender, receiver = (here, there) if whose == "there" else (there, here)
        sender._raw.send_bytes(change(frame))
        with pytest.raises(OSError, match="changed on its way"):
            messages.receive(receiver)


def test_a_connection_goes_on_where_it_was_after_it_was_handed_on(listener):
    """An agent opens a connection and hands it on to a rank in this way."""
    here, there = joined(listener)
    with here, there:
        messages.send(there, {"kind": "rank_line"})
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(there._raw)  # duplicates the descriptor, as for a child
        handed_on = type(there).__new__(type(there))
        state = there.__getstate__()
        handed_on.__setstate__((pickle.loads(buffer.getvalue()), *state[1:]))
        messages.send(handed_on, {"kind": "ready"})
        assert [messages.receive(here)[0]["kind"] for _ in range(2)] == ["rank_line", "ready"]


# ── the barrier ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_nobody_leaves_the_barrier_before_all_have_come_and_each_rank_counts_the_rounds(world_size):
    rounds, entered, left = 12, [0] * world_size, []
    contexts = barriers(Board(world_size))

    def rank(context):
        for number in range(rounds):
            time.sleep(0.002 * ((context.rank + number) % 3))  # another one comes last each time
            entered[context.rank] += 1
            context.wait()
            left.append((number, min(entered)))

    threads = [threading.Thread(target=rank, args=(context,), daemon=True) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "the barrier never opened"
    assert len(left) == rounds * world_size and all(came > number for number, came in left)
    assert [context.rounds for context in contexts] == [rounds] * world_size
