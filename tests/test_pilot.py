"""A pilot says how much more is needed, by Kalibera and Jones, and says when it cannot."""

import numpy as np
import pytest

from bench.analyze.noise import needs
from bench.analyze.summaries import summarize
from bench.model.records import Case
from conftest import invented_run, samples

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)


def run_of(launches, between, within=0.05, count=60, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for launch in range(1, launches + 1):
        times = 1e6 * np.exp(between * rng.normal()) * rng.lognormal(0, within, (count, 1))
        made.append(samples(CASE, launch, np.repeat(times, 2, axis=1)))
    return invented_run(made, launches=launches)


def need_of(run, precision):
    (need,) = needs(run, summarize(run), precision)
    return need


def test_more_precision_needs_more_launches():
    run = run_of(10, 0.1)
    assert need_of(run, 0.10).launches < need_of(run, 0.05).launches < need_of(run, 0.02).launches


def test_what_it_asks_for_reaches_the_precision():
    """New runs of the size that it asks for are as narrow as wanted in the middle of them."""
    need = need_of(run_of(30, 0.1), 0.05)
    widths = []
    for seed in range(1, 40):
        (summary,) = summarize(run_of(need.launches, 0.1, count=max(6, need.iterations), seed=seed))
        widths.append(summary.time_s.relative_half_width)
    assert np.median(widths) == pytest.approx(0.05, rel=0.35)


def test_launches_that_differ_want_few_iterations_each():
    assert need_of(run_of(10, 0.2), 0.05).iterations < need_of(run_of(10, 0.005, within=0.3), 0.05).iterations


def test_one_launch_cannot_tell():
    need = need_of(run_of(1, 0.1), 0.05)
    assert need.launches is None and "one launch" in need.note
