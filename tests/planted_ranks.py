"""Ranks that check strategies after a mistake was planted in their code, as `test_training_invariants` asks."""

import tempfile
import traceback
from pathlib import Path

from collbench.model.records import Plan
from collbench.packages.training.rank import runner, step, synchronisers, torch_synchronisers
from collbench.packages.training.synchronisation import strategy_in
from collbench.protocol.rank_context import RankContext
from collbench.rank.process import joined
from collbench.rank.stage import RankPlace
from collbench.store import encoding

MODULES = {"synchronisers": synchronisers, "torch_synchronisers": torch_synchronisers}


def plant(name: str, right: str, wrong: str) -> None:
    """Run the code of a module with another text; with equal texts, as it is."""
    if name:
        text = Path(MODULES[name].__file__).read_text()
        assert text.count(right) == 1, f"{name} has this text {text.count(right)} times: {right}"
        exec(compile(text.replace(right, wrong), MODULES[name].__file__, "exec"), vars(MODULES[name]))
        runner.SYNCHRONISERS = synchronisers.SYNCHRONISERS | torch_synchronisers.SYNCHRONISERS


def check(context: RankContext, encoded: bytes) -> None:
    """Send the parent, for each planted mistake, the invariants that fail, by the name of the strategy."""
    try:
        jobs = encoding.decoded(encoded, dict[str, tuple[str, str, str, Plan]])
        with joined(context, "gloo", 60.0) as group:
            found = {}
            for title, (name, right, wrong, plan) in jobs.items():
                plant(name, right, wrong)
                folder = Path(group.gather(tempfile.mkdtemp(dir=context.stack_file.parent))[0])
                place = RankPlace(group, None, folder, lambda: None)
                cases = [case for case in plan.cases if not strategy_in(case).again]
                stage = step.TrainingStage(cases[0], plan.settings, 1, place)
                steps = {strategy_in(case).name: step.TrainingStep(case, stage) for case in cases}
                for made in steps.values():
                    made.verify()
                found[title] = {
                    strategy: sorted({check.invariant for check in made.checks() if check.ok is False})
                    for strategy, made in steps.items()
                }
                plant(name, right, right)
            context.send({"kind": "checked", "found": found})
    except BaseException as error:
        traceback.print_exc()
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
