"""Estimate by how much a case varies from block to block and launch to launch.

In: a run with its analysis or summaries. Out: a `LedgerEntry`; and, for `plan`, one `Need` per case: how many launches
and iterations reach a wanted precision, and how long that takes. What occasions differ by: `occasions`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from bench.analyze.parts import samples_that_count
from bench.analyze.sessions import machine_of
from bench.catalog.backends import BACKENDS
from bench.catalog.operations import OPERATIONS
from bench.model.conclusions import Analysis, Need, NeedsInAll, Summary
from bench.model.records import Case, Run, Samples, Timings
from bench.stats.intervals import CONFIDENCE, FEWEST_BLOCKS, Floats, block_means
from bench.store.ledger import CaseNoise, LedgerEntry

# With fewer launches nothing is claimed (docs/method.md); more are not practical.
FEWEST_LAUNCHES, MOST_LAUNCHES = 4, 1000
# Values of seconds_per_case that are tried for all cases together.
TIMES_S = np.array([0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0])
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
@dataclass(frozen=True, slots=True)
class _Pilot:
    """What a pilot run shows of a case: variances of the logarithms of means, and what blocks and launches cost.

    launch_s: seconds of a launch besides its blocks. blocks: numbers of blocks that a launch may have.
    """

    case: Case
    block_variance: float
    launch_variance: float
    block_s: float
    launch_s: float
    iterations_a_block: float
    blocks: Floats

    def variance(self, blocks: Floats) -> Floats:
        """Of the logarithm of the mean of a launch of so many blocks."""
        return self.launch_variance + self.block_variance / blocks

    def seconds(self, blocks: Floats) -> Floats:
        """Of a launch of so many blocks."""
        return self.launch_s + blocks * self.block_s


def needs(run: Run, summaries: Sequence[Summary], precision: float) -> tuple[list[Need], NeedsInAll | None]:
    """What each measured case needs, and all together; precision: relative half-width of the interval over launches.

    As in Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013: from the variances between blocks and
    between launches, and from what each costs, follow the number of blocks in a launch and the number of launches that
    reach the precision in the least time. They have a formula for it; all numbers of blocks are tried here, so that
    Student's quantile of few launches counts, too. Of training steps, whose strategies share their rounds, the number
    of iterations stays as it is.
    """
    samples: dict[Case, list[Samples]] = defaultdict(list)
    for launch in samples_that_count(run):
        if launch.failure is None:
            samples[launch.case].append(launch)
    of_cases, pilots = [], []
    for summary in (summary for summary in summaries if summary.time_s is not None):
        pilot = _pilot(summary, samples[summary.case], run)
        if isinstance(pilot, str):
            of_cases.append(Need(summary.case, None, None, None, pilot))
            continue
        of_cases.append(need := _need(pilot, precision))
        if need.launches:
            pilots.append(pilot)
    return of_cases, _in_all(of_cases, pilots, precision) if pilots else None


def _pilot(summary: Summary, samples: Sequence[Samples], run: Run) -> _Pilot | str:
    """What a case needs is computed from this; or why it cannot be."""
    if summary.imported:
        return "imported: nothing is known of single iterations and of what a launch costs"
    if summary.scatter is None:
        return "one launch cannot show how launches differ: pilot with launches: 4"
    launches = [(launch.timed, launch.usage.wall_s) for launch in samples if launch.timed and launch.usage]
    block_variance = _block_variance([timed for timed, _ in launches])
    if block_variance is None:
        return f"launches of fewer than {FEWEST_BLOCKS} blocks cannot show how blocks differ: set more iterations"
    blocks = float(np.mean([len(timed.blocks) for timed, _ in launches]))
    in_block = float(np.mean([len(timed.duration_ns) for timed, _ in launches])) / blocks
    blocks_s = float(np.mean([_blocks_s(timed) for timed, _ in launches]))
    wall_s = float(np.mean([wall_s for _, wall_s in launches]))
    cases_together = max(1, max(len(launch.cases) for launch in run.plan.order))
    most = max(FEWEST_BLOCKS, run.plan.settings.sampling.max_iterations / in_block)
    return _Pilot(
        summary.case,
        block_variance,
        max(0.0, summary.scatter**2 - block_variance / blocks),
        blocks_s / blocks,
        max(0.0, wall_s - blocks_s) + BACKENDS[summary.case.backend].start_s / cases_together,
        in_block,
        np.array([blocks])
        if OPERATIONS[summary.case.op].round_by_round
        else np.unique(np.floor(np.geomspace(FEWEST_BLOCKS, most, 100))),
    )


def _blocks_s(timed: Timings) -> float:
    """Seconds from the first start to the last end of each block, added up: between blocks lie those of other cases."""
    ends = np.cumsum(timed.blocks)
    firsts = timed.start_ns[np.array([0, *ends[:-1]])].min(axis=1)
    lasts = (timed.start_ns + timed.duration_ns)[ends - 1].max(axis=1)
    return float((lasts - firsts).sum()) / 1e9


def _need(pilot: _Pilot, precision: float) -> Need:
    launches = _launches(pilot.variance(pilot.blocks), precision)
    seconds = launches * pilot.seconds(pilot.blocks)
    best = int(np.argmin(seconds))
    iterations = round(pilot.blocks[best] * pilot.iterations_a_block)
    if not np.isfinite(seconds[best]):
        return Need(pilot.case, None, None, None, f"±{precision:.0%} would take more than {MOST_LAUNCHES} launches")
    return Need(pilot.case, int(launches[best]), iterations, float(seconds[best]))


def _launches(variances: Floats, precision: float) -> Floats:
    """For each variance, the fewest launches whose interval is as narrow as wanted; infinite beyond MOST_LAUNCHES."""
    counts = np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1)
    widths = stdtrit(counts - 1, (1 + CONFIDENCE) / 2) * np.sqrt(variances[:, None] / counts)
    narrow = np.sinh(widths) <= precision
    return np.where(narrow.any(axis=1), counts[narrow.argmax(axis=1)], np.inf)


def _in_all(of_cases: Sequence[Need], pilots: Sequence[_Pilot], precision: float) -> NeedsInAll:
    """pilots: of the cases whose needs are known."""
    seconds = sum(need.seconds for need in of_cases if need.seconds)
    launches, uniform_s = np.zeros(len(TIMES_S)), np.zeros(len(TIMES_S))
    for pilot in pilots:
        blocks = np.clip(TIMES_S / pilot.block_s, pilot.blocks[0], pilot.blocks[-1])
        launches = np.maximum(launches, _launches(pilot.variance(blocks), precision))
        uniform_s += pilot.seconds(blocks)
    best = int(np.argmin(launches * uniform_s))
    uniform = float((launches * uniform_s)[best])
    known = math.isfinite(uniform)
    return NeedsInAll(
        seconds=seconds,
        launches=int(launches[best]) if known else None,
        seconds_per_case=None
        if all(OPERATIONS[pilot.case.op].round_by_round for pilot in pilots)
        else float(TIMES_S[best]),
        uniform_s=uniform,
        budget_s=BUDGET_MARGIN * seconds,
    )
