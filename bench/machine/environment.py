"""The variables of this process: what ranks inherit, what launchers told, what may be written down.

The only module that reads or sets environment variables. They are recorded by allow-list (`variables`): the whole
environment holds credentials.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from bench.machine import network
from bench.variables import allowed

JOB_VARIABLES = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_RUN_ID|PET_\w+|RAY_JOB_ID"
    r"|OMPI_COMM_WORLD_\w+|OMPI_MCA_ess_base_jobid|PMIX?_\w+|MPI_LOCAL\w+|SLURM_\w+"
)
# What stands between a launcher and the process that it started.
WRAPPERS = frozenset({"sh", "bash", "dash", "zsh", "env", "timeout", "time", "numactl", "taskset", "nice"})
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


def visible_devices() -> str | None:
    """Which GPUs CUDA may use, as the user said; None where nothing was said."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def variables() -> dict[str, str]:
    """The variables of the allow-list that are set."""
    return allowed(os.environ.items())


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
