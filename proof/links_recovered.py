"""Does the suite recover the rate or delay of links for which it is known?"""

import numpy as np

from collbench.analyze.analysis import analyze
from collbench.machine import host
from collbench.model.conclusions import Interval
from collbench.stats.intervals import difference_of_intervals
from proof import links
from proof.claim import MISSED, Line, at_least, at_most, within
from proof.links import NamespacedLauncher
from proof.rig import Rig, all_reduces

# Share of an Ethernet frame of 1514 bytes that TCP with time stamps leaves for data.
PAYLOAD = 1448 / 1514
# Rate as `tc` reads it, bits per second, burst, smallest and largest size. A burst is free after each pause, so it must
# be small against every size. At 2 Gbit/s, 128 KiB are one or two packets, and the shaper loses 2 % because it is late.
RATES = (
    ("100mbit", 100e6, "128kb", "512KiB", "8MiB"),
    ("1gbit", 1e9, "128kb", "2MiB", "64MiB"),
    ("2gbit", 2e9, "512kb", "8MiB", "128MiB"),
)
DELAYS_S = (1e-3, 5e-3, 20e-3)
# Allowed deviations: of the bandwidth, of the bandwidth by the model, of a delay.
BANDWIDTH, RATE, DELAY = 0.02, 0.03, 0.10


PAIRWISE = all_reduces(
    world_sizes=[4], operations=["pairwise"], buffers="hot", launches=1, sizes=["256KiB"],
    sampling={"warmup": 3, "warmup_seconds": 0, "iterations": 54},
)  # fmt: skip


def _sweep(sizes: object, iterations: int) -> str:
    # Real-time, if it is permitted: the link is to be measured, not the competition for two cores.
    scheduling = "normal" if host.unsupported_realtime() else "rr"
    sampling = {"warmup": 2, "warmup_seconds": 0, "iterations": iterations}
    return all_reduces(buffers="hot", launches=4, sizes=sizes, scheduling=scheduling, sampling=sampling)


def rates(rig: Rig, trials: int) -> list[Line]:
    """Compare bandwidths with link rates. An all-reduce of 2 ranks sends its size once: algbw is the link's rate."""
    lines = []
    for name, bits, burst, smallest, largest in RATES[:trials]:
        title = f"bandwidth of a link shaped to {name}, against its payload limit, at {largest}"
        model_title = "r∞ of the fitted model on it"
        text = _sweep({"from": smallest, "to": largest, "factor": 2}, 5)
        with links.shaped_pair(name, burst=burst) as network:
            analysis = analyze(rig.measure(text, NamespacedLauncher(rig.launcher, network)))
        limit, last, (fit,) = bits / 8 * PAYLOAD, analysis.summaries[-1], analysis.fits
        value, high, low = (last.case.size_bytes / limit / bound for bound in _bounds(last.time_s))
        lines.append(within(title, value, low, high, BANDWIDTH))
        if fit.rate is None:
            lines.append(Line(model_title, f"within ±{RATE:.0%}", fit.note, MISSED))
        else:
            lines.append(within(model_title, *(bound / limit for bound in _bounds(fit.rate)), RATE))
    return lines


def _bounds(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def delays(rig: Rig, trials: int) -> list[Line]:
    """Recover added delays in α. A ring of n ranks passes each piece on 2(n-1) times, one after the other; each time
    gloo's receiver first reports that it is ready, then the data comes: α grows by 4(n-1) one-way delays (measured:
    3.9 to 4.1 at n = 2 and 1 to 4 KiB; below, a notice overlaps; above, TCP's first window counts)."""
    text = _sweep(["1KiB", "2KiB", "3KiB", "4KiB"], 25)
    alphas: dict[float, Interval] = {}
    for delay_s in (0.0, *DELAYS_S[:trials]):
        with links.delayed_pair(delay_s) as network:
            (fit,) = analyze(rig.measure(text, NamespacedLauncher(rig.launcher, network))).fits
        assert fit.alpha_s is not None, fit.note
        alphas[delay_s] = fit.alpha_s
    lines = []
    for delay_s in DELAYS_S[:trials]:
        added = difference_of_intervals(alphas[0.0], alphas[delay_s])
        title = f"an added one-way delay of {delay_s * 1e3:g} ms, recovered in α"
        lines.append(within(title, *(bound / 4 / delay_s for bound in _bounds(added)), DELAY))
    return lines


def matrix(rig: Rig, trials: int) -> list[Line]:
    """Measure four hosts on a bridge, one at half the rate or none: is the slow link named, and no other?"""
    titles = ("one link of four at half the rate is named by the pairwise matrix", "no link is slow, and one is named")
    right, wrong, shares = 0, 0, []
    for trial in range(trials):
        slow = trial % 4
        with links.bridged(4, "200mbit", slow=slow, slow_rate="100mbit") as network:
            findings = analyze(rig.measure(PAIRWISE, NamespacedLauncher(rig.launcher, network))).diagnosis.findings
        right += [finding.subject for finding in findings] == [f"rank {slow}"]
        shares += [finding.share for finding in findings]
        with links.bridged(4, "200mbit") as network:
            quiet = analyze(rig.measure(PAIRWISE, NamespacedLauncher(rig.launcher, network)))
        wrong += bool(quiet.diagnosis.findings)
    excess = f"; {np.median(shares):.0%} more time in the median" if shares else ""
    return [at_least(titles[0], right, trials, 1.0, excess), at_most(titles[1], wrong, trials, 0.05)]
