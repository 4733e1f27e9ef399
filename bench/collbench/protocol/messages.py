"""Send and receive the messages between the processes of a run: JSON objects, each with a `kind`.

From a rank to its parent:

    ready     the rank has joined; facts: about its process; waits_in: source files in which it waits for other ranks
    turn      the rank waits for its turn to measure, and sleeps until the next `go`
    begin     rank 0: a round begins, or a check; index: its number, from 0
    chosen    rank 0: output of NCCL before the first case and during each case; texts
    shown     rank 0: the first times of cases; payload: their lines; the complete lines follow with `sampled`
    sampled   rank 0: a case has ended; failure: why it has no result, or None; payload: its line for samples.jsonl
    error     an exception ends the rank; text
    done      the rank has done all its work; clocks: bounds of clock offsets (rank 0); left: facts of packages

From a parent to its rank: go (begin to measure, or take the turn). From rank 0 of a job to its agents:

    start     start a rank; launch, rank (of the launch), world_size, rendezvous, device, variables; payload: its job
    inspect   report the state and the stack of the rank
    kill      kill the rank
    leave     exit with the status `code`; `why`: the reason, if rank 0 belongs to another job or got no handshake

From an agent to rank 0:

    handshake     facts about its process and a fingerprint of its request (`launch.compatibility`)
    rank_line     first message on a new connection, which from then on belongs to a rank; launch, rank (of the agent)
    progress      value: number of iterations that the rank has made
    inspected     state, stack
    ended         the rank has exited; code, log, health (record of GPUs and network adapters during the launch)
    failed        the rank could not be started; text
    interrupted   the agent received Ctrl-C or SIGTERM: the job shall end

From the verb `ab` to the process of a side (`launch/side_process.py`): measure (probe: see `sweep`; payload: the plan)
and go, which answers turn with the same number. From the process of a side: ready (facts), turn (number; all its ranks
wait), line (payload), launched (record), measured, error (text).

The job of a rank and the plan of a side are sent as payload, encoded by `store.encoding`; the process that executes
them decodes them.

Messages are never pickled: unpickling data from a network can run any code. (`Connection.send` and `.recv` pickle, so
only `send_bytes` and `recv_bytes` are used.)
"""

import json

from collbench.model.records import Json
from collbench.protocol.channel import AuthenticatedConnection, Line, Reading


def send(line: Line, message: Json, payload: bytes = b"") -> None:
    """Send a message and its payload (a line for samples.jsonl, which can be megabytes). Raises OSError."""
    line.send_bytes(json.dumps(message).encode() + b"\n" + payload)


def receive(line: Line) -> tuple[Json, bytes]:
    """Return the next message and its payload. Raises EOFError or OSError when the other end is gone."""
    return _parsed(line.recv_bytes())


def reading(line: AuthenticatedConnection) -> Reading[Json]:
    """Return the next message, as `receive` does, without its payload."""
    message, _ = _parsed((yield from line.reading()))
    return message


def _parsed(data: bytes) -> tuple[Json, bytes]:
    head, _, payload = data.partition(b"\n")
    try:
        message = json.loads(head)
    except ValueError:
        raise OSError("the received bytes are not a message") from None
    if not isinstance(message, dict) or "kind" not in message:
        raise OSError("the received bytes are not a message")
    return message, payload
