"""Pictures of training steps show the conclusions, with units, and have room for many strategies, ranks and calls."""

from dataclasses import replace

import pytest
from matplotlib.text import Text

import training_fixtures as invented
from collbench.catalog.package import MOST_PAGES
from collbench.model.conclusions import Analysis, Diagnosis, Interval, IntervalKind
from collbench.packages.training.report import plots as training
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
