"""Define the data that flows through CollBench, in the order in which it flows. Read this module first.

    Machine + configuration ─▶ Plan(Case, Skip, Launch) ─▶ Samples(Timings, Usage, Failure) ─▶ Run

These are facts; the conclusions from them are in `conclusions`. Everything is frozen. Units are bytes and seconds,
or nanoseconds; a plain number has `_bytes`, `_s` or `_ns` in its name. Nothing here reads, computes or formats:
`units` and `report` format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # numpy is only needed where arrays are made: planning and listing start without it
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

Json = dict[str, Any]
# Recorded in place of a fact that could not be read; the fact is never left out.
NOT_AVAILABLE = "not available"
# More ranks than any cluster has; a larger number is a typing error.
MOST_RANKS = 65536
# Allowed names of a run: the name becomes a part of the names of folders.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


# Fields of a case that are in its key only if they differ from the default.
CASE_EXTRAS = (
    "reduce_op", "buffers", "metric", "scheduling", "depth",
    "placement", "call", "root", "groups", "settings", "ctas", "memory", "oversubscribed", "alignment",
    "splits", "counts", "recording",
)  # fmt: skip


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. Fields with a default are written into the key only if they differ from it.

    metric: "isolated", one call between two stamps; "pipelined", `depth` calls back to back between them; or "graph",
        these calls captured in a CUDA graph.
    scheduling: "normal", or "rr" for real-time round robin of everything that a rank does.
    placement: "usual" is the first one that the table of operations lists; else "in" or "out" of place.
    call: "sync", or "async": the call returns a handle, which is waited for before the second stamp.
    root: of a rooted operation. groups: "world", or a division of it (`subgroups.Subgroups`), such as "strided:2".
    settings: environment variables of the ranks, such as "NCCL_ALGO=Ring NCCL_PROTO=LL". ctas: how many blocks NCCL
    may use, 0 for its own choice. memory: "plain", "registered" with NCCL, or "symmetric": registered at
    the same place on all ranks. oversubscribed: ranks share a GPU.
    alignment: "aligned": buffers, and what is received behind what is sent, begin at multiples of 512 bytes; or
        "unaligned": one element further.
    splits: how unevenly an all-to-all divides what a rank sends (`splits`), such as "zipf:1.2"; empty: evenly.
    counts: "known" to the ranks, or "exchanged": sent in a call of their own before the data.
    recording: of a replay, the hash of its calls and their number, such as "5f0c2a91d3be:52" (`Plan.replays`).
    """

    op: str
    backend: str
    world_size: int
    dtype: str
    size_bytes: int
    reduce_op: str = "sum"
    buffers: str = "rotate"
    metric: str = "isolated"
    scheduling: str = "normal"
    depth: int = 1
    placement: str = "usual"
    call: str = "sync"
    root: int = 0
    groups: str = "world"
    settings: str = ""
    ctas: int = 0
    memory: str = "plain"
    oversubscribed: bool = False
    alignment: str = "aligned"
    splits: str = ""
    counts: str = "known"
    recording: str = ""

    @property
    def key(self) -> str:
        """The only join key between runs, such as `all_reduce/gloo/n4/float32/1048576`.

        A field at its default is left out, so that runs made before the field existed still match.
        """
        head = f"{self.op}/{self.backend}/n{self.world_size}/{self.dtype}/{self.size_bytes}"
        return "/".join([head, *self.extras])

    @property
    def extras(self) -> list[str]:
        """What differs from the defaults, such as `reduce_op=max`."""
        values = ((name, getattr(self, name)) for name in CASE_EXTRAS)
        return [f"{name}={value}" for name, value in values if value != Case.__dataclass_fields__[name].default]


def settings_of(case: Case) -> list[tuple[str, str]]:
    """Name and value of each environment variable that ranks set for a case; an empty value unsets it."""
    pairs = (setting.partition("=") for setting in case.settings.split())
    return [(name, value) for name, _, value in pairs]


