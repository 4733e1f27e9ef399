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

    value: float
    low: float
    high: float
    kind: IntervalKind

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

    # Share of the iterations that are in the slower mode.
    share: float
    # Mean of each mode (`fast_s` and `slow_s`). Within a launch, the means weighted by the shares add up to the mean of
    # all iterations.
    fast_s: float
    slow_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One case over all its launches. Times are the maximum over ranks of each iteration, for one call."""

    case: Case
    launches: int
    iterations: int
    # Geometric mean of `means_s` with its interval: the time of the case wherever a time is quoted. None if no launch
    # succeeded; `failures` then has the reason.
    time_s: Interval | None
    # Mean of the iterations of each launch.
    means_s: tuple[float, ...] = ()
    # Standard deviation of the logarithms of `means_s`; None with one launch.
    scatter: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    # Percentiles (`p10_s` to `p99_s`) of the iterations of each launch, as geometric means over the launches; None if a
    # launch has too few iterations for the percentile.
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    host_time_s: float | None = None
    # Like `time_s`, with the minimum over ranks.
    fastest_rank_s: float | None = None
    # Mean of last start minus first start; None if starts on different ranks cannot be compared on one clock.
    skew_s: float | None = None
    # Mean of last end minus last start: the time after all ranks had arrived. None in the same case as `skew_s`.
    pure_s: float | None = None
    # Iterations beyond Tukey's fences, 1.5 (`outliers`) and 3 (`far_outliers`) interquartile ranges above the upper
    # quartile. They are counted, and kept.
    outliers: int = 0
    far_outliers: int = 0
    # Disturbances seen while the case ran.
    outlier_causes: tuple[Notice, ...] = ()
    # The second mode, if there is one.
    stall: Stall | None = None
    # False if the times changed again late in a launch.
    steady: bool = True
    # Cost of reading the clock.
    timer_s: float | None = None
    # Time of the same call in a group of one rank.
    floor_s: float | None = None
    # Relative half-width that was asked for.
    asked: float | None = None
    # Mean of the relative half-widths within the launches.
    reached: float | None = None
    stopped_by: tuple[str, ...] = ()
    foreign_cpu: float | None = None
    failures: tuple[Failure, ...] = ()
    notices: tuple[Notice, ...] = ()
    # Choice of NCCL for the case, in words; empty if NCCL was not asked.
    chosen: str = ""
    # How the times were obtained, if another tool measured them. A launch is then one number, and every field that
    # needs single iterations or ranks is missing.
    imported: str = ""
    # True if the case was measured on virtual GPUs, whose times follow a rule.
    virtual: bool = False

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

    kind: FindingKind
    # Name of the rank, node, link or size, such as "rank 2", "node h5" or "link 0–3".
    subject: str
    notice: Notice
    cases: tuple[Case, ...] = ()
    # The rank, if the subject is one rank.
    rank: int | None = None
    # All ranks that the finding is about.
    ranks: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    # Time that the subject adds to an operation.
    cost_s: float | None = None
    # Share of the iterations in which the subject came last (late), or relative excess of its time (slow,
    # inconsistent).
    share: float | None = None
    # P-value after correction for multiple tests.
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """The mean time of an exchange between each pair of ranks."""

    case: Case
    # Symmetric, with NaN on the diagonal.
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The late and slow ranks, nodes and links of a run."""

    findings: tuple[Finding, ...]
    # Questions that could not be answered, with the reason.
    silent: tuple[Notice, ...] = ()


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
    # The notice on missing measurements, which is also among `notices`; None if nothing is missing.
    incomplete: Notice | None = None
