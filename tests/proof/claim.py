"""What a claim of the proof is, and how much effort goes into it."""

from collections.abc import Callable
from dataclasses import dataclass

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


FULL = Effort("full", 3, 20, 40, 10, 40, 40, 20, 4000, 15, 10, 60.0, 1.0)
QUICK = Effort("quick", 1, 5, 6, 2, 4, 6, 4, 2000, 4, 3, 8.0, 0.1)


@dataclass(frozen=True)
class Outcome:
    """One line of the table. reached: None where it could not be tried, and then `measured` says why."""

    claim: str
    target: str
    measured: str
    reached: bool | None


Claim = Callable[[Rig, Effort], list[Outcome]]
