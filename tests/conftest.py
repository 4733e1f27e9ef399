"""Fixtures and helpers of several test files: the command line as a user runs it, and runs of invented numbers.

`cli` starts a process per command, as a user does: for tests of a process's behaviour and of the files it leaves.
`warm` is for all other tests: it runs the same commands in this process, with ranks from one fork server that all
tests share. A command then loads neither the packages (1 to 2 s) nor torch (3 s).
`launcher` is for tests that start ranks without a command. A test must not enter a `Launcher` of its own: a process
has one fork server, and leaving the launcher ends it.
"""

import ast
import contextlib
import functools
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

# Threads of BLAS wait for each other by spinning, which made fits of milliseconds take 40 s while two workers test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import psutil
import pytest

from collbench.__main__ import main
from collbench.launch.launcher import Launcher
from collbench.machine import environment, interrupts, network
from collbench.model.records import CASE_FIELDS, Case, Launch, Plan, Run, Samples, Sampling, Settings, Timings, Usage
from collbench.store import folders

# Processes that a shell starts in the background ignore Ctrl-C, and their children inherit this; tests send Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take as long as a busy machine needs.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

ROOT = Path(__file__).resolve().parents[1]
SAMPLING = Sampling(5, 0.05, None, 0.05, 1.0, 2000)
# A wide terminal: each sentence that tests look for is in one line. test_screen.py tests narrow terminals.
WIDE = "1000"
TINY = """
backends: [gloo]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [4KiB, 64KiB]
sampling: {warmup: 1, warmup_seconds: 0, iterations: 8}
timeout: 10s
seed: 1
"""


@functools.cache
def syntax_trees() -> dict[Path, ast.Module]:
    """Return the path of each module of bench/ → its syntax tree: seconds, which only tests that need them spend."""
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "bench" / "collbench").rglob("*.py"))}


class CommandLine:
    """`run_bench.py` in a folder of its own, called as a user would call it; with a launcher, in this process."""

    def __init__(self, folder: Path, launcher: Launcher | None = None) -> None:
        self.folder, self.launcher = folder, launcher
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COLUMNS": WIDE}

    def config(self, text: str = TINY, name: str = "tiny.yaml") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        command = [sys.executable, str(ROOT / "run_bench.py"), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **{**pipes, **options})

    def __call__(self, *arguments: str, timeout: float = 300, **options) -> subprocess.CompletedProcess:
        if self.launcher is not None:
            assert not options, "this process has these already"
            return called_here(self.folder, self.launcher, arguments, timeout, self.environment["COLUMNS"])
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def measure(self, config: str, *sets: str, code: int = 0) -> Run:
        """Run a configuration with these settings, without pictures; return the run, whose exit code must be this."""
        settings = [word for text in sets for word in ("--set", text)]
        done = self("run", self.config(config), "--no-plots", *settings)
        assert done.returncode == code, done.stdout + done.stderr
        return folders.read(max(self.runs(), key=lambda path: path.stat().st_ctime_ns))

    def runs(self) -> list[Path]:
        return list(folders.runs(self.folder / "results"))

    def only_run(self) -> Run:
        (path,) = self.runs()
        return folders.read(path)

    def processes(self) -> list[psutil.Process]:
        """Return the processes that still run from this folder: parents, fork servers, ranks."""
        running = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(self.folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                    running.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):  # psutil 6.0 raises the third
                continue
        return running


