"""Pictures of a run: PNG for slides, SVG for print. Those of several runs are in `comparison_plots`.

In: a `Run`, its summaries. Out: files, and their titles for the report. Each picture answers
one question, which is its title. Series differ by colour *and* marker *and* line, so that they survive black
and white; the colours are Okabe and Ito's, which colour-blind people tell apart. Every interval is drawn.

Drawn with `Figure` and not with pyplot: no global state, no window, and it loads faster.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.conclusions import Summary
from bench.present.labels import extras, label
from bench.present.report import PICTURES
from bench.records import Case, Run, Samples, Timings
from bench.units import format_bytes, format_seconds

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.dpi": 110,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "legend.frameon": False,
}
# More lines than this in one picture cannot be told apart.
MOST_SERIES = 6

Drawing = Callable[[Run, Sequence[Summary]], Figure | None]


def draw(run: Run, summaries: Sequence[Summary], folder: Path) -> list[tuple[str, str]]:
    """Draw what the run has data for. Returns (title, file name without suffix) of what was drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with rc_context(STYLE):
        for name, title in PICTURES.items():
            figure = DRAWINGS[name](run, summaries)
            if figure is not None:
                save(figure, folder / name)
                drawn.append((title, name))
    return drawn


def save(figure: Figure, path: Path) -> None:
    """As PNG and as SVG."""
    figure.savefig(path.with_suffix(".png"))
    figure.set_layout_engine("none")  # laid out already; doing it again would take as long as drawing
    figure.savefig(path.with_suffix(".svg"))


