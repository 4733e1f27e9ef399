"""Whether gloo stalls here follows from cases under both schedulings, and is said only where intervals show it."""

import numpy as np
import pytest

from bench.analyze.analysis import analyze
from bench.model.records import Case
from bench.modes.conclusions import modes_of
from bench.modes.report import stalls_sentence
from bench.report import document
from bench.report.markdown import written
from conftest import invented_run, samples

SIZES = (1024, 2**14, 2**24)
LAUNCHES = 8


def run_of(slow_share=0.0, slow=1.0, factor=1.0, scatter=0.03, schedulings=("normal", "batch")):
    """Normal calls take `slow` times as long in a share of the calls, and `factor` times the others' time besides."""
    dice = np.random.default_rng(5)
    made = []
    for launch in range(1, LAUNCHES + 1):
        for scheduling in schedulings:
            level = np.exp(scatter * dice.standard_normal()) * (factor if scheduling == "normal" else 1.0)
            for size in SIZES:
                share = slow_share if scheduling == "normal" and size < 2**20 else 0.0
                times = 1e6 * level * dice.lognormal(0, 0.03, (80, 1)) * np.where(dice.random((80, 1)) < share, slow, 1)
                case = Case("all_reduce", "gloo", 2, "float32", size, scheduling=scheduling)
                made.append(samples(case, launch, np.repeat(times, 2, axis=1)))
    return invented_run(made, launches=LAUNCHES)


@pytest.mark.parametrize(
    ("verdict", "made"),
    [
        ("stalls", {"slow_share": 0.4, "slow": 6.0}),
        ("stalls", {"factor": 2.0}),  # as where more ranks than cores stall in every call
        ("none", {}),
        ("harms", {"factor": 1 / 3}),
        ("other", {"slow_share": 0.4, "slow": 6.0, "factor": 1 / 3}),
        ("undecided", {"factor": 1.1, "scatter": 0.5}),
        ("untested", {"slow_share": 0.4, "slow": 6.0, "schedulings": ("normal",)}),
    ],
)
def test_the_verdict_follows_from_intervals(verdict, made):
    run = run_of(**made)
    analysis = analyze(run)
    assert modes_of(analysis).stalls.verdict == verdict, modes_of(analysis).stalls
    sentence = stalls_sentence(modes_of(analysis).stalls)
    # It stands once, in the answer.
    assert (
        tuple(map(written, document.terminal(run, analysis)))[1].count(sentence)
        == written(document.build(run, analysis)).count(sentence)
        == 1
    )
    assert not any("stall" in warning for warning in analysis.warnings)


def test_the_factor_is_that_of_small_calls_and_the_wait_is_what_slow_ones_take_longer():
    stalls = modes_of(analyze(run_of(slow_share=0.4, slow=6.0))).stalls
    assert {case.size_bytes for case in stalls.cases} == {1024, 2**14}
    assert stalls.share == pytest.approx(0.4, abs=0.1) and stalls.wait_s == pytest.approx(5e-3, rel=0.2)
    assert stalls.factor.low < stalls.factor.value < stalls.factor.high
    assert stalls.factor.value == pytest.approx(1 + 5 * stalls.share, rel=0.2)
