"""Start ranks as fresh processes on this machine, and end them, whatever state they are in.

In: an entry point ("package.module:function") and its job, which the rank decodes. Out: `Ranks`, with a two-way
connection to each. Knows nothing of cases or collectives: `supervisor` exchanges messages with the ranks.

A fork server loads torch once, in the background, while this process goes on (and never loads it);
each rank is forked from it in about 10 ms. The rendezvous of ranks on one host is a file in a private folder
(`torch.distributed.FileStore`): a TCPStore would listen on every interface of the machine. In a job (`coordinator`,
`agent`), each process of the job forks one rank with `Launcher.fork`.
"""

import contextlib
import hashlib
import multiprocessing as mp
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from collbench.catalog.collectives import OPERATIONS
from collbench.launch.ranks import KILL_WAIT_S, NO_LOG, EncodedJob, Ranks
from collbench.machine import environment, host, interrupts, limits, network
from collbench.machine.processes import ProcessHandle
from collbench.model.errors import LostRankError, RankError, StoreError, UnmeasurableError, reason_of
from collbench.model.records import Json, Plan
from collbench.protocol import channel
from collbench.protocol.channel import Line
from collbench.protocol.rank_context import Board, RankContext, barriers, enter
from collbench.store import encoding, folders, locks

KEY_BYTES = 32
FIRST, LAST = "collbench.rank.server", "collbench.rank.preload"
# Signals that a terminal or a batch system sends to every process of the run: the measuring process answers them, and
# ranks that were ended by them would look like failures of their cases.
ANSWERED_HERE = frozenset({signal.SIGTERM, *interrupts.OTHERS})
# The path of a Unix socket has 107 bytes at most (sockaddr_un); multiprocessing adds "/listener-" and 8 letters.
LONGEST_SOCKET_PATH, SOCKET_NAME = 107, 18
# Folder for sockets if the path of the temporary folder is too long for them.
SHORT_FOLDER = Path("/tmp")  # noqa: S108 - a private folder is made in it
# After a pipe to the fork server breaks, the server has this long to end, in seconds.
SERVER_END_S = 1.0
# Exit code that multiprocessing gives to a rank when that pipe breaks before the server has reported an exit code.
UNREPORTED = 255
# The fork server may be idle for this long, in seconds, before it has started a rank. While it works, it may take
# longer: from a slow file system, loading torch takes minutes.
START_WAIT_S = 120.0
# Maximum number of characters of a message that quotes the fork server.
MOST_QUOTED = 500
# Beginnings of the variables that torch reads when it is loaded.
READ_BY_TORCH = ("TORCH_", "OMP_", "MKL_")
# Polling interval of the watch over the fork server, in seconds.
START_LOOK_S = 1.0
SERVER_LOST = (
    "the fork server, the parent of all ranks, was ended (out of memory, or killed from outside), and the ranks with "
    "it; collbench resume measures this case again"
)
SERVER_STUCK = (
    f"the fork server, the parent of all ranks, started no rank and used neither CPU nor disk for {START_WAIT_S:g} s: "
    "CollBench ended it; collbench resume measures this case again"
)


@dataclass(slots=True)
class LocalRank:
    """A rank that is a child of this process; implements `ranks.Rank`."""

    rank: int
    process: BaseProcess
    # Handle of the process; None if the process ended before a handle could be opened.
    handle: ProcessHandle | None
    # The fork server: the parent of the process, which reports its exit code.
    server: ProcessHandle
    connection: Line
    # File into which the rank writes its Python stack on SIGUSR1.
    stack_file: Path
    board: Board
    # File into which the fork server prints its errors.
    errors: Path
    log: str = ""
    health: Mapping[str, Json] = field(default_factory=dict)

    @property
    def lost(self) -> str | None:
        return _how_lost(self.server, self.errors)[1] if self.server.ended() else None

    @property
    def exit_code(self) -> int | None:
        if self.lost is None:
            return self.process.exitcode
        return -signal.SIGKILL if self.handle is None or self.handle.ended() else None

    @property
    def progress(self) -> int:
        return int(self.board.counts[self.rank])

    @property
    def position(self) -> int | None:
        return int(self.board.counts[-1]) - 1 if self.board.counts[-1] else None

    @property
    def state(self) -> str:
        return self.handle.state() if self.handle else "gone"

    def ask_stack(self) -> None:
        if self.handle:
            self.handle.send(signal.SIGUSR1)

    @property
    def stack(self) -> str:
        try:
            return self.stack_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        if self.handle:
            self.handle.send(signal.SIGKILL)  # a rank in a collective reacts to no other signal

    def join(self, seconds: float) -> None:
        if self.handle is None or self.handle.ended(seconds):
            self.process.join(seconds)


