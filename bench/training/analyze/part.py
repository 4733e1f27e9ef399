"""What training concludes from a run, as the core asks for it."""

from collections.abc import Iterable, Sequence

from bench.analyze.parts import AnalysisPart
from bench.analyze.round_series import Series, estimates
from bench.model.conclusions import Summary
from bench.model.records import Case, Run
from bench.training.analyze import steps
from bench.training.analyze.runs import with_advice
from bench.training.analyze.steps import trains
from bench.training.catalog.strategies import strategy_of
from bench.training.conclusions import TrainingAnalysis

UNTESTED = (
    "training steps: their ranks are not tested, because they leave a barrier together and then compute; the split of "
    "a step has the time that ranks wait for the last one"
)


def analyze(run: Run, summaries: Sequence[Summary]) -> TrainingAnalysis:
    """All conclusions, with what is advised on buckets."""
    scenarios = with_advice(run, steps.scenarios(run, summaries))
    return TrainingAnalysis(scenarios, steps.scaling(scenarios), steps.call_sizes(summaries))


def exposed(run: Run) -> dict[Case, tuple[Series, float]]:
    """Of each case that differs from its reference: exposed communication in each round, and its scenario's noise.

    Both are seconds a step. The noise is what two copies of one strategy differ by.
    """
    found = {}
    for scenario, cases in steps.scenarios_of(run).items():
        rounds = steps.rounds_of(run, scenario)
        differences_s = steps.differences_of(rounds, cases)
        apart = estimates(differences_s, steps.levels_of(rounds, differences_s))
        noise_s = steps.noise_of(steps.aa_pairs_of(apart))
        for (case, other), series in differences_s.items():
            if other == steps.reference_case(case):
                found[case] = series, noise_s
    return found


def facts(run: Run) -> dict[str, str]:
    """Settings that comparable runs share; none without training steps."""
    if not any(map(trains, run.plan.cases)):
        return {}
    settings = run.plan.settings
    return {
        "rounds": str(settings.rounds),
        "warmup_steps": str(settings.warmup_steps),
        "max_foreign_cpu": f"{run.plan.max_foreign_cpu:g}",
    }


def own_cases(run: Run, concluded: object) -> set[Case]:
    """The steps of a run, and the calls of the ladder of call sizes."""
    points = concluded.call_sizes if isinstance(concluded, TrainingAnalysis) else ()
    # The bytes of a point were rounded to whole elements of each call.
    ladder = {
        (point.backend, point.world_size, point.calls, round(point.total_bytes / point.calls)) for point in points
    }
    cases = {samples.case for samples in run.samples}
    steps_of_run = {case for case in cases if trains(case)}
    calls = {case for case in cases if (case.op, case.metric, case.call) == ("all_reduce", "pipelined", "async")}
    return steps_of_run | {
        case for case in calls if (case.backend, case.world_size, case.depth, case.size_bytes) in ladder
    }


def untested(cases: Iterable[Case]) -> list[str]:
    """Why nobody is named who is late, if there are steps of several ranks."""
    return [UNTESTED] if any(case.world_size > 1 and trains(case) for case in cases) else []


ANALYSIS = AnalysisPart(
    counts=steps.counted_samples,
    analyze=analyze,
    exposed=exposed,
    warnings=steps.disturbances,
    facts=facts,
    is_control=lambda case: trains(case) and bool(strategy_of(case.strategy).again),
    own_cases=own_cases,
    untested=untested,
    whole=steps.whole,
)
