"""Pictures of training steps show the conclusions, with units, and have room for many strategies, ranks and calls."""

from dataclasses import replace

import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import training_fixtures as invented
from collbench.catalog.package import MOST_PAGES
from collbench.model.conclusions import Analysis, Diagnosis, Interval, IntervalKind
from collbench.packages.training.conclusions import StrategyResult
from collbench.packages.training.report import plots as training
from collbench.packages.training.step_records import CallRecord
from collbench.packages.training.synchronisation import Strategy
from collbench.report.plots import PICTURES, draw
from collbench.report.plots.figures import REPORT, lay_out
from collbench.report.view import View
from training_fixtures import draw_as_text, with_training

RUN = invented.run()


def drawn_by(draw, *scenarios):
    return draw(RUN, with_training(Analysis((), (), Diagnosis(())), scenarios=scenarios))


@pytest.fixture(scope="module")
def comparison():
    return invented.comparison()


def words(figure) -> str:
    lay_out(figure, REPORT)
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_every_picture_is_drawn_with_its_units(comparison, tmp_path, monkeypatch):
    draw_as_text(monkeypatch)
    few = [replace(r, timeline=r.timeline if n < 3 else None) for n, r in enumerate(comparison.results)]
    (tmp_path / f"training-steps-{MOST_PAGES}.png").write_bytes(b"left behind")
    drawn = draw(View(RUN, invented.analysis((replace(comparison, results=tuple(few)),))), tmp_path)
    # Pictures of collectives have nothing to show.
    kinds = [kind.name for kind in PICTURES if kind.name.startswith("training-")]
    assert [name for _, name in drawn if not name.endswith("-2")] == kinds
    said = {
        "training-steps": ["Time of a step", "flat (5)", "ms exposed", "not resolved", "(2 =)"],
        "training-timeline": ["naive_async: step", "rank 1", "waiting for gradients", "ms"],
        "training-buckets": ["bucket size", "256 KiB", "exposed communication per step"],
        "training-buckets-2": ["bucket size", "star: the best cap", "torch's default, predicted: 5.61 ms", "measured"],
    }
    for _, name in drawn:
        text = (tmp_path / f"{name}.png").read_text()
        for word in said[name]:
            assert word in text, (name, word)


def test_bars_add_up_to_the_step_and_negative_is_not_hidden(comparison):
    (figure,) = drawn_by(training.steps, comparison)
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    row_of = {label.get_text().split(" (")[0]: row for row, label in enumerate(axes.get_yticklabels())}

    def bars_of(name):
        return [bar for bar in bars if abs(bar.get_y() + bar.get_height() / 2 - row_of[name]) < 0.01]

    flat = next(o for o in comparison.results if o.label == "flat")
    computing, exposed = bars_of("flat")
    assert computing.get_width() == pytest.approx(comparison.compute.value)
    assert exposed.get_width() == pytest.approx(flat.exposed.value)
    computing, negative = bars_of("ddp noop")
    assert computing.get_width() == pytest.approx(comparison.compute.value - 0.4e-3)
    assert negative.get_hatch() and negative.get_width() == pytest.approx(0.4e-3)
    assert row_of["none"] < row_of["ddp noop"] < row_of["flat"] < row_of["naive"]
    assert "zero1" not in row_of


def test_timelines_share_one_axis_and_show_every_call(comparison):
    (figure,) = drawn_by(training.timelines, comparison)
    assert len(figure.axes) == training.MOST_TIMELINES < len(invented.STRATEGIES)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    by_name = {axes.get_title(loc="left") or axes.get_title(): axes for axes in figure.axes}
    naive = next(axes for title, axes in by_name.items() if title.startswith("naive:"))
    ticks, calls = naive.lines[0], naive.collections[0]
    assert len(ticks.get_xdata()) == len(invented.GRADIENTS) == len(calls.get_paths())
    assert any(title.startswith("none") and "waits" not in title for title in by_name)


