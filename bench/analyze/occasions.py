"""Find by how much a case differs from occasion to occasion on one machine, from the noise ledger.

In: a run with its analysis, or entries of the ledger. Out: a `LedgerEntry`, or for each case a standard deviation of
logarithms between occasions, and the smallest change that a planned run could show.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from bench.analyze.sessions import machine_of
from bench.model.conclusions import Analysis, Summary
from bench.model.records import Run, Samples
from bench.stats.intervals import CONFIDENCE, FEWEST_BLOCKS, block_medians
from bench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity

# Fewer occasions say too little of how occasions differ.
FEWEST_OCCASIONS = 8


def entry_of(run: Run, analysis: Analysis) -> LedgerEntry | None:
    """The line of a run for the ledger; None if it has no case with two launches, or measured planted faults."""
    machine = machine_of(run)
    if machine is None or run.plan.faults:
        return None
    samples: dict[str, list[Samples]] = defaultdict(list)
    for one in run.samples:
        if one.failure is None and one.timed is not None:
            samples[one.case.key].append(one)
    several = [s for s in analysis.summaries if s.launches >= 2 and s.means_s]
    cases = {s.case.key: _noise(s, samples[s.case.key]) for s in several}
    return LedgerEntry(run.name, str(run.manifest.get("finished")), machine, cases) if cases else None


def _noise(summary: Summary, samples: Sequence[Samples]) -> CaseNoise:
    medians, means = np.log(summary.medians_s), np.log(summary.means_s)
    timed = [launch.timed for launch in samples if launch.timed is not None]
    several = [timings for timings in timed if len(timings.blocks) >= FEWEST_BLOCKS]
    known = [float(np.var(np.log(block_medians(t.slowest_s, t.blocks)), ddof=1)) for t in several]
    iterations = [float(np.var(np.log(timings.slowest_s))) for timings in timed]
    return CaseNoise(
        launches=summary.launches,
        median_s=float(np.exp(medians.mean())),
        mean_s=float(np.exp(means.mean())),
        launch=float(np.std(medians, ddof=1)),
        launch_of_means=float(np.std(means, ddof=1)),
        block=float(np.sqrt(np.mean(known))) if known else None,
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
    found: dict[str, list[CaseNoise]] = defaultdict(list)
    for entry in entries:
        if entry.machine.is_same(machine) and entry.run not in without:
            for key, noise in entry.cases.items():
                found[key].append(noise)
    return {key: _scatter(of_case) for key, of_case in found.items() if len(of_case) >= FEWEST_OCCASIONS}


def _scatter(noise: Sequence[CaseNoise]) -> tuple[float, float]:
    """The larger one of medians and of geometric means: which of them a comparison uses depends on its runs.

    What launches explain is subtracted from the variance of the runs' levels, and the rest is known less well than that
    variance: its relative error is larger by total / rest (Satterthwaite, Biometrics Bulletin 2, 1946).
    """
    between, freedom = 0.0, 1.0
    for value, scatter in (("median_s", "launch"), ("mean_s", "launch_of_means")):
        total = float(np.var(np.log([getattr(one, value) for one in noise]), ddof=1))
        rest = total - float(np.mean([getattr(one, scatter) ** 2 / one.launches for one in noise]))
        if rest > between:
            between, freedom = rest, max(1.0, (len(noise) - 1) * (rest / total) ** 2)
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
    t = float(stdtrit(2 * (launches - 1), (1 + CONFIDENCE) / 2))
    return {
        key: float(np.expm1(t * np.sqrt(2 * (np.mean(values) / launches + between.get(key, (0.0, 0.0))[0] ** 2))))
        for key, values in variances.items()
    }
