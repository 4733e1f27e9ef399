"""Does each printed interval contain the truth in 95 % of the cases? On series with known means, and on real ones.

The intervals: of one launch, from the means of its blocks; over launches; and of exposed communication. Kinds of
series: lognormal, skewed, with two modes, and, within a launch, autocorrelated.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.special import stdtrit

from collbench.analyze.round_series import means
from collbench.analyze.summaries import summarize
from collbench.model.conclusions import Interval
from collbench.packages.training.analyze import steps as training
from collbench.stats.intervals import LOGNORMAL, launch_interval, launch_scatter, within_launch
from collbench.stats.intervals import of_one_launch as one_launch
from proof import noise
from proof.claim import HOLDS, Limit, Line, further, judged, rate
from proof.rig import Rig

LEAST, MOST = 0.93, 0.97
LAUNCHES, SCATTER = 8, 0.2
# Numbers of cases from which skewness and autocorrelation are pooled; autocorrelations: real launches showed 0.18 and
# 0.30.
CASES, CORRELATIONS = (1, 3, 20), (0.0, 0.2, 0.3, 0.5)
# Within a launch: blocks; iterations per block; distance between block starts, in blocks; iterations that a mode lasts.
BLOCKS, EACH, APART, DWELL = 8, 20, 3, 10
# Within one launch: blocks and calls per block, as in runs with one launch; share and time of the slow mode.
DESIGNS, SLOW_SHARE, SLOW = ((4, 2), (5, 12), (8, 20), (5, 60), (5, 100)), 0.2, 6.0
# Training steps: exposed communication of the strategies, in seconds per step; a step without it; launches; rounds.
EXPOSED_S, STEP_S = (0.01, 0.02, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12), 0.08
STEP_LAUNCHES, ROUNDS = (3, 5), 8
REAL_STEP_LAUNCHES = 5
KINDS = ("lognormal", "skewed", "two modes")
SHAPES = ("lognormal", "skewed", "skewed to fast launches", "two modes", "one launch in ten slow")
NOT_SEEN = (
    "of 8 launches none is slow in 43 % of the trials, and what nobody saw widens nothing: measure more sizes, which "
    "show it together, and read p99"
)
CORRELATED = (
    "no machine showed so much; 8 launches of few cases cannot show it: take runs at different times as the unit"
)
AGAINST = "the cases of a backend are taken to be skewed to one side: measure the odd case in a run of its own"
FEW_CASES = "8 launches of few cases do not show well how far launches correlate: measure more sizes"


def _drawn(rng: np.random.Generator, kind: str, shape: int | tuple[int, ...]) -> np.ndarray:
    """Draw values of mean 0 and standard deviation 1; with two modes, the share of the slow mode is 0.4 or 0.1."""
    if kind == "lognormal":
        return rng.normal(size=shape)
    if kind.startswith("skewed"):
        return (rng.exponential(size=shape) - 1) * (1 if kind == "skewed" else -1)
    share = 0.1 if kind == "one launch in ten slow" else 0.4
    slow = rng.random(shape) < share
    return (slow - share + 0.1 * rng.normal(size=shape)) / np.sqrt(share * (1 - share) + 0.01)


def over_launches(_: Rig, trials: int) -> list[Line]:
    """Test independent launches of independent cases: skewness is pooled, autocorrelation is taken as 0."""
    rng, lines = np.random.default_rng(1), []
    rare = {cases: Limit(NOT_SEEN, least) for cases, least in zip(CASES, (0.7, 0.8, 0.9), strict=True)}
    for kind, cases in product(SHAPES, CASES):
        logs = [SCATTER * _drawn(rng, kind, (cases, LAUNCHES)) for _ in range(trials)]
        title = f"interval over {LAUNCHES} launches, {cases} cases, {kind}"
        limit = rare[cases] if kind == "one launch in ten slow" else None
        lines.append(_covered(title, logs, limit, correlated=False))
    signs = np.array([-1] + 9 * [1])[:, None]
    logs = [SCATTER * signs * _drawn(rng, "skewed", (10, LAUNCHES)) for _ in range(trials)]
    title = f"interval over {LAUNCHES} launches of a case that is skewed against nine others"
    return [*lines, _covered(title, logs, Limit(AGAINST, 0.83), correlated=False)]


def correlated(_: Rig, trials: int) -> list[Line]:
    """Test launches that correlate with the previous launch; half of the scatter is common to the cases of a run."""
    rng, lines = np.random.default_rng(3), []
    for cases, correlation in product(CASES, CORRELATIONS):
        chains = ((_chain(rng, 1, correlation), _chain(rng, cases, correlation)) for _ in range(trials))
        logs = [SCATTER * (common + own) / np.sqrt(2) for common, own in chains]
        limit = Limit(CORRELATED, 0.87) if correlation == 0.5 else None
        if cases < 20 and correlation == 0.3:
            limit = Limit(FEW_CASES, 0.9)
        lines.append(
            _covered(f"interval over {LAUNCHES} launches, {cases} cases, correlation {correlation:g}", logs, limit)
        )
    return lines


def _covered(title: str, runs: Sequence[np.ndarray], limit: Limit | None, correlated: bool = True) -> Line:
    """Judge how often the interval of the first case of each run (cases, launches) contains its mean.

    An interval that is too wide is not a miss; the note compares it with the interval by Student's t.
    """
    hits, by_t, widths = 0, 0, []
    for logs in runs:
        scatter = launch_scatter(list(logs))
        scatter = scatter if correlated else replace(scatter, autocorrelation=0.0)
        interval, bare = (launch_interval(np.exp(logs[0]), how) for how in (scatter, LOGNORMAL))
        hits, by_t = hits + _holds(interval, 1), by_t + _holds(bare, 1)
        widths.append(np.log(interval.high / interval.low) / np.log(bare.high / bare.low))
    note = f"; {np.mean(widths):.2f} times as wide as Student's t, which holds {by_t / len(runs):.1%}"
    return rate(title, hits, len(runs), LEAST, 1.0, note, limit)


def _chain(rng: np.random.Generator, cases: int, correlation: float) -> np.ndarray:
    """Draw values (cases, LAUNCHES) of standard deviation 1, each correlated with the previous launch."""
    values = rng.normal(size=(cases, LAUNCHES))
    for launch in range(1, LAUNCHES):
        values[:, launch] = correlation * values[:, launch - 1] + np.sqrt(1 - correlation**2) * values[:, launch]
    return values


def within_a_launch(_: Rig, trials: int) -> list[Line]:
    rng, lines = np.random.default_rng(2), []
    for kind in (*KINDS, "autocorrelated"):
        drawn = (_launch(rng, kind).reshape(BLOCKS, APART, EACH)[:, 0].ravel() for _ in range(trials))
        hits = sum(_holds(within_launch(times, (EACH,) * BLOCKS), 1) for times in drawn)
        lines.append(rate(f"interval within a launch of {BLOCKS} blocks, {kind}", hits, trials, LEAST, MOST))
    return lines


def of_one_launch(_: Rig, trials: int) -> list[Line]:
    """Test designs of real runs on launches with a slow mode: coverage of the interval, and whether it is printed.

    A fifth of the calls are in the slow mode, ten in a row; a block starts every three block lengths.
    """
    rng, lines = np.random.default_rng(7), []
    for blocks, each in DESIGNS:
        hits, printed = 0, False
        for _ in range(trials):
            count = blocks * APART * max(each, DWELL)
            slow = np.repeat(rng.random(count // DWELL + 2) < SLOW_SHARE, DWELL)[rng.integers(DWELL) :][:count]
            times = np.where(slow, SLOW, 1.0) / (1 + SLOW_SHARE * (SLOW - 1)) * np.exp(0.1 * rng.normal(size=count))
            taken = times.reshape(blocks, -1)[:, :each].ravel() / np.exp(0.1**2 / 2)
            hits += _holds(within_launch(taken, (each,) * blocks), 1)
            printed = one_launch(taken, (each,) * blocks).known
        line = rate(f"interval of one launch from {blocks} blocks of {each} calls", hits, trials, LEAST, MOST)
        if not printed:
            line = replace(line, demanded="none is printed", outcome=HOLDS)
        lines.append(line)
    return lines


def _launch(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Draw all calls of a launch, with mean 1. Modes and correlation continue while other cases run."""
    count = BLOCKS * APART * EACH
    if kind == "lognormal":
        return np.exp(0.3 * rng.normal(size=count) - 0.3**2 / 2)
    if kind == "skewed":
        return 0.7 + 0.3 * rng.exponential(size=count)
    if kind == "two modes":
        changes = rng.random(count) < 1 / DWELL
        modes = np.where(rng.random(count) < 0.4, 3.0, 0.5)[np.maximum.accumulate(np.arange(count) * changes)]
        return modes / (0.4 * 3.0 + 0.6 * 0.5) * np.exp(0.1 * rng.normal(size=count) - 0.1**2 / 2)
    steps, rho = rng.normal(size=count), 0.6
    series = np.empty(count)
    series[0] = steps[0]
    for i in range(1, count):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * steps[i]
    return np.exp(0.3 * series - 0.3**2 / 2)


