"""Estimate the between-run variance of each case on a machine, from the noise ledger.

In: entries of the ledger. Out: for each case the between-run standard deviation of log times; and, for `plan`, the
smallest change that two planned runs could show. Loads no large package, so that `plan` answers quickly.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import NormalDist, fmean, variance

from collbench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity

# Fewer runs give too uncertain an estimate of the between-run variance.
FEWEST_LEDGER_RUNS = 8
NORMAL_QUANTILE = NormalDist().inv_cdf(0.975)


def between_run_scatter(
    entries: Sequence[LedgerEntry], machine: MachineIdentity, without: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Return, by key of the case, the between-run standard deviation of log times, and its degrees of freedom.

    Only for cases with at least FEWEST_LEDGER_RUNS runs on this machine; 0 if the between-launch variance explains the
    differences between the runs. without: names of runs that do not count, such as the runs that are compared.
    """
    history: dict[str, list[CaseNoise]] = defaultdict(list)
    for entry in entries:
        if entry.machine.is_same(machine) and entry.run not in without:
            for key, noise in entry.cases.items():
                history[key].append(noise)
    return {key: _scatter(noise) for key, noise in history.items() if len(noise) >= FEWEST_LEDGER_RUNS}


def _scatter(history: Sequence[CaseNoise]) -> tuple[float, float]:
    """Return the between-run standard deviation of log times, and its degrees of freedom.

    The variance that launches explain is subtracted from the variance of the run means. The remainder is less
    certain: its relative error is larger by total / remainder (Satterthwaite, Biometrics Bulletin 2, 1946).
    """
    total = variance(math.log(noise.mean_s) for noise in history)
    remainder = total - fmean(noise.launch**2 / noise.launches for noise in history)
    if remainder <= 0:
        return 0.0, 1.0
    return math.sqrt(remainder), max(1.0, (len(history) - 1) * (remainder / total) ** 2)


def smallest_changes(
    entries: Sequence[LedgerEntry], machine: MachineIdentity, launches: int, keys: Collection[str]
) -> Mapping[str, float]:
    """Return, by key, the relative change that comparing two runs of this many launches shows with a power of 50 %.

    Computed from the between-launch and the between-run variance in the ledger; with too few runs, both are assumed to
    be equal. Without correction for the number of cases. Empty for a single launch.
    """
    if launches < 2:
        return {}
    between = between_run_scatter(entries, machine)
    variances: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if entry.machine.is_same(machine):
            for key in entry.cases.keys() & set(keys):
                variances[key].append(entry.cases[key].launch ** 2)
    t = _student(2 * (launches - 1))
    changes = {}
    for key, launch_variances in variances.items():
        launch = fmean(launch_variances)
        extra = between[key][0] ** 2 if key in between else launch
        changes[key] = math.expm1(t * math.sqrt(2 * (launch / launches + extra)))
    return changes


def _student(freedom: int) -> float:
    """Return Student's quantile of a two-sided interval at 95 %, within 1 % from 2 degrees of freedom on.

    Uses the expansion of Abramowitz & Stegun, 26.7.5. `intervals.student_quantile` is exact and loads scipy.
    """
    z: float = NORMAL_QUANTILE
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