# ── time and bandwidth against size ──────────────────────────────────────────────────────────────
def _time_against_size(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    series = _series(summaries)
    if not series:
        return None
    figure, axes = _new("How long does it take?", run, summaries)
    for style, (name, members) in enumerate(_shown(axes, series)):
        times = [s.time_s for s in members if s.time_s]
        _with_intervals(
            axes,
            [s.case.size_bytes for s in members],
            [t.value for t in times],
            ([t.low for t in times], [t.high for t in times]),
            style,
            name,
        )
    _log_time_axis(axes)
    axes.set_ylabel("time of one operation (median)")
    _size_axis(axes, summaries)
    return figure


def _bandwidth_against_size(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    series = [(name, [s for s in members if s.busbw]) for name, members in _series(summaries)]
    series = [(name, members) for name, members in series if members]
    if not series:
        return None
    figure, axes = _new("How much of the bus does it use?", run, summaries)
    for style, (name, members) in enumerate(_shown(axes, series)):
        busbw = np.array([s.busbw for s in members], dtype=float) / 1e9
        times = [s.time_s for s in members if s.time_s]
        low = [b * t.value / t.high for b, t in zip(busbw, times, strict=True)]
        high = [b * t.value / t.low for b, t in zip(busbw, times, strict=True)]
        _with_intervals(axes, [s.case.size_bytes for s in members], busbw.tolist(), (low, high), style, name)
    best = max((s.busbw or 0.0) for _, members in series for s in members) / 1e9
    # One wide interval must not flatten everything else: it is cut where it leaves the picture.
    axes.set_ylim(0, min(axes.get_ylim()[1], 1.6 * best))
    axes.set_ylabel("bus bandwidth, GB/s")
    _size_axis(axes, summaries)
    return figure


def _scaling(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    good = [s for s in summaries if s.time_s]
    worlds = sorted({s.case.world_size for s in good})
    if len(worlds) < 2:
        return None
    sizes = _spread(sorted({s.case.size_bytes for s in good}), 4)
    figure, axes = _new("What do more ranks cost?", run, summaries)
    for style, size in enumerate(reversed(sizes)):
        members = sorted((s for s in good if s.case.size_bytes == size), key=lambda s: s.case.world_size)
        members = [s for s in members if s.case.op == members[0].case.op and s.case.backend == members[0].case.backend]
        times = [s.time_s for s in members if s.time_s]
        interval = ([t.low for t in times], [t.high for t in times])
        xs = [s.case.world_size for s in members]
        _with_intervals(axes, xs, [t.value for t in times], interval, style, format_bytes(size))
    _log_time_axis(axes)
    axes.set_xticks(worlds)
    axes.set_xlim(worlds[0] - 0.3, worlds[-1] + 0.3)
    axes.set_xlabel("world size (ranks)")
    axes.set_ylabel("time of one operation (median)")
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def _series(summaries: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """Lines of a plot over sizes: one a world size, and one a table where there are several."""

    def family(case: Case) -> str:
        return " ".join([case.op, case.backend, case.dtype, *extras(case)])

    good = [s for s in summaries if s.time_s]
    several = len({family(s.case) for s in good}) > 1
    names: dict[str, list[Summary]] = {}
    for s in good:
        ranks = f"{s.case.world_size} rank{'s' if s.case.world_size > 1 else ''}"
        names.setdefault(f"{family(s.case)}, {ranks}" if several else ranks, []).append(s)
    return list(names.items())


def _shown(axes: Axes, series: list[tuple[str, list[Summary]]]) -> list[tuple[str, list[Summary]]]:
    """As many lines as can be told apart; the legend says how many are left to the table."""
    if len(series) > MOST_SERIES:
        axes.plot([], [], " ", label=f"and {len(series) - MOST_SERIES} more: see the table")
    return series[:MOST_SERIES]


def _with_intervals(
    axes: Axes, x: Sequence[float], y: Sequence[float], interval: tuple[list[float], list[float]], style: int, name: str
) -> None:
    low, high = (np.array(side) for side in interval)
    values = np.array(y)
    axes.errorbar(
        x,
        values,
        yerr=[np.maximum(values - low, 0), np.maximum(high - values, 0)],
        label=name,
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        linestyle=LINES[style % len(LINES)],
        capsize=3,
        markersize=5,
        linewidth=1.5,
    )


# ── ranks and time ───────────────────────────────────────────────────────────────────────────────
def _ranks(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    """Arrival and duration of each rank in the case where arrival mattered most."""
    candidates = [s for s in summaries if s.time_s and s.skew_s is not None and s.case.world_size > 1]
    if not candidates:
        return None
    chosen = max(candidates, key=lambda s: (s.skew_s or 0.0) / (s.time_s.value if s.time_s else 1.0))
    samples = next(s for s in run.samples if s.case.key == chosen.case.key and s.failure is None)
    timings = samples.timed
    if timings is None:
        return None
    late = (timings.start_ns - timings.start_ns.min(axis=1, keepdims=True)) / 1e9
    took = timings.duration_ns / 1e9
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(
        f"Who waits for whom?  {label(chosen.case)}, launch {samples.launch}, {len(took)} iterations",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    for axes, data, title in (
        (left, late, "arrives after the first rank by"),
        (right, took, "spends in the call (the last to arrive spends least)"),
    ):
        _boxes(axes, data)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("rank")
        _time_axis(axes.yaxis)
        axes.set_ylim(bottom=0)
    return figure


def _boxes(axes: Axes, data: Any) -> None:
    """Boxes: quartiles and median; whiskers: 5th to 95th percentile; what lies beyond is drawn too."""
    ranks = data.shape[1]
    axes.boxplot(
        [data[:, rank] for rank in range(ranks)],
        positions=range(ranks),
        whis=(5, 95),
        widths=0.6,
        flierprops={"marker": ".", "markersize": 3, "alpha": 0.4},
        medianprops={"color": COLOURS[1], "linewidth": 2},
        boxprops={"color": COLOURS[0]},
        whiskerprops={"color": COLOURS[0]},
        capprops={"color": COLOURS[0]},
    )
    if ranks > 16:
        axes.set_xticks(range(0, ranks, max(1, ranks // 8)), [str(r) for r in range(0, ranks, max(1, ranks // 8))])


def _over_time(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    """Every sample in order, as a multiple of its case's median in its launch."""
    good = [s for s in run.samples if s.failure is None and s.timed is not None]
    if not good:
        return None
    began = min(s.unix_s for s in run.samples)
    figure, axes = _new("Was it steady?", run, summaries, "a dot: one iteration")
    worlds = sorted({s.case.world_size for s in good})
    for style, n in enumerate(worlds):
        parts = [_in_time(s, began) for s in good if s.case.world_size == n]
        x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        axes.plot(
            x, y, MARKERS[style % len(MARKERS)], color=COLOURS[style % len(COLOURS)], markersize=2.5, alpha=0.5,
            markeredgewidth=0, rasterized=True, label=f"{n} rank{'s' if n > 1 else ''}",
        )  # fmt: skip
    warm = [_in_time(s, began, warmup=True) for s in good if s.warmup is not None]
    if warm:
        x, y = np.concatenate([p[0] for p in warm]), np.concatenate([p[1] for p in warm])
        axes.plot(x, y, "x", color="#888888", markersize=3, alpha=0.6, rasterized=True, label="warm-up (not used)")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds since the first case began")
    axes.set_ylabel("time of one iteration / median of its case")
    legend = figure.legend(loc="outside right upper", fontsize=9)
    for handle in legend.legend_handles:
        getattr(handle, "set_markersize", lambda _: None)(6)
        handle.set_alpha(1) if handle is not None else None
    return figure


def _in_time(samples: Samples, began: float, warmup: bool = False) -> tuple[Any, Any]:
    timed = samples.timed
    part: Timings | None = samples.warmup if warmup else timed
    assert timed is not None and part is not None  # noqa: S101 - the caller selects such
    first = samples.warmup.start_ns.min() if samples.warmup is not None else timed.start_ns.min()
    seconds = (part.start_ns.min(axis=1) - first) / 1e9 + samples.unix_s - began
    return seconds, part.duration_ns.max(axis=1) / np.median(timed.duration_ns.max(axis=1))


# ── what they share ──────────────────────────────────────────────────────────────────────────────
def _new(
    question: str, run: Run, summaries: Sequence[Summary], marks: str = "bars: 95 % intervals"
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.subplots()
    cases = [s.case for s in summaries]
    what = ", ".join(sorted({f"{case.op} on {case.backend}" for case in cases}))
    launches = f"{run.plan.launches} launch{'es' if run.plan.launches > 1 else ''}"
    axes.set_title(f"{question}\n{what}, {_dtypes(cases)}, {launches}; {marks}", fontsize=10.5)
    return figure, axes


def _dtypes(cases: Iterable[Case]) -> str:
    return ", ".join(sorted({case.dtype for case in cases}))


def _size_axis(axes: Axes, summaries: Sequence[Summary]) -> None:
    sizes = sorted({s.case.size_bytes for s in summaries if s.time_s})
    shown = _spread(sizes, 10)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [format_bytes(size) for size in shown])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.set_xlabel("message size (bytes a rank)")
    _legend(axes)


def _log_time_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 100:  # decades alone would leave a narrow range with one label or none
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _time_axis(axes.yaxis)


def _time_axis(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_formatter(NullFormatter())


def tick(seconds: float) -> str:
    """A time on an axis, where numbers are round: `1 ms` and not `1.00 ms`."""
    number, unit = format_seconds(seconds).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if seconds else "0"


def _legend(axes: Axes) -> Any:
    return axes.legend(loc="upper left", fontsize=9)


def _spread(values: list[int], most: int) -> list[int]:
    """At most so many of the values, evenly from first to last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


DRAWINGS: dict[str, Drawing] = {
    "time": _time_against_size,
    "bandwidth": _bandwidth_against_size,
    "scaling": _scaling,
    "ranks": _ranks,
    "over-time": _over_time,
}
