"""Draw the step time of each strategy as computing plus exposed communication, which is hatched if negative.

In: a `ScenarioAnalysis`. Out: a figure; none where nothing was timed.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.report.plots.panels import WIDER, wrapped
from bench.report.plots.plot_style import COLOURS, time_axis
from bench.training.conclusions import ScenarioAnalysis, StrategyResult
from bench.training.report.labels import (
    UNRESOLVED,
    ends,
    is_reference,
    names,
    ordered,
    percent,
    place_text,
    scenario_text,
    seconds,
)

# More rows than this are too small to read; the tables have all.
MOST_ROWS = 40
COMPUTING, EXPOSED = COLOURS[5], COLOURS[1]
# Opacity of exposed communication that is not resolved.
PALE = 0.4


def steps(comparison: ScenarioAnalysis) -> list[Figure]:
    """A bar for each strategy, the reference on top, then by place; whiskers: interval of exposed communication."""
    timed = [o for o in ordered(comparison) if o.step is not None]
    shown = timed[:MOST_ROWS]
    if not shown:
        return []
    called = names([o.label for o in comparison.results])
    figure = Figure(figsize=(10, 1.9 + 0.34 * len(shown)), layout="constrained")
    axes = figure.subplots()
    more = f" · the fastest {len(shown)} of {len(timed)}" if len(shown) < len(timed) else ""
    what = wrapped(scenario_text(comparison.scenario) + more, WIDER)
    figure.suptitle(f"How much of a step is communication?\n{what}", x=0.01, ha="left", fontsize=10.5)
    right = max(map(_right, shown))
    for row, result in enumerate(shown):
        _bar(axes, row, result)
        axes.text(1.02 * _right(result) + 0.004 * right, row, _text(result), va="center", fontsize=8.5)
    if comparison.compute is not None:
        axes.axvline(comparison.compute.value, color="black", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(shown)), [_row_name(o, comparison, called) for o in shown], fontsize=8.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    # Room for the text to the right of the longest bar.
    axes.set_xlim(0, 1.42 * right)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    time_axis(axes.xaxis)
    axes.set_xlabel(
        "time of a step (slowest rank); dotted: without synchronisation; in brackets: place, = where it is shared",
        fontsize=9,
    )
    figure.legend(handles=_handles(shown), loc="outside lower center", ncols=4, fontsize=8.5)
    return [figure]


def _row_name(result: StrategyResult, comparison: ScenarioAnalysis, called: dict[str, str]) -> str:
    return f"{called[result.label]} ({place_text(result, comparison).removesuffix(f', {UNRESOLVED}')})"


def _right(result: StrategyResult) -> float:
    """Where the bar and its whisker end."""
    assert result.step is not None  # noqa: S101 - the caller selects such
    if result.exposed is None:
        return result.step.value
    _, high = ends(result.exposed) or (0.0, result.exposed.value)
    base = result.step.value - result.exposed.value
    return max(result.step.value, base, base + high)


def _bar(axes: Axes, row: int, result: StrategyResult) -> None:
    """Draw one bar. Computing is the step less what is exposed: the reference's step with as many micro-batches."""
    assert result.step is not None  # noqa: S101 - the caller selects such
    exposed = result.exposed
    base = result.step.value - (exposed.value if exposed else 0.0)
    axes.barh(row, min(base, result.step.value), color=COMPUTING, height=0.66)
    if exposed is None:
        return
    alpha = 1.0 if result.resolved else PALE
    if exposed.value >= 0:
        axes.barh(row, exposed.value, left=base, color=EXPOSED, alpha=alpha, height=0.66)
    else:
        axes.barh(
            row, -exposed.value, left=result.step.value, facecolor="none", edgecolor=EXPOSED, hatch="////", height=0.66
        )
    known = ends(exposed)
    if known is not None:
        arms = [[max(exposed.value - known[0], 0)], [max(known[1] - exposed.value, 0)]]
        axes.errorbar([result.step.value], [row], xerr=arms, color="black", capsize=3, linewidth=1.1, linestyle="")


def _text(result: StrategyResult) -> str:
    """Such as `2.42 ms exposed, 11.2 %`."""
    assert result.step is not None  # noqa: S101 - the caller selects such
    if result.exposed is None:
        return f"{seconds(result.step.value)} a step" if is_reference(result) else ""
    share = "" if result.share is None else f", {percent(result.share)} %"
    return f"{seconds(result.exposed.value)} exposed{share}" + ("" if result.resolved else f", {UNRESOLVED}")


def _handles(shown: Sequence[StrategyResult]) -> list[Patch]:
    exposed = [o for o in shown if o.exposed is not None]
    found = [
        Patch(color=COMPUTING, label="computing"),
        Patch(color=EXPOSED, label="exposed communication, with its 95 % interval"),
    ]
    if any(not o.resolved for o in exposed):
        found.append(Patch(color=EXPOSED, alpha=PALE, label="not resolved"))
    if any(o.exposed.value < 0 for o in exposed if o.exposed):
        label = "negative: faster than without synchronisation"
        found.append(Patch(facecolor="none", edgecolor=EXPOSED, hatch="////", label=label))
    return found
