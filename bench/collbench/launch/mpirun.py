"""Start Open MPI ranks: mpirun starts a placeholder for each rank, and the fork server forks the ranks themselves.

In: the number of ranks, their entry point and job. Out: `Ranks`, as from `launcher`. MPI identifies a process by the
variables that mpirun gives it, not by its parent. So mpirun starts a small program in place of each rank
(`mpirun_placeholder`), which writes down its variables; a rank with these variables in its environment is that process
of the MPI job. The rank runs after 0.2 s (a fresh process would load torch for seconds). It is a child like every
other rank, and is watched, killed and named in failures in the same way.

Nothing outlives a launch: the placeholders end when a lock is released, and mpirun ends with them. The kernel releases
the lock if its owner is killed. Open MPI's files for shared memory are in a private folder in memory.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collbench.catalog.backends import BACKENDS
from collbench.launch import mpirun_placeholder
from collbench.launch.launcher import Launcher, RendezvousFolder, keep_output
from collbench.launch.ranks import KILL_WAIT_S, NO_LOG, LaunchJob, Ranks
from collbench.machine import environment, host, network
from collbench.machine.processes import end_with_parent
from collbench.model.errors import MpirunError, RankError
from collbench.model.records import Variables
from collbench.protocol.channel import Line

# More ranks than cores are allowed, and the report warns of them; binding would put several ranks on one core.
OPTIONS = ("--oversubscribe", "--bind-to", "none")
# Unless the shared-memory transport is set, Open MPI opens ports that it does not need on one host. To measure TCP,
# which then uses loopback, set env: {OMPI_MCA_btl: ["self,sm", "self,tcp"]}. Before Open MPI 5 its name was vader.
SHARED_MEMORY, BEFORE_5 = "sm", "vader"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# A file system in memory, if the system has one.
MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
# mpirun and its placeholders start in 0.2 s; a cold disk or a busy machine can turn that into minutes.
START_WAIT_S = 60.0
LOOK_EVERY_S = 0.005
# mpirun ends 0.3 s after its placeholders.
END_WAIT_S = 5.0
# Maximum number of characters of mpirun's output in a one-line message.
MOST_QUOTED = 500
OUTPUT, LOCK = "mpirun", "lock"


@dataclass(frozen=True, slots=True)
class MpiLauncher:
    """Starts ranks that are processes of an MPI job."""

    # A `Launcher` that has been entered.
    launcher: Launcher

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG, lines: Sequence[Line] = ()) -> Ranks:
        """See `ranks.Starter.start`; raises MpirunError. lines: see `Launcher.start`."""
        program = host.mpirun()
        if program is None:
            raise MpirunError(f"mpirun was not found: {host.MPI_REMEDY}")
        folder, settings = self.launcher.folder(), Variables()
        with contextlib.ExitStack() as undo:  # undone from the last to the first
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(job, LaunchJob):
                settings = job.launch.cases[0].settings
                undo.callback(keep_output, "mpirun", folder / OUTPUT, log)
            try:
                memory = str(undo.enter_context(RendezvousFolder(MEMORY)).folder) if MEMORY.is_dir() else ""
            except RankError as error:
                raise MpirunError(str(error)) from None
            lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            placeholder = [sys.executable, "-I", "-S", mpirun_placeholder.__file__]
            try:
                with (folder / OUTPUT).open("wb") as output:
                    process = subprocess.Popen(
                        [program, *OPTIONS, "-n", str(world_size), *placeholder, folder, folder / LOCK, memory],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=_environment(program, folder, memory, settings),
                        start_new_session=True,  # Ctrl-C in a terminal is answered by this process alone
                        preexec_fn=partial(end_with_parent, os.getpid()),
                    )
            except OSError as error:
                os.close(lock)
                raise MpirunError(f"{program} cannot be started: {error.strerror}") from None
            undo.callback(_end, process, lock)
            variables = _variables(process, folder, world_size)
            loopback = network.interface_of(network.LOOPBACK)
            open_to = tuple(network.confine(process.pid, loopback)) if loopback else ()
            ranks = self.launcher.start(world_size, entry, job, log, lines, variables)
            undo.callback(ranks.clean)
            return replace(ranks, clean=undo.pop_all().close, open_to=open_to)
        raise AssertionError("an ExitStack hides no exception")


def shared_memory(program: Path) -> str:
    """Return the name of the shared-memory transport in this mpirun's Open MPI."""
    major = host.open_mpi_major(program)
    # If the version is unknown, the newer name is used: an Open MPI that does not know it refuses to start.
    return BEFORE_5 if major is not None and major < 5 else SHARED_MEMORY


def _environment(program: Path, folder: Path, memory: str, settings: Variables) -> dict[str, str]:
    """Return the environment of mpirun and its ranks; variables of the user override our defaults for Open MPI."""
    by = shared_memory(program)
    defaults = {
        "OMPI_MCA_btl": f"self,{by}",
        "OMPI_MCA_btl_tcp_if_include": network.interface_of(network.LOOPBACK) or "",
    }
    if memory:
        defaults[f"OMPI_MCA_btl_{by}_backing_directory"] = memory
    wanted = {"TMPDIR": str(folder)} | (AS_ROOT if os.geteuid() == 0 else {})  # mpirun's files are removed with it
    return environment.for_mpirun(defaults, wanted, settings)


def _variables(process: subprocess.Popen[bytes], folder: Path, world_size: int) -> list[dict[str, str]]:
    """Wait until all placeholders run; return the variables of every rank, in order. Raises MpirunError."""
    deadline = time.monotonic() + START_WAIT_S
    while len(places := [*folder.glob("place-*")]) < world_size:
        status, late = process.poll(), time.monotonic() > deadline
        if status is not None or late:
            text = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
            lines = (line.strip() for line in text.splitlines() if line.strip("- "))
            output = " ".join(lines)[:MOST_QUOTED] or "it says nothing"
            ended = f"started nothing within {START_WAIT_S:g} s" if status is None else f"ended with status {status}"
            raise MpirunError(f"mpirun {ended}: {output}")
        time.sleep(LOOK_EVERY_S)
    try:
        variables = (json.loads(place.read_bytes()) for place in places)
        return sorted(variables, key=lambda rank_variables: int(rank_variables["OMPI_COMM_WORLD_RANK"]))
    except KeyError:
        raise MpirunError("mpirun sets no rank for its processes: it is not Open MPI's") from None


def _end(process: subprocess.Popen[bytes], lock: int) -> None:
    """End the placeholders, and wait until mpirun has ended, too."""
    os.close(lock)
    try:
        process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_WAIT_S)


class ByBackend:
    """Context in which ranks of any backend can be started: MPI ranks through mpirun, all other ranks directly.

    `preload` is passed to the `Launcher`.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._launcher = Launcher(preload=preload)

    def __enter__(self) -> "ByBackend":
        self._launcher = self._launcher.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._launcher.__exit__()

    def start(self, world_size: int, entry: str, job: object, log: Path = NO_LOG, lines: Sequence[Line] = ()) -> Ranks:
        """See `ranks.Starter.start`; the job is a `LaunchJob`. lines: see `Launcher.start`."""
        assert isinstance(job, LaunchJob)  # noqa: S101 - only a LaunchJob names a backend
        by_mpirun = BACKENDS[job.launch.backend].library == "mpi4py"
        starter = MpiLauncher(self._launcher) if by_mpirun else self._launcher
        return starter.start(world_size, entry, job, log, lines)
