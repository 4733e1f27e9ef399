"""Read the training steps of a run."""

from dataclasses import replace

from collbench.analyze.reading import Reading
from collbench.analyze.summaries import headlines
from collbench.model.notices import Kind, Notice
from collbench.model.records import Run
from collbench.packages.training.analyze import steps
from collbench.packages.training.analyze.runs import advice_for
from collbench.packages.training.conclusions import ScenarioAnalysis, TrainingAnalysis
from collbench.packages.training.synchronisation import TRAINING_STEP, step_settings

NOT_ADDED_UP = Kind("not-added-up", "the split of {strategies} does not add up to comm_time")


def read(run: Run) -> Reading:
    """Return all conclusions, with the advice on buckets, and the settings that comparable runs share."""
    if not any(case.op == TRAINING_STEP for case in run.plan.cases):
        return Reading(TrainingAnalysis())
    analyses = steps.scenarios(run, headlines(run))
    scenarios = tuple(replace(result, advice=advice_for(run, result.scenario)) for result in analyses)
    settings = step_settings(run.plan.settings)
    return Reading(
        value=TrainingAnalysis(scenarios, steps.scaling(scenarios)),
        notices=[notice for scenario in scenarios for notice in not_added_up(scenario)],
        facts={
            "rounds": str(settings.rounds),
            "warmup_steps": str(settings.warmup_steps),
            "max_foreign_cpu": f"{settings.max_foreign_cpu:g}",
        },
    )


def not_added_up(scenario: ScenarioAnalysis) -> list[Notice]:
    """Return a notice on the strategies whose split does not add up to exposed communication."""
    results = [result for result in scenario.results if result.adds_up is False and not result.strategy.again]
    keys = [result.case.key for result in results]
    return [NOT_ADDED_UP(keys, strategies=tuple(result.name for result in results))] if results else []
