"""Define the data that flows through CollBench, in the order in which it flows. Read this module first.

    Machine + configuration ─▶ Plan(Case, Skip, Launch) ─▶ Samples(Timings, Usage, Failure) ─▶ Run

These are facts; the conclusions from them are in `conclusions`. Everything is frozen. Units are bytes and seconds,
or nanoseconds; a plain number has `_bytes`, `_s` or `_ns` in its name. Nothing here reads, computes or formats:
`units` and `report` format.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Gt, Le

from collbench.model.divisions import WORLD, Division, Splits
from collbench.model.facts import ImportFacts, Manifest, Session
from collbench.model.notices import Notice
from collbench.model.results import fact
from collbench.model.units import MOST_ELEMENTS, MOST_RANKS

if TYPE_CHECKING:  # numpy is only needed where arrays are made: planning and listing start without it
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

Json = dict[str, Any]
# A number of elements or bytes.
Amount = Annotated[int, Ge(0), Le(MOST_ELEMENTS)]
# A number of things of which there is at least one.
Count = Annotated[int, Gt(0), Le(MOST_ELEMENTS)]


# ── how records are stored ───────────────────────────────────────────────────────────────────────
# `store.encoding` makes JSON of records with pydantic, which is imported only there. The following is for it.
class _ListPerRank:
    """Metadata of an array of times, whose first axes are iterations and ranks: it is stored as one list per rank."""

    @staticmethod
    def __get_pydantic_core_schema__(*_: object) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(lambda array: array.swapaxes(0, 1).tolist())
        return core_schema.no_info_plain_validator_function(_array, serialization=written)


def _array(ranks: Any) -> Integers:
    """Return times as an array; raises ValueError if they are not one list per rank."""
    import numpy as np  # here, so that `list` and `plan` start without it

    array = np.array(ranks, dtype=np.int64)
    if array.ndim < 2:
        raise ValueError("expected one list of times per rank")
    return array.swapaxes(0, 1)


if not TYPE_CHECKING:
    Integers = Annotated[Any, _ListPerRank]


def _without_defaults(source: Any, handler: Any, always: str = "") -> Any:
    """Return the pydantic schema of a record whose fields are not written at their defaults, except field `always`."""
    from pydantic_core import core_schema

    usual = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(source)
    }

    def written(record: Any, plain: Callable[[Any], Json]) -> Json:
        return {
            name: value
            for name, value in plain(record).items()
            if name == always or not _is(getattr(record, name), usual[name])
        }

    schema = handler(source)
    schema["serialization"] = core_schema.wrap_serializer_function_ser_schema(written)
    return schema


def _is(value: Any, usual: Any) -> bool:
    """Return whether a field has its default; an array has none but None."""
    return value is usual or (usual is not None and usual is not MISSING and value == usual)


# Recorded in place of a fact that could not be read; the fact is never left out.
NOT_AVAILABLE = "not available"
# Value of an environment variable that is set for some ranks only, or in one of two sessions.
NOT_SET = "not set"
# Load average per core up to which other work hardly takes time from the ranks.
LOAD_LIMIT = 0.25
# Value of a cgroup's cpu.max that sets no quota.
UNLIMITED = "max"
# Allowed names of a run, in letters of any alphabet: the name becomes a part of the names of folders.
NAME_PATTERN = r"[^\W_][\w.-]{0,63}"


# ── the machine ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about this host, or about the hosts of a job, that planning needs. `machine/host.py` reads them."""

    hostname: str
    cores: int
    # In a job, the available memory of the host with the least.
    memory_available_bytes: int
    last_level_cache_bytes: int
    # Number of CUDA devices that this process may use; in a job, number of ranks that have a GPU of their own.
    gpus: int
    # Maps a backend to the reason why it cannot be used here. Every other backend can be used.
    backends_missing: dict[str, Notice]
    # Maps a scheduling to the reason why it cannot be used here. Every other scheduling can be used.
    scheduling_missing: dict[str, Notice] = field(default_factory=dict)
    # Number of ranks of the job; None without a job: then this host starts the wanted number of ranks.
    ranks: int | None = None
    # Largest number of ranks of the job on one host; None without a job.
    ranks_a_host: int | None = None
    # Free memory of the GPU with the least; None without GPUs, or if NVML does not report it.
    gpu_free_bytes: int | None = None
    # Lowest compute capability of the GPUs, such as 90 for 9.0; None without GPUs, or if it is not reported.
    gpu_capability: int | None = None
    # Reason why buffers cannot be registered with NCCL here; None if they can, or without GPUs.
    registered_missing: Notice | None = None
    # True if a GPU is in the mode in which only one process at a time may use it.
    gpu_exclusive: bool = False
    # Version of torch, such as (2, 13); None if it is not known.
    torch: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Demands:
    """The requirements of a configuration or a plan on a job."""

    # True if each rank needs a GPU: one of its own, or any GPU with `shared_gpus`.
    gpus: bool
    shared_gpus: bool


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The key of a configuration that lists values of an option; without a name, the plan sets the value."""

    name: str = ""
    # Examples of what is written behind the key; the first one is in messages, too.
    examples: tuple[object, ...] = ()
    # Behind it is a list of values, one value, either of them, or all: a list, or the word `all` for every rank.
    takes: Literal["list", "one", "either", "all"] = "list"
    # Word for a value in messages; empty: the name of the option.
    noun: str = ""
    # Default of the key, if that is not the option's.
    usual: Any = None
    # Limits of a number.
    least: float = 0
    most: float | None = None
    # True if few users need the key.
    advanced: bool = False
    # Key behind which it stands in the documentation; empty: behind the key of the option before.
    after: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table of options: an optional field of `Case`."""

    name: str
    default: Any
    # Meaning of the option.
    about: str
    # Format in which people read a value, or a function that writes it.
    words: str | Callable[[Any], str] = "{}"
    key: ConfigKey = ConfigKey()
    # Names that the value may have; a text without them is a name in the catalogue's table of the option.
    names: tuple[str, ...] = ()
    # Property of the operations that have the option (`catalog.operation.Operation`); empty if all have it.
    of: str = ""
    # True if cases with different values cannot share processes.
    needs_processes: bool = False
    # True if labels name the value directly after the operation.
    first: bool = False

    @property
    def sentence(self) -> str:
        """Return the meaning of the option as a sentence."""
        return f"{self.about[0].upper()}{self.about[1:]}."

    def in_words(self, value: Any) -> str:
        """Return a value in words for people; empty if the value is None."""
        if value is None:
            return ""
        return self.words(value) if callable(self.words) else self.words.format(value)


