"""Define the types of conclusions, which `analyze` computes from facts and `report` shows.

    Run ─▶ Summary ─┬─▶ Fit, Bound    how time depends on size, and upper bounds of the bandwidth
                    └─▶ Finding       a rank, a link or a size that stands out, with its evidence

Each type contains its evidence and its notices. Everything is frozen. Units: seconds, bytes, bytes per second. Nothing
here reads or computes. `records` has the types of facts, `comparisons` the types of conclusions from several runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from collbench.model.notices import Notice
from collbench.model.records import Case, Failure
from collbench.model.results import Unit, computed, fact

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class IntervalKind(StrEnum):
    """The data from which an interval is made."""

    OVER_LAUNCHES = "over launches"
    OVER_RUNS = "over runs"
    RANGE = "range of launches"  # too few for 95 %
    WITHIN_RUN = "within-run"  # of one launch
    NOISE_FLOOR = "stated noise floor"
    OVER_ROUNDS = "over rounds"
    # A single number of another tool has no interval.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval around it.

    `low` and `high` equal the value if there is no interval (`IntervalKind.NONE`). They must then not be shown.
    """

    value: float = fact()
    low: float = fact()
    high: float = fact()
    kind: IntervalKind = fact("units of the interval; none: low and high are the value and mean nothing")

    @property
    def known(self) -> bool:
        return self.kind != IntervalKind.NONE

    @property
    def relative_half_width(self) -> float:
        """Return half the interval's width, relative to the value; infinite without interval, or if the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.known and self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Stall:
    """A second, slower mode in the times of one case."""

    share: float
    # Within a launch, the means of both modes, weighted by the shares, add up to the mean of all iterations.
    fast_s: float = fact("mean of the iterations that are not in it; null if there is none", name="fast_mode_s")
    slow_s: float = fact("mean of those that are", name="slow_mode_s")


@dataclass(frozen=True, slots=True)
class Summary:
    """One case over all its launches. Times are the maximum over ranks of each iteration, for one call."""

    case: Case
    # The time of the case wherever a time is quoted. None if no launch succeeded; `failures` then has the reason.
    time_s: Interval | None = fact(
        "of one call on the slowest rank: mean of the iterations, geometric mean over the launches",
        limits=("time_s", "time_low_s", "time_high_s", "interval"),
        default=None,
    )
    # Mean of the iterations of each launch.
    means_s: tuple[float, ...] = ()
    algbw: float | None = fact(
        "algorithm bandwidth: size over time", "algbw GB/s", Unit.RATE, json="algbw_bytes_per_s", default=None
    )
    busbw: float | None = fact(
        "bus bandwidth: algorithm bandwidth times the factor of the operation",
        "busbw GB/s",
        Unit.RATE,
        json="busbw_bytes_per_s",
        default=None,
    )
    # Percentiles are geometric means over the launches.
    p10_s: float | None = fact(
        "10 % of the iterations are faster; null if there are too few to say", "p10", Unit.SECONDS, default=None
    )
    p50_s: float | None = fact("50 %: the median", "p50", Unit.SECONDS, default=None)
    p90_s: float | None = fact("90 %", "p90", Unit.SECONDS, default=None)
    p99_s: float | None = fact("99 %", "p99", Unit.SECONDS, default=None)
    host_time_s: float | None = fact(
        "GPUs: time by the host's clock, from an idle device to an idle device",
        "host time",
        Unit.SECONDS,
        default=None,
    )
    fastest_rank_s: float | None = fact("as time_s, of the fastest rank", "slowest / fastest rank", default=None)
    # None if starts on different ranks cannot be compared on one clock; then `pure_s` is None, too.
    skew_s: float | None = fact("mean of last minus first arrival", "skew", Unit.SECONDS, default=None)
    pure_s: float | None = fact("mean of last end minus last arrival", "pure", Unit.SECONDS, default=None)
    over_reference: Interval | None = fact(
        "a call less the call of its reference in the same rounds, for operations whose cases have one",
        "over reference",
        Unit.SECONDS,
        limits=("over_reference_s", "over_reference_low_s", "over_reference_high_s"),
        optional=True,
        default=None,
    )
    floor_s: float | None = fact("time of the call in a group of one rank", "floor", Unit.SECONDS, default=None)
    timer_s: float | None = fact("cost of reading the clock", default=None)
    scatter: float | None = fact(
        "standard deviation of the logarithms of the launches' means", json="scatter_log_sd", default=None
    )
    asked: float | None = fact(
        "relative half-width that the configuration asks for within a launch; null if none",
        json="precision_asked",
        default=None,
    )
    reached: float | None = fact(
        "the mean of those that were reached within launches; null without enough blocks",
        json="precision_reached",
        default=None,
    )
    foreign_cpu: float | None = fact(
        "share of the busy CPU time that other processes used", json="foreign_cpu_share", default=None
    )
    launches: int = fact("launches that gave a number", "launches", default=0)
    iterations: int = fact("timed iterations of all launches", "iterations", default=0)
    # Iterations beyond Tukey's fences are counted, and kept.
    outliers: int = fact(
        "iterations more than 1.5 interquartile ranges above the upper quartile", "outliers", default=0
    )
    far_outliers: int = fact("more than 3", default=0)
    # Disturbances seen while the case ran.
    outlier_causes: tuple[Notice, ...] = ()
    steady: bool = fact("false if the times changed near an end of a launch", default=True)
    stopped_by: tuple[str, ...] = ()

    why_stopped = computed(
        "why the case ended", str, lambda summary: " and ".join(summary.stopped_by), "stopped by", name="stopped_by"
    )
    slow_share = computed(
        "share of the iterations in a second, slower mode; 0 if there is none",
        float,
        lambda summary: summary.stall.share if summary.stall else 0.0,
    )
    stall: Stall | None = fact(flat=True, default=None)
    chosen: str = fact("NCCL's choice; empty if it was not recorded", "NCCL chose", default="")
    # A launch of another tool is one number, and every field that needs single iterations or ranks is missing.
    imported: str = fact("how another tool computed the time; empty for our own", default="")
    virtual: bool = fact(
        "true of times on virtual GPUs, which follow a rule and were not measured on hardware", default=False
    )
    failures: tuple[Failure, ...] = fact("failures, one sentence each", default=())
    notices: tuple[Notice, ...] = fact("reasons to doubt the numbers of this case", default=())

    @property
    def only_clock(self) -> bool:
        """Return whether reading the clock takes about as long as the calls, so that times mainly show the clock."""
        return bool(self.time_s and self.timer_s and self.time_s.value * self.case.depth < 2 * self.timer_s)


# ── models and bounds ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a fit: t = alpha_s + size * beta_s_per_byte, for sizes from `low` to `high` bytes, both included."""

    low: int
    high: int
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A piecewise α–β model of a series of cases that differ only in size."""

    # The smallest case of the series.
    case: Case
    segments: tuple[Segment, ...]
    # Latency, from the first segment.
    alpha_s: Interval | None
    # Rate r∞ = 1/β of the last segment, in bytes/s of algorithm bandwidth.
    rate: Interval | None
    # Size n½ = α/β of the last segment.
    half_size: Interval | None
    # Largest relative deviation of the model from a measured time.
    worst_residual: float
    # Reason why there is no model.
    note: Notice | None = None


# Name of the bound that the user states.
LINK_AS_GIVEN = "link as given"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bus bandwidth that a case cannot exceed."""

    backend: str
    world_size: int
    # Source of the bound.
    name: str
    # Highest bus bandwidth, in bytes/s.
    busbw: float


