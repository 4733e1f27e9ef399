"""A rank that is late by a known time: is it named, with its delay, and nobody without one?"""

import numpy as np

from bench.analyze.analysis import diagnose
from proof.claim import Effort, Outcome, counted
from proof.rig import Rig

DELAY_S = 2e-3
SWEEP = """
backends: [gloo]
world_sizes: [{n}]
operations: [all_reduce]
launches: 1
buffers: hot
sizes: [4KiB, 256KiB]
sampling: {{warmup: 5, warmup_seconds: 0, iterations: 60}}
timeout: 60s
faults: {faults}
"""


def late_rank(rig: Rig, effort: Effort) -> list[Outcome]:
    """At 2 ranks and at 4, another rank each time, over loopback."""
    right, delays = 0, []
    for trial in range(effort.trials):
        n = (2, 4)[trial % 2]
        rank = (trial // 2) % n
        fault = f"[{{do: late, rank: {rank}, delay: {DELAY_S}s}}]"
        findings = diagnose(rig.measure(SWEEP.format(n=n, faults=fault))).findings
        right += [f.rank for f in findings] == [rank]
        delays += [f.cost_s for f in findings if f.rank == rank]
    wrong = 0
    for trial in range(effort.quiet_trials):
        wrong += bool(diagnose(rig.measure(SWEEP.format(n=(2, 4)[trial % 2], faults="[]"))).findings)
    low, middle, high = np.quantile(delays, [0.05, 0.5, 0.95]) if delays else [np.nan] * 3
    return [
        Outcome(
            "a rank that sleeps 2 ms before each call is named, and no other",
            "≥ 95 % of the trials",
            counted(right, effort.trials),
            right >= 0.95 * effort.trials,
        ),
        Outcome(
            "its delay is recovered",
            "within 10 % in ≥ 95 % of the trials",
            f"{middle * 1e3:.2f} ms (5th to 95th percentile {low * 1e3:.2f} – {high * 1e3:.2f})",
            sum(abs(d / DELAY_S - 1) <= 0.10 for d in delays) >= 0.95 * effort.trials,
        ),
        Outcome(
            "no planted fault: no rank is named",
            "≤ 5 % of the trials",
            counted(wrong, effort.quiet_trials),
            wrong <= 0.05 * effort.quiet_trials,
        ),
    ]
