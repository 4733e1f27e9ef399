"""A rank that is late by a known time: is it named, with its delay, and nobody without one?"""

import numpy as np

from bench.analyze.analysis import diagnose
from proof.claim import Line, at_least, at_most
from proof.rig import Rig

DELAY_S, CLOSE = 2e-3, 0.1
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


def late_rank(rig: Rig, trials: int) -> list[Line]:
    """At 2 ranks and at 4, another rank each time, over loopback; and as often without a late rank."""
    right, wrong, delays_s = 0, 0, []
    for trial in range(trials):
        n = (2, 4)[trial % 2]
        rank = (trial // 2) % n
        fault = f"[{{do: late, rank: {rank}, delay: {DELAY_S}s}}]"
        findings = diagnose(rig.measure(SWEEP.format(n=n, faults=fault))).findings
        right += [finding.rank for finding in findings] == [rank]
        delays_s += [finding.cost_s for finding in findings if finding.rank == rank]
        wrong += bool(diagnose(rig.measure(SWEEP.format(n=n, faults="[]"))).findings)
    close = sum(abs(delay_s / DELAY_S - 1) <= CLOSE for delay_s in delays_s)
    spread = "" if not delays_s else ", {:.2f} to {:.2f} ms".format(*np.multiply([min(delays_s), max(delays_s)], 1e3))
    return [
        at_least("a rank that is 2 ms late is named, and no other", right, trials, 0.95),
        at_least("its delay is recovered within 10 %", close, trials, 0.95, spread, delays_s=delays_s),
        at_most("nobody is late, and somebody is named", wrong, trials, 0.05),
    ]