def of_exposed(_: Rig, trials: int) -> list[Line]:
    """Test exposed communication: launches scatter by 3 %, strategies in a launch by 1 % more, and rounds by 3 %.

    Intervals of one run depend on each other, so one interval per run counts.
    """
    rng, lines = np.random.default_rng(3), []
    for launches, kind in product(STEP_LAUNCHES, KINDS):
        hits = 0
        for _ in range(trials):
            exposed_s, levels_s = _exposed(rng, kind, launches)
            truth_s = float(rng.choice(EXPOSED_S))
            hits += _holds(training.estimates(exposed_s, levels_s)[truth_s], truth_s)
        title = f"interval of exposed communication over {launches} launches, {kind}"
        lines.append(rate(title, hits, trials, LEAST, MOST))
    return lines


def _exposed(
    rng: np.random.Generator, kind: str, launches: int
) -> tuple[dict[float, training.Series], dict[float, tuple[float, float]]]:
    """Return, by exposed time, each strategy's steps minus steps without synchronisation, and the levels of both."""
    common = 1 + 0.03 * _drawn(rng, kind, launches)

    def steps(mean_s: float) -> np.ndarray:
        own = common + 0.01 * _drawn(rng, kind, launches)
        return mean_s * (own[:, None] + 0.03 * rng.normal(size=(launches, ROUNDS)))

    without = steps(STEP_S)
    series = {mean_s: dict(enumerate(steps(STEP_S + mean_s) - without)) for mean_s in EXPOSED_S}
    return series, {mean_s: (STEP_S + mean_s, STEP_S) for mean_s in EXPOSED_S}


