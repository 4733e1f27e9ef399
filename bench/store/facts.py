"""Check the shape of what a run's folder says of the run and its machine: manifest.json and environment.json.

In: what was read of a file, which anybody may have written. Out: nothing; ValueError for a value of another type than
those that are read later, so that what computes and prints need not ask again. Further keys are allowed.
"""

from datetime import datetime
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from bench.model.recorded_calls import MOST_RANKS
from bench.model.records import Json

Fact = str | int | float | bool | None
Facts = dict[str, Fact]
Words = Annotated[str, StringConstraints(pattern=r"\S")]
Ranks = Annotated[int, Field(ge=0, le=MOST_RANKS)]
Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]
# Of a rank, such as `cuda:3` or `cpu`.
Device = Annotated[str, StringConstraints(pattern=r"^[a-z]+(:\d{1,4})?$")]
# At, low and high end, in ns, of each rank: at the start of a launch and at its end.
Clock = Annotated[list[Whole], Field(min_length=3, max_length=3)]
Clocks = Annotated[list[Annotated[list[Clock], Field(min_length=1)]], Field(min_length=2, max_length=2)]


def _with_zone(text: str) -> str:
    if datetime.fromisoformat(text).utcoffset() is None:
        raise ValueError("a time without its zone")
    return text


Moment = Annotated[str, AfterValidator(_with_zone)]


# ── environment.json ─────────────────────────────────────────────────────────────────────────────
class _Snapshot(TypedDict, total=False):
    load: Annotated[list[float], Field(min_length=1)]
    gpus: list[Facts] | None


class _Cpu(TypedDict, total=False):
    model: Fact
    usable_cores: int
    logical_cores: Fact
    last_level_cache_bytes: Fact
    governor: Fact
    hypervisor: Fact


class _Gpu(TypedDict, total=False):
    name: Fact
    uuid: Fact
    driver: Fact
    nvlinks: list[int]


class _Host(TypedDict, total=False):
    hostname: str
    packages: Facts
    cpu: _Cpu
    memory_bytes: Whole
    cgroup_cpu_max: Words
    gpus: list[_Gpu]
    infiniband: list[Facts]
    variables: dict[str, str]
    cores: list[int]
    ranks: list[int]
    fewest_cores: int
    before: _Snapshot
    after: _Snapshot


class _Rank(TypedDict, total=False):
    rank: Ranks
    hostname: str | None
    pid: Whole
    device: Device
    device_name: Fact
    device_uuid: Fact
    nccl: str | None
    mpi: str | None
    clock: Fact


class _Health(TypedDict, total=False):
    gpus: dict[str, dict[str, Whole]]
    infiniband: dict[str, dict[str, Whole]]


class _Launch(TypedDict, total=False):
    backend: str
    world_size: Ranks
    launch: int
    clocks: Clocks | None
    remarks: list[str]
    health: dict[str, _Health]
    ranks: list[_Rank]
    chosen: dict[str, Json]


class _Job(TypedDict):
    launcher: str
    ranks: Ranks


class _Told(TypedDict, total=False):
    """Of the machine, by an imported file."""

    tool: list[str]
    hosts: list[str]
    devices: str
    nccl: str
    variables: dict[str, str]


class _Session(TypedDict, total=False):
    side: str
    host: _Host
    hosts: Annotated[list[_Host], Field(min_length=1)]
    job: _Job
    before: _Snapshot
    after: _Snapshot
    launches: list[_Launch]
    imported: _Told


# ── manifest.json ────────────────────────────────────────────────────────────────────────────────
class _File(TypedDict):
    name: str
    sha256: str


class _Imported(TypedDict, total=False):
    tool: list[str]
    files: list[_File]
    statistic: list[str]
    left_out: dict[str, int]
    notes: list[str]
    unknown: list[str]
    verified: dict[str, int]


class _Manifest(TypedDict, total=False):
    name: str
    started: Moment
    finished: Moment | None
    status: str
    argv: list[str]
    overrides: list[str]
    collbench: str
    imported: _Imported
    sides: dict[str, Json]
    ab: Json


def check_manifest(manifest: Json) -> None:
    """Raise ValueError, with the key, for a manifest that is not as one is written."""
    _check(_Manifest, manifest)


def check_environment(sessions: list[Any]) -> None:
    """Raise ValueError, with the key, for sessions that are not as they are written."""
    _check(list[_Session], sessions)
    for number, session in enumerate(sessions):
        if "job" in session and "hosts" not in session:
            raise ValueError(f"{number}.hosts: a job has hosts")
        for launch in session.get("launches", []):
            if launch.get("clocks") and {len(moment) for moment in launch["clocks"]} != {launch.get("world_size")}:
                raise ValueError(f"{number}.launches: the clocks are not those of all ranks")


def _check(kind: Any, value: Any) -> None:
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
