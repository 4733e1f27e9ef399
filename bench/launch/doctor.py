"""Check whether this machine can measure: findings, each with its remedy.

Out: `DoctorFinding` values, which `cli` prints. The last one is a trial: two real ranks join and sum a tensor.
"""

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.launch.launcher import Launcher
from bench.launch.sweep import sweep
from bench.machine import environment, host
from bench.model.capabilities import Machine
from bench.model.records import NOT_AVAILABLE, Case, Json, Launch, Plan, Sampling
from bench.model.units import format_rounded_bytes, format_seconds

# The parent's pipes to a rank. A rank holds half as many: two sockets for each other rank, one per process group.
FILES_A_RANK = 4
# Files that each process has open in any case, with a margin.
FILES_ANYWAY = 64
# If the limit of open files allows fewer ranks than this on one host, a note says so.
RANKS_WANTED = 64
# Bytes of /dev/shm, where NCCL puts its buffers between ranks of one host; containers often get 64 MiB.
SHARED_MEMORY_WANTED = 2**30


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's output. `remedy`: what to do about it, empty if nothing is wrong."""

    level: Literal["ok", "note", "missing"]
    subject: str
    text: str
    remedy: str = ""


def examine(machine: Machine) -> Iterator[DoctorFinding]:
    """All findings that need no rank."""
    unsupported = host.unsupported_platform()
    if unsupported:
        yield DoctorFinding("missing", "system", unsupported, "run CollBench inside WSL")
    facts, state = host.facts(), host.state()
    yield from _software(machine, facts["torch"])
    yield from _gpus(machine, facts["gpus"])
    cores, load = machine.cores, state["load"][0]
    yield DoctorFinding("ok", "cores", f"{cores} usable: up to {cores} CPU ranks run without fighting for a core")
    if load / cores > 0.25:
        yield DoctorFinding(
            "note", "load", f"load average {load:.2f} on {cores} cores", "stop other work while measuring"
        )
    else:
        yield DoctorFinding("ok", "load", f"load average {load:.2f}: idle enough")
    memory = format_rounded_bytes(machine.memory_available_bytes)
    yield DoctorFinding("ok", "memory", f"{memory} available; larger cases are skipped with their numbers")
    yield _governor(facts["cpu"]["governor"])
    yield _realtime(machine.realtime_missing)
    yield from _limits()


def _software(machine: Machine, torch: object) -> Iterator[DoctorFinding]:
    if not isinstance(torch, dict):
        yield DoctorFinding("missing", "torch", "not installed", "make install")
        return
    yield DoctorFinding("ok", "torch", f"{torch['version']}, Python {sys.version.split()[0]}")
    for backend in ("gloo", "nccl"):
        reason = machine.backends_missing.get(backend)
        if reason:
            yield DoctorFinding(
                "missing", backend, reason, "gloo measures on the CPU meanwhile" if backend == "nccl" else ""
            )
        else:
            version = host.nccl_package() if backend == "nccl" else f"of torch {torch['version']}"
            yield DoctorFinding("ok", backend, f"{version}: can be measured")
    yield _mpi(machine.backends_missing.get("mpi"))


def _mpi(missing: str | None) -> DoctorFinding:
    if missing:
        return DoctorFinding("note", "mpi", missing, "only needed for backends: [mpi]")
    return DoctorFinding("ok", "mpi", f"{host.mpi_versions()}: can be measured")


def _gpus(machine: Machine, gpus: list[dict[str, object]]) -> Iterator[DoctorFinding]:
    if not machine.gpus:
        yield DoctorFinding("note", "GPUs", "none visible", "nothing to do for gloo; for NCCL see the line above")
    for gpu in gpus:
        yield DoctorFinding("ok", "GPU", f"{gpu['name']}, driver {gpu['driver']}")


def _governor(governor: str) -> DoctorFinding:
    if governor == NOT_AVAILABLE:
        return DoctorFinding("note", "governor", "the kernel does not tell (usual in virtual machines)", "none needed")
    if governor != "performance":
        return DoctorFinding(
            "note", "governor", f"{governor}: clocks follow the load", "cpupower frequency-set -g performance"
        )
    return DoctorFinding("ok", "governor", governor)


def _realtime(missing: str | None) -> DoctorFinding:
    if missing:
        return DoctorFinding("note", "real time", missing, "only needed for scheduling: rr")
    return DoctorFinding("ok", "real time", "permitted: scheduling: rr shows what the scheduler does to small messages")


def _limits() -> Iterator[DoctorFinding]:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = environment.raise_file_limit()
    ranks = (files - FILES_ANYWAY) // FILES_A_RANK
    level: Literal["ok", "note"] = "ok" if ranks >= RANKS_WANTED else "note"
    allowed = f"{files} allowed" if files == soft else f"{soft} allowed, which a run raises to {files}"
    text = f"{allowed}: enough for {ranks} ranks on this machine"
    yield DoctorFinding(level, "open files", text, "" if level == "ok" else "raise nofile in /etc/security/limits.conf")
    shm = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    if shm.is_dir():
        size = os.statvfs(shm)
        nbytes = size.f_frsize * size.f_blocks
        enough = nbytes >= SHARED_MEMORY_WANTED
        remedy = "" if enough else "docker run --shm-size=1g (NCCL needs it between GPUs of one host)"
        text = f"{format_rounded_bytes(nbytes)} in /dev/shm"
        yield DoctorFinding("ok" if enough else "note", "shared memory", text, remedy)


def trial() -> DoctorFinding:
    """Measure and verify one all_reduce of two ranks on gloo, through all steps of a run; takes a few seconds."""
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    plan = Plan(
        name="doctor",
        order=(Launch("gloo", 2, 1, (case,)),),
        skips=(),
        launches=1,
        seed=0,
        sampling=Sampling(2, 0.0, 20, 0.05, 1.0, 20),
        timeout_s=20.0,
        pool_bytes=0,
    )
    watcher = _Quiet()
    launches: list[Json] = []
    with Launcher() as launcher:
        sweep(plan, [], launcher, lambda _: None, Path(os.devnull), launches.append, watcher)
    if watcher.failed is None and launches:
        ready = format_seconds(launches[0]["ready_s"])
        return DoctorFinding("ok", "trial", f"2 ranks joined in {ready} and summed 4 KiB correctly on gloo")
    return DoctorFinding("missing", "trial", watcher.failed or "", "a firewall on the loopback interface can do this")


class _Quiet:
    """An observer that only remembers the last failure."""

    failed: str | None = None

    def launching(self, launch: Launch) -> None: ...

    def round_begins(self, launch: Launch, number: int) -> None: ...

    def extended(self, further: int) -> None: ...

    def ended(self, case: Case, failure: str | None) -> None:
        self.failed = failure