# ── real launches ────────────────────────────────────────────────────────────────────────────────
def real_launches(rig: Rig, trials: int) -> list[Line]:
    """Resample launches of a set, for one size per trial: does their interval contain the mean of the set?"""

    def trial(real: noise.Noise, rng: np.random.Generator) -> bool:
        logs = real.launches(rng, LAUNCHES)
        return _holds(launch_interval(np.exp(rng.choice(logs)), launch_scatter(list(logs))), 1)

    hits, made, spread = noise.by_set(rig, trials, 4, trial)
    return [rate(f"interval over {LAUNCHES} launches, sets of real ones", hits, made, LEAST, MOST, spread)]


def real_stretches(rig: Rig, trials: int) -> list[Line]:
    """Cut long launches into stretches of the default length: does a stretch's interval contain the launch's mean?

    Stretches of a launch depend on each other, so the launch is the unit: Student's t over the rates of launches.
    """
    rates = []
    for sizes in noise.long_launches(rig, trials):
        hits = []
        for times, blocks in sizes:
            ends = [0, *np.cumsum(blocks)]
            for first in range(0, len(blocks) - noise.STRETCH + 1, noise.STRETCH):
                stretch = times[ends[first] : ends[first + noise.STRETCH]]
                interval = within_launch(stretch, blocks[first : first + noise.STRETCH])
                hits.append(_holds(interval, float(times.mean())))
        rates.append(float(np.mean(hits)))
    return [_rates_line(f"interval within {noise.STRETCH} blocks of long real launches holds their mean", rates)]


