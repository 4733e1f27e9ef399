"""A whole plan of the training benchmark, launch by launch.

In: a plan, the facts that are there already, whoever starts ranks. Out: lines for the journal. A strategy on which a
launch broke while it was checked is left out of the next try of that launch; a launch that breaks in its rounds keeps
those that were made.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench.launch.launcher import Launcher
from bench.launch.ranks import Starter
from bench.launch.supervisor import Watch, watch
from bench.records import Json
from bench.training.encoding import fact_from_line, fact_to_line
from bench.training.records import Alone, Bout, Broken, Checked, Fact, Round, Timeline, TrainingJob, TrainingPlan
from bench.training.strategies import label

# Modules that every rank will need beside torch. torch loads this one when the first optimizer is made: two seconds
# of computing that each rank would do for itself.
PRELOAD = ("torch._dynamo",)


def launcher() -> Launcher:
    """Starts ranks that train; to be entered."""
    return Launcher(preload=PRELOAD)


class TrainingObserver(Protocol):
    """Receives progress events."""

    def launching(self, bout: Bout) -> None:
        """Ranks are being started."""

    def checking(self, strategy: str) -> None:
        """A strategy is checked."""

    def rounds_begin(self) -> None:
        """All strategies are checked."""

    def told(self, fact: Fact) -> None:
        """Something was measured, or failed."""


def sweep(
    plan: TrainingPlan,
    done: Sequence[Fact],
    launcher: Starter,
    append: Callable[[bytes], None],
    log: Path,
    launched: Callable[[Json], None],
    observer: TrainingObserver,
    before_go: Callable[[], None] = lambda: None,
) -> None:
    """Make the rounds that are in the plan and not among the facts that are `done`."""

    def keep(line: bytes) -> None:
        append(line)
        observer.told(fact_from_line(line))

    detailed = {fact.scenario for fact in done if isinstance(fact, Timeline | Alone)}
    for bout in plan.bouts:
        made = max((f.round for f in done if isinstance(f, Round) and _of(f, bout)), default=0)
        checked = any(isinstance(f, Checked) and f.strategy is None and _of(f, bout) for f in done)
        rest = bout
        while made < rest.rounds:
            job = TrainingJob(rest, plan, str(log.resolve()), made + 1, checked, rest.scenario.key not in detailed)
            outcome, last = _launch(job, launcher, observer, keep, before_go)
            launched(_record(rest, outcome))
            if outcome.failure is None:
                detailed.add(rest.scenario.key)
                break
            guilty = rest.strategies[last] if last is not None and last < len(rest.strategies) else None
            said = label(guilty) if guilty is not None else None
            keep(fact_to_line(Broken(rest.scenario.key, rest.launch, said, outcome.failure)))
            if guilty is None or len(rest.strategies) == 1:
                break
            rest = replace(rest, strategies=tuple(one for one in rest.strategies if one != guilty))


def _of(fact: Round | Checked, bout: Bout) -> bool:
    return (fact.scenario, fact.launch) == (bout.scenario.key, bout.launch)


def _launch(
    job: TrainingJob,
    launcher: Starter,
    observer: TrainingObserver,
    keep: Callable[[bytes], None],
    before_go: Callable[[], None],
) -> tuple[Watch, int | None]:
    """How it ended, and the number of the strategy that was checked last."""
    observer.launching(job.bout)
    seen: list[int] = []

    def begun(index: int) -> None:
        seen.append(index)
        if index < len(job.bout.strategies):
            observer.checking(label(job.bout.strategies[index]))
        else:
            observer.rounds_begin()

    requested = time.monotonic()
    ranks = launcher.start(job.bout.scenario.world_size, "bench.training.rank.main:main", job)
    try:
        outcome = watch(ranks, requested, job.plan.timeout_s, before_go=before_go, begun=begun, sampled=keep)
        return outcome, seen[-1] if seen else None
    finally:
        ranks.kill()


def _record(bout: Bout, outcome: Watch) -> Json:
    return {
        "backend": bout.scenario.backend,
        "world_size": bout.scenario.world_size,
        "scenario": bout.scenario.key,
        "launch": bout.launch,
        "ready_s": None if outcome.ready_s is None else round(outcome.ready_s, 4),
        "ranks": sorted(outcome.facts, key=lambda facts: int(facts["rank"])),
    }
