"""Pairs of runs between which nothing changed, or a known slow-down was planted: what does `compare` say?"""

from collections import Counter

from bench.analyze.compare import compare
from bench.analyze.summaries import summarize
from bench.machine import host
from bench.model.records import Run
from proof.claim import Effort, Outcome, counted
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
            f"{counted(false, effort.pairs)}; {_listed(verdicts)}",
            false <= 0.05 * effort.pairs,
        )
    ]


def slowed(rig: Rig, effort: Effort) -> list[Outcome]:
    """A fifth of the operation's own time is spent asleep inside it. The time is that of the run before.

    At a second for a case; under normal scheduling, and in real time, where launches scatter less.
    """
    found = []
    for scheduling in ("normal", "rr"):
        claim = f"20 % planted in the operation (16 MiB, 2 ranks, {scheduling} scheduling), R = 5: SLOWER"
        reason = host.unsupported_realtime()
        if scheduling == "rr" and reason:
            found.append(Outcome(claim, "≥ 95 % of the pairs", reason, None))
            continue
        verdicts = Counter(_slowed_pair(rig, scheduling) for _ in range(effort.planted))
        measured = f"{counted(verdicts['SLOWER'], effort.planted)}; {_listed(verdicts)}"
        found.append(Outcome(claim, "≥ 95 % of the pairs", measured, verdicts["SLOWER"] >= 0.95 * effort.planted))
    return found


def _slowed_pair(rig: Rig, scheduling: str) -> str:
    settings = {"sizes": "[16MiB]", "seconds": 1}
    more = f"scheduling: {scheduling}\n"
    before = rig.measure(SWEEP.format(**settings, faults="[]") + more)
    (summary,) = summarize(before)
    delay = f"{0.2 * summary.time_s.value * 1e6:.0f}us"
    fault = ", ".join(f"{{do: slow, rank: {rank}, delay: {delay}}}" for rank in (0, 1))
    return _verdict(before, rig.measure(SWEEP.format(**settings, faults=f"[{fault}]") + more))


def _verdict(before: Run, after: Run) -> str:
    return compare(before, after, summarize(before), summarize(after)).verdict


def _listed(verdicts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
