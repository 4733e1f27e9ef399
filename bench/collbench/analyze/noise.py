"""Estimate the within-launch scatter (between blocks) and the between-launch scatter of each case.

In: a run with its analysis. Out: a `LedgerEntry`. `between_run` estimates the between-run variance.
"""

import math
from collections.abc import Sequence

import numpy as np

from collbench.analyze.against import samples_that_count
from collbench.analyze.comparability import machine_of
from collbench.model.conclusions import Analysis
from collbench.model.projection import grouped
from collbench.model.records import Run, Samples
from collbench.stats.intervals import FEWEST_BLOCKS, block_means
from collbench.store.ledger import CaseNoise, LedgerEntry


def entry_of(run: Run, analysis: Analysis) -> LedgerEntry | None:
    """Return a run's ledger entry; None for planted faults, an unknown machine, or no case with two launches."""
    machine = machine_of(run)
    if machine is None or run.plan.settings.faults:
        return None
    launches = grouped(samples_that_count(run), lambda samples: samples.case)
    cases = {
        s.case.key: CaseNoise(s.launches, s.time_s.value, s.scatter, _block_scatter(launches[s.case]))
        for s in analysis.summaries
        if s.time_s is not None and s.scatter is not None
    }
    return LedgerEntry(run.name, str(run.manifest.get("finished")), machine, cases) if cases else None


def _block_scatter(launches: Sequence[Samples]) -> float | None:
    """Return the within-launch standard deviation of logarithms of block means; None without enough blocks."""
    timed = [samples.timed for samples in launches if samples.failure is None and samples.timed is not None]
    several = [timings for timings in timed if len(timings.blocks) >= FEWEST_BLOCKS]
    variances = [np.var(np.log(block_means(each.slowest_s, each.blocks)), ddof=1) for each in several]
    return math.sqrt(np.mean(variances)) if variances else None
