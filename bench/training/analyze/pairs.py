"""Find the times of the steps of a training run, for the comparison of two sides (`bench/analyze/pairs.py`).

In: facts and the plan of one side. Out: a `TimedCase` for each strategy of each scenario.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from bench.analyze.pairs import TimedCase
from bench.stats.intervals import Floats
from bench.training.analyze.rounds import steps_of
from bench.training.records import Fact, Round, TrainingPlan
from bench.training.strategies import label


def of_training(facts: Sequence[Fact], plan: TrainingPlan) -> list[TimedCase]:
    """The strategies of a side, measured or not yet; the times of a launch are those of its rounds, a step each.

    Left out are second copies of a strategy, which show the noise of a run, and strategies whose buckets a run finds
    out itself, which could be others on the other side.
    """
    found = []
    for scenario in dict.fromkeys(launch.scenario for launch in plan.order):
        rounds = [fact for fact in facts if isinstance(fact, Round) and fact.scenario == scenario.key]
        fields = {name: str(value) for name, value in asdict(scenario).items()}
        of_scenario = [launch.strategies for launch in plan.order if launch.scenario == scenario]
        every = [one for strategies in of_scenario for one in strategies if not (one.again or one.open)]
        for name in dict.fromkeys(map(label, every)):
            launches: dict[int, Floats] = {n: np.asarray(values) for n, values in steps_of(rounds, name).items()}
            shown = " · ".join([name, *scenario.key.split("/")])
            found.append(TimedCase({**fields, "strategy": name}, shown, launches))
    return found
