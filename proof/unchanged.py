"""How often is a change reported if nothing changed? Simulated on ten sets of real launches, and in real runs."""

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from collbench.analyze import lengths, pairs
from collbench.analyze.compare import compare, compare_runs, sets_of
from collbench.model.conclusions import Summary
from collbench.model.records import Case, Launch, Run
from collbench.stats import verdicts
from collbench.stats.intervals import launch_interval
from proof import noise
from proof.claim import Limit, Line, at_most, rate
from proof.noise import Noise
from proof.rig import Rig

MOST = 0.05
CHANGED = {verdicts.SLOWER, verdicts.FASTER}
MIN_CHANGE = 0.05
# Pairs within the budget of a simulated `ab`; launches of a simulated run.
PAIRS, LAUNCHES = 128, 8
# The simulated `ab` whose lengths follow the noise: seconds of the budget, for the calls of a case in the first pairs,
# and around the calls of a pair. Standard deviations of a first pair's log ratio, from within launches and between
# them, by case, as measured on two cores with gloo (64 KiB, 1 MiB and 16 MiB).
BUDGET_S, SECONDS, AROUND_S = 90, 0.2, 1.2
WITHIN, BETWEEN = (0.23, 0.17, 0.10), (0.11, 0.08, 0.0)
CASE = Case("all_reduce", "gloo", 2, "float32", 1024)
# Standard deviation of the logarithms of simulated launches; of the variance between runs, in multiples of it.
SCATTER, OCCASIONS = 0.15, (0.0, 0.5, 1.0, 2.0)
# 20 cases whose scatter falls with their time: seconds, and standard deviations of the logarithms of their launches.
TIMES_S, FALLING = np.geomspace(1e-4, 1e-1, 20), np.geomspace(0.4, 0.04, 20)
TWICE = (
    "without a history nobody can know it: measure both sides at once with ab, keep the ledger, or compare four runs "
    "of each side; the first line names the assumption"
)


def simulated_sides(rig: Rig, trials: int) -> list[Line]:
    """Simulate `ab` of identical sides. Each pair is two successive launches. The machine drifts from launch to launch,
    within and between pairs, over the budget by twice the scatter of launches; the side that goes first in a pair is
    random, as in `ab`."""
    with patch.object(pairs, "levels_at", functools.cache(pairs.levels_at)):  # the same looks in each trial
        hits, made, spread = noise.by_set(rig, trials, 1, _ever_changed)
    title = "ab of identical sides, the machine drifts, up to 128 pairs: ever SLOWER or FASTER"
    rng = np.random.default_rng(5)
    wrong = sum(_lengths_changed(rng) for _ in range(trials))
    by_rule = f"the same over {BUDGET_S} s, with lengths of pairs that follow the noise, three cases"
    return [rate(title, hits, made, most=MOST, note=spread), rate(by_rule, wrong, trials, most=MOST)]


def _ever_changed(real: Noise, rng: np.random.Generator) -> bool:
    drift = 2 * real.logs.std() * np.cumsum(rng.normal(size=2 * PAIRS)) / np.sqrt(2 * PAIRS)
    both = real.pairs(rng, PAIRS) + drift.reshape(PAIRS, 2).T[:, None]
    a, b = np.exp(np.where(rng.random(PAIRS) < 0.5, both, both[::-1]))
    cases = [
        pairs.PairedCase(*(pairs.TimedCase(case, dict(enumerate(side[i][:, None], 1))) for side in (a, b)))
        for i, case in enumerate(real.run.plan.cases)
    ]
    looks: tuple[tuple[int, float], ...] = ()
    for count in (count for count in pairs.LOOKS if count <= PAIRS):
        looks = (*looks, (count, count / PAIRS))
        result = pairs.look(cases, looks, MIN_CHANGE)
        if pairs.why_end(result, count) is not None:
            return bool(CHANGED & set(result.verdicts))
    return False