def _how_lost(server: ProcessHandle, errors: Path) -> tuple[bool, str]:
    """Return whether the fork server ended by itself, and a text. errors: what it printed."""
    code = server.exit_code()
    if code is None or code == -signal.SIGKILL:
        return False, SERVER_LOST
    lines = [line for line in errors.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    words = lines[-1][:MOST_QUOTED] if lines else f"status {code}"
    causes = f"{limits.too_low(1)}{environment.chosen(READ_BY_TORCH)}"
    return True, f"the fork server, which loads torch for all ranks, ended by itself: {words}{causes}"


def preload(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the modules that the fork server loads for ranks of these plans, in addition to the default modules."""
    operations = dict.fromkeys(case.op for plan in plans for case in plan.cases)
    stops = any(plan.settings.sampling.relative_error is not None for plan in plans)
    modules = [of_package.module for name in operations if (of_package := OPERATIONS[name].rank) is not None]
    return (*modules, *(("scipy.special",) if stops else ()))


@contextlib.contextmanager
def _only_forking() -> Iterator[None]:
    """Let multiprocessing fork only: it would run the program `__main__` again in each rank.

    It would also start another server in place of one that just ended, whose status would then be lost.
    """
    program, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    served = vars(forkserver._forkserver)
    served["ensure_running"] = lambda: None
    try:
        yield
    finally:
        served.pop("ensure_running", None)
        sys.modules["__main__"] = program


class Launcher:
    """Context in which ranks can be started. Entering returns at once; torch loads meanwhile.

    The thread that enters it must live as long as the context: when that thread ends, the kernel ends the fork server.
    `interface` leads to ranks on other hosts; it is None if all ranks are on this host. `preload` names the modules
    that every rank needs in addition to torch. The fork server loads them once; otherwise all ranks would load them
    at the same time.
    """

    def __init__(self, interface: str | None = None, preload: Sequence[str] = ()) -> None:
        self._context = mp.get_context("forkserver")
        self._rendezvous = RendezvousFolder()
        self._interface = interface
        self._preload = [FIRST, *preload, LAST]
        self._server: ProcessHandle | None = None
        self._short: RendezvousFolder | None = None

    def __enter__(self) -> "Launcher":
        reason = host.unsupported_platform() or (None if self._interface else network.unusable_loopback())
        if reason is not None:
            raise UnmeasurableError("", reason)
        environment.prepare_process(self._interface)
        with contextlib.ExitStack() as undo:
            with interrupts.deferred():
                self._errors = undo.enter_context(self._rendezvous).folder / "errors"
                undo.callback(self._end_server)
                self._running_server()
            interrupts.raise_if_noted()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_server()
        self._rendezvous.__exit__()
        if self._short is not None:
            self._short.__exit__()
            self._short = None
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "multiprocessing.resource_tracker" in " ".join(child.cmdline()):  # stopped, it would outlive this
                    child.resume()

    def _running_server(self) -> ProcessHandle:
        """Return the fork server; start it if it does not run.

        It is started with the signals blocked that its ranks must not answer: ranks inherit the signal mask.
        """
        if self._server is not None and not self._server.ended():
            return self._server
        self._context.set_forkserver_preload(self._preload)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ANSWERED_HERE)  # blocked signals wait, ignored signals are lost
        try:
            resource_tracker.ensure_running()  # starts a process, too, and then unblocks SIGINT and SIGTERM
            signal.pthread_sigmask(signal.SIG_BLOCK, ANSWERED_HERE)
            with _sockets_in(self._sockets_folder()), _errors_into(self._errors):
                forkserver.ensure_running()
            pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
            self._server = server = ProcessHandle(pid)  # kept before a pending signal is raised
        except OSError as error:
            why = f"{reason_of(error)}{limits.too_low(1)}"
            raise RankError(f"the fork server could not be started in {self._rendezvous.folder}: {why}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return server

    def _sockets_folder(self) -> Path:
        """Return the folder for multiprocessing's sockets; its path is short if the temporary folder's is too long."""
        if len(os.fsencode(self._rendezvous.folder)) + SOCKET_NAME <= LONGEST_SOCKET_PATH:
            return self._rendezvous.folder
        if self._short is None:
            self._short = RendezvousFolder(SHORT_FOLDER).__enter__()
        return self._short.folder

    def _end_server(self) -> None:
        # The server itself is not reaped here: multiprocessing checks for its exit before it starts another.
        if self._server is None or self._server.ended():
            return
        ranks = self._server.children()
        self._server.send(signal.SIGKILL)
        for process in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ranks, timeout=KILL_WAIT_S)
        self._server.ended(KILL_WAIT_S)

    def start(
        self,
        world_size: int,
        entry: str,
        job: object,
        log: Path = NO_LOG,
        lines: Sequence[Line] = (),
        variables: Sequence[Mapping[str, str]] = (),
    ) -> Ranks:
        """See `ranks.Starter.start`.

        lines: for each rank, its connection to a supervisor in another process; none for pipes to this process.
        variables: for each rank, environment variables in addition to the inherited variables.
        """
        folder, board = self._rendezvous.place(), Board(world_size)
        encoded = job.data if isinstance(job, EncodedJob) else encoding.encoded(job)
        place, key = f"file:{folder / 'store'}", secrets.token_bytes(KEY_BYTES)
        shared: dict[str, Any] = {"world_size": world_size, "rendezvous": place, "key": key, "board": board}
        members: list[LocalRank] = []
        ranks = Ranks(members, partial(shutil.rmtree, folder, ignore_errors=True))
        try:
            for rank, barrier in enumerate(barriers(board)):
                own: dict[str, Any] = {"rank": rank, "device": rank, "barrier": barrier}
                own |= {"line": lines[rank] if lines else None, "variables": variables[rank] if variables else {}}
                members.append(self.fork(entry, encoded, folder, log, **shared, **own))
        except BaseException:
            ranks.kill()
            raise
        return ranks

    def folder(self) -> Path:
        """Make a new folder for the files of a rank, or of mpirun; the caller removes it."""
        return self._rendezvous.place()

    def fork(
        self,
        entry: str,
        job: bytes,
        folder: Path,
        log: Path,
        *,
        rank: int,
        line: Line | None = None,
        **context: Any,
    ) -> LocalRank:
        """Fork one rank of a process group; other processes may fork the other ranks of the group.

        job: encoded. folder: for the rank's files. line: as in `start`; None for a pipe. context: further fields of the
        rank's `RankContext`. Raises LostRankError if the fork server ends meanwhile; the next call starts another one.
        """
        keep_output("fork server", self._errors, log)
        server, watch = self._running_server(), None
        try:
            ours, theirs = (line, line) if line else self._context.Pipe()
            own = RankContext(rank=rank, connection=theirs, log=log, stack_file=folder / f"stack-{rank}", **context)
            process = self._context.Process(target=enter, args=(entry, own, job), name=f"rank {rank}")
            with _EndingIfStuck(server) as watch, _only_forking():
                process.start()
            theirs.close()
            assert process.pid is not None  # noqa: S101 - it has been started
            handle = ProcessHandle(process.pid)
        except psutil.NoSuchProcess:
            handle = None
        except (EOFError, OSError, RuntimeError) as error:  # from the system (a thread), or from a broken fork server
            if server.ended(SERVER_END_S):
                by_itself, text = _how_lost(server, self._errors)
                text = SERVER_STUCK if watch is not None and watch.ended_it else text
                raise (RankError if by_itself else LostRankError)(text) from None
            why = f"{type(error).__name__} {error}{limits.too_low(1)}"
            raise RankError(f"the ranks' processes could not be started: {why}") from None
        return LocalRank(rank, process, handle, server, ours, own.stack_file, own.board, self._errors)

    def fork_in_job(
        self, entry: str, job: bytes, folder: Path, log: Path, order: Json, job_key: bytes, **context: Any
    ) -> LocalRank:
        """Fork one rank of a launch; the other processes of the job fork the others. order: a message `start`."""
        address, world_size = order["rendezvous"].removeprefix("tcp:").rpartition(":")[0], order["world_size"]
        shared = {"world_size": world_size, "rendezvous": order["rendezvous"], "board": Board(world_size)}
        key = channel.derived(job_key, f"launch {order['launch']}")
        variables = environment.towards(address) | order["variables"]
        return self.fork(entry, job, folder, log, key=key, variables=variables, **shared, **context)


class _EndingIfStuck:
    """Context that ends the fork server if it is idle for START_WAIT_S: its pipe then ends, and start() fails.

    A server that works is not ended, for example while it loads torch from a slow file system. `ended_it` is True if
    this context ended the server.
    """

    def __init__(self, server: ProcessHandle) -> None:
        self._server, self._over, self.ended_it = server, threading.Event(), False

    def __enter__(self) -> "_EndingIfStuck":
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        worked, counted = time.monotonic(), self._server.work_done()
        while not self._over.wait(START_LOOK_S):
            count = self._server.work_done()
            if count != counted:
                worked, counted = time.monotonic(), count
            elif time.monotonic() - worked >= START_WAIT_S:
                self.ended_it = True
                self._server.send(signal.SIGKILL)
                return


@contextlib.contextmanager
def _errors_into(file: Path) -> Iterator[None]:
    """Have processes that start meanwhile print their errors into a file."""
    with file.open("ab") as errors, os.fdopen(os.dup(2), "wb") as usual:
        os.dup2(errors.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(usual.fileno(), 2)


@contextlib.contextmanager
def _sockets_in(folder: Path) -> Iterator[None]:
    """Have multiprocessing make its sockets in `folder`; a killed process would leave its default folder behind."""
    settings = mp.current_process()._config  # type: ignore[attr-defined]
    before = settings.get("tempdir")
    settings["tempdir"] = str(folder)
    try:
        yield
    finally:
        settings["tempdir"] = before


def keep_output(name: str, output: Path, log: Path) -> None:
    """Move the output of this program into the run's log."""
    with contextlib.suppress(OSError, StoreError):
        text = output.read_bytes()
        if text:
            with folders.appending(log) as file:
                file.write(f"[{name}]\n".encode() + text)
            os.truncate(output, 0)


# ── the rendezvous of ranks on one host ──────────────────────────────────────────────────────────
PREFIX, LOCK = "collbench-", "lock"
# Number of attempts to make a folder: other runs may consider it abandoned before it is locked.
TRIES = 3


class RendezvousFolder:
    """Context with a private `folder` for rendezvous files, stacks and sockets; no other run removes it meanwhile.

    The process that made the folder keeps a lock in it, and removes the folder at the end of the context. If that
    process is killed, the next run on this host finds the lock free and removes the folder. Names distinguish hosts:
    in a place that several hosts share, a lock may be visible on one host only.
    """

    folder: Path

    def __init__(self, place: Path | None = None) -> None:
        self._place = place  # where to make the folder; None for the temporary folder

    def __enter__(self) -> "RendezvousFolder":
        place, remedy = self._place or Path(tempfile.gettempdir()), "" if self._place else " (TMPDIR names another)"
        remove_abandoned(place)
        for _ in range(TRIES):
            try:
                self.folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
            except OSError as error:
                raise RankError(f"{place}: no folder can be made there{remedy}: {reason_of(error)}") from None
            with contextlib.suppress(OSError):  # another run removed it before it was locked
                self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                if locks.exclusive(self._lock) is not False and (self.folder / LOCK).exists():
                    return self
                os.close(self._lock)
        raise RankError(f"{place}: {TRIES} folders made there were removed at once{remedy}")

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def place(self) -> Path:
        """Make a new folder for one launch."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def _prefix() -> str:
    """Return the prefix of folder names of this host and boot. Short: a socket's path has 107 bytes at most."""
    return PREFIX + hashlib.sha256(f"{host.hostname()} {host.boot()}".encode()).hexdigest()[:8] + "-"


def remove_abandoned(place: Path | None = None) -> None:
    """Remove the folders that killed runs left on this host."""
    for folder in (place or Path(tempfile.gettempdir())).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):  # it belongs to another user, or is just being removed
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if locks.exclusive(lock) is True:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
