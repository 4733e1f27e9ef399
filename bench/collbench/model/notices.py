"""Define notices: facts that a reader must know in addition to a number, each as a kind with values.

`report.notices` writes a notice as the sentence and the remedy of its kind, and programs filter by the kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


class NoticeKind(StrEnum):
    """The base of the sets of kinds. Each set is closed, and no name is in two of them; a package has a set of its own.

    The values are names for programs: JSON, JUnit and OpenMetrics have them. A kind may state its sentence and remedy.
    """

    text: str
    remedy: str

    def __new__(cls, name: str, text: str = "", remedy: str = "") -> Self:
        """Make a kind with its name as value."""
        kind = str.__new__(cls, name)
        kind._value_, kind.text, kind.remedy = name, text, remedy
        return kind

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        from pydantic_core import core_schema  # here: most processes read no notice

        return core_schema.no_info_plain_validator_function(kind_named)


class RunNotice(NoticeKind):
    """Notices about a run as a whole."""

    INCOMPLETE = "incomplete"
    FASTER_THAN_HARDWARE = "faster-than-hardware"
    SHARED_GPU = "shared-gpu"
    PLANTED_FAULT = "planted-fault"
    BUDGET_SPENT = "budget-spent"
    TORN_LINE = "torn-line"
    DAMAGED_LINE = "damaged-line"
    DAMAGED_LINES = "damaged-lines"
    UNPLANNED = "unplanned"
    IMPORTED_STATISTIC = "imported-statistic"
    NOT_CHECKED = "not-checked"
    CHECKED_ELSEWHERE = "checked-elsewhere"
    OTHER_PROCESSES = "other-processes"
    ONLY_CLOCK = "only-clock"
    PRECISION_MISSED = "precision-missed"
    DISPATCH_BOUND = "cases-dispatch-bound"
    UNSTEADY = "cases-unsteady"
    DEVICE_EVENT = "device-event"
    ONE_LAUNCH = "one-launch"
    ONE_IMPORTED = "one-imported-launch"
    FEW_LAUNCHES = "few-launches"
    WIDE_INTERVALS = "wide-intervals"
    SESSIONS = "sessions"
    SESSION_CHANGED = "session-changed"
    POLLING = "polling"
    CROWDED = "crowded"
    IN_CACHE = "in-cache"
    ONE_CORE = "one-core"
    BUSY = "busy"
    GOVERNOR = "governor"
    CPU_QUOTA = "cpu-quota"
    THROTTLED = "throttled"
    DEBUG_CHECKS = "debug-checks"
    DEBUG_OUTPUT = "debug-output"
    UNLIKE_HOSTS = "unlike-hosts"
    GPU_ORDER = "gpu-order"
    NO_NVLINK = "no-nvlink"
    UNUSED_RANKS = "unused-ranks"
    UNUSED_HOSTS = "unused-hosts"
    OPEN_TO_NETWORK = "open-to-network"


class CaseNotice(NoticeKind):
    """Notices about one case."""

    TIMER_LIMITED = "timer-limited"
    STOPPED_EARLY = "stopped-early"
    UNSTEADY = "unsteady"
    OTHER_PROCESSES = "case-other-processes"
    TWO_MODES = "two-modes"
    FAR_OUTLIERS = "far-outliers"
    DISPATCH_BOUND = "dispatch-bound"
    LEFT_OUT = "left-out"
    FAILED_LAUNCHES = "failed-launches"
    # Disturbances that were seen while a case ran and may have caused its outliers.
    STEAL = "steal"
    QUOTA_USED = "quota-used"


class ComparisonNotice(NoticeKind):
    """Notices about a comparison, or about one of its cases."""

    PLANTED_FAULTS = "planted-faults"
    SAMPLED_DIFFERENTLY = "sampled-differently"
    IMPORTED = "imported"
    OTHER_METHOD = "other-method"
    BROKEN = "broken"
    TOO_FEW_LAUNCHES = "too-few-launches"
    BOTH_WAYS = "both-ways"
    UNDECIDED = "undecided"
    BEYOND_LAUNCHES = "beyond-launches"
    OVER_RUNS = "over-runs"
    FROM_LEDGER = "from-ledger"
    OTHER_TIMES = "other-times"
    LIMIT = "limit"
    DISTURBED = "disturbed"
    GLOO_STALLS = "gloo-stalls"
    NO_VERDICT = "no-verdict"
    SHORT_BUDGET = "short-budget"
    RULE = "rule"


class DiagnosisNotice(NoticeKind):
    """Why a diagnosis names nobody."""

    NOBODY_LATE = "nobody-late"
    NOTHING_MEASURED = "nothing-measured"
    NO_LINKS_TESTED = "no-links-tested"
    NOBODY_SLOW = "nobody-slow"
    FEW_RANKS = "few-ranks"
    FEW_ITERATIONS = "few-iterations"
    NO_ARRIVALS = "no-arrivals"
    NOT_APART = "not-apart"
    SEVERAL_GPUS = "several-gpus"
    ONLY_ROOTED = "only-rooted"
    NO_LINK_TIMES = "no-link-times"
    RANKS_UNTESTED = "ranks-untested"


class FindingNotice(NoticeKind):
    """Findings, with the evidence."""

    LATE = "late"
    LATE_ON_GPU = "late-on-gpu"
    SLOW_RANK = "slow-rank"
    SLOW_LINK = "slow-link"
    SLOW_NODE = "slow-node"
    SLOW_BETWEEN_NODES = "slow-between-nodes"
    PARTS_FASTER = "parts-faster"
    WHOLE_FASTER = "whole-faster"
    PADDING_FASTER = "padding-faster"
    SPLITTING_FASTER = "splitting-faster"
    NO_MODEL = "no-model"


class VerdictNotice(NoticeKind):
    """Why a comparison has its verdict."""

    CHANGED = "changed"
    SAME = "same-within"
    NEITHER = "neither"
    FEW_LAUNCHES = "too-few-launches-on-a-side"
    FEW_PAIRS = "too-few-pairs"
    ONE_LAUNCH = "one-launch-on-a-side"
    NOISE_FLOOR = "noise-floor"


class SkipNotice(NoticeKind):
    """Why a case cannot be measured here."""

    # The system.
    WINDOWS = "windows"
    NO_PROC = "no-proc"
    OTHER_PROC = "other-proc"
    NO_LOOPBACK = "no-loopback"
    LOOPBACK_DOWN = "loopback-down"
    LOOPBACK_UNNUMBERED = "loopback-unnumbered"
    NO_REALTIME = "no-realtime"
    REALTIME_REFUSED = "realtime-refused"
    NO_BATCH = "no-batch"
    NO_THREADS = "no-threads"
    UNNAMED_THREADS = "unnamed-threads"
    # Libraries and GPUs.
    NO_TORCH = "no-torch"
    CPU_BUILD = "cpu-build"
    ROCM_BUILD = "rocm-build"
    NO_GPU = "no-gpu"
    OLD_DRIVER = "old-driver"
    NO_MPI4PY = "no-mpi4py"
    NO_MPIRUN = "no-mpirun"
    OTHER_MPIRUN = "other-mpirun"
    OTHER_LAUNCHER = "other-launcher"
    OLDER_TORCH = "older-torch"
    TOO_FEW_GPUS = "too-few-gpus"
    LOW_CAPABILITY = "low-capability"
    NO_MULTICAST = "no-multicast"
    NVLINK_DOWN = "nvlink-down"
    PAT = "pat"
    SHARED_VARIABLE = "shared-variable"
    # Ranks and groups.
    JOB_RANKS = "job-ranks"
    WHOLE_JOB = "whole-job"
    FEWEST_RANKS = "fewest-ranks"
    NO_ROOT = "no-root"
    UNEQUAL_GROUPS = "unequal-groups"
    LISTED_TWICE = "listed-twice"
    NOT_DIVISIBLE = "not-divisible"
    PAIRS_ALL = "pairs-all"
    SERIAL_DRIFT = "serial-drift"
    SERIAL_GROUPS = "serial-groups"
    MATRIX_ROWS = "matrix-rows"
    TOO_HOT = "too-hot"
    # Features of a backend.
    NO_MPI_CALL = "no-mpi-call"
    MPI_JOINS_BEFORE = "mpi-joins-before"
    OF_TORCH = "of-torch"
    CALLS_TORCH = "calls-torch"
    LACKS = "lacks"
    LACKS_DTYPE = "lacks-dtype"
    LACKS_ALONE = "lacks-alone"
    ONLY_COPIES = "only-copies"
    NEEDS_NCCL = "needs-nccl"
    METRIC_NEEDS_GPUS = "metric-needs-gpus"
    METRIC_OF_TORCH = "metric-of-torch"
    NO_GRAPH = "no-graph"
    COUNTS_IN_GRAPH = "counts-in-graph"
    NO_ASYNC = "no-async"
    NO_BUFFERS = "no-buffers"
    NO_COPY = "no-copy"
    UNEVEN_COPY = "uneven-copy"
    ASYNC_COPY = "async-copy"
    ONLY_PLACED = "only-placed"
    TORCH_IN_PLACE = "torch-in-place"
    ONLY_UNEVEN = "only-uneven"
    POLLING = "rr-polling"
    NO_LOOP_THREAD = "no-loop-thread"
    OVER_BY_THEN = "over-by-then"
    MOST_ELEMENTS = "most-elements"
    # Data and memory.
    UNDEFINED_REDUCTION = "undefined-reduction"
    INEXACT = "inexact"
    PART_OF_PIECES = "part-of-pieces"
    PART_OF_ELEMENT = "part-of-element"
    HOST_MEMORY = "host-memory"
    GPU_MEMORY = "gpu-memory"
    LAUNCH_MEMORY = "launch-memory"
    # Several reasons at once.
    SEVERAL = "several-reasons"


class TurnNotice(NoticeKind):
    """Why launches of two sides alternate, instead of taking turns block by block."""

    LOAD = "load-of-one-side"
    EXCLUSIVE_GPU = "exclusive-gpu"
    BOTH_MEMORY = "memory-of-both"


class DeviceEventNotice(NoticeKind):
    """Events on a GPU or a network adapter while ranks used it."""

    POWER_CAP = "power-cap"
    HARDWARE_SLOWDOWN = "hardware-slowdown"
    SOFTWARE_THERMAL = "software-thermal-slowdown"
    HARDWARE_THERMAL = "hardware-thermal-slowdown"
    POWER_BRAKE = "power-brake"
    HELD_BACK = "held-back"
    UNCORRECTED = "uncorrected-memory-errors"
    PCIE_REPLAYS = "pcie-replays"
    SYMBOL_ERRORS = "symbol-errors"
    LINK_DOWN = "link-down"
    LINK_RECOVERED = "link-recovered"
    DAMAGED_PACKETS = "damaged-packets"
    DISCARDED_PACKETS = "discarded-packets"
    RETRANSMITTED = "retransmitted-segments"


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that a reader must know in addition to a number."""

    kind: NoticeKind
    # Values of the sentence: numbers in seconds, bytes and shares, names, lists of them, or further notices.
    values: Mapping[str, Value] = field(default_factory=dict)
    # Keys of the cases that it is about; empty if it is about all.
    cases: tuple[str, ...] = ()
    # The host that it is about; None if there is only one host.
    host: str | None = None
    # The run that it is about, in a comparison.
    run: str | None = None

    def __hash__(self) -> int:
        return hash((self.kind, frozenset(self.values.items()), self.cases, self.host, self.run))


Value = str | int | float | tuple[str, ...] | tuple[float, ...] | tuple[Notice, ...] | None


def notice(kind: NoticeKind, cases: Iterable[str] = (), host: str | None = None, **values: Value) -> Notice:
    """Return a notice with these values."""
    return Notice(kind, values, tuple(cases), host)


def kind_named(name: str) -> NoticeKind:
    """Return the kind of this name, from the sets that are loaded; raises ValueError if no set has it."""
    kinds = (kind for each in NoticeKind.__subclasses__() for kind in each)
    if (match := next((kind for kind in kinds if kind == name), None)) is None:
        raise ValueError(f"{name!a:.60}: CollBench has no notice of this kind")
    return match


def of_run(run: str, notices: Iterable[Notice]) -> list[Notice]:
    """Return the notices, each with the run that it is about."""
    return [replace(entry, run=run) for entry in notices]


def with_counts(counts: Mapping[Notice, int], name: str = "count") -> list[Notice]:
    """Return the notices, each with its number as a further value; notices with number 0 are left out."""
    return [replace(entry, values={**entry.values, name: number}) for entry, number in counts.items() if number]
