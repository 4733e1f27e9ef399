"""What this machine is and does: facts for planning, for the record of a run and for `doctor`.

Out: a `Machine` (to plan with) and JSON objects (to keep). Reads no torch: versions come from package
metadata, GPUs from NVML. What could not be read is "not available", never left out. Environment
variables are recorded by allow-list: the whole environment would leak credentials.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from bench import __version__
from bench.machine import gpus, libraries, network
from bench.records import NOT_AVAILABLE, Json, Machine
from bench.variables import allowed

JOB_VARIABLES = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_RUN_ID|PET_\w+|RAY_JOB_ID"
    r"|OMPI_COMM_WORLD_\w+|OMPI_MCA_ess_base_jobid|PMIX?_\w+|MPI_LOCAL\w+|SLURM_\w+"
)
# What stands between a launcher and the process that it started.
WRAPPERS = frozenset({"sh", "bash", "dash", "zsh", "env", "timeout", "time", "numactl", "taskset", "nice"})
# Where the kernel does not tell: the size of many server CPUs' last-level cache.
ASSUMED_CACHE_BYTES = 32 * 2**20
# By these mpirun finds the hosts of a batch job, and a process the MPI job that it belongs to.
BATCH_VARIABLES = re.compile(r"SLURM|PBS_|LSB_|LSF_|SGE_|PE_HOSTFILE|FLUX_|PALS_|PMI|PRTE_|OMPI_(?!MCA_|ALLOW)")
# As many files as 16 thousand ranks on one host need; a limit in the millions makes some programs slow that close all.
MOST_FILES = 2**16
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def prepare_process(interface: str | None = None) -> None:
    """Set the variables that every rank of this machine inherits; call it before any starts.

    interface: the way to ranks on other machines; None where there are none. What the user has set stays.
    One OpenMP thread: ranks share the cores, and no collective uses more. Flight recorder off: it costs CPU in
    each NCCL call. Loopback, if all ranks are here: listeners are then closed to the network. NCCL looks for its
    ways to other machines by itself.
    """
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "0"}
    loopback = network.interface_of(network.LOOPBACK)
    if interface and interface != loopback:
        defaults |= {"GLOO_SOCKET_IFNAME": interface}
    elif loopback:
        defaults |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    raise_file_limit()
    # The fork server does not take over this process's sys.path (Python 3.11), only its environment.
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def raise_file_limit() -> int:
    """Let this process, and those that it starts, open as many files as the hard limit permits; returns how many.

    Each rank holds a socket to each other one, and the usual soft limit of 1024 is there for programs of another time.
    """
    import resource  # here: Windows, where plans can be made, has none

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard or soft == resource.RLIM_INFINITY:
        return soft if soft != resource.RLIM_INFINITY else MOST_FILES
    wanted = max(soft, MOST_FILES)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS refuses more than the kernel has, whatever the hard limit says
        return soft
    return most


# ── for joining a job ────────────────────────────────────────────────────────────────────────────
def job_variables() -> dict[str, str]:
    """The variables in which launchers tell a process of the others, and the pid of the launcher on this host."""
    found = {name: value for name, value in os.environ.items() if JOB_VARIABLES.fullmatch(name)}
    return found | {"COLLBENCH_STARTER_PID": str(_starter().pid)}


def starter() -> str:
    """Name of the program that started this one, shells and wrappers left out."""
    try:
        return _starter().name()
    except psutil.Error:
        return ""


def secret() -> str:
    """What the user lets the processes of a job know each other by."""
    return os.environ.get("COLLBENCH_SECRET", "")


def _starter() -> psutil.Process:
    process = psutil.Process()
    with suppress(psutil.Error):
        for process in psutil.Process().parents():
            if process.name() not in WRAPPERS:
                break
    return process


# ── for planning ─────────────────────────────────────────────────────────────────────────────────
def machine() -> Machine:
    """The facts that a plan depends on."""
    found = len(visible_gpus())
    return Machine(
        hostname=hostname(),
        cores=usable_cores(),
        memory_available_bytes=available_memory_bytes(),
        last_level_cache_bytes=last_level_cache_bytes(),
        gpus=found,
        backends_missing=libraries.missing(torch_build(), found),
        realtime_missing=unsupported_realtime(),
    )


def unsupported_platform() -> str | None:
    """Why ranks cannot be started on this operating system; None where they can."""
    if sys.platform == "win32":
        return "Windows has no fork server: use WSL"
    return None


def torch_build() -> Json | None:
    """Version, CUDA and HIP of the installed torch, read from its version file without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return None
    return {"version": facts.get("__version__"), "cuda": facts.get("cuda"), "hip": facts.get("hip")}


def usable_cores() -> int:
    """Cores that this process may run on (affinity; a cgroup quota is reported apart)."""
    return len(affinity())


