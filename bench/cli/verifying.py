"""`advise --verify`: a run of the gradient benchmark with the plans that were advised."""

import secrets
import sys
from typing import TYPE_CHECKING

from bench import __version__, store
from bench.cli.app import RESULTS
from bench.cli.training import measure, write
from bench.errors import UnmeasurableError
from bench.strict import dump

if TYPE_CHECKING:
    from bench.gradients.conclusions import Advice
    from bench.gradients.curve import Curve
    from bench.gradients.profiles import Profile
    from bench.gradients.records import Scenario

NAME = "advise"


def verified(scenario: "Scenario", profile: "Profile", curve: "Curve", advice: "Advice") -> str:
    """Measure the plans in the scenario, keep the run, and say what came of the predictions."""
    from bench.analyze.gradients.compared import analyse
    from bench.gradients import verification
    from bench.measure import environment
    from bench.present.gradients import verification as pages

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
