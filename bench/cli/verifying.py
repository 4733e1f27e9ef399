"""`advise --verify`: a run of the gradient benchmark with the plans that were advised."""

import secrets
import sys
from typing import TYPE_CHECKING

from bench import __version__, store
from bench.cli.app import RESULTS
from bench.cli.training import measure, write
from bench.errors import UnmeasurableError
from bench.yaml_file import dump

if TYPE_CHECKING:
    from bench.training.all_reduce_cost import Curve
    from bench.training.conclusions import Advice
    from bench.training.ready_times import Profile
    from bench.training.records import Scenario

NAME = "advise"


def verified(scenario: "Scenario", profile: "Profile", curve: "Curve", advice: "Advice") -> str:
    """Measure the plans in the scenario, keep the run, and say what came of the predictions."""
    from bench.machine import environment
    from bench.training import verification
    from bench.training.analyze.analysis import analyse
    from bench.training.report import verification as pages

    obstacle = environment.platform_obstacle()
    if obstacle:
        raise UnmeasurableError(obstacle)
    asked = verification.candidates(profile, advice, scenario.shape is not None)
    plan = verification.planned(
        scenario, [strategy for strategy, _ in asked.values()], NAME, secrets.randbelow(2**32), environment.machine()
    )
    written = dump({"advise": " ".join(sys.argv[2:])}).encode()
    path = store.create(RESULTS, plan, written, {"argv": sys.argv[1:], "overrides": [], "collbench": __version__})
    measure(path)
    result = store.read_training(path)
    analysis = analyse(result)
    files = write(result, analysis, plots=False)
    (comparison,) = analysis.comparisons
    found = verification.verified(asked, profile, curve, comparison.outcomes)
    return "\n\n".join([pages.document(found, comparison), *map(str, files)])
