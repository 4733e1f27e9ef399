"""Links whose rate or delay is known: does the suite find what is there?"""

import numpy as np

from bench.analyze.analysis import analyze
from bench.machine import host
from proof import links
from proof.claim import Effort, Outcome, counted
from proof.links import NamespacedLauncher
from proof.rig import Rig

# Of an Ethernet frame of 1514 bytes, what TCP with time stamps leaves for data.
PAYLOAD = 1448 / 1514
# Rate as `tc` takes it, bits a second, burst, smallest and largest size. A burst is free after each pause, so it must
# be small against every size; at 2 Gbit/s one of 128 KiB is a packet or two, and the shaper loses 2 % to being late.
RATES = (
    ("100mbit", 100e6, "128kb", "512KiB", "8MiB"),
    ("1gbit", 1e9, "128kb", "2MiB", "64MiB"),
    ("2gbit", 2e9, "512kb", "8MiB", "128MiB"),
)
DELAYS_S = (1e-3, 5e-3, 20e-3)
SWEEP = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
buffers: hot
launches: {launches}
sizes: {sizes}
scheduling: {scheduling}
sampling: {{warmup: 2, warmup_seconds: 0, iterations: {iterations}}}
timeout: 60s
"""


def _scheduling() -> str:
    """Real time where it is permitted: what is to be found is the link, not the fight for two cores."""
    return "normal" if host.unsupported_realtime() else "rr"


def rates(rig: Rig, effort: Effort) -> list[Outcome]:
    """An all-reduce of 2 ranks sends and receives its size once: algbw is the link's rate."""
    found = []
    for name, bits, burst, smallest, largest in RATES:
        reason = links.unsupported()
        if reason:
            found.append(Outcome(f"bandwidth and r∞ of a link shaped to {name}", "within 2 %, 3 %", reason, None))
            continue
        text = SWEEP.format(
            scheduling=_scheduling(),
            launches=effort.links,
            iterations=8,
            sizes=f"{{from: {smallest}, to: {largest}, factor: 2}}",
        )
        with links.shaped_pair(name, burst=burst) as network:
            analysis = analyze(rig.measure(text, NamespacedLauncher(rig.launcher, network)))
        limit = bits / 8 * PAYLOAD
        last = analysis.summaries[-1]
        ratio = last.algbw / limit
        low, high = (last.case.size_bytes / bound / limit for bound in (last.time_s.high, last.time_s.low))
        found.append(
            Outcome(
                f"bandwidth of a link shaped to {name}, against its payload limit, at {largest}",
                "within 2 %",
                f"{ratio - 1:+.1%} [{low - 1:+.1%} to {high - 1:+.1%}]",
                abs(ratio - 1) <= 0.02,
            )
        )
        (fit,) = analysis.fits
        gap = fit.rate.value / limit - 1 if fit.rate else float("nan")
        found.append(
            Outcome(
                f"r∞ of the fitted model on it ({len(fit.segments)} segments)",
                "within 3 %",
                f"{gap:+.1%}" if fit.rate else fit.note,
                abs(gap) <= 0.03,
            )
        )
    return found


def delays(rig: Rig, effort: Effort) -> list[Outcome]:
    """A ring of n ranks passes each piece on 2(n-1) times, one after the other. For each, gloo's receiver first says
    that it is ready, and only then the data comes: α grows by 4(n-1) one-way delays (seen: 3.9 to 4.1 at n = 2 and
    1 to 4 KiB; below that a notice overlaps, above it TCP's first window counts)."""
    reason = links.unsupported_tun()
    if reason:
        return [Outcome("an added one-way delay, recovered in α", "within 10 %", reason, None)]
    text = SWEEP.format(
        scheduling=_scheduling(), launches=max(2, effort.links), iterations=25, sizes="[1KiB, 2KiB, 3KiB, 4KiB]"
    )
    alphas = {}
    for delay in (0.0, *DELAYS_S):
        with links.delayed_pair(delay) as network:
            (fit,) = analyze(rig.measure(text, NamespacedLauncher(rig.launcher, network))).fits
        alphas[delay] = fit.alpha_s.value
    found = []
    for delay in DELAYS_S:
        recovered = (alphas[delay] - alphas[0.0]) / 4
        found.append(
            Outcome(
                f"an added one-way delay of {delay * 1e3:g} ms, recovered in α",
                "within 10 %",
                f"{recovered * 1e3:.2f} ms ({recovered / delay - 1:+.1%}); α without: {alphas[0.0] * 1e3:.2f} ms",
                abs(recovered / delay - 1) <= 0.10,
            )
        )
    return found


def matrix(rig: Rig, effort: Effort) -> list[Outcome]:
    """Four hosts on a bridge, one of them with half the rate: is it found, and only where it is?"""
    reason = links.unsupported()
    claims = ("one link of four at half the rate is named by the pairwise matrix", "no slow link: none is named")
    if reason:
        return [Outcome(claim, "", reason, None) for claim in claims]
    text = """
backends: [gloo]
world_sizes: [4]
operations: [pairwise]
buffers: hot
launches: 1
sizes: [256KiB]
sampling: {warmup: 3, warmup_seconds: 0, iterations: 54}
timeout: 60s
"""
    right, wrong, sizes = 0, 0, []
    for trial in range(effort.matrix_trials):
        slow = trial % 4
        with links.bridged(4, "200mbit", slow=slow, slow_rate="100mbit") as network:
            findings = analyze(rig.measure(text, NamespacedLauncher(rig.launcher, network))).diagnosis.findings
        right += [f.subject for f in findings] == [f"rank {slow}"]
        sizes += [f.share for f in findings]
    with links.bridged(4, "200mbit") as network:
        for _ in range(effort.quiet_matrix_trials):
            starter = NamespacedLauncher(rig.launcher, network)
            wrong += bool(analyze(rig.measure(text, starter)).diagnosis.findings)
    excess = f"; {np.median(sizes):.0%} more time in the median" if sizes else ""
    return [
        Outcome(claims[0], "every trial", counted(right, effort.matrix_trials) + excess, right == effort.matrix_trials),
        Outcome(
            claims[1], "≤ 5 % of the trials", counted(wrong, effort.quiet_matrix_trials),
            wrong <= 0.05 * effort.quiet_matrix_trials,
        ),
    ]  # fmt: skip
