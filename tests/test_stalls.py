"""The verdict on stalls of gloo follows from cases under both schedulings, and is given only if intervals show it."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.model.records import Case
from collbench.packages.bimodality.conclusions import modes_of
from collbench.packages.bimodality.report import answers, stalls_sentence
from collbench.report import document
from collbench.report.markdown import written
from collbench.report.notices import sentences
from collbench.report.view import View
from conftest import invented_run, samples

SIZES = (1024, 2**14, 2**24)
LAUNCHES = 8


def run_of(
    slow_share=0.0, slow=1.0, factor=1.0, scatter=0.03, schedulings=("normal", "batch"), ranks=2, batch=0.0, busy_s=2.0
):
    """Return a run in which normal calls take `factor` times as long, and a share of them `slow` times longer still.

    batch: the share of slow calls under SCHED_BATCH. busy_s: CPU seconds of all processes; two are those of the ranks.
    """
    dice = np.random.default_rng(5)
    made = []
    for launch in range(1, LAUNCHES + 1):
        for scheduling in schedulings:
            level = np.exp(scatter * dice.standard_normal()) * (factor if scheduling == "normal" else 1.0)
            for size in SIZES:
                share = (slow_share if scheduling == "normal" else batch) if size < 2**20 else 0.0
                times = 1e6 * level * dice.lognormal(0, 0.03, (80, 1)) * np.where(dice.random((80, 1)) < share, slow, 1)
                case = Case("all_reduce", "gloo", ranks, "float32", size, scheduling=scheduling)
                made.append(samples(case, launch, np.repeat(times, ranks, axis=1), busy_s=busy_s))
    return invented_run(made, launches=LAUNCHES)


WAITS = {"slow_share": 0.4, "slow": 6.0}


@pytest.mark.parametrize(
    ("verdict", "known", "made"),
    [
        ("stalls", "% of calls (1 – 16 KiB, 2 ranks) wait 5", WAITS),
        # As if more ranks than cores stall in every call.
        ("stalls", "small calls wait for a lock that gloo spins on", {"factor": 2.0}),
        # With 4 ranks on 2 cores every call stalls; under SCHED_BATCH some calls wait for a core.
        ("stalls", "small calls wait", {"factor": 8.0, "batch": 0.3, "slow": 4.0, "ranks": 4}),
        ("none", "under SCHED_BATCH calls of up to 1 MiB are 1.0 times as fast", {}),
        ("none", "take 3.0 times as long [2.9 – 3.1]. Such a loss was seen", {"factor": 1 / 3}),
        ("none", "% of calls (1 – 16 KiB, 2 ranks) wait 1.69 ms; under SCHED_BATCH", WAITS | {"factor": 1 / 3}),
        ("undecided", "More launches would show it.", {"factor": 1.1, "scatter": 0.5}),
        ("undecided", "may not be gloo's lock", {"slow_share": 0.5, "slow": 6.0, "factor": 1.5, "batch": 0.4}),
        ("undecided", "Other programs used the cores meanwhile", WAITS | {"busy_s": 4.0}),
        ("untested", "tests the remedy", WAITS | {"schedulings": ("normal",)}),
    ],
)
def test_the_verdict_follows_from_intervals_and_the_sentence_says_what_is_known(verdict, known, made):
    run = run_of(**made)
    analysis = analyze(run)
    (stalls,) = modes_of(analysis).stalls
    sentence = stalls_sentence(stalls)
    assert stalls.verdict == verdict and known in sentence, (stalls, sentence)
    # The sentence appears once, in the answer.
    assert (
        tuple(map(written, document.terminal(View(run, analysis))))[1].count(sentence)
        == written(document.build(View(run, analysis))).count(sentence)
        == 1
    )
    assert not any("stall" in warning for warning in sentences(analysis.notices))


def test_the_factor_is_of_small_calls_and_the_wait_is_the_extra_time_of_slow_calls():
    (stalls,) = modes_of(analyze(run_of(slow_share=0.4, slow=6.0))).stalls
    assert {case.size_bytes for case in stalls.cases} == {1024, 2**14}
    assert stalls.share == pytest.approx(0.4, abs=0.1) and stalls.wait_s == pytest.approx(5e-3, rel=0.2)
    assert stalls.factor.low < stalls.factor.value < stalls.factor.high
    assert stalls.factor.value == pytest.approx(1 + 5 * stalls.share, rel=0.2)


def test_each_number_of_ranks_has_a_verdict_of_its_own_cases():
    """With 2 ranks, calls stall and SCHED_BATCH does not help; with 4, calls have one mode and it makes them faster."""
    two, four = run_of(slow_share=0.4, slow=6.0, factor=1 / 3), run_of(factor=2.3, ranks=4)
    run = replace(two, samples=[*two.samples, *four.samples])
    other, stalls = modes_of(analyze(run)).stalls
    assert (other.verdict, other.ranks, stalls.verdict, stalls.ranks) == ("none", (2,), "stalls", (4,))
    assert {case.world_size for case in other.cases} == {2} and not stalls.cases
    first, second = answers(analyze(run))
    assert "2 ranks" in first and "gloo stalls here" in second and "with 4 ranks" in second and "2 ranks" not in second
