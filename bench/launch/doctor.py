"""Check whether this machine can measure, and give a remedy for each problem.

Out: `DoctorFinding` values, which `cli` prints. The last findings are trials: real ranks join and sum a tensor.
"""

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.launch import mpirun
from bench.launch.sweep import Silent, sweep
from bench.launch.turns import drive
from bench.machine import environment, host, network
from bench.model.notices import Notice
from bench.model.pages import page
from bench.model.records import LOAD_LIMIT, NOT_AVAILABLE, Case, Json, Launch, Machine, Plan, Sampling, Settings
from bench.model.units import counted, format_rounded_bytes, format_seconds
from bench.store import locks
from bench.store.encoding import SampleLine

# Open files of the parent per rank (pipes). A rank has half as many: two sockets per other rank, one per process group.
FILES_A_RANK = 4
# Files that each process has open in any case, with a margin.
FILES_ANYWAY = 64
# If the limit of open files allows fewer ranks than this on one host, the finding is a note.
RANKS_WANTED = 64
# Bytes of /dev/shm, where NCCL puts its buffers between ranks of one host; containers often get 64 MiB.
SHARED_MEMORY_WANTED = 2**30
# Free bytes of /dev/shm for MPI: two ranks of Open MPI 5.0.11 start with 64 MiB, and not with 1 MiB.
SHARED_MEMORY_OF_MPI = 2**25


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's output."""

    level: Literal["ok", "note", "missing"]
    subject: str
    text: str | Notice
    # What to do about the finding; empty if nothing is wrong.
    remedy: str = ""


def _either(good: bool, subject: str, text: str, otherwise: str | Notice, remedy: str) -> DoctorFinding:
    """Return the finding `text` if `good` is true, else the note `otherwise` with its remedy."""
    return DoctorFinding("ok", subject, text) if good else DoctorFinding("note", subject, otherwise, remedy)


def examine(machine: Machine) -> Iterator[DoctorFinding]:
    """Yield all findings that need no rank."""
    facts, state = host.facts(), host.state()
    torch, missing = facts["torch"], machine.backends_missing
    if not isinstance(torch, dict):
        yield DoctorFinding("missing", "torch", "not installed", "pip install torch, or make install in a checkout")
    else:
        yield DoctorFinding("ok", "torch", f"{torch['version']}, Python {sys.version.split()[0]}")
        for backend, version, remedy in (
            ("gloo", f"of torch {torch['version']}", ""),
            ("nccl", host.nccl_package(), "gloo measures on the CPU meanwhile"),
        ):
            if backend in missing:
                yield DoctorFinding("missing", backend, missing[backend], remedy)
            else:
                yield DoctorFinding("ok", backend, f"{version}: can be measured")
        mpi = f"{host.mpi_versions()}: can be measured"
        yield _either("mpi" not in missing, "mpi", mpi, missing.get("mpi", ""), "only needed for backends: [mpi]")

    if not machine.gpus:
        yield DoctorFinding("note", "GPUs", "none visible", "not needed for gloo; for NCCL see the line above")
    for gpu in facts["gpus"]:
        yield DoctorFinding("ok", "GPU", f"{gpu['name']}, {gpu['uuid']}")
    if machine.gpus:
        yield DoctorFinding("ok", "versions", host.measured_with())
    cores, load = machine.cores, state["load"][0]
    quota = host.cpu_quota()
    if quota is not None and quota < cores:
        text = f"{cores} usable, but a quota of the control group allows the time of {quota:g}"
        remedy = f"measure at most {max(1, int(quota))} CPU ranks, or raise the quota: without time left, ranks stop"
        yield DoctorFinding("note", "cores", text, remedy)
    else:
        yield DoctorFinding("ok", "cores", f"{cores} usable: up to {cores} CPU ranks run without fighting for a core")
    average = f"load average {load:.2f}"
    yield _either(
        load / cores <= LOAD_LIMIT,
        "load",
        f"{average}: idle enough",
        f"{average} on {cores} cores",
        "stop other work while measuring",
    )
    memory = format_rounded_bytes(machine.memory_available_bytes)
    yield DoctorFinding("ok", "memory", f"{memory} available; larger cases are skipped and listed")

    governor = facts["cpu"]["governor"]
    if governor == NOT_AVAILABLE:
        text = "the kernel does not report it (usual in virtual machines)"
        yield DoctorFinding("note", "governor", text)
    else:
        text, remedy = f"{governor}: clocks follow the load", "cpupower frequency-set -g performance"
        yield _either(governor == "performance", "governor", governor, text, remedy)
    for subject, name, text in (
        (
            "gloo's threads",
            "batch",
            "can run under SCHED_BATCH: `run gloo` shows whether they make calls stall",
        ),
        ("real time", "rr", "permitted: scheduling: rr shows what the scheduler does to small messages"),
    ):
        reason = machine.scheduling_missing.get(name)
        yield _either(reason is None, subject, text, reason or "", f"only needed for scheduling: {name}")
    yield open_files()
    shm = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    if shm.is_dir():
        size = os.statvfs(shm)
        nbytes = size.f_frsize * size.f_blocks
        text = f"{format_rounded_bytes(nbytes)} in /dev/shm"
        remedy = "docker run --shm-size=1g (NCCL needs it between GPUs of one host)"
        yield _either(nbytes >= SHARED_MEMORY_WANTED, "shared memory", text, text, remedy)


