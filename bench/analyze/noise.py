"""Estimate by how much a case varies from block to block and launch to launch.

In: a run with its analysis or summaries. Out: a `LedgerEntry`; and, for `plan`, one `Need` per case: how many launches
and iterations reach a wanted precision, and how long that takes. What occasions differ by: `occasions`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from bench.analyze.sessions import machine_of
from bench.analyze.training import samples_that_count, trains
from bench.model.conclusions import Analysis, Need, NeedsInAll, Summary
from bench.model.records import Case, Run, Samples, Timings
from bench.planning.plan import NEXT_START_S
from bench.stats.intervals import CONFIDENCE, FEWEST_BLOCKS, block_means
from bench.store.ledger import CaseNoise, LedgerEntry

# Upper limit of the advice: more launches than this are not practical.
MOST_LAUNCHES = 1000
# Factor on the seconds needed: the first launch of a budget measures every case, whether the case needs it or not.
BUDGET_MARGIN = 1.3
NS = 1e-9


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
    means, blocks = np.log(summary.means_s), _block_variance(launches)
    return CaseNoise(
        launches=summary.launches,
        mean_s=float(np.exp(means.mean())),
        launch=float(np.std(means, ddof=1)),
        block=None if blocks is None else math.sqrt(blocks),
    )


def _block_variance(launches: Sequence[Timings]) -> float | None:
    """Variance of the logarithms of the means of blocks within a launch; None without a launch of enough blocks."""
    series = [(timed.slowest_s, timed.blocks) for timed in launches if len(timed.blocks) >= FEWEST_BLOCKS]
    if not series:
        return None
    return float(np.mean([np.var(np.log(block_means(times_s, blocks)), ddof=1) for times_s, blocks in series]))


# ── from a pilot run ─────────────────────────────────────────────────────────────────────────────
def needs(run: Run, summaries: Sequence[Summary], precision: float) -> list[Need]:
    """What each measured case needs; precision: relative half-width of the 95 % interval over launches.

    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013: with the variance T₁² between blocks within
    a launch and T₂² between launches, a block costing c₁ and a launch c₂, the cheapest number of blocks in a launch is
    ⌈√((c₂/c₁)(T₁²/T₂²))⌉; launches then follow from the wanted interval. Variances are those of the logarithms of the
    means of blocks and launches. Of training steps, whose strategies share their rounds, the number of iterations stays
    as it is.
    """
    samples: dict[Case, list[Samples]] = defaultdict(list)
    for launch in samples_that_count(run):
        if launch.failure is None and launch.timed is not None and launch.usage is not None:
            samples[launch.case].append(launch)
    return [_need(s, precision, samples[s.case], run) for s in summaries if s.time_s is not None]


def _need(summary: Summary, precision: float, samples: Sequence[Samples], run: Run) -> Need:
    case = summary.case
    if summary.imported:
        note = "imported: nothing is known of single iterations and of what a launch costs"
        return Need(case, None, None, None, note)
    if summary.scatter is None:
        return Need(case, None, None, None, "one launch cannot show how launches differ: pilot with launches: 3")
    timed = [launch.timed for launch in samples if launch.timed is not None]
    block_variance = _block_variance(timed)
    if block_variance is None:
        note = f"launches of fewer than {FEWEST_BLOCKS} blocks cannot show how blocks differ: set more iterations"
        return Need(case, None, None, None, note)
    blocks = sum(len(timings.blocks) for timings in timed) / len(timed)
    in_block = sum(len(timings.duration_ns) for timings in timed) / (blocks * len(timed))
    block_s, launch_s = _cost(run, samples)
    launch_variance = max(0.0, summary.scatter**2 - block_variance / blocks)
    most = max(FEWEST_BLOCKS, math.floor(run.plan.settings.sampling.max_iterations / in_block))
    wanted = blocks if trains(case) else most
    if not trains(case) and launch_variance > 0:
        cheapest = math.ceil(math.sqrt(launch_s / block_s * block_variance / launch_variance))
        wanted = min(max(cheapest, FEWEST_BLOCKS), most)
    iterations = round(wanted * in_block)
    variance = launch_variance + block_variance / wanted
    # The fewest launches whose Student interval of the mean logarithm is as narrow as wanted.
    counts = np.arange(2, MOST_LAUNCHES + 1)
    narrow = stdtrit(counts - 1, (1 + CONFIDENCE) / 2) * np.sqrt(variance / counts) <= math.log1p(precision)
    if not narrow.any():
        return Need(case, None, iterations, None, f"±{precision:.0%} would take more than {MOST_LAUNCHES} launches")
    launches = int(counts[np.argmax(narrow)])
    return Need(case, launches, iterations, launches * (launch_s + wanted * block_s))


def _cost(run: Run, samples: Sequence[Samples]) -> tuple[float, float]:
    """(seconds per block, seconds per launch besides its blocks) of one case.

    Iterations of other cases lie between two of its blocks, so its own add up to what it took.
    """
    timed = [(launch.timed, launch.usage.wall_s) for launch in samples if launch.timed and launch.usage]
    blocks = float(np.mean([len(timings.blocks) for timings, _ in timed]))
    timed_s = float(np.mean([timings.duration_ns.max(axis=1).sum() for timings, _ in timed])) * NS
    wall_s = float(np.mean([wall_s for _, wall_s in timed]))
    cases_together = max(1, max(len(launch.cases) for launch in run.plan.order))
    return timed_s / blocks, max(0.0, wall_s - timed_s) + NEXT_START_S / cases_together


def in_all(needs: Sequence[Need]) -> NeedsInAll | None:
    """What these cases take together; None where no need is known."""
    known = [(need.seconds, need.launches, need.iterations or 0) for need in needs if need.launches and need.seconds]
    if not known:
        return None
    launches = max(count for _, count, _ in known)
    seconds = sum(of_case for of_case, _, _ in known)
    uniform_s = sum(of_case / count * launches for of_case, count, _ in known)
    return NeedsInAll(seconds, launches, max(each for _, _, each in known), uniform_s, BUDGET_MARGIN * seconds)
