"""Launches of two kinds are reported with their probability and correlated facts; launches of one kind are not."""

import dataclasses
import random

import numpy as np
import pytest

from collbench.model.records import Case
from collbench.packages.bimodality.analyze import launches as modes
from collbench.packages.bimodality.conclusions import Companion, LaunchFact
from collbench.packages.bimodality.report import companion_words
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
    """This happens to at most 1 % of cases: of 200, fewer than 8 in 999 of 1000 such tests."""
    dice = np.random.default_rng(count)
    cases = (launches(dice, FAMILIES[family](dice, count)) for _ in range(200))
    assert sum(modes.two_kinds(case) is not None for case in cases) < 8


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_two_modes_within_launches_are_not_two_kinds_of_launches(share):
    dice = np.random.default_rng(3)

    def launch(iterations):
        return 1e-3 * np.exp(dice.normal(0, 0.03, iterations)) * np.where(dice.random(iterations) < share, 4.0, 1.0)

    assert sum(modes.two_kinds([launch(10) for _ in range(8)]) is not None for _ in range(100)) <= 2


def test_launches_that_draw_one_of_two_levels_are_found():
    dice, correct = np.random.default_rng(1), 0
    for _ in range(50):
        slow = dice.random(12) < 0.3
        reported = modes.two_kinds(launches(dice, 0.4 * slow + dice.normal(0, 0.02, 12)))
        correct += 2 <= slow.sum() <= 10 and reported is not None and bool(np.all(reported == slow))
    assert correct > 40


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
    """Every second launch is slow, and its ranks may use one core only."""
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    dice, cores = np.random.default_rng(7), [[0, 1], [0]]
    times = launches(dice, [0.0, 1.0] * 6)
    run = invented_run([samples(case, n, np.stack([1e9 * one] * 2, axis=1)) for n, one in enumerate(times, 1)])
    recorded = [
        {
            "backend": "gloo",
            "world_size": 2,
            "launch": n,
            "ranks": [{"rank": k, "seen": {"joined": {"joining": {"affinity": cores[1 - n % 2]}}}} for k in (0, 1)],
        }
        for n in range(1, 13)
    ]
    (kinds,) = modes.launch_modes(dataclasses.replace(run, environment=[{"launches": recorded}]))
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
    assert f"{len(late)} of 12 launches take 2" in " ".join(done.stdout.split())
