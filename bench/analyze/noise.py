"""Estimate by how much a case varies from iteration to iteration, launch to launch and occasion to occasion.

In: a run with its analysis or summaries; or entries of the noise ledger. Out: a `LedgerEntry`; for each case a standard
deviation of logarithms between occasions; and, for `plan`, the smallest change that a planned run could show, or one
`Need` per case: how many launches and iterations reach a wanted precision, and how long that takes.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from bench.analyze.sessions import machine_of
from bench.analyze.training import samples_that_count, trains
from bench.model.conclusions import Analysis, Need, NeedsInAll, Summary
from bench.model.records import Run, Samples, Timings
from bench.planning.plan import NEXT_START_S
from bench.stats.intervals import (
    CONFIDENCE,
    FEWEST_BLOCKS,
    FEWEST_FOR_MEDIAN,
    block_medians,
    student_quantile,
)
from bench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity

# Fewer occasions say too little of how occasions differ.
FEWEST_OCCASIONS = 8
# Upper limit of the advice: more launches than this are not practical.
MOST_LAUNCHES = 1000
# Half-width of a 95 % interval, in standard errors.
STANDARD_ERRORS = 1.96
# Factor on the seconds needed: the first launch of a budget measures every case, whether the case needs it or not.
BUDGET_MARGIN = 1.3


# ── the noise of one run ─────────────────────────────────────────────────────────────────────────
def entry_of(run: Run, analysis: Analysis) -> LedgerEntry | None:
    """The line of a run for the ledger; None if it has no case with two launches, or measured planted faults."""
    machine = machine_of(run)
    if machine is None or run.plan.settings.faults:
        return None
    timed: dict[str, list[Timings]] = defaultdict(list)
    for samples in samples_that_count(run):
        if samples.failure is None and samples.timed is not None:
            timed[samples.case.key].append(samples.timed)
    several = [s for s in analysis.summaries if s.launches >= 2 and s.means_s]
    cases = {s.case.key: _noise(s, timed[s.case.key]) for s in several}
    return LedgerEntry(run.name, str(run.manifest.get("finished")), machine, cases) if cases else None


def _noise(summary: Summary, launches: Sequence[Timings]) -> CaseNoise:
    medians, means = np.log(summary.medians_s), np.log(summary.means_s)
    in_blocks = [timed for timed in launches if len(timed.blocks) >= FEWEST_BLOCKS]
    blocks = [float(np.var(np.log(block_medians(timed.slowest_s, timed.blocks)), ddof=1)) for timed in in_blocks]
    iterations = [float(np.var(np.log(timed.slowest_s))) for timed in launches]
    return CaseNoise(
        launches=summary.launches,
        median_s=float(np.exp(medians.mean())),
        mean_s=float(np.exp(means.mean())),
        launch=float(np.std(medians, ddof=1)),
        launch_of_means=float(np.std(means, ddof=1)),
        block=float(np.sqrt(np.mean(blocks))) if blocks else None,
        iteration=float(np.sqrt(np.mean(iterations))) if iterations else None,
    )


# ── from the ledger ──────────────────────────────────────────────────────────────────────────────
def occasions(
    entries: Sequence[LedgerEntry], machine: MachineIdentity, without: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """By key: standard deviation of log times between occasions, and its degrees of freedom.

    Only of cases with FEWEST_OCCASIONS runs on this machine. without: names of runs that do not count, such as those
    that are compared. A case whose runs differ by no more than their launches explain has 0.
    """
    history: dict[str, list[CaseNoise]] = defaultdict(list)
    for entry in entries:
        if entry.machine.is_same(machine) and entry.run not in without:
            for key, noise in entry.cases.items():
                history[key].append(noise)
    return {key: _scatter(noise) for key, noise in history.items() if len(noise) >= FEWEST_OCCASIONS}


def _scatter(history: Sequence[CaseNoise]) -> tuple[float, float]:
    """The larger one of medians and of geometric means: which of them a comparison uses depends on its runs.

    What launches explain is subtracted from the variance of the runs' levels, and the rest is known less well than that
    variance: its relative error is larger by total / rest (Satterthwaite, Biometrics Bulletin 2, 1946).
    """
    between, freedom = 0.0, 1.0
    for value, scatter in (("median_s", "launch"), ("mean_s", "launch_of_means")):
        total = float(np.var(np.log([getattr(noise, value) for noise in history]), ddof=1))
        rest = total - float(np.mean([getattr(noise, scatter) ** 2 / noise.launches for noise in history]))
        if rest > between:
            between, freedom = rest, max(1.0, (len(history) - 1) * (rest / total) ** 2)
    return float(np.sqrt(between)), freedom


def smallest_changes(
    entries: Sequence[LedgerEntry], machine: MachineIdentity, launches: int, keys: Collection[str]
) -> Mapping[str, float]:
    """By key: the relative change that a comparison of two runs of so many launches would just show, half of the times.

    From what launches scattered by in the ledger, and occasions, if there are enough of them. Without correction for
    the number of cases.
    """
    between = occasions(entries, machine)
    variances: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if entry.machine.is_same(machine):
            for key in entry.cases.keys() & set(keys):
                variances[key].append(min(entry.cases[key].launch, entry.cases[key].launch_of_means) ** 2)
    t = student_quantile(2 * (launches - 1))
    return {
        key: float(np.expm1(t * np.sqrt(2 * (np.mean(values) / launches + between.get(key, (0.0, 0.0))[0] ** 2))))
        for key, values in variances.items()
    }


# ── from a pilot run ─────────────────────────────────────────────────────────────────────────────
def needs(run: Run, summaries: Sequence[Summary], precision: float) -> list[Need]:
    """What each measured case needs; precision: relative half-width of the 95 % interval over launches.

    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013: with the variance T₁² between iterations
    and T₂² between launches, an iteration costing c₁ and a launch c₂, the cheapest number of iterations per launch is
    ⌈√((c₂/c₁)(T₁²/T₂²))⌉; launches then follow from the wanted interval. Variances are those of logarithms; T₁² is the
    variance at which independent iterations would give the interval that was seen within a launch. Of training steps,
    whose strategies share their rounds, the number of iterations stays as it is.
    """
    samples: dict[str, list[Samples]] = defaultdict(list)
    for launch in run.samples:
        samples[launch.case.key].append(launch)
    return [_need(s, precision, samples[s.case.key], run) for s in summaries if s.time_s is not None]


def _need(summary: Summary, precision: float, samples: Sequence[Samples], run: Run) -> Need:
    case = summary.case
    if summary.imported:
        note = "imported: nothing is known of single iterations and of what a launch costs"
        return Need(case, None, None, None, note)
    if summary.scatter is None or summary.reached is None:
        return Need(case, None, None, None, "one launch cannot show how launches differ: pilot with launches: 3")
    iteration_s, launch_s = _cost(run, samples)
    within = (summary.reached / STANDARD_ERRORS) ** 2  # variance of one launch's median
    iteration_variance = within * (summary.iterations / summary.launches)
    launch_variance = max(0.0, summary.scatter**2 - within)
    most = run.plan.settings.sampling.max_iterations
    iterations = most
    if launch_variance > 0 and iteration_s > 0:
        iterations = math.ceil(math.sqrt(launch_s / iteration_s * iteration_variance / launch_variance))
    iterations = min(max(iterations, FEWEST_FOR_MEDIAN), most)
    if trains(case):
        iterations = max(1, summary.iterations // summary.launches)
    variance = launch_variance + iteration_variance / iterations
    # The fewest launches whose Student interval of the mean logarithm is as narrow as wanted.
    counts = np.arange(2, MOST_LAUNCHES + 1)
    narrow = stdtrit(counts - 1, (1 + CONFIDENCE) / 2) * np.sqrt(variance / counts) <= math.log1p(precision)
    if not narrow.any():
        return Need(case, None, iterations, None, f"±{precision:.0%} would take more than {MOST_LAUNCHES} launches")
    launches = int(counts[np.argmax(narrow)])
    return Need(case, launches, iterations, launches * (launch_s + iterations * iteration_s))


def _cost(run: Run, samples: Sequence[Samples]) -> tuple[float, float]:
    """(seconds per iteration, seconds per launch besides its iterations) of one case."""
    iterations, spans, walls = [], [], []
    for launch in samples:
        if launch.timed is not None and launch.usage is not None:
            starts, durations = launch.timed.start_ns, launch.timed.duration_ns
            count, span = len(durations), (starts + durations).max() - starts.min()
            if trains(launch.case):  # between two of its blocks lie those of other strategies
                span = durations.max(axis=1).sum()
            spans.append(float(span) / 1e9 / count)
            iterations.append(count)
            walls.append(launch.usage.wall_s)
    if not iterations:
        return 0.0, 0.0
    cases_together = max(1, max(len(launch.cases) for launch in run.plan.order))
    iteration_s = float(np.mean(spans))
    start_s = NEXT_START_S / cases_together
    return iteration_s, max(0.0, float(np.mean(walls)) - iteration_s * float(np.mean(iterations))) + start_s


def in_all(needs: Sequence[Need]) -> NeedsInAll | None:
    """What these cases take together; None where no need is known."""
    known = [(need.seconds, need.launches, need.iterations or 0) for need in needs if need.launches and need.seconds]
    if not known:
        return None
    launches = max(count for _, count, _ in known)
    seconds = sum(of_case for of_case, _, _ in known)
    uniform_s = sum(of_case / count * launches for of_case, count, _ in known)
    return NeedsInAll(seconds, launches, max(each for _, _, each in known), uniform_s, BUDGET_MARGIN * seconds)
