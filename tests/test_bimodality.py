"""Launches of two kinds are reported with their probability and correlated facts; launches of one kind are not.

The verdict on stalls of gloo follows from cases under both schedulings, and is given only if intervals show it.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.model.records import Case
from collbench.packages.bimodality.analyze import launches as modes
from collbench.packages.bimodality.conclusions import Companion, LaunchFact, modes_of
from collbench.packages.bimodality.report import companion_words, stalls_sentence
from collbench.report import document
from collbench.report.markdown import written
from collbench.report.notices import sentences
from collbench.report.view import View
from collbench.store import folders
from conftest import invented_run, samples

CORES = LaunchFact.CORES
FAMILIES = {
    "lognormal": lambda dice, size: dice.normal(0, 0.2, size),
    "skewed": lambda dice, size: dice.exponential(0.3, size),
    "uniform": lambda dice, size: dice.uniform(0, 0.5, size),
}


def launches(dice, levels, within=0.05, iterations=60):
    return [1e-3 * np.exp(level + dice.normal(0, within, iterations)) for level in levels]


@pytest.mark.parametrize("count", [8, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_launches_of_one_kind_are_rarely_taken_for_two(family, count):
    """This happens to at most 1 % of cases, which is two of 200; the cases are drawn from fixed seeds."""
    dice = np.random.default_rng(count)
    cases = (launches(dice, FAMILIES[family](dice, count)) for _ in range(200))
    assert sum(modes.two_kinds(case) is not None for case in cases) <= 3


def test_facts_that_go_with_slow_launches_are_named_and_other_facts_are_not():
    slow = np.arange(12) < 5
    facts = {
        (CORES, 0): ["0" if is_slow else "0, 1" for is_slow in slow],
        (CORES, 1): ["0" if is_slow else "0, 1" for is_slow in slow],
        (LaunchFact.TIME, None): [str(number) for number in range(12)],
        (LaunchFact.HOST, 0): ["a", "b"] * 6,
        (LaunchFact.OTHER_PROCESSES, None): [0.9 + n / 100 if is_slow else n / 100 for n, is_slow in enumerate(slow)],
    }
    busy = Companion(((LaunchFact.OTHER_PROCESSES, None),), more=True)
    pinned = Companion(((CORES, 0), (CORES, 1)), slow=("0",), others=("0, 1",))
    assert set(modes.differing(facts, slow)) == {busy, pinned}
    assert companion_words(pinned) == "cores of rank 0, cores of rank 1 (slow: 0; others: 0, 1)"
    assert not list(modes.differing({(LaunchFact.HOST, 0): ["a", "b"] * 6}, slow))


def test_cores_that_a_run_recorded_are_named():
    """Every second launch is slow, and its ranks may use one core only. What only these launches know is not named."""
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    dice, cores, steal = np.random.default_rng(7), [[0, 1], [0]], (0.3, None)
    times = [np.stack([1e9 * one] * 2, axis=1) for one in launches(dice, [0.0, 1.0] * 6)]
    run = invented_run([samples(case, n, one, steal_s=steal[n % 2]) for n, one in enumerate(times, 1)])
    recorded = [
        {
            "backend": "gloo", "world_size": 2, "launch": n,
            "ranks": [{"rank": k, "seen": {"joined": {"joining": {"affinity": cores[1 - n % 2]}}}} for k in (0, 1)],
            "health": {"a": {"tcp": {"all": {}} if n % 2 else {"all": {"segments_again": 3}}}},
        }
        for n in range(1, 13)
    ]  # fmt: skip
    (kinds,) = modes.launch_modes(replace(run, environment=[{"launches": recorded}]))
    assert kinds.slow == (2, 4, 6, 8, 10, 12) and kinds.slow_s > 2 * kinds.fast_s
    assert kinds.companions == (Companion(((CORES, 0), (CORES, 1)), slow=("[0]",), others=("[0, 1]",)),)


@pytest.mark.slow
def test_launches_in_which_a_coin_makes_a_rank_late_are_found(tmp_path, warm):
    """Rank 1 is late in every launch, by 25 or 150 ms: compared with a delay, other programs add little scatter."""
    dice = random.Random(3)
    late = [number for number in range(1, 13) if dice.random() < 0.5]
    faults = ", ".join(
        f"{{do: late, rank: 1, launch: {number}, delay: {150 if number in late else 25}ms}}" for number in range(1, 13)
    )
    (tmp_path / "c.yaml").write_text(
        "backends: [gloo]\nworld_sizes: [2]\noperations: [all_reduce]\nsizes: [4KiB]\nlaunches: 12\n"
        f"sampling: {{iterations: 10, warmup: 1}}\nfaults: [{faults}]\n"
    )
    done = warm("run", "c.yaml", "--no-plots")
    assert done.returncode == 0, done.stderr
    (kinds,) = modes.launch_modes(folders.read(next(folders.runs(tmp_path / "results"))))
    assert sorted(kinds.slow) == late and kinds.launches == 12
    assert f"{len(late)} of 12 launches take 1" in " ".join(done.stdout.split())


# ── stalls of gloo ───────────────────────────────────────────────────────────────────────────────
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
