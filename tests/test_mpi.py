"""MPI has the same table, data and faults as gloo, opens nothing to the network, and leaves nothing behind."""

import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from collbench.launch import mpirun
from collbench.launch.launcher import LOCK, PREFIX
from collbench.launch.mpirun import MEMORY, MpiLauncher
from collbench.machine import host, network
from collbench.model.errors import MpirunError
from collbench.model.records import Case
from collbench.packages.training.synchronisation import strategy_in
from collbench.rank import mpi as rank_mpi
from collbench.report.notices import sentence
from conftest import TINY, interface_bound_to, ranks_left
from test_faults import MANY, wait_for_samples
from test_measure import assert_nothing_left
from test_operations import MACHINE, assert_right, selected

NO_MPI = MACHINE.backends_missing.get("mpi")
needs_mpi = pytest.mark.skipif(NO_MPI is not None, reason=sentence(NO_MPI) if NO_MPI else "")
MPI = TINY.replace("[gloo]", "[mpi]")


@pytest.fixture
def mpi(launcher, monkeypatch):
    # Ranks that poll and never yield take many times as long on a busy machine.
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    before = in_memory()
    yield MpiLauncher(launcher)
    assert left_since(before) == set()


def in_memory() -> set[Path]:
    """Return files that runs have left in the file system in memory, without files that another run uses now."""
    left = {folder for folder in MEMORY.glob(f"{PREFIX}*") if not _held(folder / LOCK)}
    mpirun_runs = any(process.info["name"] == "mpirun" for process in psutil.process_iter(["name"]))
    return left if mpirun_runs else {*left, *MEMORY.glob("sm_segment*")}


