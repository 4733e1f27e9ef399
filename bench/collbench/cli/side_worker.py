"""The process of a side of `ab` or `bits` that has an interpreter or environment variables of its own; not a verb.

In, on standard input: address and key of the process that measures, and modules to preload. It starts all ranks of a
launch when it is asked to. The other end is `launch/side_process.py`.
"""

import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from collbench.cli.terminal import error_text, say
from collbench.launch.mpirun import ByBackend
from collbench.launch.ranks import EncodedJob, Ranks
from collbench.launch.side_process import NUMBER
from collbench.launch.worker import Worker, connected
from collbench.launch.workers import JOIN_WAIT_S
from collbench.machine import host, interrupts, processes
from collbench.model.errors import BenchError
from collbench.model.records import Json, Launch
from collbench.protocol import messages
from collbench.protocol.channel import AuthenticatedConnection
from collbench.store import encoding


def main(given: Json) -> int:
    """Serve until the other end sends `leave`; return the exit status."""
    address, port = given["reached"]
    reached, key, launcher = (str(address), int(port)), bytes.fromhex(given["key"]), ByBackend(given["modules"])

    def begin(order: Json, encoded: bytes, connect: Callable[[int], AuthenticatedConnection]) -> Ranks:
        """See `worker.Begin`. The other end, which started this process, may have ranks run anything."""
        job = EncodedJob(encoding.decoded(order["cases"], Launch), encoded)
        lines = [connect(rank) for rank in order["ranks"]]
        return launcher.start(order["world_size"], order["entry"], job, Path(order["log"]), lines)

    with connected(reached, key, JOIN_WAIT_S) as line, ExitStack() as stack:
        problem = None
        try:
            stack.enter_context(launcher)
        except BenchError as error:
            problem = error_text(error)
        facts = host.facts()
        own = {"rank": NUMBER, "hostname": facts["hostname"], "problem": problem, "host": facts}
        messages.send(line, {"kind": "handshake", **own})
        return Worker(line, reached, key, begin, "its ranks could not be started").serve()


if __name__ == "__main__":
    written = sys.stdin.buffer.read()
    if not written:  # the parent has ended
        sys.exit(BenchError.exit_code)
    facts_given = json.loads(written)
    processes.end_with_parent(facts_given["parent"])
    interrupts.answer(signal.SIGINT, signal.SIGTERM, once=True)
    try:
        sys.exit(main(facts_given))
    except BenchError as error:
        say(error_text(error), err=True)
        sys.exit(error.exit_code)
