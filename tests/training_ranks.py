"""What ranks of the tests of training do in place of measuring: check planted mistakes, or run a user's program."""

import contextlib
import io
import sys
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


def check(context: RankContext, encoded: bytes) -> None:
    """Send the parent, for each planted mistake, the invariants that fail, by the name of the strategy."""
    with _errors_sent(context), joined(context, "gloo", 60.0) as group:
        found, jobs = {}, encoding.decoded(encoded, dict[str, tuple[str, str, str, Plan]])
        for title, (name, right, wrong, plan) in jobs.items():
            _plant(name, right, wrong)
            folder = Path(group.gather(tempfile.mkdtemp(dir=context.stack_file.parent))[0])
            cases = [case for case in plan.cases if not strategy_in(case).again]
            place = RankPlace(group, None, folder, lambda: None)
            stage = step.TrainingStage(cases[0], plan.settings, 1, place)
            steps = {strategy_in(case).name: step.TrainingStep(case, stage) for case in cases}
            for made in steps.values():
                made.verify()
            found[title] = {
                strategy: sorted({check.invariant for check in made.checks() if check.ok is False})
                for strategy, made in steps.items()
            }
            _plant(name, right, right)
        context.send({"kind": "done", "found": found})


def _plant(name: str, right: str, wrong: str) -> None:
    """Run the code of a module with another text; with equal texts, as it is."""
    if name:
        text = Path(MODULES[name].__file__).read_text()
        assert text.count(right) == 1, f"{name} has this text {text.count(right)} times: {right}"
        exec(compile(text.replace(right, wrong), MODULES[name].__file__, "exec"), vars(MODULES[name]))
        runner.SYNCHRONISERS = synchronisers.SYNCHRONISERS | torch_synchronisers.SYNCHRONISERS


def run(context: RankContext, encoded: bytes) -> None:
    """Run a program, whose arguments are the rank and a file for all ranks; send the parent what it prints."""
    with _errors_sent(context), contextlib.redirect_stdout(io.StringIO()) as out:
        sys.argv = ["program", str(context.rank), str(context.stack_file.parent / "program-store")]
        exec(compile(encoding.decoded(encoded, str), "program", "exec"), {"__name__": "__main__"})
        context.send({"kind": "done", "printed": out.getvalue()})


@contextlib.contextmanager
def _errors_sent(context: RankContext):
    try:
        yield
    except BaseException as error:
        traceback.print_exc()
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})