def called_here(
    folder: Path, launcher: Launcher, arguments: tuple[str, ...], timeout: float = 300, columns: str = WIDE
) -> subprocess.CompletedProcess:
    """Call the entry point in this process, with ranks from a launcher that has been entered already."""
    out, err = io.StringIO(), io.StringIO()

    def entered(_: Launcher) -> Launcher:
        environment.prepare_process()
        return launcher

    with (
        pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder), signals_kept(), environment_kept(),
        ended_after(timeout),
    ):  # fmt: skip
        patch.setenv("COLUMNS", columns)
        patch.setattr(sys, "argv", ["run_bench.py", *arguments])
        patch.setattr(Launcher, "__enter__", entered)
        patch.setattr(Launcher, "__exit__", lambda *_: None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main()
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def fork_servers() -> list[psutil.Process]:
    """Return the fork servers of this process: one or none."""
    servers = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                servers.append(child)
    return servers


def ranks_left(seconds: float = 30.0) -> list[psutil.Process]:
    """Wait for the ranks of the shared fork server to end; return the ranks that have not ended in time."""
    deadline = time.monotonic() + seconds
    while (ranks := [rank for server in fork_servers() for rank in server.children()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return ranks


@contextlib.contextmanager
def environment_kept():
    """Restore the environment variables at the end of the block."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def signals_kept():
    """Restore the signal handlers at the end of the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM, *interrupts.OTHERS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ended_after(seconds: float):
    """Raise TimeoutError in this thread if the block takes longer, even while it waits."""

    def expired(*_):
        raise TimeoutError(f"not done after {seconds:g} s")

    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory) -> Path:
    """Return a folder that has nothing but a run, for commands that name none."""
    place = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(ROOT / "docs/example/before", place / "results/20260101T000000Z-before")
    return place


@pytest.fixture
def small_disk(tmp_path):
    """Mount a separate file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="session")
def launcher():
    """Start one fork server for all tests that use this fixture; restore the environment variables at once."""
    from collbench.packages.training.operation import OPERATION

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT / "tests")  # where the fork server finds gloo_batch
    with Launcher(preload=["gloo_batch", OPERATION.rank.module]) as entered:
        os.environ.clear()
        os.environ.update(before)  # a test of the variables that a run sets must not find them set
        deadline = time.monotonic() + 60
        while not (servers := fork_servers()) and time.monotonic() < deadline:
            time.sleep(0.02)  # between fork and exec the server still has the name of this process
        (server,) = servers
        yield entered
        assert server in fork_servers(), "a test entered a Launcher of its own, and ended the fork server of all"


@pytest.fixture
def also_svg(monkeypatch):
    """Write each picture also as SVG, in which text stays text."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def saved(figure: Figure, path: Path) -> None:
        save(figure, path)
        save(figure, path.with_suffix(".svg"))

    monkeypatch.setattr(Figure, "savefig", saved)


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """Return a command line that starts a process per command."""
    return CommandLine(tmp_path)


@pytest.fixture
def ended(cli):
    """End the processes that a failed test leaves running, which would disturb later tests."""
    yield
    for process in cli.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def warm(tmp_path: Path, launcher: Launcher) -> CommandLine:
    """Return a command line that runs in this process, with torch loaded already."""
    return CommandLine(tmp_path, launcher)


def interface_bound_to(pid: int, descriptor: int) -> str:
    """Return the interface that a child's socket is bound to; empty: all interfaces."""
    with network.borrowed_socket(pid, descriptor) as theirs:
        return theirs.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 64).rstrip(b"\0").decode()


def timings(duration_ns, start_ns=None) -> Timings:
    """Return timings in four blocks, or in one block if there are fewer than four iterations."""
    duration = np.asarray(duration_ns, dtype=np.int64)
    blocks = tuple(map(len, np.array_split(duration, 4))) if len(duration) >= 4 else (len(duration),)
    start = np.arange(len(duration), dtype=np.int64)[:, None] * 10**7 + np.zeros_like(duration)
    start = start if start_ns is None else np.asarray(start_ns, dtype=np.int64)
    return Timings(start, duration, blocks=blocks)


def with_value(case: Case, name: str, value) -> Case:
    """Return the case with another value of a field or of an option of its operation."""
    if name in CASE_FIELDS:
        return replace(case, **{name: value})
    return replace(case, own=replace(case.own, **{name: value}))


def samples(case: Case, launch: int, duration_ns, start_ns=None, busy_s: float = 2.0, steal_s=0.0, **more) -> Samples:
    n = case.world_size
    usage = Usage(1.0, [1.0] * n, [3] * n, [10**8] * n, case.size_bytes, [80.0] * n, busy_s, steal_s)
    return Samples(case, launch, 1e9 + launch, 123, None, timings(duration_ns, start_ns), "precision", usage, **more)


def sentences_of_run(run, summaries):
    """Return the notices of a run as sentences."""
    from collbench.analyze.notices import notices_of
    from collbench.report.notices import sentences

    return sentences(notices_of(run, summaries))


def invented_run(all_samples: list[Samples], skips=(), launches: int = 1, faults=(), path: Path = Path("r")) -> Run:
    blocks = [Launch(s.case.backend, s.case.world_size, s.launch, (s.case,)) for s in all_samples]
    plan = Plan("invented", tuple(blocks), tuple(skips), launches, Settings(SAMPLING, 7, 60.0, 0, faults=tuple(faults)))
    manifest = {"name": "invented", "status": "complete", "started": "2026-01-01T00:00:00+00:00", "finished": None}
    return Run(path, manifest, plan, [], all_samples)


def quiet_copy(place: Path) -> None:
    """Copy the files of the checkout that belong to the package; links stay links."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("bench", "configs", "docs"):
        left_out = shutil.ignore_patterns("__pycache__", "before", "after", "images")
        shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=left_out)
    for name in ("run_bench.py", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
