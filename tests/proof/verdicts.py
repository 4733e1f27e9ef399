"""Pairs of runs between which nothing changed, or a known slow-down was planted: what does `compare` say?"""

from collections import Counter

from bench.analyze.compare import compare
from bench.analyze.stats import summarize
from bench.records import Run
from proof.claim import Effort, Outcome
from proof.rig import Rig

SWEEP = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: 5
sizes: {sizes}
sampling: {{warmup: 3, warmup_seconds: 0.02, seconds_per_case: {seconds}}}
timeout: 60s
faults: {faults}
"""


def unchanged(rig: Rig, effort: Effort) -> list[Outcome]:
    """Run after run of the same thing, each against the one before."""
    text = SWEEP.format(sizes="[4KiB, 256KiB, 4MiB]", seconds=0.1, faults="[]")
    verdicts: Counter[str] = Counter()
    for _ in range(effort.pairs):
        verdicts[_verdict(rig.measure(text), rig.measure(text))] += 1
    false = verdicts["SLOWER"] + verdicts["FASTER"]
    return [
        Outcome(
            "A/A comparison of two real runs, R = 5, three cases: a false SLOWER or FASTER",
            "≤ 5 % of the pairs",
            f"{false} of {effort.pairs} ({_listed(verdicts)})",
            false <= 0.05 * effort.pairs,
        )
    ]


def slowed(rig: Rig, effort: Effort) -> list[Outcome]:
    """A fifth of the operation's own time is spent asleep inside it. The time is that of the run before."""
    verdicts: Counter[str] = Counter()
    before = SWEEP.format(sizes="[16MiB]", seconds=0.6, faults="[]")
    for _ in range(effort.planted):
        first = rig.measure(before)
        (summary,) = summarize(first)
        # sleeping takes about 60 µs longer than asked, which is below half a percent of what is planted
        delay = 0.2 * summary.time_s.value
        fault = (
            f"[{{do: slow, rank: 0, delay: {delay * 1e6:.0f}us}}, {{do: slow, rank: 1, delay: {delay * 1e6:.0f}us}}]"
        )
        verdicts[_verdict(first, rig.measure(SWEEP.format(sizes="[16MiB]", seconds=0.6, faults=fault)))] += 1
    return [
        Outcome(
            "20 % planted in the operation (16 MiB, 2 ranks), R = 5: SLOWER",
            "≥ 95 % of the pairs",
            f"{verdicts['SLOWER']} of {effort.planted} ({_listed(verdicts)})",
            verdicts["SLOWER"] >= 0.95 * effort.planted,
        )
    ]


def _verdict(before: Run, after: Run) -> str:
    return compare(before, after, summarize(before), summarize(after)).verdict


def _listed(verdicts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
