"""Define the data that flows through CollBench, in the order in which it flows. Read this module first.

    Machine + configuration ─▶ Plan(Case, Skip, Launch) ─▶ Samples(Timings, Usage, Failure) ─▶ Run

These are facts; the conclusions from them are in `conclusions`. Everything is frozen. Units are bytes and seconds,
or nanoseconds; a plain number has `_bytes`, `_s` or `_ns` in its name. Nothing here reads, computes or formats:
`units` and `report` format.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from bench.model.facts import ImportFacts, Manifest, Session
from bench.model.notices import Notice

if TYPE_CHECKING:  # numpy is only needed where arrays are made: planning and listing start without it
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

Json = dict[str, Any]
# Recorded in place of a fact that could not be read; the fact is never left out.
NOT_AVAILABLE = "not available"
# Load average a core up to which other work hardly takes time from the ranks.
LOAD_LIMIT = 0.25
# What a cgroup's cpu.max says where it sets no quota.
UNLIMITED = "max"
# Allowed names of a run, in letters of any alphabet: the name becomes a part of the names of folders.
NAME_PATTERN = r"[^\W_][\w.-]{0,63}"


# ── the machine ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Machine:
    """What planning needs to know of this host, or of a job's hosts: `machine/host.py` finds it out.

    backends_missing: backend → why it cannot be used here; every other backend can be used.
    gpus: number of CUDA devices that this process may use; in a job, of ranks that have one of their own.
    scheduling_missing: scheduling → why it cannot be used here; any other can be used.
    ranks, ranks_a_host: number of ranks of the job, in all and at most on one host; memory_available_bytes is then
        that of the host with least. None if there is no job: then as many ranks as wanted are started on this host.
    gpu_free_bytes: memory that is free on the GPU with least; None without GPUs, or if NVML does not tell.
    gpu_capability: compute capability of the least GPU, such as 90 for 9.0; None without GPUs, or if it is not told.
    registered_missing: why buffers cannot be registered with NCCL here; None if they can, or without GPUs.
    gpu_exclusive: whether a GPU is in the mode in which only one process at a time may use it.
    torch: its version, such as (2, 13); None if it is not known.
    """

    hostname: str
    cores: int
    memory_available_bytes: int
    last_level_cache_bytes: int
    gpus: int
    backends_missing: dict[str, str]
    scheduling_missing: dict[str, str] = field(default_factory=dict)
    ranks: int | None = None
    ranks_a_host: int | None = None
    gpu_free_bytes: int | None = None
    gpu_capability: int | None = None
    registered_missing: str | None = None
    gpu_exclusive: bool = False
    torch: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Demands:
    """What a configuration or a plan requires of a job.

    gpus: whether each rank needs a GPU of its own, or with shared_gpus any GPU.
    """

    gpus: bool
    shared_gpus: bool


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────
def option(
    default: Any, about: str, words: str = "{}", key: str = "", of: str = "", needs_processes: bool = False
) -> Any:
    """A field of a case that is an option, and what the table of options says of it; see `Option`."""
    row = {"about": about, "words": words, "key": key, "of": of, "needs_processes": needs_processes}
    return field(default=default, metadata=row)


def _by_operation(base: type, source: Any, handler: Any) -> Any:
    """The schema of pydantic for one of the types below; for the base, that of all its types, by their operation."""
    if source is not base:
        return handler(source)
    kinds = {kind.operation: kind for kind in base.__subclasses__()}
    choices = {"": handler(source), **{operation: handler.generate_schema(kind) for operation, kind in kinds.items()}}
    return {"type": "tagged-union", "discriminator": "operation", "choices": choices}


@dataclass(frozen=True)
class OwnOptions:
    """The options that only the cases of one operation have. The package of the operation declares a subclass.

    `catalog.operation.Operation.own` names that subclass. The base is for operations without such options.
    """

    # Name of the operation, by which JSON tells the subclasses apart.
    operation: str = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _by_operation(OwnOptions, source, handler)


@dataclass(frozen=True)
class OwnSettings:
    """The settings of a plan that only the cases of one operation need. The package declares a subclass."""

    # Name of the operation, by which JSON tells the subclasses apart.
    operation: str = ""
    # Number of rounds of a launch, for cases that are compared round by round.
    rounds: int = 10

    def needed_by(self, cases: Sequence[Case]) -> OwnSettings:
        """The settings without what none of these cases names."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _by_operation(OwnSettings, source, handler)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: what all operations have, then the table of options, then the operation's own options.

    An option is declared here, or in the operation's `OwnOptions`, and nowhere else: configurations, keys, plans,
    labels, expectations and documentation read these tables. The key leaves out options at their default.
    """

    op: str
    backend: str
    world_size: int
    dtype: str
    size_bytes: int
    reduce_op: str = option("sum", "how elements are combined", key="reduce_ops", of="reduces")
    buffers: str = option(
        "rotate",
        "which buffers calls use: those of a pool in turn (rotate), one (hot), one that is in no cache (flush), or "
        "those of a pool that are never refilled, so that separate calls are checked where sums grow (reused)",
        "{} buffers",
        key="buffers",
        of="pooled",
    )
    metric: str = option(
        "isolated",
        "what lies between two stamps: one call (isolated), the first call of a new group (first), `depth` calls back "
        "to back (pipelined), or these captured in a CUDA graph (graph)",
        key="metrics",
    )
    scheduling: str = option(
        "normal",
        "how ranks are scheduled: normal; rr: real-time round robin of everything that a rank does; or batch: the "
        "threads of gloo that wait for the network run under SCHED_BATCH",
        "{}",
        key="scheduling",
        needs_processes=True,
    )
    depth: int = option(1, "number of calls, or of steps, back to back")
    placement: str = option(
        "usual", "where results go: in or out of place; usual: what the operation lists first", key="placements"
    )
    call: str = option("sync", "kind of call: sync, or async: waited for before the second stamp", key="calls")
    root: int = option(0, "root of an operation that has one", "root {}", key="roots", of="rooted")
    groups: str = option(
        "world", "which ranks call together: world, or a division of it, such as strided:2", "groups {}", key="groups"
    )
    settings: str = option(
        "",
        "environment variables of the ranks, such as NCCL_ALGO=Ring NCCL_PROTO=LL",
        key="env",
        needs_processes=True,
    )
    ctas: int = option(
        0, "blocks (CTAs) that NCCL may use; 0: its own choice", "{} CTAs", key="ctas", needs_processes=True
    )
    memory: str = option(
        "plain",
        "where buffers come from: plain, registered with NCCL, or symmetric: at the same place on all ranks",
        "{} memory",
        key="memory",
        needs_processes=True,
    )
    load: str = option(
        "none",
        "what other processes do on the ranks' cores meanwhile: none, an endless loop on each (cores), or 10 ms of "
        "computing and 10 ms of sleep in turn (bursts)",
        "load {}",
        key="load",
        needs_processes=True,
    )
    oversubscribed: bool = option(False, "whether ranks share a GPU", "ranks share a GPU", needs_processes=True)
    alignment: str = option(
        "aligned",
        "where buffers begin, and what is received behind what is sent: at multiples of 512 bytes (aligned), or one "
        "element further (unaligned)",
        "{} buffers",
        key="alignments",
        of="pooled",
    )
    splits: str = option(
        "", "how unevenly an all-to-all divides what a rank sends; empty: evenly", "parts {}", "splits", "splits"
    )
    counts: str = option(
        "known",
        "whether sizes of uneven parts are known to the ranks, or exchanged in a call before",
        "counts {}",
        key="counts",
        of="splits",
    )
    own: OwnOptions = OwnOptions()

    asked_bytes: int = field(default=0, compare=False)

    @property
    def asked(self) -> int:
        """The size that was asked for, which `size_bytes` may have rounded down to whole equal shares."""
        return self.asked_bytes or self.size_bytes

    @property
    def key(self) -> str:
        """The only join key between runs, such as `all_reduce/gloo/n4/float32/1048576`."""
        head = f"{self.op}/{self.backend}/n{self.world_size}/{self.dtype}/{self.size_bytes}"
        return "/".join([head, *self.extras])

    @property
    def extras(self) -> list[str]:
        """What differs from the defaults, such as `reduce_op=max`."""
        values = [(option, getattr(self, option.name)) for option in OPTIONS]
        values += [(option, getattr(self.own, option.name)) for option in options_in(type(self.own))]
        return [f"{option.name}={value}" for option, value in values if value != option.default]

    def value(self, name: str) -> Any:
        """The value of a field or of one of the operation's own options; None if the operation has no such option."""
        return getattr(self, name) if name in CASE_FIELDS else getattr(self.own, name, None)

    def with_value(self, name: str, value: Any) -> Case:
        """The case with another value of a field or of one of its operation's own options."""
        if name in CASE_FIELDS:
            return replace(self, **{name: value})
        return replace(self, own=replace(self.own, **{name: value})) if hasattr(self.own, name) else self


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table of options: an optional field of `Case`.

    about: what it is. words: how people read a value. key: under which a configuration lists its values; empty where
    the plan sets it. of: the property of the operations that have it (`catalog.operation.Operation`), or the one
    operation; empty: all.
    needs_processes: cases of different values cannot share processes.
    """

    name: str
    default: Any
    about: str
    words: str
    key: str
    of: str
    needs_processes: bool


def _options_in(kind: Any) -> tuple[Option, ...]:
    return tuple(Option(item.name, item.default, **item.metadata) for item in fields(kind) if item.metadata)


# The table of options in a type: `Case`, or a subclass of `OwnOptions`.
options_in: Callable[[Any], tuple[Option, ...]] = functools.cache(_options_in)
OPTIONS = options_in(Case)
CASE_FIELDS = frozenset(item.name for item in fields(Case))


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


# Processes that have just begun are slower, whatever they call: for so long the cases that a launch measures first are
# warmed up together. By 16 % in the first block of 64 KiB under SCHED_BATCH (± 11 %, 40 launches); so, -1.5 % (± 5 %).
LAUNCH_WARMUP_S = 0.25


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many iterations a case gets.

    iterations: a fixed count; None means adaptive, until `seconds_per_case` are spent, or `max_iterations`, or the
        relative half-width of the interval of the mean is at most `relative_error` (None: no precision is asked for).
    warmup, warmup_s: iterations before the timed ones, and the seconds after which they end early; stored, not used.
    """

    warmup: int
    warmup_s: float
    iterations: int | None
    relative_error: float | None
    seconds_per_case: float
    max_iterations: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault planted on purpose, to test that CollBench notices it. `rank.workload.plant` lists the kinds."""

    do: str
    rank: int
    iteration: int = 0
    world_size: int | None = None
    size_bytes: int | None = None
    launch: int | None = None
    delay_s: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all launches of a plan, and is told to every rank.

    pool_bytes: memory of the buffers that a case uses in turn, on each rank. flush_bytes: memory that `buffers: flush`
        overwrites before each call. batch_bytes: memory that the buffers of cases measured in the same rounds may take,
        on all ranks of a host together. gpu_batch_bytes: likewise on all ranks of a GPU.
    row_by_row: whether only the placements of a case share rounds, and one size follows the other, as in nccl-tests.
    own: operation → what only its cases need.
    """

    sampling: Sampling
    seed: int
    timeout_s: float
    pool_bytes: int
    flush_bytes: int = 0
    batch_bytes: int = 2**32
    gpu_batch_bytes: int = 2**30
    row_by_row: bool = False
    faults: tuple[Fault, ...] = ()
    own: dict[str, OwnSettings] = field(default_factory=dict)

    def rounds_of(self, case: Case) -> int:
        """Number of rounds of a launch of such cases, which are compared round by round."""
        return self.own.get(case.op, OwnSettings()).rounds

    def needed_by(self, cases: Sequence[Case]) -> Settings:
        """The settings with only what the cases need."""
        of_operations = {op: [case for case in cases if case.op == op] for op in self.own}
        own = {op: self.own[op].needed_by(members) for op, members in of_operations.items() if members}
        return replace(self, own=own)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do, fixed and written to its folder before anything starts.

    budget_s: seconds for the whole run; the time left after `launches` launches buys further launches of the cases
        with the widest intervals. link_bytes_per_s: rate of the link, as the user states it.
    """

    name: str
    order: tuple[Launch, ...]
    skips: tuple[Skip, ...]
    launches: int
    settings: Settings
    budget_s: float | None = None
    link_bytes_per_s: float | None = None

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
class Side:
    """What the user asked of one side of `ab`.

    config: its file, as it was written. sets: its overrides. variables: environment variables of its ranks. python:
    absolute path of its interpreter; None: the one that measures. text: all of that as on the command line.
    """

    config: str
    sets: tuple[str, ...]
    variables: dict[str, str]
    python: str | None
    text: str


class EndReason(StrEnum):
    """Why two sides are no longer measured."""

    DECIDED = "decided"
    SAME = "same"
    BUDGET = "budget"
    MOST_PAIRS = "most-pairs"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Ending:
    """When and why the last pair that counts was measured."""

    reason: EndReason
    pairs: int


@dataclass(slots=True)
class AbState:
    """What `ab` was asked for, and how far it is; kept in the manifest after each look.

    undecided: what becomes of no decision: pass, fail or 3. alternate: why launches of A and B alternate; None where
    their ranks take turns.
    looks: number of pairs, and share of the budget that was spent then. decided: the look that named a change; as many
    fresh pairs follow. ended: None before the end.
    """

    min_change: float
    budget_s: float
    each: bool
    undecided: str
    seed: int
    alternate: str | None = None
    spent_s: float = 0.0
    looks: list[tuple[int, float]] = field(default_factory=list)
    decided: Ending | None = None
    ended: Ending | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank of one launch is told.

    probe: time nothing; have NCCL tell what it chooses for each case. turns: before each timed block, wait for the
        turn, because the ranks of another side may be alive, too.
    """

    launch: Launch
    settings: Settings
    probe: bool = False
    turns: bool = False


