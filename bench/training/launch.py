"""Run the trials of an equivalence proof on real ranks.

In: trials, a number of ranks and of steps. Out: the result of each trial. Runs in the parent, which starts ranks and
listens; `training/rank/equivalence.py` trains.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.launch.ranks import Starter
from bench.launch.supervisor import watch
from bench.launch.turns import drive
from bench.training.catalog.equivalence import TIMEOUT_S, EquivalenceJob, Trial, TrialResult


def run_trials(
    trials: Sequence[Trial],
    world_size: int,
    steps: int,
    launcher: Starter,
    begun: Callable[[int], None] = lambda _: None,
) -> tuple[list[TrialResult], str | None]:
    """Results of all trials, and why the launch ended early; None if it did not. begun: takes a trial's number."""
    results: list[TrialResult] = []

    def sampled(line: bytes, _: object) -> None:
        numbers: dict[str, Any] = {name: tuple(n) if isinstance(n, list) else n for name, n in json.loads(line).items()}
        results.append(TrialResult(trials[len(results)], **numbers))

    job = EquivalenceJob(tuple(trials), steps, os.devnull)
    requested = time.monotonic()
    ranks = launcher.start(world_size, "bench.training.rank.equivalence:main", job)
    try:
        watching = watch(ranks, requested, TIMEOUT_S, before_go=lambda _: None, begun=begun, sampled=sampled)
        (outcome,) = drive(watching)
    finally:
        ranks.kill()
    results += [TrialResult(trial) for trial in trials[len(results) :]]
    return results, outcome.failure.text if outcome.failure else None
