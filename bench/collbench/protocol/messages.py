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

From a parent to its rank: go (begin to measure, or take the turn).

A worker is a process elsewhere that starts ranks on request: every process of a job except rank 0, or the process of a
side of `ab`. It opens a connection for itself, and one for each of its ranks, which the rank then uses. From a worker:

    handshake     first message of a worker; rank (number of the worker), hostname, problem (why it cannot start ranks),
                  host (facts); in a job also what `launch.compatibility` needs
    rank_line     first message of a connection that belongs to a rank; launch, rank (of the launch)
    progress      launch, rank; progress: number of iterations; position: of rank 0's case, if that is known here
    inspected     launch, rank, state, stack
    ended         launch, rank; exit_code; lost: why nothing more can be known of it; log, health, open_to (`Ranks`)
    failed        the ranks of a launch could not be started; launch, error (name of the class), text
    interrupted   the worker received Ctrl-C or SIGTERM: the run shall end

To a worker:

    start     start these ranks of a launch; launch, ranks, world_size; payload: their job. In a job also rendezvous,
              device, variables; for a side, which starts all ranks of a launch, also entry, log, cases (the `Launch`)
    inspect   report the state and the stack of a rank; launch, rank
    kill      kill a rank; launch, rank
    leave     exit with the status `code`; `why`: the reason, if the worker is not accepted

The job of a rank is encoded by `store.encoding`; the rank decodes it.

Messages are never pickled: unpickling data from a network can run any code. (`Connection.send` and `.recv` pickle, so
only `send_bytes` and `recv_bytes` are used.)
"""

import json

from collbench.model.records import Json
from collbench.protocol.channel import Line


def send(line: Line, message: Json, payload: bytes = b"") -> None:
    """Send a message and its payload (a line for samples.jsonl, which can be megabytes). Raises OSError."""
    line.send_bytes(json.dumps(message).encode() + b"\n" + payload)


def receive(line: Line) -> tuple[Json, bytes]:
    """Return the next message and its payload. Raises EOFError or OSError when the other end is gone."""
    return parsed(line.recv_bytes())


def parsed(data: bytes) -> tuple[Json, bytes]:
    """Return the message and the payload in received bytes. Raises OSError if they are no message."""
    head, _, payload = data.partition(b"\n")
    try:
        message = json.loads(head)
    except (ValueError, RecursionError):
        raise OSError("the received bytes are not a message") from None
    if not isinstance(message, dict) or "kind" not in message:
        raise OSError("the received bytes are not a message")
    return message, payload
