"""Prove on real ranks that data-parallel training trains the same model as one process.

In: trials, a number of ranks and of steps. Out: an `EquivalenceResult`: the result of each trial, and why the launch
ended early, if it did. Runs in the parent, which starts ranks and listens; `training/rank/equivalence.py` trains.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.catalog.equivalence import TIMEOUT_S, EquivalenceJob, EquivalenceResult, Trial, TrialResult
from bench.launch.ranks import Starter
from bench.launch.supervisor import watch


def prove(
    trials: Sequence[Trial],
    world_size: int,
    steps: int,
    launcher: Starter,
    log: str = os.devnull,
    begun: Callable[[int], None] = lambda _: None,
) -> EquivalenceResult:
    """Run all trials in one launch. begun: takes the number of the trial that begins."""
    results: list[TrialResult] = []

    def sampled(line: bytes, _: object) -> None:
        numbers: dict[str, Any] = {name: tuple(n) if isinstance(n, list) else n for name, n in json.loads(line).items()}
        results.append(TrialResult(trials[len(results)], **numbers))

    requested = time.monotonic()
    job = EquivalenceJob(tuple(trials), steps, log)
    ranks = launcher.start(world_size, "bench.rank.training.equivalence:main", job)
    try:
        outcome = watch(ranks, requested, TIMEOUT_S, before_go=lambda: None, begun=begun, sampled=sampled)
    finally:
        ranks.kill()
    missing = "NOT MEASURED: the ranks ended before this trial"
    results += [TrialResult(trial, missing=missing) for trial in trials[len(results) :]]
    return EquivalenceResult(world_size, steps, tuple(results), outcome.failure.text if outcome.failure else None)