@dataclass(frozen=True, slots=True)
class Skip:
    """A case that was asked for and will not be measured, with the reason."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Cases that one set of fresh processes measures, in this order. number: the launch, counted from 1."""

    backend: str
    world_size: int
    number: int
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many iterations a case gets.

    iterations: a fixed count; None means adaptive, until the relative half-width of the interval of
        the median is at most `relative_error`, or `seconds_per_case` are spent, or `max_iterations`.
    warmup, warmup_s: so many iterations come before, but no longer than these seconds; stored, not used.
    """

    warmup: int
    warmup_s: float
    iterations: int | None
    relative_error: float
    seconds_per_case: float
    max_iterations: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault planted on purpose, to test that CollBench notices it. `rank.faults` lists the kinds."""

    do: str
    rank: int
    iteration: int = 0
    world_size: int | None = None
    size_bytes: int | None = None
    launch: int | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call of a recorded job as it is made again.

    case: its position in `Replay.cases`. after: earlier asynchronous calls, by position, that are waited for before it.
    pause_s: how long the rank does something else then.
    start_s, recorded_s: when it began to run in the recording, since the first call, and how long it ran; None if that
    was not told. stream: on which it ran.
    """

    case: int
    after: tuple[int, ...] = ()
    pause_s: float = 0.0
    start_s: float | None = None
    recorded_s: float | None = None
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """The calls of a recorded job that a case makes, as `replays` made them from the recording.

    cases: the distinct calls. source: the recording, in words. recorded_world: ranks that it is of; None if that was
    not told. rank: whose calls they are. gaps: whether pauses are as recorded. changes: sentences on what is not as
    recorded.
    """

    source: str
    cases: tuple[Case, ...]
    calls: tuple[ReplayedCall, ...]
    recorded_world: int | None = None
    rank: int | None = None
    gaps: bool = False
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do, fixed and written to its folder before anything starts.

    budget_s: seconds for the whole run; the time left after `launches` launches buys further launches of the cases
        with the widest intervals. link_bytes_per_s: rate of the link, as the user states it.
    pool_bytes: memory of the buffers that a case uses in turn, on each rank. flush_bytes: memory that `buffers: flush`
        overwrites before each call. batch_bytes: memory that the buffers of cases measured in the same rounds may take,
        on all ranks of a host together. replays: `Case.recording` → the calls of a replay.
    """

    name: str
    order: tuple[Launch, ...]
    skips: tuple[Skip, ...]
    launches: int
    seed: int
    sampling: Sampling
    timeout_s: float
    pool_bytes: int
    faults: tuple[Fault, ...] = ()
    budget_s: float | None = None
    link_bytes_per_s: float | None = None
    flush_bytes: int = 0
    batch_bytes: int = 2**32
    replays: dict[str, Replay] = field(default_factory=dict)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The distinct cases, by operation, backend, dtype, world size and size."""
        distinct = {case.key: case for launch in self.order for case in launch.cases}
        return tuple(sorted(distinct.values(), key=case_order))

    @property
    def total(self) -> int:
        """Measurements to make: cases times launches."""
        return sum(len(launch.cases) for launch in self.order)


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank of one launch is told. log: path of the file into which ranks print.

    probe: time nothing; have NCCL tell what it chooses for each case.
    """

    launch: Launch
    sampling: Sampling
    seed: int
    pool_bytes: int
    timeout_s: float
    faults: tuple[Fault, ...]
    log: str
    flush_bytes: int = 0
    batch_bytes: int = 2**32
    probe: bool = False
    replays: dict[str, Replay] = field(default_factory=dict)


def case_order(case: Case) -> tuple[object, ...]:
    """Sort key for tables: first the fields that are equal within a table, then world size, then size."""
    extras = (getattr(case, name) for name in CASE_EXTRAS)
    return (case.op, case.backend, case.metric, case.dtype, *extras, case.world_size, case.size_bytes)