def affinity() -> list[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping, within the cgroup's limit."""
    available = int(psutil.virtual_memory().available)
    limit, used = network.text("/sys/fs/cgroup/memory.max"), network.text("/sys/fs/cgroup/memory.current")
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first core."""
    sizes = [network.text(str(path)) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factors = {"K": 2**10, "M": 2**20}
    parsed = [int(text[:-1]) * factors[text[-1]] for text in sizes if text[:-1].isdigit() and text[-1] in factors]
    return max(parsed, default=ASSUMED_CACHE_BYTES)


def visible_gpus() -> list[Any]:
    """NVML handles of the GPUs that CUDA_VISIBLE_DEVICES leaves; empty without a driver."""
    return gpus.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))


def hostname() -> str:
    """Name of this host, by which ranks on the same one are known."""
    return socket.gethostname()


# ── for the record ───────────────────────────────────────────────────────────────────────────────
def host() -> Json:
    """Everything about this host that a number may depend on and that does not change during a run."""
    return {
        "hostname": hostname(),
        "collbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "numpy", "scipy", "pandas", "matplotlib")},
        "torch": torch_build() or NOT_AVAILABLE,
        "kernel": platform.release(),
        "system": platform.system(),
        "boot_id": boot(),
        "time_namespace": _link("/proc/self/ns/time"),
        "cpu": {
            "model": _cpu_model(),
            "usable_cores": usable_cores(),
            "physical_cores": psutil.cpu_count(logical=False) or NOT_AVAILABLE,
            "logical_cores": psutil.cpu_count() or NOT_AVAILABLE,
            "last_level_cache_bytes": last_level_cache_bytes(),
            "governor": network.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "hypervisor": "yes" if " hypervisor" in network.text("/proc/cpuinfo") else "no",
        },
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_cpu_max": network.text("/sys/fs/cgroup/cpu.max"),
        "network": network.interfaces(),
        "infiniband": network.infiniband(),
        "gpus": [gpus.facts(handle) for handle in visible_gpus()],
        "variables": variables(),
    }


def state() -> Json:
    """What changes: read it before and after."""
    times = psutil.cpu_times()
    return {
        "load": list(os.getloadavg()),
        "memory_available_bytes": available_memory_bytes(),
        "steal_s": getattr(times, "steal", NOT_AVAILABLE),
        "cgroup_throttled": NOT_AVAILABLE if (periods := throttled_periods()) is None else periods,
        "gpus": [gpus.state(handle) for handle in visible_gpus()],
    }


def variables() -> dict[str, str]:
    """The variables of the allow-list that are set."""
    return allowed(os.environ.items())


def commit() -> str:
    """Commit of this suite, with `-dirty` after uncommitted changes; not available outside a checkout."""
    try:
        # Only our own checkout counts, not one that an installed package happens to lie in.
        if not (PACKAGE_ROOT / ".git").exists():
            return NOT_AVAILABLE
        command = ["git", "-C", str(PACKAGE_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return NOT_AVAILABLE
    return done.stdout.strip()


def busy_and_steal_s(except_for: BaseProcess | None) -> tuple[float | None, float | None]:
    """CPU seconds of all processes of this host but one, and those that the hypervisor took, since boot."""
    times = psutil.cpu_times()
    # guest is already part of user, and iowait is idle time
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    if except_for is not None:
        with suppress(psutil.Error):
            own = psutil.Process(except_for.pid).cpu_times()
            busy -= own.user + own.system
    return busy, getattr(times, "steal", None)


def boot() -> str:
    """The same text in all processes of one machine, containers included."""
    return network.text("/proc/sys/kernel/random/boot_id")


def clock() -> str:
    """Which monotonic clock this process reads: equal texts, one clock (same boot, same time namespace).

    With the host's name, because virtual machines that were woken from one image share a boot id.
    """
    return f"{socket.gethostname()} {boot()} {_link('/proc/self/ns/time')}"


def throttled_periods() -> int | None:
    """Periods in which this process's cgroup had used up its CPU quota, since it was made."""
    match = re.search(r"^nr_throttled (\d+)$", network.text("/sys/fs/cgroup/cpu.stat"), re.MULTILINE)
    return int(match[1]) if match else None


def unsupported_realtime() -> str | None:
    """Why real-time scheduling cannot be used here, found by trying it in this very thread; None if it can."""
    if not hasattr(os, "sched_setscheduler"):
        return "this operating system has no sched_setscheduler"
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return f"real-time scheduling: {why} (run as root, or: ulimit -r 1, or CAP_SYS_NICE)"
    os.sched_setscheduler(0, policy, parameters)
    return None


def apply(settings: str) -> None:
    """Set variables of this process, such as "NCCL_ALGO=Ring NCCL_PROTO=LL"; an empty value unsets one."""
    for setting in settings.split():
        name, _, value = setting.partition("=")
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(variables)


def for_mpirun(defaults: Mapping[str, str], wanted: Mapping[str, str], settings: str) -> dict[str, str]:
    """An environment to start mpirun in: this process's, where the user's own value goes before a default.

    Without what would make mpirun ask a batch system for hosts, or take itself for a part of another job.
    """
    own = {name: value for name, value in os.environ.items() if not BATCH_VARIABLES.match(name)}
    pairs = (setting.partition("=") for setting in settings.split())
    return {**defaults, **own, **wanted, **{name: value for name, _, value in pairs}}


def use_realtime() -> None:
    """Real-time round robin, at its lowest priority, for this thread and those that it starts from now on."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def gpu_uuid(index: int) -> str | None:
    """Which GPU the CUDA device of this number is; None if there is none."""
    handles = visible_gpus()
    return str(gpus.facts(handles[index])["uuid"]) if index < len(handles) else None


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", network.text("/proc/cpuinfo"), re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_AVAILABLE


def nccl_package() -> str:
    """Version of the NCCL that came with torch as a package; ranks report the one that they loaded."""
    return next(
        (v for v in map(_version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12")) if v != NOT_AVAILABLE), NOT_AVAILABLE
    )


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return NOT_AVAILABLE
