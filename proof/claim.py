"""What a claim of the proof is, how much effort goes into it, and how the outcome of trials is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from proof.rig import Rig


@dataclass(frozen=True)
class Effort:
    """Repetitions of each kind. The gates are the same for both efforts; quick ones are only less sure."""

    name: str
    links: int
    trials: int
    quiet_trials: int
    matrix_trials: int
    quiet_matrix_trials: int
    pairs: int
    planted: int
    series: int
    splits: int
    minutes: int
    minute_s: float
    blocks: float
    noise_launches: int
    simulated: int
    ab: float


FULL = Effort("full", 3, 20, 40, 10, 40, 40, 20, 4000, 15, 10, 60.0, 1.0, 64, 2000, 1.0)
QUICK = Effort("quick", 1, 5, 6, 2, 4, 6, 2, 2000, 4, 2, 8.0, 0.1, 12, 60, 0.2)


@dataclass(frozen=True)
class Outcome:
    """One line of the table. reached: None where it could not be tried, and then `measured` says why."""

    claim: str
    target: str
    measured: str
    reached: bool | None


@dataclass(frozen=True)
class Claim:
    """A function that tries something, and the parts of `bench/` that its outcome rests on.

    The function's protocol is fixed: what it does is not changed after a miss. A change is a new claim.
    """

    run: Callable[[Rig, Effort], list[Outcome]]
    rests_on: Sequence[str]


def counted(hits: int, trials: int) -> str:
    """Such as `19 of 20 (95 %, 95 % interval 75 – 100 %)`, by Clopper and Pearson."""
    interval = binomtest(hits, trials).proportion_ci(method="exact")
    return f"{hits} of {trials} ({hits / trials:.1%} [{interval.low:.1%} – {interval.high:.1%}])"
