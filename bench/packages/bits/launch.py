"""Have ranks make the calls of a plan on data whose sums are rounded, and keep what they received.

In: a plan, a private folder. Out: for each launch and case, what its ranks said of their results, and a folder with
the raw ones. Times nothing, and writes no run: `bits.analyze` compares.
"""

import json
from collections.abc import Callable
from pathlib import Path

from bench.launch.ranks import Starter
from bench.launch.supervisor import run_launch
from bench.launch.turns import drive
from bench.model.errors import RankError, UnmeasurableError
from bench.model.records import Job, Json, Launch, Plan
from bench.model.units import counted
from bench.packages.bits.planning import BitsJob, place

# One line for each launch: its position in the plan, and for each case what its ranks said.
FACTS = "facts.jsonl"


def collect(plan: Plan, launcher: Starter, folder: Path, begun: Callable[[Launch], None] = lambda _: None) -> None:
    """Run every launch of the plan; raises UnmeasurableError, with the reason, if one of them fails.

    begun: takes each launch before it starts.
    """
    with (folder / FACTS).open("w", encoding="utf-8") as facts:
        for position, launch in enumerate(plan.order):
            begun(launch)
            facts.write(json.dumps(_results(plan, launch, launcher, place(folder, position))) + "\n")


def facts_of(folder: Path) -> list[list[Json]]:
    """For each launch of the plan, in order, and for each of its cases: `ranks`, what each rank said."""
    return [json.loads(line) for line in (folder / FACTS).read_text(encoding="utf-8").splitlines()]


def _results(plan: Plan, launch: Launch, launcher: Starter, folder: Path) -> list[Json]:
    folder.mkdir()
    lines: list[Json] = []
    settings = plan.settings.needed_by(launch.cases)
    job = BitsJob(Job(launch, settings), str(folder))
    launching = run_launch(
        lambda: launcher.start(launch.world_size, "bench.packages.bits.rank:main", job),
        settings.timeout_s,
        sampled=lambda line, _: lines.append(json.loads(line)),
    )
    try:
        (outcome,) = drive(launching)
    except RankError as error:
        raise UnmeasurableError(f"{launch.backend}, {counted(launch.world_size, 'rank')}: {error}") from None
    if outcome.failure is not None:
        raise UnmeasurableError(f"{launch.backend}, {counted(launch.world_size, 'rank')}: {outcome.failure.text}")
    return lines