def _lengths_changed(rng: np.random.Generator) -> bool:
    """Return whether an `ab` of identical sides that drift ends with a change; calls take 10 ms."""
    sides = [[pairs.TimedCase(replace(CASE, size_bytes=1024 * n), {}) for n in range(1, 4)] for _ in "ab"]
    cases = [pairs.PairedCase(*both) for both in zip(*sides, strict=True)]
    starts_s, spent_s, pair_s, level = dict[int, float](), 0.0, 0.0, 0.0
    looks: tuple[tuple[int, float], ...] = ()
    for number in range(1, PAIRS):
        seconds = lengths.seconds_of_next_pair(cases, starts_s, BUDGET_S, SECONDS)
        starts_s[number], pair_s = spent_s, AROUND_S
        for side in rng.permutation(2):
            level += rng.normal() * 2 * SCATTER / np.sqrt(2 * PAIRS)
            for case, within, between in zip(cases, WITHIN, BETWEEN, strict=True):
                calls = round(seconds.get(case.key, SECONDS) / 0.01)
                parts = within * np.sqrt(lengths.PARTS * SECONDS / calls / 0.01 / 2) * rng.normal(size=lengths.PARTS)
                times = 0.01 * np.exp(np.resize(np.repeat(parts, calls // lengths.PARTS), calls))
                launches = (case.a, case.b)[side].launches
                launches[number] = times * np.exp(level + between / np.sqrt(2) * rng.normal())
                pair_s += float(times.sum())
        spent_s += pair_s
        last = spent_s + pair_s > BUDGET_S
        if number in pairs.LOOKS or (last and number >= pairs.FEWEST_PAIRS):
            looks = (*looks, (number, 1.0 if last else spent_s / BUDGET_S))
            result = pairs.look(cases, looks, MIN_CHANGE)
            if last or pairs.why_end(result, number) is not None:
                return bool(CHANGED & set(result.verdicts))
    raise AssertionError("the budget ends first")


def simulated_runs(rig: Rig, trials: int) -> list[Line]:
    """Simulate `compare` of two runs without a ledger. A run moves all its cases in one direction, by k times the
    scatter of their launches. trials: per k, on the sets of three real cases, and with 20 cases of lognormal launches
    whose scatter is constant, or falls with their time."""
    lines, many = [], _many(rig)
    for k in OCCASIONS:
        title = f"compare of unchanged runs, no ledger, occasions {k:g} × as wide as launches: SLOWER or FASTER"
        hits, made, spread = noise.by_set(rig, trials, 2, lambda real, rng, k=k: _moved(real.run, real.logs, rng, k))
        limit = Limit(TWICE, most=0.3) if k == 2 else None
        lines.append(rate(f"{title}, 3 cases", hits, made, most=MOST, note=spread, limit=limit))
        rng = np.random.default_rng(3)
        wrong = sum(_moved(many, rng.normal(0, SCATTER, (20, 64)), rng, k) for _ in range(trials))
        lines.append(rate(f"{title}, 20 cases", wrong, trials, most=MOST, limit=limit))
        wrong = sum(_falling(many, rng, k, 1.0)[0] in CHANGED for _ in range(trials))
        lines.append(rate(f"{title}, 20 cases whose scatter falls", wrong, trials, most=MOST, limit=limit))
    finds = sum(_falling(many, rng, 0.5, 1.7)[1] == verdicts.SLOWER for _ in range(trials))
    return [*lines, rate("compare finds +70 % in the largest of 20 cases whose scatter falls", finds, trials, 0.9)]


def _falling(run: Run, rng: np.random.Generator, k: float, slower: float) -> tuple[str, str]:
    """Return the verdicts on a run and on its last case, which is `slower` times as long; scatter falls with time."""
    sides = [TIMES_S * np.exp(FALLING * (rng.normal(size=(LAUNCHES, 20)) + k * rng.normal())) for _ in range(2)]
    sides[1][:, -1] *= slower
    result = compare(run, replace(run, path=Path("other")), *(_summaries(run, side.T) for side in sides))
    return result.verdict, result.changes[-1].verdict


def simulated_finds(rig: Rig, trials: int) -> list[Line]:
    """Simulate `compare` of three and four runs per side: 20 cases take 50 % longer, and runs scatter by 0.6 × the
    scatter of launches. And of four unchanged runs per side, where runs are the unit, with all widths in OCCASIONS.

    trials: simulated comparisons. The note has the rate of equally many comparisons with one run per side.
    """
    rng, many, lines = np.random.default_rng(4), _many(rig), []
    hits = {
        runs: sum(_verdict(many, rng, runs, 1.5, 0.6) == verdicts.SLOWER for _ in range(trials)) for runs in (1, 3, 4)
    }
    note = f"; of one run on each side {hits[1] / trials:.1%}"
    for runs in (3, 4):
        title = f"compare of {runs} runs on each side finds +50 % in all of 20 cases"
        lines.append(rate(title, hits[runs], trials, 0.9, note=note))
    for k in OCCASIONS:
        wrong = sum(_verdict(many, rng, 4, 1.0, k) in CHANGED for _ in range(trials))
        title = f"compare of 4 unchanged runs on each side, occasions {k:g} × as wide as launches: SLOWER or FASTER"
        lines.append(rate(f"{title}, 20 cases", wrong, trials, most=MOST))
    return lines


def _many(rig: Rig) -> Run:
    """Return a run of 20 cases, without samples."""
    run = noise.sets(rig)[0].run
    cases = tuple(Case("all_reduce", "gloo", 2, "float32", 2**k) for k in range(2, 22))
    return replace(run, path=Path("many"), plan=replace(run.plan, order=(Launch("gloo", 2, 1, cases),)), samples=[])


def _moved(run: Run, logs: np.ndarray, rng: np.random.Generator, k: float) -> bool:
    """Return whether two runs of launches drawn at random are called different; each run has its own shift."""
    scatter = np.sqrt(np.mean(np.var(logs, axis=1, ddof=1)))
    sides = []
    for _ in range(2):
        launches = logs[:, rng.integers(0, logs.shape[1], LAUNCHES)]
        sides.append(_summaries(run, np.exp(launches + k * scatter * rng.normal())))
    result = compare(run, replace(run, path=run.path / "other"), *sides)
    return bool(CHANGED & {*(change.verdict for change in result.changes), result.whole and result.whole.verdict})


def _verdict(run: Run, rng: np.random.Generator, runs: int, slower: float, k: float) -> str:
    """Return the verdict on B, `slower` times as long, from `runs` runs per side; k: scatter of runs over launches."""
    sides = [
        [
            _summaries(run, factor * np.exp(SCATTER * (rng.normal(size=(20, LAUNCHES)) + k * rng.normal())))
            for _ in range(runs)
        ]
        for factor in (1.0, slower)
    ]
    together = [
        _summaries(run, np.array([np.concatenate([s.means_s for s in cases]) for cases in zip(*side, strict=True)]))
        for side in sides
    ]
    return compare(run, replace(run, path=Path("other")), *together, sets=sets_of(sides)).verdict


def _summaries(run: Run, side: np.ndarray) -> list[Summary]:
    """Return the summaries of a side. side: times of launches, shape (cases, launches)."""
    return [
        Summary(case, launch_interval(means), tuple(means.tolist()), launches=len(means), iterations=len(means))
        for case, means in zip(run.plan.cases, side, strict=True)
    ]


def real_runs(rig: Rig, trials: int) -> list[Line]:
    """Compare quarters of the ten sets as runs: each of the first five sets with the set five later, minutes apart."""
    runs = [
        replace(real.run, samples=[s for s in real.run.samples if (s.launch - 1) * 4 // noise.LAUNCHES == quarter])
        for real in noise.sets(rig)
        for quarter in range(4)
    ]
    answers = [compare_runs(*pair).verdict for pair in zip(runs[:trials], runs[len(runs) // 2 :][:trials], strict=True)]
    note = "; " + ", ".join(f"{count} {verdict}" for verdict, count in Counter(answers).most_common())
    wrong = sum(verdict in CHANGED for verdict in answers)
    return [at_most("compare of two unchanged real runs, 4 launches: SLOWER or FASTER", wrong, trials, 2 / 60, note)]