# ── what was measured: facts ─────────────────────────────────────────────────────────────────────
FailureKind = Literal["killed", "exited", "raised", "hang", "wrong", "start", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case has no number. A failure is a result and is kept like one.

    rank: the rank that the evidence points to; None if it points to none.
    """

    kind: FailureKind
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Integer nanoseconds, arrays of shape (iterations, ranks). An iteration is `calls` calls back to back.

    start_ns: when each rank began, on the host's monotonic clock, relative to `Samples.base_ns`.
    duration_ns: how long all the calls took on each rank: on CPUs by the host's clock; on GPUs by events, behind other
        work, so that neither dispatching nor waiting for a late rank is in it.
    host_ns: on GPUs only: host time of as many other iterations, from an idle device until it is idle again.
    blocks: iterations in each block, in order; other cases were measured between two blocks. Empty where this is not
        known, as in runs of earlier versions.
    inner_start_ns, inner_duration_ns: of a replay, of each of its calls: arrays of shape (iterations, ranks, calls);
        starts are relative to that of the iteration on the same rank.
    """

    start_ns: Integers
    duration_ns: Integers
    host_ns: Integers | None = None
    calls: int = 1
    blocks: tuple[int, ...] = ()
    inner_start_ns: Integers | None = None
    inner_duration_ns: Integers | None = None

    @property
    def slowest_s(self) -> Floats:
        """Maximum over ranks of each iteration, in seconds a call: the time of a program that waits for all ranks."""
        slowest: Floats = self.duration_ns.max(axis=1) / (1e9 * self.calls)
        return slowest


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that one case used on each rank, and on the hosts meanwhile. Lists have one entry a rank.

    machine_busy_s: CPU seconds of all processes on the ranks' hosts, except a parent of ranks. steal_s: CPU seconds
        that the hypervisor gave to others. throttled: periods in which a cgroup's quota was used up. None if the
        kernel does not report them.
    floor_ns: time of the same call in a group of one rank, which is the cost of dispatching it. dispatch_bound:
        iterations whose device time has dispatching in it, because the stream ran out of work. None if they were not
        measured.
    """

    wall_s: float
    cpu_s: list[float]
    involuntary_switches: list[int]
    peak_rss_bytes: list[int]
    buffer_bytes: int
    timer_cost_ns: list[float]
    machine_busy_s: float | None
    steal_s: float | None
    throttled: int | None = None
    floor_ns: list[float] | None = None
    dispatch_bound: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What another tool reports of a case in one launch: one time, and how it was obtained.

    time_s: for one call. statistic: such as "mean of 20 calls back to back, averaged over ranks".
    iterations: number of calls that the time is from; None if the tool does not report it. each_s: the time of each
        call, of the slowest process; empty if the tool does not report them.
    """

    time_s: float
    statistic: str
    iterations: int | None = None
    each_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Samples:
    """One case in one launch: a line of `samples.jsonl`. With a `failure`, the rest may be missing.

    unix_s: wall-clock time at which its first block began. base_ns: monotonic time to which `Timings.start_ns` is
        relative.
    aggregate: in place of `timed`, if another tool measured (`importers`).
    """

    case: Case
    launch: int
    unix_s: float
    base_ns: int = 0
    warmup: Timings | None = None
    timed: Timings | None = None
    stopped_by: str | None = None
    usage: Usage | None = None
    failure: Failure | None = None
    aggregate: Aggregate | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a results folder. environment: one entry a session (a resume is a further session)."""

    path: Path
    manifest: Json
    plan: Plan
    environment: list[Json]
    samples: list[Samples]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}:{self.path.name}" if "side" in self.manifest else self.path.name

    @property
    def facts(self) -> list[Samples]:
        """The samples, under the name that the runs of all benchmarks share."""
        return self.samples

    @property
    def imported(self) -> Json | None:
        """What the manifest says of the source of the numbers, if another tool measured them; else None."""
        source = self.manifest.get("imported")
        return source if isinstance(source, dict) else None
