"""Read and set environment variables: variables that ranks inherit, variables of launchers, recorded variables.

No other module does so, except `launch/mpirun_placeholder.py`, which imports nothing of the suite. Only the variables
of an allow-list (`collbench/catalog/variables.py`) are recorded: the environment also holds credentials.
"""

import os
import re
import resource
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from collbench.catalog.variables import allowed
from collbench.machine import network

if TYPE_CHECKING:
    from collbench.model.records import Variables

JOB_VARIABLES = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_(RUN_ID|RESTART_COUNT)|PET_\w+|RAY_JOB_ID"
    r"|OMPI_COMM_WORLD_\w+|OMPI_MCA_ess_base_jobid|PMIX?_\w+|MPI_LOCAL\w+|SLURM_\w+|I_MPI_HYDRA_UUID|PBS_JOBID|LSB_JOBID"
)
# Programs that may run between a launcher and the process that it started.
WRAPPERS = frozenset({"sh", "bash", "dash", "zsh", "env", "timeout", "time", "numactl", "taskset", "nice"})
# Variables by which mpirun finds the hosts of a batch job, or by which a process finds its MPI job.
BATCH_VARIABLES = re.compile(r"SLURM|PBS_|LSB_|LSF_|SGE_|PE_HOSTFILE|FLUX_|PALS_|PMI|PRTE_|OMPI_(?!MCA_|ALLOW)")
# Enough open files for 16 thousand ranks on one host. A limit in the millions slows programs that close every file.
MOST_FILES = 2**16
# Links are not resolved: the process of a side finds this package in a folder that contains only a link to it.
PACKAGE_ROOT = Path(__file__).absolute().parents[2]
# Value of PYTHONPATH before `prepare_process`.
PYTHONPATH = os.environ.get("PYTHONPATH")
# Names of the variables that were set before `prepare_process`.
FROM_OUTSIDE = frozenset(os.environ)
# Exists if a driver for NVIDIA's GPUs is loaded.
NVIDIA = Path("/dev/nvidiactl")


def prepare_process(interface: str | None = None) -> None:
    """Set the variables that every rank on this host inherits; call it before any rank starts.

    interface: network interface that leads to ranks on other hosts; None if all ranks are on this host.
    """
    os.environ.update(of_ranks(interface))
    raise_file_limit()
    os.environ |= _found_in(PACKAGE_ROOT)


def of_ranks(interface: str | None = None) -> dict[str, str]:
    """Return the environment of ranks. interface: see `prepare_process`.

    A default never replaces a value that the user has set. One OpenMP thread: ranks share the cores, and no collective
    uses more. Flight recorder off: it costs CPU in each NCCL call. Loopback, if all ranks are on this host: listeners
    are then closed to the network. With several hosts, NCCL chooses its interfaces itself.
    """
    defaults = {
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "0",
        # Without this NVML check, torch initialises CUDA in the fork server, and no forked rank could use CUDA.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    if NVIDIA.exists():  # old name of TORCH_FR_BUFFER_SIZE, still read by a check of NCCL; without GPUs torch warns
        defaults["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "0"
    loopback = network.loopback_interface()
    if interface and interface != loopback:
        defaults |= {"GLOO_SOCKET_IFNAME": interface}
    elif loopback:
        defaults |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return defaults | dict(os.environ)


def towards(address: str) -> dict[str, str]:
    """Return the variable by which gloo takes the interface that leads to `address`; none if the user has set it."""
    interface = network.interface_towards(address)
    return {"GLOO_SOCKET_IFNAME": interface} if interface and "GLOO_SOCKET_IFNAME" not in FROM_OUTSIDE else {}


def of_side(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a process that measures a side of `ab`: this process's own, and these variables.

    folder: a private, empty folder, in which this package is linked. Other packages in its installation folder, above
    all torch, would hide the packages of the side's own interpreter.
    """
    (folder / "collbench").symlink_to((PACKAGE_ROOT / "collbench").resolve())
    return {**os.environ, **_found_in(folder), **variables}


def _found_in(folder: Path) -> dict[str, str]:
    """Return the variables with which Python finds this package in `folder`: processes do not inherit sys.path.

    PYTHONSAFEPATH (Python 3.11) hides the working folder, whose `torch` would be imported in place of ours.
    """
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [PYTHONPATH])]), "PYTHONSAFEPATH": "1"}


def words_to_complete() -> list[str]:
    """Return the words of a command line that a shell wants to complete; empty if no completion is requested."""
    if "_COLLBENCH_COMPLETE" not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()


def raise_file_limit() -> int:
    """Raise the limit on open files of this process and its children to MOST_FILES or the hard limit; return it.

    Each rank has sockets to every other rank, and the usual soft limit of 1024 is meant for old programs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard or soft == resource.RLIM_INFINITY:
        return soft if soft != resource.RLIM_INFINITY else MOST_FILES
    wanted = max(soft, MOST_FILES)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


# ── for joining a job ────────────────────────────────────────────────────────────────────────────
def job_variables() -> dict[str, str]:
    """Return the variables that launchers set for the processes of a job, and the launcher's pid on this host."""
    own = {name: value for name, value in os.environ.items() if JOB_VARIABLES.fullmatch(name)}
    with suppress(psutil.Error):  # without /proc
        own["COLLBENCH_STARTER_PID"] = str(_starter().pid)
    return own


def starter() -> str:
    """Return the name of the program that started this process, without shells and wrappers; empty if unreadable."""
    try:
        return _starter().name()
    except psutil.Error:
        return ""


def secret() -> str:
    """Return the secret that the user has set for all processes of a job; empty without a secret."""
    return os.environ.get("COLLBENCH_SECRET", "")


def runtime_folder() -> Path:
    """Return the folder for runtime files of this user's programs; the temporary folder if there is none."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(folder if folder and os.access(folder, os.W_OK | os.X_OK) else tempfile.gettempdir())


def _starter() -> psutil.Process:
    process = psutil.Process()
    with suppress(psutil.Error):
        for process in psutil.Process().parents():
            if process.name() not in WRAPPERS:
                break
    return process


def visible_devices() -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES; None if it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def variables() -> dict[str, str]:
    """Return the variables of the allow-list that are set."""
    return allowed(os.environ.items())


def chosen(beginnings: tuple[str, ...]) -> str:
    """Return the user's variables whose names begin so, as text after a semicolon; empty if there are none."""
    named = [f"{name}={value}" for name, value in variables().items() if name in FROM_OUTSIDE]
    found = ", ".join(text for text in named if text.startswith(beginnings))
    return f"; set here: {found}" if found else ""


def take(name: str) -> str:
    """Unset a variable of this process, and return its value; empty if it was not set."""
    return os.environ.pop(name, "")


def apply(pairs: Iterable[tuple[str, str]]) -> None:
    """Set variables of this process; an empty value unsets the variable."""
    for name, value in pairs:
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(variables)


def for_mpirun(defaults: Mapping[str, str], wanted: Mapping[str, str], settings: "Variables") -> dict[str, str]:
    """Return the environment for mpirun: `defaults`, this process's environment, `wanted`, `settings`; the last wins.

    It lacks variables with which mpirun would ask a batch system for hosts, or take itself for part of another job.
    """
    own = {name: value for name, value in os.environ.items() if not BATCH_VARIABLES.match(name)}
    return {**defaults, **own, **wanted, **dict(settings.pairs)}
