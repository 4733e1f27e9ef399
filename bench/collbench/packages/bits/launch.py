"""Run the calls of a plan on data whose sums are rounded, and keep the results of all ranks.

In: a plan, a private folder. Out: for each launch and case, the facts that ranks report on their results, and a folder
with the raw results. Times nothing, and writes no run: `bits.analyze` compares.
"""

import json
from collections.abc import Callable
from pathlib import Path

from collbench.launch.ranks import Starter
from collbench.launch.supervisor import run_launch
from collbench.launch.turns import drive
from collbench.model.errors import RankError, UnmeasurableError
from collbench.model.records import Job, Json, Launch, Plan
from collbench.model.units import counted
from collbench.packages.bits.planning import BitsJob, place

# File with one line per launch, in the order of the plan: for each case, the facts that its ranks reported.
FACTS = "facts.jsonl"


def collect(plan: Plan, launcher: Starter, folder: Path, begun: Callable[[Launch], None] = lambda _: None) -> None:
    """Run every launch of the plan. Raises UnmeasurableError, with the reason, if a launch fails.

    begun: called with each launch before it starts.
    """
    with (folder / FACTS).open("w", encoding="utf-8") as facts:
        for position, launch in enumerate(plan.order):
            begun(launch)
            facts.write(json.dumps(_results(plan, launch, launcher, place(folder, position))) + "\n")


def facts_of(folder: Path) -> list[list[Json]]:
    """Return for each launch of the plan, in order, and for each of its cases: `ranks`, the facts of each rank."""
    return [json.loads(line) for line in (folder / FACTS).read_text(encoding="utf-8").splitlines()]


def _results(plan: Plan, launch: Launch, launcher: Starter, folder: Path) -> list[Json]:
    folder.mkdir()
    lines: list[Json] = []
    settings = plan.settings.needed_by(launch.cases)
    job = BitsJob(Job(launch, settings), str(folder))
    launching = run_launch(
        lambda: launcher.start(launch.world_size, "collbench.packages.bits.rank:main", job),
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
