"""Define the facts that a run's folder records about the run and its machine: manifest.json and environment.json.

`store.facts` checks the files against these types, so that other code need not check again. Any key may be
missing. Imports no validator, because ranks import this module.
"""

from typing import Annotated, Any, NotRequired

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from typing_extensions import TypedDict

from collbench.model.units import MOST_RANKS

Fact = str | int | float | bool | None
Facts = dict[str, Fact]
Ranks = Annotated[int, Ge(0), Le(MOST_RANKS)]
Whole = Annotated[int, Gt(-(2**63)), Lt(2**63)]
# Clock offset of a rank to rank 0: time, lower and upper bound, in ns. Clocks: per rank, at start and end of a launch.
Clock = Annotated[list[Whole], MinLen(3), MaxLen(3)]
Clocks = Annotated[list[Annotated[list[Clock], MinLen(1)]], MinLen(2), MaxLen(2)]


# ── environment.json ─────────────────────────────────────────────────────────────────────────────
class Snapshot(TypedDict, total=False):
    """The state of a host at one moment."""

    unix_s: float
    load: Annotated[list[float], MinLen(1)]
    gpus: list[Facts] | None


class Cpu(TypedDict, total=False):
    """The processors of a host."""

    model: Fact
    usable_cores: Ranks
    logical_cores: Fact
    last_level_cache_bytes: Fact
    governor: Fact
    hypervisor: Fact


class GpuFacts(TypedDict, total=False):
    """A GPU of a host."""

    name: Fact
    uuid: Fact
    driver: Fact
    nvlinks: list[int]
    capability: int | None


class HostFacts(TypedDict, total=False):
    """A host: its facts, and its state before and after."""

    hostname: str
    collbench: Fact
    commit: Fact
    python: Fact
    kernel: Fact
    boot_id: Fact
    # Unix time of the boot.
    booted_s: float
    nccl: Fact
    packages: Facts
    cpu: Cpu
    memory_bytes: Whole
    cgroup_cpu_max: str
    gpus: list[GpuFacts]
    network: list[Facts]
    infiniband: list[Facts]
    variables: dict[str, str]
    # In a job, the cores on which any rank of the job on this host may run.
    cores: list[int]
    # In a job, the ranks on this host.
    ranks: list[int]
    fewest_cores: int
    before: Snapshot
    after: Snapshot


class RankFacts(TypedDict, total=False):
    """The facts that a rank reports about itself."""

    rank: Ranks
    hostname: str | None
    pid: Whole
    device: str
    device_name: Fact
    device_uuid: Fact
    # Maps "before", "joined" and "left" to the states of the process, under "joining" (`machine.own_process`).
    seen: dict[str, dict[str, dict[str, Any]]]
    nccl: str | None
    mpi: str | None
    clock: Fact
    torch: Fact


class Health(TypedDict, total=False):
    """The counters of GPUs, InfiniBand ports and TCP during a launch: name → counter → value."""

    gpus: dict[str, dict[str, Whole]]
    infiniband: dict[str, dict[str, Whole]]
    # TCP of the network namespace, under "all"; only for launches in which segments were sent again.
    tcp: dict[str, dict[str, Whole]]


class LaunchFacts(TypedDict, total=False):
    """The facts that the ranks of a launch report about themselves."""

    backend: str
    world_size: Ranks
    launch: int
    # Seconds until all ranks had joined; None if they never did.
    ready_s: float | None
    clocks: Clocks | None
    open_to: list[str]
    health: dict[str, Health]
    ranks: list[RankFacts]
    # Maps the key of a case to the choice of NCCL.
    chosen: dict[str, dict[str, Any]]


class JobFacts(TypedDict):
    """The launcher of the ranks, their number, and the network over which they find each other."""

    launcher: str
    ranks: Ranks
    network: NotRequired[str]


class ReportedFacts(TypedDict, total=False):
    """The facts about the machine that an imported file reports."""

    tool: list[str]
    hosts: list[str]
    devices: str
    nccl: str
    variables: dict[str, str]


class Session(TypedDict, total=False):
    """The record of the machine for one start of a run."""

    side: str
    host: HostFacts
    # The hosts of a job.
    hosts: Annotated[list[HostFacts], MinLen(1)]
    job: JobFacts
    before: Snapshot
    after: Snapshot
    launches: list[LaunchFacts]
    # Facts that an imported file reports.
    imported: ReportedFacts


# ── manifest.json ────────────────────────────────────────────────────────────────────────────────
class UnreadLine(TypedDict):
    """A line of an imported file."""

    file: str
    line: int
    text: str


class ImportFacts(TypedDict, total=False):
    """The source of the numbers of an imported run."""

    tool: list[str]
    # `name` and `sha256` of each file.
    files: list[dict[str, str]]
    statistic: list[str]
    # Lines that begin like a row and could not be read.
    unread: list[UnreadLine]
    # Reasons to doubt the numbers, facts that the files lack, and why rows were left out.
    notices: list[dict[str, Any]]
    verified: dict[str, int]


class Measurements(TypedDict):
    """The number of measurements of a run, and how many of them failed. It is written when a session ends."""

    made: int
    failed: int
    planned: int


class Manifest(TypedDict, total=False):
    """The name, times, state and command line of a run; for a run of two sides, also its sides."""

    name: str
    started: str
    finished: str | None
    status: str
    measurements: Measurements
    # The verb that made the run, and resumes it; without one `run`, or `ab` if it has sides.
    verb: str
    argv: list[str]
    overrides: list[str]
    collbench: str
    imported: ImportFacts
    sides: dict[str, dict[str, Any]]
    ab: dict[str, Any]
