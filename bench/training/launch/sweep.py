"""Run a whole plan of the training benchmark, launch by launch.

In: a plan, the facts measured already, a `Starter`. Out: lines for the journal. If a launch breaks while a
strategy is checked, it is tried again without that strategy; if it breaks in its rounds, it is not tried again, and the
rounds made so far are kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench.catalog.strategies import label, settled
from bench.launch.launcher import Launcher
from bench.launch.ranks import Starter
from bench.launch.supervisor import LaunchOutcome, watch
from bench.model.errors import RankError
from bench.model.records import Json, Scenario
from bench.model.training import (
    Advised,
    CommunicationOnly,
    Fact,
    LaunchFailure,
    Round,
    StrategyChecks,
    Timeline,
    TrainingJob,
    TrainingLaunch,
    TrainingPlan,
)
from bench.training.encoding import fact_from_line, fact_to_line

# Modules that every rank needs besides torch. torch loads this one when the first optimizer is made, which would cost
# each rank two seconds of computing.
PRELOAD = ("torch._dynamo",)


def launcher() -> Launcher:
    """Starts ranks that train; use it as a context manager."""
    return Launcher(preload=PRELOAD)


# Which setting of DDP the facts of a scenario advise; None if they do not tell yet.
Advise = Callable[[TrainingPlan, Scenario, Sequence[Fact]], tuple[int | None, tuple[int, ...]] | None]


class TrainingObserver(Protocol):
    """Receives progress events."""

    def launching(self, launch: TrainingLaunch) -> None:
        """Ranks are being started."""

    def checking(self, strategy: str) -> None:
        """A strategy is checked."""

    def rounds_begin(self) -> None:
        """All strategies are checked."""

    def measured(self, fact: Fact) -> None:
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
    advise: Advise = lambda plan, scenario, facts: None,
) -> None:
    """Make the rounds that are in the plan and not among the facts that are `done`.

    advise: asked before each launch that has an open strategy; without an answer, the launch goes without it.
    """
    facts = list(done)

    def keep(line: bytes) -> None:
        append(line)
        facts.append(fact_from_line(line))
        observer.measured(facts[-1])

    detailed = {fact.scenario for fact in done if isinstance(fact, Timeline | CommunicationOnly)}
    for launch in plan.order:
        earlier = [
            fact
            for fact in done
            if isinstance(fact, Round | StrategyChecks)
            and (fact.scenario, fact.launch) == (launch.scenario.key, launch.number)
        ]
        made = max((fact.round for fact in earlier if isinstance(fact, Round)), default=0)
        checked = any(isinstance(fact, StrategyChecks) and fact.strategy is None for fact in earlier)
        rest = _settled(launch, plan, facts, keep, advise) if made < launch.rounds else launch
        if facts and isinstance(facts[-1], Advised):  # the setting was advised just now: it is recorded in detail too
            detailed.discard(launch.scenario.key)
        while made < rest.rounds:
            job = TrainingJob(rest, plan, str(log.resolve()), made + 1, checked, rest.scenario.key not in detailed)
            result, last = _launch(job, launcher, observer, keep, before_go)
            launched(
                {
                    "backend": rest.scenario.backend,
                    "world_size": rest.scenario.world_size,
                    "scenario": rest.scenario.key,
                    "launch": rest.number,
                    "ready_s": None if result.ready_s is None else round(result.ready_s, 4),
                    "ranks": sorted(result.facts, key=lambda facts: int(facts["rank"])),
                }
            )
            if result.failure is None:
                detailed.add(rest.scenario.key)
                break
            guilty = rest.strategies[last] if last is not None and last < len(rest.strategies) else None
            name = label(guilty) if guilty is not None else None
            keep(fact_to_line(LaunchFailure(rest.scenario.key, rest.number, name, result.failure)))
            if guilty is None or len(rest.strategies) == 1:
                break
            rest = replace(rest, strategies=tuple(strategy for strategy in rest.strategies if strategy != guilty))


def _settled(
    launch: TrainingLaunch,
    plan: TrainingPlan,
    facts: Sequence[Fact],
    keep: Callable[[bytes], None],
    advise: Advise,
) -> TrainingLaunch:
    """The launch with the advised setting in each open strategy; without advice, open strategies are left out."""
    if not any(strategy.open for strategy in launch.strategies):
        return launch
    scenario = launch.scenario
    advised = next((f for f in facts if isinstance(f, Advised) and f.scenario == scenario.key), None)
    if advised is None and (answer := advise(plan, scenario, facts)) is not None:
        advised = Advised(scenario.key, launch.number, *answer)
        keep(fact_to_line(advised))
    strategies = [strategy if advised is None else settled(strategy, advised) for strategy in launch.strategies]
    return replace(launch, strategies=tuple(strategy for strategy in strategies if not strategy.open))


def _launch(
    job: TrainingJob,
    launcher: Starter,
    observer: TrainingObserver,
    keep: Callable[[bytes], None],
    before_go: Callable[[], None],
) -> tuple[LaunchOutcome, int | None]:
    """Run one launch. Returns how it ended, and the number that `begun` took last.

    That is the number of a strategy whose checks began, or the number of strategies if the rounds began; None without.
    """
    observer.launching(job.launch)
    seen: list[int] = []

    def begun(index: int) -> None:
        seen.append(index)
        if index < len(job.launch.strategies):
            observer.checking(label(job.launch.strategies[index]))
        else:
            observer.rounds_begin()

    requested = time.monotonic()
    ranks = launcher.start(job.launch.scenario.world_size, "bench.rank.training.main:main", job)
    try:
        result = watch(
            ranks,
            requested,
            job.plan.timeout_s,
            before_go=before_go,
            begun=begun,
            sampled=lambda line, _: keep(line),
            log=Path(job.log),
        )
    finally:
        stuck = ranks.kill()
    if stuck:
        raise RankError(f"{stuck}; what was measured is kept, go on once it has ended")
    return result, seen[-1] if seen else None
