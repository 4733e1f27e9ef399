"""Start ranks by a process that has an interpreter or environment variables of its own, for a side of `ab` or `bits`.

In: the interpreter and the variables. Out: `SideProcess`, which starts ranks as a `Launcher` does, and facts about the
host and the packages of its process. That process is a `Worker` that starts all ranks of a launch
(`cli/side_worker.py`): it connects over loopback, and gets the key through its standard input.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from collbench.launch.launcher import KEY_BYTES, RendezvousFolder, remove_abandoned
from collbench.launch.ranks import NO_LOG, LaunchJob, Ranks
from collbench.launch.workers import JOIN_WAIT_S, Workers
from collbench.machine import environment, network
from collbench.model.errors import BenchError
from collbench.model.records import Json
from collbench.protocol import channel
from collbench.store import encoding

# After the last message, the process has this long to end, in seconds; then it is killed.
END_WAIT_S = 10.0
# The process may be stopped this long, in seconds, before the run ends: a user may inspect and continue it.
STOPPED_S = 20.0
STOPPED = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
PROGRAM = "collbench.cli.side_worker"
# The process is the only worker of its parent.
NUMBER = 1


class SideProcess:
    """Context in which the process of a side runs; after `wait_until_ready`, it can start ranks.

    name: for errors, such as "side B". modules: see `Launcher`. remedy: ends the message if the process ends too early.
    """

    def __init__(
        self, name: str, python: str, variables: Mapping[str, str], modules: Sequence[str], remedy: str = ""
    ) -> None:
        self._name, self._python, self._variables, self._modules = name, python, variables, [*modules]
        self._remedy = remedy
        self._stopped_since: float | None = None
        # True from the moment at which the process is ready, unless it is found to have ended or to be stuck.
        self._serves = False

    def __enter__(self) -> "SideProcess":
        environment.raise_file_limit()
        host = network.LOOPBACK if network.interface_of(network.LOOPBACK) else network.LOOPBACK_IPV6
        listener, key = channel.listen(host, [0]), secrets.token_bytes(KEY_BYTES)
        assert listener is not None  # noqa: S101 - port 0 is any free one
        given = {
            "reached": listener.getsockname()[:2],
            "key": key.hex(),
            "modules": self._modules,
            "parent": os.getpid(),
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(listener)
            private = stack.enter_context(RendezvousFolder())
            self._process = subprocess.Popen(
                [self._python, "-m", PROGRAM],
                stdin=subprocess.PIPE,
                env=environment.of_side(self._variables, private.place()),
                start_new_session=True,  # Ctrl-C in a terminal is answered by this process alone
            )
            stack.callback(self._end)
            assert self._process.stdin is not None  # noqa: S101 - it is a pipe
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # it has ended: see `_check`
                pipe.write(json.dumps(given).encode())
            self._workers = stack.enter_context(Workers([listener], key, [NUMBER], self._check, STOPPED_S))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._process.returncode < 0:  # the process could not remove its folder
            remove_abandoned()

    def wait_until_ready(self) -> Json:
        """Wait until the process can start ranks; return facts about its host and packages. Raises BenchError."""
        if self._workers.join(JOIN_WAIT_S):
            raise BenchError(f"{self._name}: {self._python} is not ready after {JOIN_WAIT_S:g} s")
        handshake = self._workers.members[NUMBER].handshake
        if handshake["problem"]:
            raise BenchError(f"{self._name}: {handshake['problem']}")
        self._workers.code, self._serves = 0, True
        return dict(handshake["host"])

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG) -> Ranks:
        """See `ranks.Starter.start`; the job is a `LaunchJob`."""
        assert isinstance(job, LaunchJob)  # noqa: S101 - its launch names the backend
        order = {
            "launch": next(self._workers.launches),
            "world_size": world_size,
            "entry": entry,
            "log": str(log),
            "cases": encoding.encoded(job.launch).decode(),
        }
        return self._workers.start([(NUMBER, {"ranks": [*range(world_size)]})], order, encoding.encoded(job), log)

    def _check(self) -> None:
        """Raise BenchError if the process has ended, does not answer, or is stopped."""
        worker = self._workers.members.get(NUMBER)
        lost = worker is not None and worker.lost is not None
        problem = self._stopped(0.0 if lost else STOPPED_S)
        if problem is None and (lost or self._process.poll() is not None):
            problem = f"{self._python} {self._how_ended()}{self._remedy}"
        if problem is not None:
            self._serves = False
            if worker is not None:
                worker.lose()  # so that nobody waits for its ranks
            raise BenchError(f"{self._name}: {problem}")

    def _stopped(self, allowed_s: float) -> str | None:
        """Return, in words, that the process has been stopped for `allowed_s`; None if it has not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            still = psutil.Process(self._process.pid).status() in STOPPED
            self._stopped_since = (self._stopped_since or time.monotonic()) if still else None
        if self._stopped_since is None or time.monotonic() - self._stopped_since < allowed_s:
            return None
        return "its process is stopped (SIGSTOP, or a debugger)"

    def _how_ended(self) -> str:
        """Return, in words, how the process ended."""
        try:
            status = self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            return f"says nothing for {END_WAIT_S:g} s"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name} (out of memory, or killed from outside)"
        return f"ended with status {status}, and printed why"

    def _end(self) -> None:
        """Wait until the process has ended; kill it if it does not end in time, or does not serve."""
        try:
            self._process.wait(END_WAIT_S if self._serves else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_python(name: str, python: str) -> None:
    """Raise BenchError with one line if this interpreter cannot run the suite. name: name of the option."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import torch, numpy, scipy, psutil, pydantic, orjson, typer"],
            capture_output=True,
            text=True,
            timeout=JOIN_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{name}: {python} cannot be started: {error}") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise BenchError(f"{name}: {python} lacks packages of CollBench: {why[0]} (install it there; keep its torch)")