# ── findings ─────────────────────────────────────────────────────────────────────────────────────
class FindingKind(StrEnum):
    """What stands out."""

    LATE_RANK = "late rank"
    LATE_NODE = "late node"
    SLOW_RANK = "slow rank"
    SLOW_NODE = "slow node"
    SLOW_LINK = "slow link"
    INCONSISTENT = "inconsistent"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rank, node, link or size that stands out."""

    kind: FindingKind = fact("finding")
    subject: str = fact("who it is, such as rank 2, node h5 or link 0–3")
    notice: Notice = fact("the finding, with its evidence")
    cases: tuple[Case, ...] = fact("keys of the cases that show it", default=())
    rank: int | None = fact("if the subject is one rank", default=None)
    ranks: tuple[int, ...] = fact("all ranks that it is about", default=())
    link: tuple[int, int] | None = fact("both ends, if the subject is a link", default=None)
    cost_s: float | None = fact("time that it adds to an operation", default=None)
    share: float | None = fact("of iterations in which it came last; or by how much its time is longer", default=None)
    p: float | None = fact("p-value after correction for several tests", default=None)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The mean time of an exchange between each pair of ranks."""

    case: Case
    # Symmetric, with NaN on the diagonal.
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The late and slow ranks, nodes and links of a run."""

    findings: tuple[Finding, ...] = fact()
    silent: tuple[Notice, ...] = fact("findings that were looked for and not found, or could not be judged", default=())


@dataclass(frozen=True, slots=True)
class ChoiceChange:
    """Changes of NCCL's choice with the size, in cases that differ only in size."""

    # The case at which each choice begins, and the choice; the smallest size first.
    begins: tuple[tuple[Case, str], ...]


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Analysis:
    """All conclusions from one run."""

    summaries: tuple[Summary, ...]
    # Notices on the run as a whole, the gravest first.
    notices: tuple[Notice, ...]
    diagnosis: Diagnosis
    inconsistencies: tuple[Finding, ...] = ()
    fits: tuple[Fit, ...] = ()
    bounds: tuple[Bound, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    choices: tuple[ChoiceChange, ...] = ()
    # Maps the name of a package to its conclusions, from its own cases (which are also among the summaries) or from
    # others.
    of_packages: Mapping[str, object] = field(default_factory=dict)
    # A/A noise: seconds per call by which second copies may differ from the first; None without second copies.
    noise_s: float | None = None
    # The notice on missing measurements, which is also among `notices`; None if nothing is missing.
    incomplete: Notice | None = None
