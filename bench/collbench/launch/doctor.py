"""Check whether this machine can measure, and give a remedy for each problem.

Out: `DoctorFinding` values, which `cli` prints. The last findings are trials: real ranks join and sum a tensor.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from collbench.launch import mpirun
from collbench.launch.sweep import sweep
from collbench.launch.turns import drive
from collbench.machine import host, limits
from collbench.model.errors import RankError
from collbench.model.notices import Notice
from collbench.model.pages import page
from collbench.model.records import LOAD_LIMIT, NOT_AVAILABLE, Case, Json, Launch, Machine, Plan, Sampling, Settings
from collbench.model.units import counted, format_rounded_bytes, format_seconds
from collbench.store.encoding import SampleLine

# If a limit allows fewer ranks than this on one host, the finding is a note.
RANKS_WANTED = 64
# Bytes of /dev/shm, where NCCL puts its buffers between ranks of one host; containers often get 64 MiB.
SHARED_MEMORY_WANTED = 2**30


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
    for limit in limits.limits():
        yield _either(limit.ranks >= RANKS_WANTED, limit.subject, str(limit), str(limit), limit.remedy)
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


def trials(machine: Machine) -> Iterator[tuple[str, DoctorFinding]]:
    """Measure and verify one all_reduce on each backend, through all steps of a run; takes a few seconds.

    gloo and MPI are tried with two ranks, NCCL with one rank per GPU. Yields the backend with each finding.
    """
    yield "gloo", _trial("gloo", 2, "")
    if "mpi" not in machine.backends_missing:
        trial = _trial("mpi", 2, "only needed for backends: [mpi]")
        yield "mpi", trial if trial.level == "ok" else replace(trial, level="note")
    if "nccl" not in machine.backends_missing:
        remedy = f"NCCL_DEBUG=INFO shows what NCCL does; {page('operators')}"
        yield "nccl", _trial("nccl", machine.gpus, remedy, timeout_s=120.0)  # a node's first communicator takes long


def _trial(backend: str, ranks: int, remedy: str, timeout_s: float = 20.0) -> DoctorFinding:
    case = Case("all_reduce", backend, ranks, "float32", 4096)
    settings = Settings(Sampling(2, 0.0, 20, None, 1.0, 20), seed=0, timeout_s=timeout_s, pool_bytes=0)
    plan = Plan("doctor", (Launch(backend, ranks, 1, (case,)),), (), 1, settings)
    lines, launches = list[SampleLine](), list[Json]()
    try:
        with mpirun.ByBackend(()) as launcher, tempfile.NamedTemporaryFile(prefix="collbench-doctor-") as log:
            drive(sweep(plan, [], launcher, lines.append, Path(log.name), launches.append))
    except RankError as error:
        return DoctorFinding("missing", "trial", f"{backend}: {error}", remedy)
    failure = lines[0].samples.failure
    if failure is not None:
        return DoctorFinding("missing", "trial", f"{backend}: {failure.text}", remedy)
    ready = format_seconds(launches[0]["ready_s"])
    text = f"{counted(ranks, 'rank')} joined in {ready} and summed 4 KiB correctly on {backend}"
    return DoctorFinding("ok", "trial", text)
