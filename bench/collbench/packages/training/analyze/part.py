"""Provide training's conclusions from a run as an `AnalysisPart`."""

from collections.abc import Sequence
from dataclasses import replace

from collbench.analyze.parts import AnalysisPart
from collbench.analyze.round_series import Series, estimates
from collbench.model.conclusions import Summary
from collbench.model.records import Case, Run
from collbench.packages.training.analyze import steps
from collbench.packages.training.analyze.runs import advice_for
from collbench.packages.training.analyze.steps import trains
from collbench.packages.training.conclusions import TrainingAnalysis
from collbench.packages.training.synchronisation import step_settings


def analyze(run: Run, summaries: Sequence[Summary]) -> TrainingAnalysis:
    """Return all conclusions, with the advice on buckets."""
    analyses = steps.scenarios(run, summaries)
    scenarios = tuple(replace(result, advice=advice_for(run, result.scenario)) for result in analyses)
    return TrainingAnalysis(scenarios, steps.scaling(scenarios))


def exposed(run: Run) -> dict[Case, tuple[Series, float]]:
    """For each case except references, return exposed communication in each round, and the A/A noise of its scenario.

    Both are seconds per step. The A/A noise is the largest difference between two copies of one strategy.
    """
    series_by_case = {}
    for scenario, cases in steps.scenarios_of(run).items():
        rounds = steps.rounds_of(run, scenario)
        differences_s = steps.differences_of(rounds, cases)
        intervals = estimates(differences_s, steps.levels_of(rounds, differences_s))
        noise_s = steps.noise_of(steps.aa_pairs_of(intervals))
        for (case, other), series in differences_s.items():
            if other == steps.reference_case(case):
                series_by_case[case] = series, noise_s
    return series_by_case


def facts(run: Run) -> dict[str, str]:
    """Return the settings that comparable runs share; none without training steps."""
    if not any(map(trains, run.plan.cases)):
        return {}
    settings = step_settings(run.plan.settings)
    return {
        "rounds": str(settings.rounds),
        "warmup_steps": str(settings.warmup_steps),
        "max_foreign_cpu": f"{settings.max_foreign_cpu:g}",
    }


ANALYSIS = AnalysisPart(
    counts=steps.counted_samples,
    analyze=analyze,
    exposed=exposed,
    notices=steps.disturbances,
    facts=facts,
)
