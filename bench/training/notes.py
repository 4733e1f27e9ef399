"""Find settings in a plan of the training benchmark that measure something other than their author expects.

In: a plan and the number of cores of this machine. Out: notes: sentences, each with the remedy. They never stop a run.
"""

from collections.abc import Iterator

from bench.catalog.backends import BACKENDS
from bench.training.records import TrainingPlan
from bench.training.strategies import kind

# 25 for `bucket_cap_mb`, in bytes: torch's source means MiB, the name of the argument MB.
DEFAULT_CAPS = frozenset({25 * 10**6, 25 * 2**20})


def notes(plan: TrainingPlan, cores: int) -> list[str]:
    """The distinct notes, in the order of the checks below."""
    return list(dict.fromkeys([*_explicit_default_cap(plan), *_too_many_threads(plan, cores), *_single_step(plan)]))


def _explicit_default_cap(plan: TrainingPlan) -> Iterator[str]:
    for launch in plan.order:
        for strategy in launch.strategies:
            if not kind(strategy).own and strategy.cap_bytes in DEFAULT_CAPS:
                yield (
                    "ddp with a cap of 25 is not torch's default: an explicit cap drops the first bucket of 1 MiB, so "
                    "communication starts later; write ddp without a cap for the default"
                )


def _too_many_threads(plan: TrainingPlan, cores: int) -> Iterator[str]:
    """On a CPU backend, communication runs on the cores that compute."""
    for launch in plan.order:
        scenario = launch.scenario
        overlapping = any(kind(strategy).overlaps for strategy in launch.strategies)
        on_cores = BACKENDS[scenario.backend].device == "cpu" and scenario.link is None
        if overlapping and on_cores and scenario.threads * scenario.world_size > cores:
            yield (
                f"{scenario.world_size} ranks of {scenario.threads} computing threads on {cores} cores: no core is "
                "left to overlap communication with, so the scheduler is measured; lower threads or world_sizes, or "
                "use an emulated link, which needs no core"
            )


def _single_step(plan: TrainingPlan) -> Iterator[str]:
    if plan.steps < 2:
        yield (
            "steps: 1 puts one step between two barriers: how unequally ranks leave the barrier falls on that step, "
            "and what reaches into the next step is not seen; write steps: 2 or more"
        )
