"""What a run's folder records about the run and its machine: the shapes of manifest.json and environment.json.

`store.facts` holds what was read against them, so that what computes and prints need not ask again. Any key may be
missing. Loads no validator, since ranks load this.
"""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from typing_extensions import TypedDict

from bench.model.units import MOST_RANKS

Fact = str | int | float | bool | None
Facts = dict[str, Fact]
Ranks = Annotated[int, Ge(0), Le(MOST_RANKS)]
Whole = Annotated[int, Gt(-(2**63)), Lt(2**63)]
# At, low and high end, in ns, of each rank: at the start of a launch and at its end.
Clock = Annotated[list[Whole], MinLen(3), MaxLen(3)]
Clocks = Annotated[list[Annotated[list[Clock], MinLen(1)]], MinLen(2), MaxLen(2)]


# ── environment.json ─────────────────────────────────────────────────────────────────────────────
class Snapshot(TypedDict, total=False):
    """The state of a host at one moment."""

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
    """A host: what it is, and how it was before and after. ranks, cores: of a job."""

    hostname: str
    collbench: Fact
    commit: Fact
    python: Fact
    kernel: Fact
    boot_id: Fact
    nccl: Fact
    packages: Facts
    cpu: Cpu
    memory_bytes: Whole
    cgroup_cpu_max: str
    gpus: list[GpuFacts]
    infiniband: list[Facts]
    variables: dict[str, str]
    cores: list[int]
    ranks: list[int]
    fewest_cores: int
    before: Snapshot
    after: Snapshot


class RankFacts(TypedDict, total=False):
    """What a rank says of itself. seen: before, joined, left → name of a package → what it saw in the process."""

    rank: Ranks
    hostname: str | None
    pid: Whole
    device: str
    device_name: Fact
    device_uuid: Fact
    seen: dict[str, dict[str, dict[str, Any]]]
    nccl: str | None
    mpi: str | None
    clock: Fact


class Health(TypedDict, total=False):
    """What GPUs and InfiniBand ports counted during a launch: name → counter → value."""

    gpus: dict[str, dict[str, Whole]]
    infiniband: dict[str, dict[str, Whole]]


class LaunchFacts(TypedDict, total=False):
    """What the ranks of a launch say of themselves. chosen: key of a case → what NCCL chose."""

    backend: str
    world_size: Ranks
    launch: int
    clocks: Clocks | None
    open_to: list[str]
    health: dict[str, Health]
    ranks: list[RankFacts]
    chosen: dict[str, dict[str, Any]]


class JobFacts(TypedDict):
    """Who started the ranks."""

    launcher: str
    ranks: Ranks


class Told(TypedDict, total=False):
    """Of the machine, by an imported file."""

    tool: list[str]
    hosts: list[str]
    devices: str
    nccl: str
    variables: dict[str, str]


class Session(TypedDict, total=False):
    """What one start of a run recorded of its machine. hosts: of a job; imported: what a file tells."""

    side: str
    host: HostFacts
    hosts: Annotated[list[HostFacts], MinLen(1)]
    job: JobFacts
    before: Snapshot
    after: Snapshot
    launches: list[LaunchFacts]
    imported: Told


# ── manifest.json ────────────────────────────────────────────────────────────────────────────────
class SourceFile(TypedDict):
    """A file that was imported."""

    name: str
    sha256: str


class ImportFacts(TypedDict, total=False):
    """Where the numbers of an imported run come from."""

    tool: list[str]
    files: list[SourceFile]
    statistic: list[str]
    left_out: dict[str, int]
    notes: list[str]
    unknown: list[str]
    verified: dict[str, int]


class Measurements(TypedDict):
    """How many measurements a run has, and how many of them failed; written when a session ends."""

    made: int
    failed: int
    planned: int


class Manifest(TypedDict, total=False):
    """What a run is: its name, times, state, command line; of two sides what each is."""

    name: str
    started: str
    finished: str | None
    status: str
    measurements: Measurements
    argv: list[str]
    overrides: list[str]
    collbench: str
    imported: ImportFacts
    sides: dict[str, dict[str, Any]]
    ab: dict[str, Any]