def next_runs(rig: Rig, trials: int) -> list[Line]:
    """Compare the two halves of each set as successive runs: do the intervals allow for their difference?

    For each size, the difference of two times is compared with both half-widths, added in quadrature. The set is the
    unit. The note has the same rate with Student's t, and the autocorrelation and skewness of the launches.
    """
    batch_runs = [rig.measure(noise.sweep("batch")) for _ in range(trials)]
    lines = []
    for scheduling, runs in (("normal", [real.run for real in noise.sets(rig)]), ("batch", batch_runs)):
        rates, bare, scatters = [], [], []
        for run in runs:
            halves = [
                summarize(replace(run, samples=tuple(s for s in run.samples if (s.launch > LAUNCHES) == second)))
                for second in (False, True)
            ]
            bare_intervals = [[launch_interval(np.array(summary.means_s)) for summary in half] for half in halves]
            intervals = [[summary.time_s for summary in half] for half in halves]
            rates.append(np.mean(list(map(_allowed, *intervals))))
            bare.append(np.mean(list(map(_allowed, *bare_intervals))))
            scatters += [launch_scatter([np.log(summary.means_s) for summary in half]) for half in halves]
        title = f"intervals of two successive runs of {LAUNCHES} launches allow for their difference, {scheduling}"
        line = _rates_line(title, rates, most=1.0)
        average = np.mean([(scatter.autocorrelation, scatter.skewness) for scatter in scatters], axis=0)
        note = f"; Student's t {np.mean(bare):.1%}; correlation {average[0]:.2f}, skewness {average[1]:+.2f} on average"
        lines.append(replace(line, measured=line.measured + note))
    return lines


def _allowed(first: Interval, second: Interval) -> bool:
    widths = np.log(first.high / first.value), np.log(second.high / second.value)
    return bool(abs(np.log(first.value / second.value)) <= np.hypot(*widths))


def real_steps(rig: Rig, trials: int) -> list[Line]:
    """Resample launches of sets of training steps: do the intervals contain the exposed times of the sets?"""
    rng, rates = np.random.default_rng(5), []
    for many, levels_s in noise.differences_of_steps(rig, trials):
        truths_s, hits = {pair: float(means(series).mean()) for pair, series in many.items()}, []
        for _ in range(100):
            launches = rng.integers(1, noise.STEPS_LAUNCHES + 1, REAL_STEP_LAUNCHES)
            again = {pair: dict(enumerate(series[n] for n in launches)) for pair, series in many.items()}
            hits += [_holds(interval, truths_s[pair]) for pair, interval in training.estimates(again, levels_s).items()]
        rates.append(float(np.mean(hits)))
    title = f"interval of exposed communication over {REAL_STEP_LAUNCHES} launches, sets of real ones"
    return [_rates_line(title, rates)]


def _rates_line(title: str, rates: Sequence[float], most: float = MOST) -> Line:
    half = stdtrit(len(rates) - 1, 0.975) * np.std(rates, ddof=1) / np.sqrt(len(rates))
    mean = float(np.mean(rates))
    low, high = mean - float(half), min(mean + float(half), 1.0)
    measured = f"{mean:.1%} [{low:.1%} – {high:.1%}]{noise.spread(rates)}"
    numbers = {"rates": [round(value, 4) for value in rates]}
    outcome, more = judged(low, high, LEAST, most), further(mean, low, high, LEAST, most)
    return Line(title, f"{LEAST:.0%} to {most:.0%}", measured, outcome, numbers, more=more)


def _holds(interval: Interval, truth: float) -> bool:
    return bool(interval.low <= truth <= interval.high)
