"""Determine which rank of a job this process is.

In: the variables of a launcher, and the name of the program that started this process (`environment`). Out: a
`JobRank`; None if this process belongs to no job and starts its ranks by itself. Raises JobError if the variables are
incomplete or contradict each other, or if many processes would each measure alone because they do not know their rank.
Reads no environment and starts nothing.

The order of launchers matters, because they nest: torchrun inside srun and mpirun inside a Slurm allocation have the
variables of both, and the inner launcher started the processes.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.machine import network
from collbench.model.errors import JobError
from collbench.model.notices import Kind, Notice
from collbench.model.pages import page

# torchrun's own default of MASTER_PORT; for other launchers the port is derived from the job's identity.
DEFAULT_PORT = 29500
# Number of ports of which rank 0 takes the first free one; more than a few jobs on one host are rare.
PORTS = 10
# Derived ports are below the ephemeral ports, which kernels assign to outgoing connections (32768 and up).
FIRST_DERIVED_PORT, DERIVED_PORTS = 20_000, 10_000

LAST_PORT = 2**16 - 1

Variables = Mapping[str, str]
OTHER_LAUNCHER = Kind("other-launcher", "the job was started by {launcher}, not Open MPI's")


@dataclass(frozen=True, slots=True)
class JobRank:
    """One process of a job."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    # Address of rank 0's host, as the launcher names it.
    address: str
    # Rank 0 listens on one of these ports.
    ports: tuple[int, ...]
    # A text that is the same in all processes of the job and differs from the texts of other jobs at the time.
    identity: str
    # True if all processes of the job are on one host.
    one_host: bool
    # Number of times that torchrun has restarted the processes.
    attempt: int = 0

    def missing_backends(self) -> dict[str, Notice]:
        """Return the backends that a job of this launcher cannot use, with the reasons."""
        if self.launcher == OPEN_MPI:
            return {}
        return {"mpi": OTHER_LAUNCHER(launcher=self.launcher)}


