"""Pictures stay readable from one series to hundreds: common words are shown once, and nothing overlaps."""

from dataclasses import replace

import pytest
from matplotlib import rc_context
from matplotlib.text import Text

from collbench.catalog.collectives import OPERATIONS, busbw, usual
from collbench.model.conclusions import Analysis, Diagnosis, Interval, Summary
from collbench.model.records import Case, Variables
from collbench.report.plots import figures, operations, panels, sizes
from collbench.report.plots.figures import PAPER, REPORT
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
