"""Nothing changed: how often is it called a change? Simulated on ten sets of real launches, and in real runs."""

import functools
from collections import Counter
from unittest.mock import patch

import numpy as np

from bench.analyze import pairs
from bench.analyze.compare import compare, compare_runs
from bench.model.conclusions import Summary
from bench.model.records import Run
from bench.stats import verdicts
from bench.stats.intervals import launch_interval
from proof import noise
from proof.claim import Line, at_most, rate
from proof.noise import Noise
from proof.rig import Rig

MOST = 0.05
CHANGED = {verdicts.SLOWER, verdicts.FASTER}
MIN_CHANGE = 0.05
# Pairs that the budget of a simulated `ab` holds; launches of a simulated run.
PAIRS, LAUNCHES = 128, 8
REAL = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 4
sizes: [4KiB, 256KiB, 4MiB]
sampling: {warmup: 3, warmup_seconds: 0.02, seconds_per_case: 0.05}
timeout: 60s
"""


def simulated_sides(rig: Rig, trials: int) -> list[Line]:
    """`ab` of identical sides. Each pair is two launches that followed each other. The machine drifts from launch to
    launch, within pairs as between them, over the budget by twice what launches scatter by; sides go first in turn at
    random, as `ab` has it."""
    with patch.object(pairs, "levels_at", functools.cache(pairs.levels_at)):  # the same looks in each trial
        hits, made, spread = noise.by_set(rig, trials, 1, _ever_changed)
    says = "ab of identical sides, the machine drifts, up to 128 pairs: ever SLOWER or FASTER"
    return [rate(says, hits, made, most=MOST, beside=spread)]


def _ever_changed(one: Noise, rng: np.random.Generator) -> bool:
    drift = 2 * one.logs.std() * np.cumsum(rng.normal(size=2 * PAIRS)) / np.sqrt(2 * PAIRS)
    both = one.pairs(rng, PAIRS) + drift.reshape(PAIRS, 2).T[:, None]
    a, b = np.exp(np.where(rng.random(PAIRS) < 0.5, both, both[::-1]))
    cases = [
        pairs.PairedCase(
            case.key, *(pairs.TimedCase(case, case.key, dict(enumerate(side[i][:, None]))) for side in (a, b))
        )
        for i, case in enumerate(one.run.plan.cases)
    ]
    looks: tuple[tuple[int, float], ...] = ()
    for count in (count for count in pairs.LOOKS if count <= PAIRS):
        looks = (*looks, (count, count / PAIRS))
        found = pairs.look(cases, looks, MIN_CHANGE)
        if pairs.why_end(found, count) is not None:
            return bool(CHANGED & set(found.verdicts))
    return False


def simulated_runs(rig: Rig, trials: int) -> list[Line]:
    """`compare` of two runs without a ledger, each on an occasion that differs from others as launches do."""
    says = "compare of unchanged runs, occasions differ as launches do, no ledger: SLOWER or FASTER"
    hits, made, spread = noise.by_set(rig, trials, 2, _called_changed)
    return [rate(says, hits, made, most=MOST, beside=spread)]


def _called_changed(one: Noise, rng: np.random.Generator) -> bool:
    scatter = one.logs.std(axis=1, ddof=1)[:, None]
    sides = [np.exp(one.launches(rng, LAUNCHES) + scatter * rng.normal(size=scatter.shape)) for _ in range(2)]
    summaries = [
        [
            Summary(case, LAUNCHES, LAUNCHES, launch_interval(means), tuple(means.tolist()))
            for case, means in zip(one.run.plan.cases, side, strict=True)
        ]
        for side in sides
    ]
    other = Run(one.run.path / "other", one.run.manifest, one.run.plan, [], [])
    result = compare(one.run, other, *summaries)
    return bool(CHANGED & {*(change.verdict for change in result.changes), result.whole and result.whole.verdict})


def real_runs(rig: Rig, trials: int) -> list[Line]:
    """Two runs a pair; each of the first half is compared with one of the second half, minutes later."""
    runs = [rig.measure(REAL) for _ in range(2 * trials)]
    said = [compare_runs(*pair).verdict for pair in zip(runs[:trials], runs[trials:], strict=True)]
    beside = "; " + ", ".join(f"{count} {verdict}" for verdict, count in Counter(said).most_common())
    wrong = sum(verdict in CHANGED for verdict in said)
    return [at_most("compare of two unchanged real runs, 4 launches: SLOWER or FASTER", wrong, trials, 2 / 60, beside)]