@dataclass(frozen=True, slots=True)
class _Variables:
    """Names of the environment variables of one launcher."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    # Names of the variables that distinguish one job from another.
    particular: tuple[str, ...] = ()


_TORCH = _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",))
# Used in place of a launcher's name: the variables were set by hand, by a script, or by Kubeflow's PyTorchJob.
BY_HAND = "RANK and WORLD_SIZE"
OPEN_MPI = "mpirun (Open MPI)"
_OPEN_MPI = _Variables(
    OPEN_MPI,
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
# MPICH, Intel MPI, MVAPICH. They set no job number: `_particulars` adds variables that are the same on all its hosts.
_HYDRA = _Variables("mpirun (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SLURM = _Variables(
    "srun",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_ON_ONE_NODE",
    ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
)
_DIALECTS = (_TORCH, _OPEN_MPI, _HYDRA, _SLURM)
# Names of the programs that start the processes of a job.
_MPI_STARTERS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy"}
)
_SLURM_STARTER = "slurmstepd"
_FIX = f"start it with torchrun, srun or mpirun ({page('operators')}), or as one process for ranks on this machine only"


def detect(variables: Variables, starter: str = "") -> JobRank | None:
    """Return the `JobRank` of this process; None outside a job of several ranks. starter: program that started it."""
    dialects = [dialect for dialect in _DIALECTS if dialect.rank in variables and _size(dialect, variables) is not None]
    if _HYDRA in dialects and _size(_SLURM, variables) == _size(_HYDRA, variables):
        dialects.remove(_HYDRA)  # srun sets PMI variables, too, and its own variables also name the hosts
    if not dialects:
        _refuse_copies(variables, starter)
    _refuse_contradictions(dialects, variables)
    several = [dialect for dialect in dialects if (_size(dialect, variables) or 1) > 1]
    outer = next((dialect for dialect in several if dialect is not _TORCH), None)
    if "TORCHELASTIC_RUN_ID" in variables and _TORCH in dialects and outer is not None:
        own = _size(_TORCH, variables)
        if own == _integer(variables, _TORCH.local_size):  # no torchrun knows the others: each starts its own run
            raise JobError(
                f"{outer.launcher} started {_size(outer, variables)} torchruns, and each is a job of its own with "
                f"{own} ranks: give torchrun --nnodes and --rdzv-endpoint, or start collbench itself with "
                f"{outer.launcher}"
            )
    return _place(several[0], variables) if several else None


def _refuse_contradictions(dialects: Sequence[_Variables], variables: Variables) -> None:
    """Raise JobError if RANK and WORLD_SIZE, set by hand, contradict the launcher that started this task.

    Ranks would wait for ranks that never join: variables are left in a shell, or a script sets one RANK for all tasks.
    """
    if _TORCH not in dialects or "TORCHELASTIC_RUN_ID" in variables:
        return
    rank, size = _integer(variables, _TORCH.rank), _size(_TORCH, variables)
    for outer in dialects:
        tasks = _size(outer, variables) or 1
        own = _integer(variables, outer.rank)
        # A task may start several ranks by itself, so more ranks than tasks are not a contradiction.
        if outer is _TORCH or tasks == 1 or own is None or (size or 1) > tasks or (rank, size) == (own, tasks):
            continue
        raise JobError(
            f"RANK={rank} and WORLD_SIZE={size} contradict {outer.launcher}, which says {outer.rank}={own} of {tasks}: "
            "unset RANK and WORLD_SIZE, or set them from the launcher's variables in each task"
        )


def unused_allocation(variables: Variables) -> tuple[int, int] | None:
    """Return how many tasks and nodes of a Slurm allocation a process outside a job leaves unused; or None."""
    if not ("SLURM_JOB_ID" in variables or "SLURM_JOBID" in variables):
        return None
    # The user requested a step with a single task.
    if variables.get("SLURM_STEP_NUM_TASKS") == "1":
        return None
    counts = [variables.get(name, "") for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES")]
    tasks, nodes = (int(count) if count.isdecimal() else 1 for count in counts)
    return (max(tasks, nodes), nodes) if max(tasks, nodes) > 1 else None


def _refuse_copies(variables: Variables, starter: str) -> None:
    """Raise JobError if variables are missing, or if many copies do not know their rank: each would measure alone."""
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"), ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE")):
        if name in variables and other not in variables:
            raise JobError(f"{name} is set, but {other} is not: unset it, or {_FIX}")
    if variables.get("PET_NNODES", "1") not in {"1", "1:1"}:
        raise JobError(
            f"PET_NNODES={variables['PET_NNODES']} means several hosts, but no rank is set: the command of each "
            "pod must be torchrun --no-python collbench run CONFIG (torchrun reads the PET_ variables)"
        )
    if starter in _MPI_STARTERS or (starter == _SLURM_STARTER and _SLURM.rank not in variables):
        raise JobError(
            f"started by {starter}, which sets no rank here: every copy would measure alone, all at the same time; "
            "pass its variables on (no env -i, no srun --export=NONE), or use torchrun"
        )


def _place(dialect: _Variables, variables: Variables) -> JobRank:
    rank, size = _integer(variables, dialect.rank) or 0, _size(dialect, variables) or 1
    local_rank, local_size = _integer(variables, dialect.local_rank) or 0, _integer(variables, dialect.local_size)
    for number, limit, names in (
        (rank, size, (dialect.rank, dialect.size)),
        (local_rank, local_size or size, (dialect.local_rank, dialect.local_size)),
    ):
        if number >= limit:
            raise JobError(f"{names[0]}={number}, but {names[1]}={limit}: ranks count from 0 to {limit - 1}")
    # Kubeflow's PyTorchJob sets RANK per pod. With its default, "auto", `python` starts one process per pod, which
    # agrees with RANK.
    per_pod = variables.get("PET_NPROC_PER_NODE", "")
    if dialect is _TORCH and _TORCH.local_rank not in variables and per_pod.isdecimal() and int(per_pod) > 1:
        raise JobError(
            f"PET_NPROC_PER_NODE={per_pod}, but RANK counts pods: the command of each pod must be "
            "torchrun --no-python collbench run CONFIG"
        )
    launcher = dialect.launcher
    if dialect is _TORCH and "TORCHELASTIC_RUN_ID" not in variables:
        launcher = "Ray Train" if "RAY_JOB_ID" in variables else BY_HAND
    address = _address(dialect, variables, all_local=local_size == size)
    identity = " ".join(
        [
            dialect.launcher,
            str(size),
            *(variables.get(name, "") for name in _particulars(dialect, one_host=local_size == size)),
            variables.get("MASTER_PORT", ""),
        ]
    )
    port = _integer(variables, "MASTER_PORT")
    if port is not None and port > LAST_PORT - 1:
        raise JobError(
            f"MASTER_PORT={port}: 0 to {LAST_PORT - 1} are allowed, because rank 0 listens on a port above it"
        )
    if port is None and dialect is _TORCH:
        port = DEFAULT_PORT
    if port is None:
        number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big")
        port = FIRST_DERIVED_PORT + number % DERIVED_PORTS
    return JobRank(
        launcher=launcher,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        address=address,
        # MASTER_PORT itself is left to the launcher, or to a job that runs afterwards.
        ports=tuple(range(port + 1, min(port + PORTS, LAST_PORT) + 1)),
        identity=identity,
        attempt=(_integer(variables, "TORCHELASTIC_RESTART_COUNT") or 0) if dialect is _TORCH else 0,
        one_host=address in {"localhost", "::1"} or address.startswith("127."),
    )


def _particulars(dialect: _Variables, one_host: bool) -> tuple[str, ...]:
    """Return the names of variables that distinguish this job from others and are equal in all of its processes.

    For Hydra's jobs on one host, this is the pid of the program that started the processes. That pid differs between
    hosts, so with several hosts it is Intel MPI's job number or the number of the batch job; MPICH jobs without a
    batch system differ in MASTER_PORT only.
    """
    if dialect is not _HYDRA:
        return dialect.particular
    return ("COLLBENCH_STARTER_PID",) if one_host else ("I_MPI_HYDRA_UUID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def _address(dialect: _Variables, variables: Variables, all_local: bool) -> str:
    """Return the address of rank 0's host. all_local: the launcher reports that all ranks are on one host."""
    nodes = None
    if dialect is _SLURM:
        counts = (_integer(variables, name) for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"))
        nodes = next((count for count in counts if count is not None), None)
    if all_local or nodes == 1:
        return network.LOOPBACK  # closed to the network, whatever the host's name resolves to
    if address := variables.get("MASTER_ADDR"):
        address = address.removeprefix("[").removesuffix("]") if address.startswith("[") else address
        if re.search(r"[/\s\[\]]", address):
            raise JobError(f"MASTER_ADDR={address!r} is not a name or an address of a host, such as node1 or 10.0.0.1")
        return address
    if dialect is _SLURM and variables.get("SLURM_DISTRIBUTION") == "arbitrary":
        raise JobError("srun --distribution=arbitrary may put rank 0 on any host: export MASTER_ADDR with its name")
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = next((variables[name] for name in lists if variables.get(name)), None)
    if hosts is not None and dialect is not _TORCH:
        return first_host(hosts)
    remedy = "mpirun -x MASTER_ADDR=<host of rank 0>" if dialect in (_OPEN_MPI, _HYDRA) else "export MASTER_ADDR"
    raise JobError(f"{dialect.launcher} does not name the host of rank 0: set it ({remedy})")


def first_host(hosts: str) -> str:
    """Return the first host of Slurm's list, such as `node003` of `node[003-007,12],login1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", hosts)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else hosts


def _size(dialect: _Variables, variables: Variables) -> int | None:
    name = dialect.size
    if dialect is _SLURM and name not in variables and {"SLURM_STEP_ID", "SLURM_STEPID"} & set(variables):
        name = "SLURM_NTASKS"  # outside a step, SLURM_NTASKS is the size of the allocation
    return _integer(variables, name)


def _integer(variables: Variables, name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise JobError(f"{name}={text!r} is not a whole number; unset it, or {_FIX}")
    return int(text)