def case_order(case: Case) -> tuple[object, ...]:
    """Sort key for tables: first the fields that are equal within a table, then world size, then size."""
    extras = (getattr(case, option.name) for option in OPTIONS)
    own = (getattr(case.own, option.name) for option in options_in(type(case.own)))
    ordered = (value if isinstance(value, int | float) else str(value or "") for value in own)
    return (case.op, case.backend, case.metric, case.dtype, *extras, *ordered, case.world_size, case.size_bytes)


# ── what was measured: facts ─────────────────────────────────────────────────────────────────────
FailureKind = Literal["killed", "exited", "raised", "hang", "wrong", "start", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case has no number. A failure is a result and is kept like one; `lost` is no fault of the case.

    rank: the rank that the evidence points to; None if it points to none. suspects: where it points to several ranks
    alike, all of them.
    """

    kind: FailureKind
    rank: int | None
    text: str
    suspects: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Integer nanoseconds, arrays of shape (iterations, ranks). An iteration is `calls` calls back to back.

    start_ns: when each rank began, on the host's monotonic clock, relative to `Samples.base_ns`.
    duration_ns: how long all the calls took on each rank: on CPUs by the host's clock; on GPUs by events, behind other
        work, so that neither dispatching nor waiting for a late rank is in it.
    host_ns: on GPUs only: host time of as many other iterations, from an idle device until it is idle again.
    wait_ns: on GPUs only: how long before the last rank's each rank's device was ready for the calls. All then begin
        together; who waited 0 came last. `start_ns` is the host's there, and says nothing of the device.
    blocks: iterations in each block, in order; other cases were measured between two blocks. Empty where this is not
        known, as in runs of earlier versions.
    inner_start_ns, inner_duration_ns: of a replay, of each of its calls: arrays of shape (iterations, ranks, calls);
        starts are relative to that of the iteration on the same rank. Of an operation of a package: what that says.
    foreign_cpu: of cases that are compared round by round, for each block the share of the machine's CPU time that
        other processes used; -1 where it is unknown.
    """

    start_ns: Integers
    duration_ns: Integers
    host_ns: Integers | None = None
    wait_ns: Integers | None = None
    calls: int = 1
    blocks: tuple[int, ...] = ()
    inner_start_ns: Integers | None = None
    inner_duration_ns: Integers | None = None
    foreign_cpu: tuple[float, ...] = ()

    @property
    def slowest_s(self) -> Floats:
        """Maximum over ranks of each iteration, in seconds a call: the time of a program that waits for all ranks."""
        slowest: Floats = self.duration_ns.max(axis=1) / (1e9 * self.calls)
        return slowest

    @property
    def arrivals_ns(self) -> Integers | None:
        """When each rank was ready, from another zero in each iteration; None where that is not known."""
        if self.host_ns is None:
            return self.start_ns
        return None if self.wait_ns is None else -self.wait_ns


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that one case used on each rank, and on the hosts meanwhile. Lists have one entry a rank.

    machine_busy_s: CPU seconds of all processes on the ranks' hosts, except a parent of ranks. steal_s: CPU seconds
        that the hypervisor gave to others. throttled: periods in which a cgroup's quota was used up. None if the
        kernel does not report them.
    timer_cost_ns: what is measured where nothing is called: two stamps of the host, or two events of a stream.
    floor_ns: time of the same call in a group of one rank, which is the cost of dispatching it; None if not measured.
    dispatch_bound, left_out: iterations, without the warm-up, whose device time has dispatching in it on any rank,
        because its stream ran out of work: those that are among the timed ones, and those that were left out.
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
    dispatch_bound: int | None = None
    left_out: int | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What another tool reports of a case in one launch: one time, and how it was obtained.

    time_s: for one call. statistic: such as "mean of 20 calls back to back, averaged over ranks".
    iterations: number of calls that the time is from; None if the tool does not report it. each_s: the time of each
        call, in each process that the tool tells apart; empty if it does not report them. apart: such a time begins
        when its process calls and ends when its call is over, with a barrier between the calls. Without it, it lasts
        from one call to the next, which is the same for all processes, whoever was late.
    """

    time_s: float
    statistic: str
    iterations: int | None = None
    each_s: tuple[tuple[float, ...], ...] = ()
    apart: bool = False

    @property
    def slowest_s(self) -> tuple[float, ...]:
        """The time of each call, of the slowest process."""
        return tuple(map(max, zip(*self.each_s, strict=True)))


@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """The check of one invariant. ok: None where it does not apply; text then says why."""

    invariant: str
    ok: bool | None
    text: str


@dataclass(frozen=True)
class OwnDetail:
    """What one launch keeps besides times, of cases of one operation. The package declares a subclass."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One case in one launch: a line of `samples.jsonl`. With a `failure`, the rest may be missing.

    unix_s: wall-clock time at which its first block began. base_ns: monotonic time to which `Timings.start_ns` is
        relative.
    aggregate: in place of `timed`, if another tool measured (`importers`).
    checks: the invariants that a package checked before timing. detail: what one launch keeps besides times.
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
    checks: tuple[InvariantCheck, ...] = ()
    detail: OwnDetail | None = None

    @property
    def final(self) -> bool:
        """Whether a resume leaves it as it is: not what was lost by no fault of the case, or did not start."""
        return self.failure is None or self.failure.kind not in {"lost", "start"}


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a results folder. environment: one entry a session (a resume is a further session).

    kept: name of a package → what it keeps in the folder (`catalog.package.KeptFile`).
    """

    path: Path
    manifest: Manifest
    plan: Plan
    environment: list[Session]
    samples: list[Samples]
    notices: tuple[Notice, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}:{self.path.name}" if "side" in self.manifest else self.path.name

    @property
    def imported(self) -> ImportFacts | None:
        """What the manifest says of the source of the numbers, if another tool measured them; else None."""
        return self.manifest.get("imported")