def option(default: Any, about: str, words: str | Callable[[Any], str] = "{}", **row: Any) -> Any:
    """Declare a field of a case that is an option, with its row in the table of options. row: fields of `Option`."""
    return field(default=default, metadata={"about": about, "words": words, **row})


T = TypeVar("T")


def of_operation(base: type[T], operation: str) -> type[T]:
    """Return the subclass of `base` that a package declares for its operation; `base` itself for other operations."""
    return next((kind for kind in base.__subclasses__() if vars(kind).get("operation") == operation), base)


def _by_operation(base: type, source: Any, handler: Any) -> Any:
    """Return the pydantic schema of a type below; for the base, the schema of all its subclasses, by operation."""
    if source is not base:
        return handler(source)
    kinds = {kind.operation: kind for kind in base.__subclasses__()}
    choices = {"": handler(source), **{operation: handler.generate_schema(kind) for operation, kind in kinds.items()}}
    return {"type": "tagged-union", "discriminator": "operation", "choices": choices}


@dataclass(frozen=True, slots=True, order=True)
class Variables:
    """Environment variables that ranks set for themselves."""

    # Names and values; an empty value unsets a variable.
    pairs: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the variables as text, such as `NCCL_ALGO=Ring NCCL_PROTO=LL`."""
        return " ".join(f"{name}={value}" for name, value in self.pairs)


@dataclass(frozen=True)
class OwnOptions:
    """The options that only the cases of one operation have. The package of the operation declares a subclass.

    The base is for operations without such options.
    """

    # What its cases make back to back, in one word; the name of the operation, by which JSON distinguishes subclasses.
    UNIT: ClassVar[str] = "call"
    operation: str = ""

    @property
    def shared(self) -> OwnOptions:
        """Return the options that all cases of a round share. A skip with these options is a skip of all of them."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        if source is OwnOptions:
            return _by_operation(OwnOptions, source, handler)
        return _without_defaults(source, handler, always="operation")


