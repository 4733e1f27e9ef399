"""Does the headline repeat? One-minute runs, against what a peer would print in the same minutes."""

import numpy as np

from bench.analyze.summaries import summarize
from proof.claim import Effort, Outcome
from proof.rig import Rig

SIZES = "[4KiB, 256KiB, 4MiB]"
OURS = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 5
sizes: {sizes}
budget: {budget}s
timeout: 60s
"""
# The customary script: one launch, 5 to warm up, the mean of 20, averaged over the ranks.
PEERS = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 1
buffers: hot
sizes: {sizes}
sampling: {{warmup: 5, warmup_seconds: 0, iterations: 20}}
timeout: 60s
"""


def repeats(rig: Rig, effort: Effort) -> list[Outcome]:
    """Spread: standard deviation of the logarithms over the runs, root mean square over the cases."""
    ours, peers = [], []
    for _ in range(effort.minutes):
        peer = rig.measure(PEERS.format(sizes=SIZES))
        peers.append([float(s.timed.duration_ns.mean()) for s in sorted(peer.samples, key=lambda s: s.case.size_bytes)])
        summaries = summarize(rig.measure(OURS.format(sizes=SIZES, budget=effort.minute_s)))
        ours.append([s.time_s.value for s in summaries])
    spreads = [np.std(np.log(np.array(values)), axis=0, ddof=1) for values in (ours, peers)]
    own, peer = (float(np.sqrt(np.mean(spread**2))) for spread in spreads)
    by_case = ", ".join(f"{a:.1%} against {b:.1%}" for a, b in zip(*spreads, strict=True))
    return [
        Outcome(
            f"spread of the headline over {effort.minutes} runs of {effort.minute_s:g} s, against a mean of one launch",
            "≤ half",
            f"{own:.1%} against {peer:.1%}, ratio {own / peer:.2f} (4 KiB, 256 KiB, 4 MiB: {by_case})",
            own <= peer / 2,
        )
    ]
