"""Estimate the within-launch scatter (between blocks) and the between-launch scatter of each case.

In: a run with its analysis. Out: a `LedgerEntry`. `between_run` estimates the between-run variance.
"""

import math
from collections.abc import Sequence

import numpy as np

from collbench.analyze.comparability import machine_of
from collbench.analyze.parts import samples_that_count
from collbench.model.conclusions import Analysis, Summary
from collbench.model.projection import grouped
from collbench.model.records import Run, Timings
from collbench.stats.intervals import FEWEST_BLOCKS, block_means
from collbench.store.ledger import CaseNoise, LedgerEntry


def entry_of(run: Run, analysis: Analysis) -> LedgerEntry | None:
    """Return a run's ledger entry; None for planted faults, an unknown machine, or no case with two launches."""
    machine = machine_of(run)
    if machine is None or run.plan.settings.faults:
        return None
    good = (samples for samples in samples_that_count(run) if samples.failure is None)
    launches = grouped(good, lambda samples: samples.case)
    several = [s for s in analysis.summaries if s.launches >= 2 and s.means_s]
    cases = {
        s.case.key: _noise(s, [samples.timed for samples in launches[s.case] if samples.timed is not None])
        for s in several
    }
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
    """Return the within-launch variance of the logarithms of block means; None without a launch of enough blocks."""
    series = [(timed.slowest_s, timed.blocks) for timed in launches if len(timed.blocks) >= FEWEST_BLOCKS]
    if not series:
        return None
    return float(np.mean([np.var(np.log(block_means(times_s, blocks)), ddof=1) for times_s, blocks in series]))
