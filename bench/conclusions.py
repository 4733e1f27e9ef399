"""What follows from the facts: the types that `analyze` makes and `present` shows.

    Run ─▶ Summary ─┬─▶ Change ─▶ Comparison     two runs        Trend    many runs        Check    a table of limits
                    ├─▶ Fit, Bound               how time depends on size, and what no run can beat
                    └─▶ Finding                  a rank, a link or a size that stands out, with its evidence

Each carries its evidence and its warnings. Everything is frozen; seconds, bytes, bytes per second. Nothing here
reads or computes. The facts are in `records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.records import Case, Failure, Skip

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


NO_INTERVAL = "none"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval around it. kind: "over launches" or "within-run".

    NO_INTERVAL where nothing is known of it, as with one number of another tool: low and high are then the value,
    and are not to be shown.
    """

    value: float
    low: float
    high: float
    kind: str

    @property
    def known(self) -> bool:
        return self.kind != NO_INTERVAL

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Stall:
    """A second mode of the times of one case. share: of iterations; extra_s: slow median less fast median."""

    share: float
    fast_s: float
    extra_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One case over all its launches. Times are the per-iteration maximum over ranks, for one call.

    medians_s: the median of each launch. time_s: their geometric mean and its interval; None if
        nothing could be concluded, and then `failures` says why.
    within: mean relative half-width of the within-launch intervals. scatter: standard deviation of the
        logarithms of the launches' medians; None with one launch.
    fastest_rank_s: the same with the minimum over ranks. skew_s: median of last minus first start.
    pure_s: median of last end minus last start: the time after everyone had arrived. Both None where the
        ranks' clocks are not one clock.
    outliers, far_outliers: iterations beyond Tukey's fences, 1.5 and 3 interquartile ranges above the upper
        quartile, counted and kept. outlier_causes: what was seen beside them.
    stall: a second mode, where there is one. warmup_trimmed: iterations that a change-point check left out;
        steady: False if the times changed again late in a launch.
    timer_s: cost of reading the clock. floor_s: the same call in a group of one rank.
    asked, reached: relative half-width asked for, and mean of those within the launches.
    imported: how the times came about, where another tool measured; then a launch is one number, and all that
        needs single iterations or ranks is missing.
    """

    case: Case
    launches: int
    iterations: int
    time_s: Interval | None
    medians_s: tuple[float, ...] = ()
    scatter: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    mean_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    host_time_s: float | None = None
    fastest_rank_s: float | None = None
    skew_s: float | None = None
    pure_s: float | None = None
    outliers: int = 0
    far_outliers: int = 0
    outlier_causes: tuple[str, ...] = ()
    stall: Stall | None = None
    warmup_trimmed: int = 0
    steady: bool = True
    timer_s: float | None = None
    floor_s: float | None = None
    asked: float | None = None
    reached: float | None = None
    stopped_by: str = ""
    foreign_cpu: float | None = None
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    imported: str = ""


# ── runs against each other ──────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Change:
    """One case in two runs. ratio: AFTER / BEFORE of the time, with its interval.

    verdict: FASTER, SLOWER, SAME or INCONCLUSIVE (docs/method.md, "Comparing two runs").
    further_launches: on each side, until a verdict is likely if ratio and scatter stay; None if decided, or
        if no reasonable number would do.
    """

    case: Case
    before: Interval
    after: Interval
    ratio: Interval
    verdict: str
    further_launches: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs laid side by side: what changed, what differs around it, what has no partner.

    verdict: the gravest of the cases' verdicts. broken: cases measured before that failed after.
    """

    before: str
    after: str
    verdict: str
    min_change: float
    changes: tuple[Change, ...]
    differences: tuple[tuple[str, str, str], ...] = ()
    only_before: tuple[Case, ...] = ()
    only_after: tuple[Case, ...] = ()
    broken: tuple[Case, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """From the run at position `first` on, a case takes `time_s` (geometric mean of its runs).

    ratio: over the level before; 1 for the first one.
    """

    first: int
    time_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Trend:
    """One case over many runs, oldest first, and its levels: one where nothing has changed."""

    case: Case
    runs: tuple[str, ...]
    times_s: tuple[Interval, ...]
    levels: tuple[Level, ...]

    @property
    def changed(self) -> tuple[Level, ...]:
        """Every level but the first."""
        return self.levels[1:]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a table of expectations against a run. verdict: PASS, FAIL, INCONCLUSIVE or MISSING.

    expected, measured: bus bandwidth in bytes/s; tolerance: share by which it may fall short.
    """

    case: Case
    expected: float
    tolerance: float
    measured: Interval | None
    verdict: str
    note: str = ""


# ── a run on paper ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DryRunCases:
    """The cases of one kind in a dry run: `case` is the first of them, the others differ in size.

    calls: that were checked, on all simulated ranks. buffer_bytes: that a rank would hold, at most.
    build_s: making one case ready. call_s: what one small call costs in Python; None where none can be made.
    misfits: what does not fit the table of operations, with rank and size.
    """

    case: Case
    cases: int
    calls: int
    buffer_bytes: int
    build_s: float
    call_s: float | None
    mismatches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """A plan rehearsed as some ranks of a world that does not exist. peak_rss_bytes: of the process that did it.

    most_iterations: that are kept of a case and launch in such a world, where that is less than was asked for.
    """

    world_size: int
    ranks: tuple[int, ...]
    kinds: tuple[DryRunCases, ...]
    skips: tuple[Skip, ...]
    wall_s: float
    peak_rss_bytes: int
    most_iterations: int | None = None


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
    """Piecewise α–β model of one series of sizes; `case` is its smallest one, the rest differs in size only.

    alpha_s: latency (first segment). rate: r∞ = 1/β in bytes/s of algorithm bandwidth (last segment).
    half_size: n½ = α/β of the last segment. half_size_seen: size at which half the best measured bandwidth is
        reached, interpolated between measured ones.
    worst_residual: largest relative deviation of a measured time. note: why there is no model, else "".
    """

    case: Case
    segments: tuple[Segment, ...]
    alpha_s: Interval | None
    rate: Interval | None
    half_size: Interval | None
    half_size_seen: float | None
    worst_residual: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bus bandwidth that a case cannot exceed, in bytes/s, and where it comes from."""

    backend: str
    world_size: int
    name: str
    busbw: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a case needs to reach a precision: so many launches of so many iterations, and seconds in all.

    launches, iterations, seconds: None where the pilot cannot tell, and then `note` says why.
    """

    case: Case
    launches: int | None
    iterations: int | None
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class NeedsInAll:
    """What the cases whose need is known take together, and with one setting for all of them.

    launches, iterations: the largest need. uniform_s: seconds if every case gets so many launches. budget_s: what to
    state as `budget`, which spends where it is needed.
    """

    seconds: float
    launches: int
    iterations: int
    uniform_s: float
    budget_s: float


# ── what stands out ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that stands out. subject: such as "rank 2", "node h5", "link 0–3"; rank: where it is one.

    kind: "late rank", "late node", "slow rank", "slow node", "slow link", "inconsistent". ranks: that it is about.
    cost_s: what it costs an operation. share: of iterations it was last in (late) or relative excess of its time
    (slow). p: after correction.
    """

    kind: str
    subject: str
    text: str
    cases: tuple[Case, ...] = ()
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    cost_s: float | None = None
    share: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Median time of an exchange between each two ranks. times_s: symmetric, NaN on the diagonal."""

    case: Case
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked for in a run, and what was found. silent: sentences on what could not be told, and why."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that follows from one run. warnings: on the run as a whole, the gravest first."""

    summaries: tuple[Summary, ...]
    warnings: tuple[str, ...]
    diagnosis: Diagnosis
    inconsistencies: tuple[Finding, ...] = ()
    fits: tuple[Fit, ...] = ()
    bounds: tuple[Bound, ...] = ()
    matrices: tuple[Matrix, ...] = ()
