"""Pictures stay readable from one series to hundreds: common words are shown once, and nothing overlaps."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from collbench.catalog.collectives import OPERATIONS, busbw, usual
from collbench.model.conclusions import Analysis, Diagnosis, Interval, Summary
from collbench.model.records import Case, Variables
from collbench.packages.training.report import plots as training
from collbench.report.plots import figures, operations, panels, sizes
from collbench.report.plots.comparison import LOOKS
from collbench.report.plots.figures import COLOURS, MARKERS, PAPER, REPORT
from collbench.report.plots.panels import MOST_SERIES
from conftest import invented_run

SIZES = (4096, 2**20)
RUN = invented_run([])


def summary(case: Case) -> Summary:
    seconds = (1e-4 + case.size_bytes / 1e9) * case.world_size
    time = Interval(seconds, 0.9 * seconds, 1.1 * seconds, "over launches")
    return Summary(case, time, (seconds,) * 3, launches=3, busbw=busbw(case, seconds) if case.size_bytes else None)


def analysis(cases) -> Analysis:
    distinct = {case.key: case for case in map(usual, cases)}
    return Analysis(tuple(summary(case) for case in distinct.values()), (), Diagnosis(()))


def everything(
    metrics=("isolated", "pipelined"), worlds=(2, 3), dtypes=("float32",), backends=("gloo",), ops=tuple(OPERATIONS)
):
    return analysis(
        Case(op, backend, n, dtype, size, metric=metric, depth=20 if metric == "pipelined" else 1)
        for op in ops for backend in backends for metric in metrics for dtype in dtypes for n in worlds
        for size in SIZES if metric == "isolated" or not OPERATIONS[op].paired
    )  # fmt: skip


def words(figure) -> str:
    figures.lay_out(figure, REPORT)
    return "\n".join(" ".join(text.get_text().split()) for text in figure.findobj(Text))


def boxes(figure):
    """Return names and boxes of titles, legend and axes on the page."""
    figure.draw_without_rendering()
    named = [("legend", legend.get_window_extent()) for legend in figure.legends]
    named += [("title", text.get_window_extent()) for text in figure.texts if text.get_text()]
    named += [("panel title", a._left_title.get_window_extent()) for a in figure.axes if a._left_title.get_text()]
    named += [("label", a.xaxis.label.get_window_extent()) for a in figure.axes if a.get_xlabel()]
    return [*named, *(("axes", axes.get_window_extent()) for axes in figure.axes)]


RING_LL128 = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL128"))
TREE_SIMPLE = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("results", "medium"),
    [
        (everything(metrics=("isolated",)), REPORT),
        (everything(ops=tuple(OPERATIONS)[::3]), PAPER),
        (everything(metrics=("isolated",), worlds=tuple(range(2, 10)), ops=tuple(OPERATIONS)[::8]), PAPER),
        (
            analysis(
                Case("all_reduce", "nccl", n, "float32", size, settings=setting, memory=memory)
                for n in (2, 4, 8) for size in SIZES for memory in ("plain", "registered")
                for setting in map(Variables, ((), RING_LL128, TREE_SIMPLE))
            ),
            REPORT,
        ),
    ],
    ids=["22 operations", "8 operations in a paper", "eight world sizes in a paper", "settings"],
)  # fmt: skip
def test_nothing_overlaps(results, medium):
    with rc_context(medium.style):
        drawn = [
            *sizes.time_against_size(RUN, results),
            *sizes.bandwidth_against_size(RUN, results),
            *sizes.scaling(RUN, results),
            *operations.operations(RUN, results),
        ]
        assert drawn
        for figure in drawn:
            figures.lay_out(figure, medium)
            placed = boxes(figure)
            for number, (name, box) in enumerate(placed):
                assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, (name, "leaves the page")
                for other, other_box in placed[number + 1 :]:
                    assert not box.padded(-1).overlaps(other_box), (name, other, figure.texts[0].get_text())


def test_points_are_at_their_true_sizes():
    results = analysis(Case("all_reduce", "gloo", n, "float32", size) for n in (2, 3, 4) for size in SIZES)
    for draw in (sizes.time_against_size, sizes.bandwidth_against_size):
        (figure,) = draw(RUN, results)
        (axes,) = figure.axes
        assert [container[0].get_xdata().tolist() for container in axes.containers] == 3 * [list(SIZES)]


def test_an_interval_of_decades_is_cut_and_the_legend_states_so():
    results = analysis(Case("all_reduce", "gloo", n, "float32", size) for n in (2, 4) for size in SIZES)
    before = sizes.time_against_size(RUN, results)[0]
    assert "beyond the picture" not in words(before)
    first, *others = results.summaries
    wide = replace(first, time_s=replace(first.time_s, low=1e-9, high=1e3))
    (figure,) = sizes.time_against_size(RUN, replace(results, summaries=(wide, *others)))
    values = [s.time_s.value for s in results.summaries]
    low, high = figure.axes[0].get_ylim()
    assert low == pytest.approx(min(values) / sizes.FAR) and high == pytest.approx(max(values) * sizes.FAR)
    assert "an interval extends beyond the picture" in words(figure)


def test_colours_are_distinguished_with_deuteranopia():
    """Distances in CIELAB after Machado, Oliveira and Fernandes (2009), severity 1; red and green alone would be 20."""
    assert min_distance(COLOURS) > 12
    assert min_distance(["#AA3333", "#557711"]) < 12  # people who see red distinguish these colours
    assert min_distance([colour for colour, _ in LOOKS.values()]) > 12
    assert min_distance([look["facecolor"] for look in training.PARTS.values()]) > 12
    assert len(set(MARKERS)) >= MOST_SERIES and len({marker for _, marker in LOOKS.values()}) == len(LOOKS)


def min_distance(colours) -> float:
    points = [lab(colour) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(points, 2))


def lab(colour: str):
    """Return CIELAB of a colour as deuteranopes see the colour."""
    sight = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = to_xyz @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_a_default_is_named_next_to_another_value():
    modes = [
        Case("all_reduce", "gloo", n, "float32", size, scheduling=mode)
        for mode in ("normal", "batch") for n in (2, 4, 8) for size in SIZES
    ]  # fmt: skip
    (figure,) = sizes.time_against_size(RUN, analysis(modes))
    assert {"normal, 2 ranks", "batch, 4 ranks"} <= {*words(figure).splitlines()}
    assert "normal, " in words(sizes.scaling(RUN, analysis(modes))[0])


def test_panels_that_do_not_fit_are_counted(monkeypatch):
    monkeypatch.setattr(panels, "PANELS_A_PAGE", 4)
    cases = [
        Case(op, "gloo", 2, "float32", size, settings=Variables((("NCCL_ALGO", str(k)),)), reduce_op=r)
        for op in ("all_reduce", "reduce") for size in SIZES for k in range(15) for r in ("sum", "max", "min", "avg")
    ]  # fmt: skip
    made = panels.pages("Why?", "", panels.panels(analysis(cases).summaries, sizes.by_ranks))
    left = 2 * 15 * 4 // MOST_SERIES - panels.MOST_PAGES * 4
    assert len(made) == panels.MOST_PAGES and f"and {left} more panels: see the tables" in words(made[-1].figure)
