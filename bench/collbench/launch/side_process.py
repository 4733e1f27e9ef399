"""Run a side of `ab` that needs its own interpreter or environment variables in a process that starts its ranks.

In: the interpreter and its arguments. Out: `SideProcess`, which has the process measure one launch after the other
and passes on the lines for samples.jsonl. The process uses the other end, `SideLine`. Both exchange the messages of
`protocol/messages.py` over a pair of sockets; nothing is pickled.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil

from collbench.launch.launcher import RendezvousFolder, remove_abandoned
from collbench.launch.turns import Measuring, Turn
from collbench.machine import environment
from collbench.model.errors import BenchError
from collbench.model.records import Json, Plan
from collbench.protocol import channel, messages
from collbench.store import encoding
from collbench.store.encoding import SampleLine

# Time limit for loading torch from a cold disk and starting a fork server, in seconds.
READY_WAIT_S = 120.0
# After the connection is closed, the process has this long to end, in seconds; then it is killed.
END_WAIT_S = 10.0
# A side's process may be stopped this long, in seconds, before the run ends: a user may inspect and continue it.
STOPPED_S = 20.0


class SideProcess:
    """Context in which the process of a side runs.

    `name` is for errors, such as "side B". `python` is the path of the interpreter, and `arguments` are its arguments,
    to which the descriptor of the socket is added; the process passes the descriptor to a `SideLine`.
    """

    def __init__(self, name: str, python: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self._name, self._python, self._arguments, self._variables = name, python, arguments, variables
        self.facts: Json = {}

    def __enter__(self) -> "SideProcess":
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            private = stack.enter_context(RendezvousFolder())
            self._process = subprocess.Popen(
                [self._python, *self._arguments, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment.of_side(self._variables, private.place()),
                start_new_session=True,  # Ctrl-C in a terminal is answered by this process alone
            )
            self._folder = stack.pop_all()
        self._watch = StopWatch(self._name, self._process.pid)
        self._line = Connection(ours.detach())
        channel.limit(self._line, channel.MESSAGE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()  # then the process ends
        try:
            self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.close()
        if self._process.returncode < 0:  # the process could not remove its folder
            remove_abandoned()

    def wait_until_ready(self) -> None:
        """Wait until the process can start ranks; set `facts` about its host and packages. Raises BenchError."""
        if not self._line.poll(READY_WAIT_S):
            raise BenchError(f"{self._name}: {self._python} is not ready after {READY_WAIT_S:g} s")
        message, _ = self._received()
        self.facts = message["facts"]

    def measure(
        self,
        plan: Plan,
        probe: bool,
        append: Callable[[SampleLine], None],
        launched: Callable[[Json], None],
        turn: Turn,
    ) -> Measuring[None]:
        """Have the process measure a plan. probe, append, launched, turn: see `sweep`."""
        messages.send(self._line, {"kind": "measure", "probe": probe}, encoding.encoded(plan))
        while True:
            yield [self._line]
            self._watch.look()
            while self._line.poll():
                message, line = self._received()
                match message["kind"]:
                    case "turn":
                        turn.ask(partial(self._notify_go, message["number"]))
                    case "line":
                        append(SampleLine(line))
                    case "launched":
                        launched(message["record"])
                    case "measured":
                        return

    def _notify_go(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the process has ended, which is noticed when its line is read
            messages.send(self._line, {"kind": "go", "number": number})

    def _received(self) -> tuple[Json, bytes]:
        """Return the next message; raise BenchError if the process has ended or reports an error."""
        try:
            message, line = messages.receive(self._line)
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WAIT_S)
            raise BenchError(f"{self._name}: {self._python} {self._end()}; go on with: collbench resume RUN") from None
        if message["kind"] == "error":
            raise BenchError(f"{self._name}: {message['text']}")
        return message, line

    def _end(self) -> str:
        """Return, in words, how the process ended."""
        status = self._process.returncode
        if status is None:
            return f"says nothing for {END_WAIT_S:g} s"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name} (out of memory, or killed from outside)"
        return f"ended with status {status}, and printed why"


class StopWatch:
    """Detects that the process of a side is stopped, which no time-out inside that process can detect.

    `name` is the name of the side, for the error. `pid` is the pid of its process.
    """

    def __init__(self, name: str, pid: int) -> None:
        self._name, self._pid = name, pid
        self._since: float | None = None

    def look(self) -> None:
        """Raise BenchError if the process has been stopped for STOPPED_S."""
        with contextlib.suppress(psutil.NoSuchProcess):
            still = psutil.Process(self._pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
            self._since = (self._since or time.monotonic()) if still else None
            if self._since is not None and time.monotonic() - self._since > STOPPED_S:
                raise BenchError(f"{self._name}: its process is stopped (SIGSTOP, or a debugger)")


def check_python(name: str, python: str) -> None:
    """Raise BenchError with one line if this interpreter cannot run the suite. name: name of the option."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import torch, numpy, scipy, psutil, pydantic, orjson, typer"],
            capture_output=True,
            text=True,
            timeout=READY_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{name}: {python} cannot be started: {error}") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise BenchError(f"{name}: {python} lacks packages of CollBench: {why[0]} (install it there; keep its torch)")


class SideLine:
    """The process's end of the connection to its parent, at the socket `descriptor`; also the `Turn` of the side."""

    def __init__(self, descriptor: str) -> None:
        os.set_inheritable(int(descriptor), False)  # ranks must not keep it open
        self._line = Connection(int(descriptor))
        self._granted: Callable[[], None] | None = None
        self._asked = 0

    def requests(self) -> Iterator[tuple[Plan, bool]]:
        """Yield plans to measure, and whether to probe, until the connection is closed."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message, plan = messages.receive(self._line)
                if message["kind"] == "measure":
                    yield encoding.decoded(plan, Plan), message["probe"]

    def notify(self, kind: str, payload: bytes = b"", **more: Any) -> None:
        """Send a message; raises OSError if nobody listens."""
        messages.send(self._line, {"kind": kind, **more}, payload)

    def ask(self, granted: Callable[[], None]) -> None:
        """See `Turn.ask`."""
        self._granted = granted
        self._asked += 1
        self.notify("turn", number=self._asked)

    def leave(self) -> None:
        """See `Turn.leave`. The parent notices it when other ranks ask, or when everything is measured."""
        self._granted = None

    def listening(self, measuring: Measuring[None]) -> Measuring[None]:
        """Run `measuring`, and grant the turn when the parent sends `go`. Raises EOFError if the parent is gone."""
        with contextlib.closing(measuring), contextlib.suppress(StopIteration):
            waits = next(measuring)
            while True:
                ready = yield [*waits, self._line]
                if self._line in ready:
                    message, _ = messages.receive(self._line)
                    # A turn that was requested by ranks that have ended meanwhile is ignored.
                    if self._granted is not None and message["number"] == self._asked:
                        granted, self._granted = self._granted, None
                        granted()
                waits = measuring.send(ready)