def left_since(before: set[Path]) -> set[Path]:
    """Return the files that are new since `before`; runs of other tests get time to remove their files."""
    deadline = time.monotonic() + 30
    while (left := in_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _held(lock: Path) -> bool:
    """Return whether a living process holds the lock; also True if the file has just vanished."""
    try:
        with lock.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


# ── the table ────────────────────────────────────────────────────────────────────────────────────
SIMPLE = ("dtypes=[float32]", "reduce_ops=[sum]")
REDUCING = "operations=[all_reduce, reduce, reduce_scatter, reduce_scatter_list]"
WALKS = {
    2: [["reduce_ops=[sum]"], [REDUCING, "dtypes=[float32, int16, bool]"]],
    3: [
        ["dtypes=[float32, bool]", "reduce_ops=[sum, product]"],
        ["dtypes=[bfloat16, uint8]", "reduce_ops=[sum]", "sizes=[14]"],
        [*SIMPLE, "placements=[usual, in, out, copied]", "calls=[sync, async]"],
        [*SIMPLE, "roots=all"],
    ],
    4: [[*SIMPLE, "groups=[contiguous:2, strided:2, contiguous:2:serial]"]],
}


@needs_mpi
@pytest.mark.parametrize("world_size", [pytest.param(n, marks=[] if n == 2 else pytest.mark.slow) for n in WALKS])
def test_every_operation_is_right(mpi, world_size):
    """One launch walks through all operations; a rank that checks its data also notices one spoilt element."""
    cases: dict[str, Case] = {}
    for sets in WALKS[world_size]:
        chosen, _ = selected("backends=[mpi]", f"world_sizes=[{world_size}]", *sets)
        cases |= {case.key: case for case in chosen}
    assert {case.op for case in cases.values()} >= set(rank_mpi.CALLS) - {"pairwise"}
    assert_right(mpi, list(cases.values()))


# ── a run ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
@needs_mpi
def test_faults_are_named_as_on_gloo(warm, monkeypatch):
    """Each fault costs its case only. The other ranks of MPI do not notice a lost rank; the supervisor does."""
    wanted = {
        4: ("raise", "raised", "planted fault"),
        8: ("exit", "exited", "status 0 before it was done"),
        16: ("kill", "killed", "SIGKILL"),
        32: ("stop", "hang", "is stopped"),
        64: ("hang", "hang", "not in the collective, but in _hang"),
        128: ("corrupt", "wrong", "wrong result after timing on 1 of 2 ranks"),
        256: ("late", None, ""),
        512: ("slow", None, ""),
    }
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    planted = [f"{{do: {do}, rank: 1, iteration: 4, size: {kib}KiB, delay: 20ms}}" for kib, (do, *_) in wanted.items()]
    sizes = ", ".join(f"{kib}KiB" for kib in wanted)
    text = MPI.replace("4KiB, 64KiB", sizes).replace("10s", "2s") + f"faults: [{', '.join(planted)}]\n"
    done = warm("run", warm.config(text), "--no-plots")
    assert done.returncode == 1, done.stderr
    run = warm.only_run()
    assert run.manifest["status"] == "complete"
    by_size = {entry.case.size_bytes // 1024: entry for entry in run.samples}
    for kib, (do, kind, words) in wanted.items():
        failure = by_size[kib].failure
        assert (failure and failure.kind) == kind, (do, failure)
        assert failure is None or (failure.rank == 1 and words in failure.text), (do, failure)
    victim, culprit = by_size[256].timed.duration_ns[5:].T  # the late rank waits for no other rank
    assert (victim > 15e6).all() and (culprit < victim).all()
    assert_nothing_left(warm)
    assert not ranks_left()


def ranks_and_mpirun(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return all descendants of a process, and among them mpirun and its stand-ins."""
    descendants = psutil.Process(pid).children(recursive=True)
    program = []
    for process in descendants:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            program += [process] if process.name() in {"mpirun", "prterun", "orterun"} else []
    return descendants, program


def listeners(pid: int) -> int:
    """Return how many descendants of a process listen, and assert that they listen on loopback only."""
    count = 0
    for child in ranks_and_mpirun(pid)[0]:
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            with_address = [entry for entry in child.net_connections("tcp") if entry.status == psutil.CONN_LISTEN]
            outside = [entry for entry in with_address if not entry.laddr.ip.startswith(network.LOOPBACKS)]
            loopback = network.interface_of(network.LOOPBACK)
            assert {interface_bound_to(child.pid, entry.fd) for entry in outside} <= {loopback}
            count += bool(with_address)
    return count


@needs_mpi
@pytest.mark.slow
def test_nothing_listens_to_the_network_and_neither_ctrl_c_nor_a_killed_parent_leaves_anything(cli):
    before = in_memory()
    cli.environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    config = cli.config(MANY.replace("[gloo]", "[mpi, gloo]").replace("launches: 10", "launches: 500"))
    process = cli.start("run", config, "--no-plots", start_new_session=True)
    wait_for_samples(cli, 3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "collbench resume" in err and "Traceback" not in err
    assert_nothing_left(cli)
    assert left_since(before) == set()
    run = cli.only_run()
    assert len(run.samples) >= 3 and all(entry.failure is None for entry in run.samples)

    process = cli.start("resume", "tiny", "--no-plots")
    wait_for_samples(cli, len(run.samples) + 1)
    found, deadline = 0, time.monotonic() + 180
    while found < 5 and time.monotonic() < deadline:
        descendants, program = ranks_and_mpirun(process.pid)
        # mpirun is not confined before the stand-ins have come
        found += listeners(process.pid) if program and len(descendants) >= len(program) + 6 else 0
    assert found
    process.kill()
    process.communicate()
    assert_nothing_left(cli)
    assert left_since(before) == set()


# ── mpirun fails ─────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Install an mpirun that prints why it starts nothing; return its path."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'There are not enough slots available'\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(host, "mpirun", lambda: program)
    return program


def test_an_mpirun_that_ends_is_quoted(launcher, broken):
    before = in_memory()
    with pytest.raises(MpirunError, match="ended with status 7: There are not enough slots"):
        MpiLauncher(launcher).start(2, "walk_ranks:walk", [])
    assert left_since(before) == set()


def test_an_mpirun_that_hangs_is_not_waited_for_forever(launcher, broken, monkeypatch):
    broken.write_text("#!/bin/sh\nsleep 60 & wait\n")
    monkeypatch.setattr(mpirun, "shared_memory", lambda program: "sm")  # it does not tell its version either
    monkeypatch.setattr(mpirun, "START_WAIT_S", 0.2)
    monkeypatch.setattr(mpirun, "END_WAIT_S", 0.1)
    with pytest.raises(MpirunError, match=r"started nothing within 0\.2 s: it says nothing"):
        MpiLauncher(launcher).start(2, "walk_ranks:walk", [])
    assert not [p for p in psutil.Process().children(recursive=True) if p.name() == "sleep"]


# ── steps of training, and ports ─────────────────────────────────────────────────────────────────


STEPS = """
backends: [mpi]
world_sizes: [2]
launches: 1
training: {models: [nano], batch: 2, sequence: 8, rounds: 2, steps: 1, strategies: [STRATEGIES]}
"""


@pytest.mark.slow
@needs_mpi
def test_steps_of_training_are_checked_and_measured(warm, mpi):
    """Our own strategies are measured; torch's classes are left out, with the reason."""
    ours = "naive_async, flat, {overlap_bucket: {cap: 64KiB}}"
    done = warm("run", warm.config(STEPS.replace("STRATEGIES", f"{ours}, ddp")), "--no-plots")
    assert done.returncode == 0, done.stderr
    run = warm.only_run()
    assert len(run.samples) == 6 and all(entry.timed is not None for entry in run.samples)
    kept = {str(strategy_in(s.case)): {check.invariant for check in s.checks if check.ok} for s in run.samples}
    assert {"I1", "I2", "I3", "I5", "I6", "I9"} <= kept["overlap_bucket(cap_bytes=65536)"]
    assert [sentence(skip.reason) for skip in run.plan.skips] == ["ddp sends by torch.distributed, not on mpi"]


def listening(monkeypatch, job, rank, **fields):
    """Return the variables of a rank after the choice of the port at which the rank listens."""
    monkeypatch.setattr(os, "environ", variables := {"PMIX_NAMESPACE": job})
    rank_mpi._listen_where_known(SimpleNamespace(rank=rank, **fields))
    return variables


def test_in_a_job_a_rank_listens_at_one_port(monkeypatch):
    """mpirun's daemons hand out the port of the first launch to later launches."""
    monkeypatch.setattr(rank_mpi, "_is_free", lambda port: True)  # other programs may have taken the port
    ports = []
    for rank in (1, 1, 2):
        variables = listening(monkeypatch, "a job", rank)
        ports.append({variables[setting] for setting in rank_mpi.PORT_SETTINGS.values()})
        assert variables["OMPI_MCA_btl_tcp_port_range_v4"] == variables["OMPI_MCA_btl_tcp_port_range_v6"] == "1"
    assert len(ports[0]) == 1 and ports[0] == ports[1] != ports[2]
