"""Rates that real runs are too slow to show: decided by simulation, on the noise of real launches.

The noise: launches of three sizes at two ranks, in the order in which they were made. Their logarithms, less their
means, are drawn again: of a launch all sizes together, and of a pair two launches that followed each other.
"""

from dataclasses import dataclass

import numpy as np

from bench.analyze import pairs
from bench.analyze.compare import compare
from bench.analyze.occasions import occasions
from bench.model.conclusions import Summary
from bench.model.records import Case, Run
from bench.stats import verdicts
from bench.stats.intervals import launch_interval
from bench.store.ledger import CaseNoise, LedgerEntry, MachineIdentity
from proof.claim import Effort, Outcome, counted
from proof.rig import Rig

SWEEP = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: {launches}
sizes: [64KiB, 1MiB, 16MiB]
sampling: {{seconds_per_case: 0.2}}
timeout: 60s
"""
CHANGED = {verdicts.SLOWER, verdicts.FASTER}
PAIRS = 128
OCCASIONS, OF_AN_OCCASION, SIDE = 8, 8, 10
HERE = MachineIdentity("h", "c", "2", "none", "b", "6", "2", "none", "")


@dataclass(frozen=True)
class Noise:
    """logs: geometric means of launches, shape (sizes, launches), less their means. run: that they are from."""

    logs: np.ndarray
    run: Run

    @property
    def cases(self) -> list[Case]:
        return list(self.run.plan.cases)

    def launches(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(sizes, count): launches at random."""
        return self.logs[:, rng.integers(0, self.logs.shape[1], count)]

    def pairs(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(2, sizes, count): launches that followed each other, either of them first."""
        first = rng.integers(0, self.logs.shape[1] - 1, count)
        both = np.stack([self.logs[:, first], self.logs[:, first + 1]])
        turned = rng.random(count) < 0.5
        return np.where(turned, both[::-1], both)


def measured(rig: Rig, effort: Effort) -> Noise:
    run = rig.measure(SWEEP.format(launches=effort.noise_launches))
    logs = np.array(
        [
            [np.log(s.timed.slowest_s).mean() for s in sorted(run.samples, key=lambda s: s.launch) if s.case == case]
            for case in run.plan.cases
        ]
    )
    return Noise(logs - logs.mean(axis=1, keepdims=True), run)


def identical_sides(rig: Rig, effort: Effort) -> list[Outcome]:
    """`ab` of sides that do not differ, while the machine drifts by as much as launches scatter; 128 pairs at most."""
    noise, rng = measured(rig, effort), np.random.default_rng(1)
    wrong = 0
    for _ in range(effort.simulated):
        drift = noise.logs.std() * np.cumsum(rng.normal(size=PAIRS)) / np.sqrt(PAIRS / 4)
        a, b = noise.pairs(rng, PAIRS) + drift
        cases = [
            pairs.PairedCase(
                case.key,
                *(
                    pairs.TimedCase(case, case.key, {n: np.exp(side[i, n : n + 1]) for n in range(PAIRS)})
                    for side in (a, b)
                ),
            )
            for i, case in enumerate(noise.cases)
        ]
        wrong += _ever_changed(cases)
    return [
        Outcome(
            "ab of identical sides, drift planted, up to 128 pairs: ever SLOWER or FASTER",
            "≤ 5 % of 2000, simulated on the noise of real launches",
            counted(wrong, effort.simulated),
            wrong <= 0.05 * effort.simulated,
        )
    ]


def _ever_changed(cases: list[pairs.PairedCase]) -> bool:
    first, decided_at = pairs.FirstLook(), None
    for count in pairs.LOOKS:
        found = pairs.look(cases, count, 0.05, first)
        if CHANGED & set(found.verdicts):
            return True
        if count >= PAIRS or pairs.why_end(found, count, decided_at) is not None:
            return False
    return False


def known_occasions(rig: Rig, effort: Effort) -> list[Outcome]:
    """`compare` of two runs that do not differ, each with an occasion of its own that differs as launches do."""
    noise, rng = measured(rig, effort), np.random.default_rng(2)
    wrong = unaware = 0
    scatter = noise.logs.std(axis=1, ddof=1)
    for _ in range(effort.simulated):
        entries = [_entry(noise, rng, scatter, number) for number in range(OCCASIONS)]
        known = occasions(entries, HERE)
        sides = [
            noise.launches(rng, SIDE) + scatter[:, None] * rng.normal(size=(len(scatter), 1))
            for _ in ("before", "after")
        ]
        wrong += bool(CHANGED & set(_verdicts(noise, sides, known)))
        unaware += bool(CHANGED & set(_verdicts(noise, sides, {})))
    return [
        Outcome(
            "compare, nothing changed, occasions differ as launches do, ledger of 8, R = 10: SLOWER or FASTER",
            "≤ 5 % of 2000, simulated on the noise of real launches",
            f"{counted(wrong, effort.simulated)}; without a ledger {unaware / effort.simulated:.0%}",
            wrong <= 0.05 * effort.simulated,
        )
    ]


def _entry(noise: Noise, rng: np.random.Generator, scatter: np.ndarray, number: int) -> LedgerEntry:
    logs = noise.launches(rng, OF_AN_OCCASION) + scatter[:, None] * rng.normal(size=(len(scatter), 1))
    cases = {
        case.key: CaseNoise(OF_AN_OCCASION, *[float(np.exp(row.mean()))] * 2, *[float(row.std(ddof=1))] * 2, None, None)
        for case, row in zip(noise.cases, logs, strict=True)
    }
    return LedgerEntry(f"run-{number}", "", HERE, cases)


def _verdicts(noise: Noise, sides: list[np.ndarray], known: dict[str, tuple[float, float]]) -> list[str]:
    summaries = [
        [
            Summary(case, SIDE, SIDE, launch_interval(np.exp(row)), tuple(np.exp(row).tolist()))
            for case, row in zip(noise.cases, side, strict=True)
        ]
        for side in sides
    ]
    other = Run(noise.run.path / "other", noise.run.manifest, noise.run.plan, [], [])
    result = compare(noise.run, other, *summaries, by_occasion=known)
    return [*(change.verdict for change in result.changes), *([result.whole.verdict] if result.whole else [])]


def launches_of_all_kinds(_: Rig, effort: Effort) -> list[Outcome]:
    """The interval over 10 launches: lognormal, skewed, and of two modes with shares of 0.3 to 0.7."""
    rng, trials = np.random.default_rng(3), effort.series
    kinds = {
        "lognormal": (lambda n: 0.2 * rng.normal(size=n), 0.0),
        "skewed": (lambda n: 0.2 * rng.exponential(size=n), 0.2),
        "two modes, 0.3 to 0.7 in the slow one": (None, 0.0),
    }
    found = []
    for name, (draw, mean) in kinds.items():
        hits = 0
        for _ in range(trials):
            logs, truth = (draw(SIDE), mean) if draw is not None else _two_modes(rng)
            interval = launch_interval(np.exp(logs))
            hits += interval.low <= np.exp(truth) <= interval.high
        share = hits / trials
        found.append(
            Outcome(
                f"coverage of the interval over 10 launches, {name}",
                "93 to 97 %",
                counted(hits, trials),
                0.93 <= share <= 0.97,
            )
        )
    return found


def _two_modes(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    share, apart = rng.uniform(0.3, 0.7), rng.uniform(0.3, 1.0)
    return apart * (rng.random(SIDE) < share) + 0.05 * rng.normal(size=SIDE), share * apart
