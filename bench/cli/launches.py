"""Parts of runs, launch by launch: the plan, facts and cases of one, and what is advised before the next."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import host
from bench.model.records import Plan, Samples
from bench.planning.plan import expand

if TYPE_CHECKING:
    from bench.analyze.pairs import TimedCase
    from bench.config.models import Config
    from bench.model.capabilities import Machine
    from bench.training.records import Fact, Scenario, TrainingPlan

# The first torch whose DistributedDataParallel takes the size of each bucket.
BUCKET_LISTS = (2, 13)


def one_launch(plan: Any, number: int) -> Any:
    """The plan of one launch."""
    order = tuple(launch for launch in plan.order if launch.number == number)
    return dataclasses.replace(plan, order=order, launches=1)


def facts_of_launch(facts: Sequence[Any], number: int) -> list[Any]:
    """The facts of one launch."""
    return [fact for fact in facts if fact.launch == number]


def of_collectives(facts: Sequence[Samples], plan: Plan) -> "list[TimedCase]":
    """The cases of a side, with the names that tables have for them."""
    from bench.analyze import pairs  # here: loads numpy and scipy
    from bench.report.labels import label

    return pairs.of_collectives(facts, plan.cases, label)


def expand_collectives(config: "Config", machine: "Machine", seed: int) -> Plan:
    """`plan.expand`, with the calls of the job that the configuration replays."""
    recorded = None
    if config.recording:
        from bench.importers.traces import reading

        recorded = reading.read([Path(name) for name in config.recording])
    return expand(config, machine, seed, recorded)


def sweep_training(*arguments: Any) -> None:
    """`training.launch.sweep.sweep`, which asks the analysis for advice between launches."""
    from bench.training.launch import sweep

    functools.partial(sweep.sweep, advise=_advised)(*arguments)


def _advised(
    plan: "TrainingPlan", scenario: "Scenario", facts: "Sequence[Fact]"
) -> tuple[int | None, tuple[int, ...]] | None:
    """Cap and buckets for DistributedDataParallel of the installed torch; None if nothing is known yet."""
    from bench.training.analyze.advice import ddp_setting  # here: loads scipy
    from bench.training.records import TrainingRun

    build = host.torch_build() or {}
    version = tuple(int(part) for part in str(build.get("version", "0.0")).split(".")[:2])
    return ddp_setting(TrainingRun(Path(), {}, plan, [], list(facts)), scenario, lists=version >= BUCKET_LISTS)