def test_lanes_are_as_many_as_were_under_way_at_once():
    calls = [CallRecord(1, 0.0, begin, end) for begin, end in ((0, 4), (1, 2), (2, 3), (3, 5), (4, 6))]
    lanes = training.lanes(calls)
    assert [len(lane) for lane in lanes] == [2, 3]
    assert training.lanes([]) == [] and sorted(f.done_s for lane in lanes for f in lane) == [2, 3, 4, 5, 6]


def with_ranks(comparison, ranks):
    results = (replace(r, timeline=r.timeline and invented.timeline(r.strategy, ranks)) for r in comparison.results)
    return replace(comparison, results=tuple(results))


def test_of_many_ranks_some_are_shown_and_the_reference_and_naive_of_five_kinds_however_slow_naive_is(comparison):
    for ranks, shown in ((4, [0, 1, 2, 3]), (64, [0, 21, 42, 63])):
        (page,) = drawn_by(training.timelines, with_ranks(comparison, ranks))
        names = [(axes.get_title(loc="left") or axes.get_title()).split(":")[0] for axes in page.axes]
        assert names[:2] == ["none", "naive"] and len({name.split()[0] for name in names}) == len(names) == 5
        assert [label.get_text() for label in page.axes[0].get_yticklabels()] == [f"rank {rank}" for rank in shown]


def test_without_advice_only_what_was_measured_is_drawn(comparison):
    """Intervals are unknown, too: they have no bars."""
    unknown = Interval(1e-3, 1e-3, 1e-3, IntervalKind.NONE)
    results = tuple(replace(o, exposed=o.exposed and unknown) for o in comparison.results)
    measured = replace(comparison, results=results, advice=None)
    text = words(drawn_by(training.buckets, measured)[0])
    assert "measured: overlap_bucket" in text and "predicted" not in text and "advised" not in text
    assert "1.00 ms exposed" in words(drawn_by(training.steps, measured)[0])
    only_plan = replace(measured, results=(invented.result(invented.PLAN, 1),))
    assert "plan [" in words(drawn_by(training.buckets, only_plan)[0])


def test_a_recorded_step_far_above_the_mean_is_named_and_not_drawn(comparison):
    slow = (replace(r, step=r.step and replace(r.step, value=r.step.value / 9)) for r in comparison.results[:1])
    (page,) = drawn_by(training.timelines, replace(comparison, results=(*slow, *comparison.results[1:])))
    assert "a disturbed step was recorded of none" in page.get_suptitle()
    assert not any(axes.get_title(loc="left").startswith("none:") for axes in page.axes)


def test_nothing_measured_is_nothing_drawn(comparison, tmp_path):
    nothing = replace(RUN, samples=[])
    assert draw(View(nothing, Analysis((), (), Diagnosis(()))), tmp_path) == []
    none = replace(comparison, results=(), advice=None)
    assert draw(View(nothing, with_training(Analysis((), (), Diagnosis(())), scenarios=(none,))), tmp_path) == []
    alone = replace(comparison, results=(invented.result(Strategy("none")),), advice=None)
    assert len(drawn_by(training.steps, alone)) == 1 and drawn_by(training.buckets, alone) == []
    one_rank = replace(
        comparison, scenario=replace(invented.SCENARIO, case=replace(invented.SCENARIO.case, world_size=1))
    )
    assert not any(drawn_by(draw, one_rank) for draw in (training.steps, training.buckets, training.timelines))


def test_calls_that_cannot_be_seen_are_not_shown_as_no_calls(comparison):
    unseen = invented.timeline(Strategy("none"))
    ddp = invented.result(Strategy("ddp"), 3, calls=None, timeline=unseen)
    odd = replace(comparison, results=(comparison.results[0], ddp))
    titles = [axes.get_title() for axes in drawn_by(training.timelines, odd)[0].axes]
    assert titles[0].endswith("no calls") and titles[1].endswith("its calls cannot be seen")


def test_plans_with_equal_short_names_have_a_line_each():
    plans = [Strategy("plan", buckets=(2**20, 2**20, size, size, size)) for size in (2**21, 2**22)]
    first, second = (StrategyResult(invented.case_of(plan), rounds=12) for plan in plans)
    assert first.name == second.name and training._series(first) != training._series(second)
