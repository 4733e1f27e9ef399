"""Prove on real ranks that data-parallel training trains the same model as one process.

In: trials, a number of ranks and of steps. Out: an `EquivalenceResult`: what each trial gave, and why the launch ended
early, if it did. Runs in the parent, which starts ranks and listens; the ranks train (`training/rank/equivalence.py`).
"""

import json
import os
import time
from collections.abc import Callable, Sequence

from bench.launch.ranks import Starter
from bench.launch.supervisor import watch
from bench.model.records import Json
from bench.training.equivalence import TIMEOUT_S, EquivalenceJob, EquivalenceResult, Trial, TrialResult


def prove(
    trials: Sequence[Trial],
    world_size: int,
    steps: int,
    launcher: Starter,
    log: str = os.devnull,
    begun: Callable[[int], None] = lambda _: None,
) -> EquivalenceResult:
    """Run all trials in one launch. begun: takes the number of the trial that begins."""
    lines: list[Json] = []
    requested = time.monotonic()
    job = EquivalenceJob(tuple(trials), steps, log)
    ranks = launcher.start(world_size, "bench.training.rank.equivalence:main", job)
    try:
        result = watch(
            ranks,
            requested,
            TIMEOUT_S,
            before_go=lambda: None,
            begun=begun,
            sampled=lambda line, _: lines.append(json.loads(line)),
        )
    finally:
        ranks.kill()
    found = [_found(trial, line) for trial, line in zip(trials, lines, strict=False)]
    found += [
        TrialResult(trial, missing="NOT MEASURED: the ranks ended before this trial") for trial in trials[len(found) :]
    ]
    return EquivalenceResult(world_size, steps, tuple(found), result.failure.text if result.failure else None)


def _found(trial: Trial, line: Json) -> TrialResult:
    lists = {name: tuple(value) for name, value in line.items() if isinstance(value, list)}
    return TrialResult(trial, **(line | lists))