@dataclass(frozen=True)
class OwnSettings:
    """The settings of a plan that only the cases of one operation need. The package declares a subclass."""

    # Name of the operation, by which JSON distinguishes the subclasses.
    operation: str = ""
    # Number of rounds of a launch, for cases that are compared with a reference.
    rounds: int = 10
    # For such cases: a timed block is left out if other processes use more than this share of the machine's CPU time.
    max_foreign_cpu: float = 0.06
    # Key of what such cases share → bytes of memory that a rank takes for all of them, where that is known.
    scene_bytes: dict[str, int] = field(default_factory=dict)

    def needed_by(self, cases: Sequence[Case]) -> OwnSettings:
        """Return the settings, reduced to the parts that these cases name."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _by_operation(OwnSettings, source, handler)


@dataclass(frozen=True, slots=True)
class Case:
    """One case to measure: fields of all operations, then the table of options, then the operation's own options.

    An option is declared here, or in the operation's `OwnOptions`, and nowhere else: configurations, keys, plans,
    labels, expectations and documentation read these tables. The key leaves out options at their default.
    """

    op: str
    backend: str
    world_size: Annotated[int, Gt(0), Le(MOST_RANKS)]
    dtype: str
    size_bytes: Amount
    reduce_op: str = option(
        "sum",
        "how elements are combined",
        key=ConfigKey("reduce_ops", (["sum", "max"],), after="dtypes"),
        of="reduces",
    )
    buffers: str = option(
        "rotate",
        "which buffers calls use: those of a pool in turn (rotate), one (hot), one that is in no cache (flush), or "
        "those of a pool, never refilled, as in nccl-tests (reused; where sums grow, separate calls are checked)",
        "{} buffers",
        key=ConfigKey("buffers", ("hot",), "one", "buffer policy", after="launches"),
        names=("rotate", "hot", "flush", "reused"),
        of="pooled",
    )
    metric: str = option(
        "isolated",
        "what an iteration times: one call (isolated), the first call of a new group (first), calls back to back "
        "(pipelined), or these in a CUDA graph (graph)",
        key=ConfigKey("metrics", (["isolated", "pipelined"],), after="buffer_pool"),
    )
    scheduling: str = option(
        "normal",
        "how ranks are scheduled: as usual (normal), under real-time round robin (rr), or with gloo's threads for the "
        "network under SCHED_BATCH, so that they preempt no thread when they wake (batch)",
        key=ConfigKey("scheduling", ("batch", ["normal", "batch"]), "either", after="pipeline_depth"),
        names=("normal", "batch", "rr"),
        needs_processes=True,
    )
    depth: int = option(1, "number of calls, or of steps, back to back")
    placement: str = option(
        "usual",
        "where results go: in place, out of place, as is usual for the operation, or the other way by a copy: copied",
        key=ConfigKey("placements", (["in", "out"],), advanced=True, after="sizes"),
        names=("usual", "in", "out", "copied"),
    )
    call: str = option(
        "sync",
        "kind of call: sync, or async, which returns a handle; the timed region ends when waiting for it does",
        key=ConfigKey("calls", (["sync", "async"],), noun="kind of call", advanced=True),
        names=("sync", "async"),
    )
    root: Annotated[int, Ge(0)] = option(
        0,
        "root of an operation that has one",
        "root {}",
        key=ConfigKey("roots", ([0, 1], "all"), "all", advanced=True),
        of="rooted",
    )
    groups: Division = option(
        WORLD,
        "which ranks call together: world, or contiguous:K or strided:K for groups of K ranks; with :serial behind it, "
        "one group calls after the other",
        "groups {}",
        key=ConfigKey("groups", (["world", "strided:2"],), advanced=True),
    )
    settings: Variables = option(
        Variables(),
        "environment variables of the ranks, such as NCCL_ALGO=Ring NCCL_PROTO=LL",
        key=ConfigKey("env"),
        needs_processes=True,
    )
    memory: str = option(
        "plain",
        "where buffers come from: torch (plain), NCCL, which allocates and registers them (registered), or windows at "
        "the same place on all ranks (symmetric)",
        "{} memory",
        key=ConfigKey("memory", (["plain", "registered"],), noun="kind of memory", advanced=True),
        names=("plain", "registered", "symmetric"),
        needs_processes=True,
    )
    oversubscribed: bool = option(False, "whether ranks share a GPU", "ranks share a GPU", needs_processes=True)
    alignment: str = option(
        "aligned",
        "where buffers begin: at multiples of 512 bytes (aligned), or one element further (unaligned)",
        "{} buffers",
        key=ConfigKey("alignments", (["aligned", "unaligned"],), advanced=True),
        names=("aligned", "unaligned"),
        of="pooled",
    )
    splits: Splits | None = option(
        None,
        "how an all-to-all divides what each rank sends, such as zipf:1.2; empty: evenly",
        "parts {}",
        key=ConfigKey("splits"),
        of="splits",
    )
    own: OwnOptions = OwnOptions()

    asked_bytes: Amount = field(default=0, compare=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _without_defaults(source, handler)

    @property
    def asked(self) -> int:
        """Return the requested size, which `size_bytes` may have rounded down to whole equal shares."""
        return self.asked_bytes or self.size_bytes

    @property
    def key(self) -> str:
        """Return the only join key between runs, such as `all_reduce/gloo/n4/float32/1048576`."""
        head = f"{self.op}/{self.backend}/n{self.world_size}/{self.dtype}/{self.size_bytes}"
        return "/".join([head, *self.extras])

    @property
    def extras(self) -> list[str]:
        """Return the options that differ from their defaults, such as `reduce_op=max`."""
        values = [(option, getattr(self, option.name)) for option in OPTIONS]
        values += [(option, getattr(self.own, option.name)) for option in options_in(type(self.own))]
        return [f"{option.name}={value}" for option, value in values if value != option.default]

    @property
    def shared(self) -> Case:
        """Return the case with only those own options that all cases of a round share."""
        return replace(self, own=self.own.shared)

    def value(self, name: str) -> Any:
        """Return the value of a field or of an own option of the operation; None if it has no such option."""
        return getattr(self, name) if name in CASE_FIELDS else getattr(self.own, name, None)


# The table of options in a type: `Case`, or a subclass of `OwnOptions`.
options_in: Callable[[Any], tuple[Option, ...]] = functools.cache(
    lambda kind: tuple(Option(item.name, item.default, **item.metadata) for item in fields(kind) if item.metadata)
)
OPTIONS = options_in(Case)
CASE_FIELDS = frozenset(item.name for item in fields(Case))


@dataclass(frozen=True, slots=True)
class Skip:
    """A case that was asked for and will not be measured, with the reason."""

    case: Case = fact("of the case", name="key")
    reason: Notice = fact("why it is not measured")


@dataclass(frozen=True, slots=True)
class Launch:
    """Cases that one set of fresh processes measures, in the order of `cases`."""

    backend: str
    world_size: int
    # Number of the launch, counted from 1.
    number: int
    cases: tuple[Case, ...]


# Joint warm-up of the first cases of a launch, because fresh processes are slower in every call: the first block of
# 64 KiB under SCHED_BATCH is 16 % slower without it (± 11 %, 40 launches), and -1.5 % with it (± 5 %).
LAUNCH_WARMUP_S = 0.25


@dataclass(frozen=True, slots=True)
class Sampling:
    """The number of iterations that a case gets.

    Iterations are adaptive if `iterations` is None. They then end when `seconds_per_case` are spent, when there are
    `max_iterations`, or when the relative half-width of the interval of the mean is at most `relative_error`.
    """

    # Iterations before the timed ones. Their times are stored and not used.
    warmup: int
    # Seconds after which the warm-up ends early.
    warmup_s: float
    # Fixed number of iterations; None if the number is adaptive.
    iterations: int | None
    # None if no precision is asked for.
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
    """Settings that all launches of a plan share. Every rank receives them."""

    sampling: Sampling
    seed: int
    timeout_s: float
    # Memory of the pool of buffers that a case uses in turn, on each rank.
    pool_bytes: int
    # Memory that `buffers: flush` overwrites before each call.
    flush_bytes: int = 0
    # Most memory for the buffers of cases that share rounds, on all ranks of a host together.
    batch_bytes: int = 2**32
    # Most memory for the buffers of such cases on all ranks of a GPU together.
    gpu_batch_bytes: int = 2**30
    # True if only the placements of a case share rounds, and one size follows the other, as in nccl-tests.
    row_by_row: bool = False
    faults: tuple[Fault, ...] = ()
    # Name of an operation → settings that only its cases need.
    own: dict[str, OwnSettings] = field(default_factory=dict)

    def own_of(self, case: Case) -> OwnSettings:
        """Return the settings that only cases of this operation need."""
        return self.own.get(case.op, OwnSettings())

    def needed_by(self, cases: Sequence[Case]) -> Settings:
        """Return the settings with only the parts that the cases need."""
        by_operation = {op: [case for case in cases if case.op == op] for op in self.own}
        own = {op: self.own[op].needed_by(members) for op, members in by_operation.items() if members}
        return replace(self, own=own)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run will do. The plan is fixed and written to the folder of the run before anything starts."""

    name: str
    order: tuple[Launch, ...]
    skips: tuple[Skip, ...]
    launches: int
    settings: Settings
    # Seconds for the whole run; None without a budget. If time is left after `launches` launches, the cases with the
    # widest intervals get further launches.
    budget_s: float | None = None
    # Rate of the link, as the user states it.
    link_bytes_per_s: float | None = None
    # What a user should know before measuring, from the sections of packages.
    notices: tuple[Notice, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return the distinct cases in the order of `case_order`."""
        distinct = {case.key: case for launch in self.order for case in launch.cases}
        return tuple(sorted(distinct.values(), key=case_order))

    @property
    def total(self) -> int:
        """Return the number of measurements to make: cases times launches."""
        return sum(len(launch.cases) for launch in self.order)


@dataclass(frozen=True, slots=True)
class Side:
    """The user's request for one side of `ab`."""

    # File of the configuration, as the user wrote it.
    config: str
    # Overrides of the configuration.
    sets: tuple[str, ...]
    # Environment variables of the ranks.
    variables: dict[str, str]
    # Absolute path of the interpreter; None means the interpreter that measures.
    python: str | None
    # The whole request, as on the command line.
    text: str


class EndReason(StrEnum):
    """The reason why the measurement of two sides ended."""

    DECIDED = "decided"
    SAME = "same"
    BUDGET = "budget"
    MOST_PAIRS = "most-pairs"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the measurement of two sides: its reason, and the number of pairs that count."""

    reason: EndReason
    pairs: int


class Undecided(StrEnum):
    """The exit code of a comparison without a decision: 0, 1 or 3."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    THREE = "3"


@dataclass(slots=True)
class AbState:
    """The request and the progress of `ab`. The manifest stores them after each look."""

    min_change: float
    budget_s: float
    each: bool
    undecided: Undecided
    seed: int
    # Reason why launches of A and B alternate; None if the ranks of A and B take turns.
    alternate: Notice | None = None
    spent_s: float = 0.0
    # For each look, the number of pairs and the share of the budget that was spent then.
    looks: list[tuple[Count, Annotated[float, Ge(0), Le(1)]]] = field(default_factory=list)
    # The look that named a change; the same number of fresh pairs follows. None before such a look.
    decided: Ending | None = None
    # None before the end.
    ended: Ending | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The instructions that every rank of one launch receives."""

    launch: Launch
    settings: Settings
    # True if the ranks time nothing, and NCCL reports its choice for each case.
    probe: bool = False
    # Time for the calls of each case, in seconds, if the ranks wait for their turn before each block, because the ranks
    # of another side may also be alive. None if they take no turns.
    in_turns_s: tuple[float, ...] | None = None


def case_order(case: Case) -> tuple[object, ...]:
    """Return the sort key for tables: first the fields that are equal within a table, then world size, then size."""
    values = (case.value(option.name) for option in (*OPTIONS, *options_in(type(case.own))))
    ordered = (value if isinstance(value, int | float) else str(value or "") for value in values)
    return (case.op, case.backend, case.metric, case.dtype, *ordered, case.world_size, case.size_bytes)


# ── measured facts ───────────────────────────────────────────────────────────────────────────────
FailureKind = Literal["killed", "exited", "raised", "hang", "wrong", "start", "lost"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a case has no number. A failure is a result, and is stored like one."""

    # With the kind `lost`, the case is not at fault.
    kind: FailureKind
    # Rank that the evidence points to; None if it points to none.
    rank: int | None
    text: str
    # All ranks that the evidence points to, if it points equally to several; otherwise empty.
    suspects: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Times in integer nanoseconds, as arrays of shape (iterations, ranks)."""

    # Time at which each rank began, on the host's monotonic clock, relative to `Samples.base_ns`. On GPUs it is the
    # time of the host, and does not show when the device began.
    start_ns: Integers
    # Time that all calls of an iteration took on each rank. On CPUs the host's clock measures it. On GPUs events
    # measure it, behind other work, so that it contains neither dispatching nor waiting for a late rank.
    duration_ns: Integers
    # On GPUs only: host time of the same number of other iterations, from an idle device until it is idle again.
    host_ns: Integers | None = None
    # On GPUs only: time between the moment when a rank's device was ready for the calls and the moment when the last
    # rank's device was ready. Then all ranks begin together. The rank that waited 0 came last.
    wait_ns: Integers | None = None
    # Number of calls back to back in one iteration.
    calls: Count = 1
    # Number of iterations in each block, in order. Other cases were measured between two blocks. Empty if it is
    # unknown, as in runs of earlier versions.
    blocks: tuple[Count, ...] = ()
    # Name of a part of an iteration → its nanoseconds, as arrays whose first axes are iterations and ranks. The package
    # of the operation chooses the names; most operations have none.
    inner_ns: dict[str, Integers] = field(default_factory=dict)
    # For cases that are compared round by round, the share of the machine's CPU time that other processes used in each
    # block; None if it is unknown.
    foreign_cpu: tuple[float | None, ...] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _without_defaults(source, handler)

    @property
    def slowest_s(self) -> Floats:
        """Return each iteration's maximum over ranks, in seconds per call: the time of a program that waits for all."""
        slowest: Floats = self.duration_ns.max(axis=1) / (1e9 * self.calls)
        return slowest

    @property
    def arrivals_ns(self) -> Integers | None:
        """Return the times at which ranks were ready, with another zero in each iteration; None if they are unknown."""
        if self.host_ns is None:
            return self.start_ns
        return None if self.wait_ns is None else -self.wait_ns

    @property
    def arrays(self) -> dict[str, Integers]:
        """Return all arrays that have a row per iteration, except the arrays of `inner_ns`."""
        named = {name: getattr(self, name) for name in ("start_ns", "duration_ns", "host_ns", "wait_ns")}
        return {name: array for name, array in named.items() if array is not None}

    def iterations(self, chosen: slice | NDArray[np.bool_], blocks: tuple[int, ...] = ()) -> Timings:
        """Return the timings of some iterations. blocks: number of these iterations in each block; empty if unknown."""
        arrays: Json = {name: array[chosen] for name, array in self.arrays.items()}
        inner = {name: array[chosen] for name, array in self.inner_ns.items()}
        return replace(self, **arrays, inner_ns=inner, blocks=blocks)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a case used on each rank and host; with turns, only in these. Lists have one entry per rank."""

    wall_s: float
    cpu_s: list[float]
    involuntary_switches: list[int]
    peak_rss_bytes: list[int]
    buffer_bytes: int
    # Time that is measured when nothing is called: between two stamps of the host, or two events of a stream.
    timer_cost_ns: list[float]
    # CPU seconds of all processes on the ranks' hosts, except a parent of ranks; None if the kernel does not report
    # them.
    machine_busy_s: float | None
    # CPU seconds that the hypervisor gave to others; None if the kernel does not report them.
    steal_s: float | None
    # Periods in which the quota of a cgroup was used up; None if the kernel does not report them.
    throttled: int | None = None
    # Time of the same call in a group of one rank, which is the cost of dispatching; None if it was not measured.
    floor_ns: list[float] | None = None
    # Iterations, without the warm-up, whose device time contains dispatching on any rank, because its stream ran out of
    # work: `dispatch_bound` are among the timed iterations, `left_out` are not. None if the numbers are not known.
    dispatch_bound: int | None = None
    left_out: int | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The result that another tool reports for a case in one launch: one time, and how it was obtained."""

    # Time of one call.
    time_s: float
    # How the time was obtained, such as "mean of 20 calls back to back, averaged over ranks".
    statistic: str
    # Number of calls behind the time; None if the tool does not report it.
    iterations: int | None = None
    # Times of the calls, for each process that the tool reports separately; empty if it does not report them.
    each_s: tuple[tuple[float, ...], ...] = ()
    # True if each time is from the start to the end of a call of its process, with a barrier between the calls. If
    # False, it is from one call to the next, and the same for all processes, even if one of them was late.
    apart: bool = False
    # True if the tool found the result right; None if the tool does not report it.
    verified: bool | None = None

    @property
    def slowest_s(self) -> tuple[float, ...]:
        """Return the time of each call in its slowest process."""
        return tuple(map(max, zip(*self.each_s, strict=True)))


@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """The check of one invariant."""

    invariant: str
    # None if the invariant does not apply; `text` then has the reason.
    ok: bool | None
    text: str


@dataclass(frozen=True)
class OwnDetail:
    """Results of one launch other than times. A package declares a subclass, whose `operation` names its operation."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        # The operation of the case decides on the type: `store.encoding` reads it.
        return core_schema.any_schema() if cls is OwnDetail else handler(source)


@dataclass(frozen=True, slots=True)
class Samples:
    """A line of `samples.jsonl`: one case in one launch. With a `failure`, the other fields may be missing."""

    case: Case
    launch: int
    # Wall-clock time at which the first block of the case began.
    unix_s: float
    # Monotonic time to which `Timings.start_ns` is relative.
    base_ns: int = 0
    warmup: Timings | None = None
    timed: Timings | None = None
    stopped_by: str | None = None
    usage: Usage | None = None
    failure: Failure | None = None
    # Replaces `timed` if another tool measured (`importers`).
    aggregate: Aggregate | None = None
    # Invariants that a package checked before timing.
    checks: tuple[InvariantCheck, ...] = ()
    # Results of the launch other than times.
    detail: OwnDetail | None = None

    @property
    def final(self) -> bool:
        """Return whether a resume leaves the entry as it is. A resume repeats lost cases and failed starts."""
        return self.failure is None or self.failure.kind not in {"lost", "start"}


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a results folder."""

    path: Path
    manifest: Manifest
    plan: Plan
    # One entry per session; a resume is a further session.
    environment: list[Session]
    samples: list[Samples]
    notices: tuple[Notice, ...] = ()
    # What `analyze.reading.once` has concluded from this run.
    concluded: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}:{self.path.name}" if "side" in self.manifest else self.path.name

    @property
    def imported(self) -> ImportFacts | None:
        """Return the manifest's facts on the source of the numbers, if another tool measured them; else None."""
        return self.manifest.get("imported")
