"""Define the types of conclusions, which `analyze` computes from facts and `report` shows.

    Run ─▶ Summary ─┬─▶ Fit, Bound    how time depends on size, and what no run can beat
                    └─▶ Finding       a rank, a link or a size that stands out, with its evidence

Each type holds its evidence and its notices. Everything is frozen. Units: seconds, bytes, bytes per second. Nothing
here reads or computes. The types of facts are in `records`, those of conclusions from several runs in `comparisons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from bench.model.notices import Notice
from bench.model.records import Case, Failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class IntervalKind(StrEnum):
    """What an interval is made from. NONE: a single number of another tool has no interval."""

    OVER_LAUNCHES = "over launches"
    OVER_RUNS = "over runs"
    RANGE = "range of launches"  # too few for 95 %
    WITHIN_RUN = "within-run"  # of one launch
    NOISE_FLOOR = "stated noise floor"
    OVER_ROUNDS = "over rounds"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval around it.

    Without an interval (`IntervalKind.NONE`), low and high are the value, and must not be shown.
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
        """Infinite where no interval is known."""
        return (self.high - self.low) / 2 / self.value if self.known and self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Stall:
    """A second, slower mode in the times of one case. share: of the iterations that are in it.

    fast_s, slow_s: mean of each mode, so that within a launch they and their shares add up to the mean of all.
    """

    share: float
    fast_s: float
    slow_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One case over all its launches. Times are the per-iteration maximum over ranks, for one call.

    means_s: the mean of each launch's iterations. time_s: their geometric mean and its interval, which is the time of
        the case wherever one is quoted; None if no launch succeeded, and then `failures` says why. scatter: standard
        deviation of the logarithms of `means_s`; None with one launch.
    p10_s, p50_s, p90_s, p99_s: percentiles of the iterations of each launch, geometric means over the launches; None
        where a launch has too few iterations for one.
    fastest_rank_s: like `time_s`, with the minimum over ranks. skew_s: mean of last minus first start.
    pure_s: mean of last end minus last start: the time after all ranks had arrived. Both are None where starts
        on different ranks cannot be compared on one clock.
    outliers, far_outliers: iterations beyond Tukey's fences, 1.5 and 3 interquartile ranges above the upper
        quartile, counted and kept. outlier_causes: disturbances seen while the case ran.
    stall: a second mode, if there is one. steady: False if the times changed again late in a launch.
    timer_s: cost of reading the clock. floor_s: time of the same call in a group of one rank.
    asked, reached: relative half-width asked for, and mean of those within the launches.
    chosen: what NCCL chose for it, in words; empty if it was not asked.
    virtual: measured on virtual GPUs, by a rule.
    imported: how the times were obtained, if another tool measured them; a launch is then one number, and every
        field that needs single iterations or ranks is missing.
    """

    case: Case
    launches: int
    iterations: int
    time_s: Interval | None
    means_s: tuple[float, ...] = ()
    scatter: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    p10_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    host_time_s: float | None = None
    fastest_rank_s: float | None = None
    skew_s: float | None = None
    pure_s: float | None = None
    outliers: int = 0
    far_outliers: int = 0
    outlier_causes: tuple[Notice, ...] = ()
    stall: Stall | None = None
    steady: bool = True
    timer_s: float | None = None
    floor_s: float | None = None
    asked: float | None = None
    reached: float | None = None
    stopped_by: tuple[str, ...] = ()
    foreign_cpu: float | None = None
    failures: tuple[Failure, ...] = ()
    notices: tuple[Notice, ...] = ()
    chosen: str = ""
    imported: str = ""
    virtual: bool = False

    @property
    def only_clock(self) -> bool:
        """Whether reading the clock takes about as long as the calls, so that it is what was measured."""
        return bool(self.time_s and self.timer_s and self.time_s.value * self.case.depth < 2 * self.timer_s)


# ── models and bounds ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Segment:
    """t = alpha_s + size * beta_s_per_byte, for sizes from `low` to `high` bytes, both included."""

    low: int
    high: int
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Piecewise α–β model of one series of sizes: `case` is the smallest, the others differ only in size.

    alpha_s: latency (first segment). rate: r∞ = 1/β in bytes/s of algorithm bandwidth (last segment).
    half_size: n½ = α/β of the last segment.
    worst_residual: largest relative deviation of the model from a measured time. note: why there is no model.
    """

    case: Case
    segments: tuple[Segment, ...]
    alpha_s: Interval | None
    rate: Interval | None
    half_size: Interval | None
    worst_residual: float
    note: Notice | None = None


# The bound that a user gives.
LINK_AS_GIVEN = "link as given"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bus bandwidth that a case cannot exceed, in bytes/s, and where it comes from."""

    backend: str
    world_size: int
    name: str
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
    """A rank, node, link or size that stands out.

    subject: such as "rank 2",
    "node h5", "link 0–3". rank: if the subject is one rank. ranks: all ranks that the finding is about.
    cost_s: time that it adds to an operation. share: share of iterations in which it came last (late), or relative
    excess of its time (slow, inconsistent). p: p-value after correction for multiple tests.
    """

    kind: FindingKind
    subject: str
    notice: Notice
    cases: tuple[Case, ...] = ()
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    cost_s: float | None = None
    share: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Median time of an exchange between each pair of ranks. times_s: symmetric, NaN on the diagonal."""

    case: Case
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Late and slow ranks, nodes and links of a run. silent: what could not be determined, and why."""

    findings: tuple[Finding, ...]
    silent: tuple[Notice, ...] = ()


# ── all of one run ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Analysis:
    """All conclusions from one run. notices: on the run as a whole, the gravest first. incomplete: the one of
    them that says what is missing; None if nothing is.

    choices: where NCCL's choice changes with the size, in words. of_packages: name of a package → what it concludes,
    from its own cases (they are among the summaries, too) or others. own_cases: those that packages show themselves.
    """

    summaries: tuple[Summary, ...]
    notices: tuple[Notice, ...]
    diagnosis: Diagnosis
    inconsistencies: tuple[Finding, ...] = ()
    fits: tuple[Fit, ...] = ()
    bounds: tuple[Bound, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    choices: tuple[str, ...] = ()
    of_packages: Mapping[str, object] = field(default_factory=dict)
    own_cases: frozenset[Case] = frozenset()
    incomplete: Notice | None = None
