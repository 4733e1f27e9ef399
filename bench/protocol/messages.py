"""The messages of a run: JSON objects, each with its `kind`. They are the whole of what processes say to each other.

A rank to its parent:

    ready     the rank has joined; facts: what only it can say of itself; waits_in: files in which it waits for others
    begin     rank 0: a case, or a strategy, begins; index: its number in the launch
    sampled   rank 0: it ended; failure: why it has no number, or None; its line for samples.jsonl is the payload
    error     an exception ends the rank; text
    done      the rank has done all its work; clocks: how those of the hosts differ (rank 0)

A parent to its rank: go (begin to measure). Rank 0 of a job to its agents:

    start     start a rank; launch, world_size, rendezvous, device, job
    inspect   report the state and the stack of the rank
    kill      end the rank
    leave     end with the status `code`

An agent to rank 0:

    handshake     what its process is and was asked to do (`launch.compatibility`)
    rank_line     first on a connection of its own, which then is that of a rank; launch, rank
    progress      value: iterations that the rank has made
    inspected     state, stack
    ended         code, log: the rank has gone
    failed        text: the rank could not be started
    interrupted   somebody wants the job to end

Never pickle: unpickling what came over a network can run anything. (`Connection.send` and `.recv` pickle, so only
`send_bytes` and `recv_bytes` are used.)
"""

import json
from multiprocessing.connection import Connection

from bench.records import Json


def send(line: Connection, message: Json, payload: bytes = b"") -> None:
    """Send a message, and behind it a payload: a line for samples.jsonl, which can be megabytes. Raises OSError."""
    line.send_bytes(json.dumps(message).encode() + b"\n" + payload)


def receive(line: Connection) -> tuple[Json, bytes]:
    """The next message and its payload. Raises EOFError or OSError when the other end is gone."""
    head, _, payload = line.recv_bytes().partition(b"\n")
    try:
        message = json.loads(head)
    except ValueError:
        raise OSError("what arrived is no message") from None
    if not isinstance(message, dict) or "kind" not in message:
        raise OSError("what arrived is no message")
    return message, payload