def advice(cores: int) -> str:
    """Return advice on the load of the machine before a measurement."""
    load = os.getloadavg()[0]
    return (
        f"Stop other programs first: load {load:.1f}." if load / cores > LOAD_LIMIT else "The machine is idle enough."
    )


def open_files() -> DoctorFinding:
    """Raise the limit of open files, and report the number of ranks for which it is enough."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = environment.raise_file_limit()
    ranks = (files - FILES_ANYWAY) // FILES_A_RANK
    allowed = f"{files} allowed" if files == soft else f"{soft} allowed, which a run raises to {files}"
    text = f"{allowed}: enough for {ranks} ranks on this machine"
    return _either(ranks >= RANKS_WANTED, "open files", text, text, "raise nofile in /etc/security/limits.conf")


def trials(machine: Machine) -> Iterator[DoctorFinding]:
    """Measure and verify one all_reduce on each backend, through all steps of a run; takes a few seconds.

    gloo and MPI are tried with two ranks, NCCL with one rank per GPU.
    """
    yield _trial("gloo", 2, _gloo_remedy())
    if "mpi" not in machine.backends_missing:
        yield _trial("mpi", 2, _mpi_remedy())
    if "nccl" not in machine.backends_missing:
        remedy = f"NCCL_DEBUG=INFO shows what NCCL does; {page('operators')}"
        yield _trial("nccl", machine.gpus, remedy, timeout_s=120.0)  # the first communicator of a node takes long


def _gloo_remedy() -> str:
    """Return the remedy for a failed gloo trial, if a cause can be found; empty otherwise."""
    interface = environment.variables().get("GLOO_SOCKET_IFNAME")
    if interface is not None and not all(network.is_interface(name) for name in interface.split(",")):
        return f"GLOO_SOCKET_IFNAME={interface} names no interface of this host: unset it (gloo has no ^ and no lists)"
    place = Path(tempfile.gettempdir())
    if not locks.supported(place):
        return f"{place}: its file system has no locks, by which ranks find each other: set TMPDIR to another"
    return ""


def _mpi_remedy() -> str:
    """Return the remedy for a failed MPI trial: room in /dev/shm, for Open MPI's segments. Empty if it has room."""
    shm = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    room = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= SHARED_MEMORY_OF_MPI
    return "" if room else "Open MPI needs room in /dev/shm: docker run --shm-size=1g"


def _trial(backend: str, ranks: int, remedy: str, timeout_s: float = 20.0) -> DoctorFinding:
    case = Case("all_reduce", backend, ranks, "float32", 4096)
    settings = Settings(Sampling(2, 0.0, 20, None, 1.0, 20), seed=0, timeout_s=timeout_s, pool_bytes=0)
    plan = Plan("doctor", (Launch(backend, ranks, 1, (case,)),), (), 1, settings)
    lines, launches = list[SampleLine](), list[Json]()
    with mpirun.ByBackend(()) as launcher, tempfile.NamedTemporaryFile(prefix="collbench-doctor-") as log:
        drive(sweep(plan, [], launcher, lines.append, Path(log.name), launches.append, Silent()))
    failure = lines[0].samples.failure
    if failure is not None:
        return DoctorFinding("missing", "trial", f"{backend}: {failure.text}", remedy)
    ready = format_seconds(launches[0]["ready_s"])
    text = f"{counted(ranks, 'rank')} joined in {ready} and summed 4 KiB correctly on {backend}"
    return DoctorFinding("ok", "trial", text)
