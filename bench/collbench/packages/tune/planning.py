"""Plan the rounds of `tune`: launches that measure the choices of each cell in alternation.

In: a configuration, a machine, and the choices to measure in each cell. Out: launches. All launches with one number of
ranks are alive at the same time and take turns: one side has the default, and each other side sets one choice per
operation in the library.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collbench.config.models import Config
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import Case, Launch, Machine, Plan, Variables
from collbench.model.units import format_bytes, format_seconds, format_share
from collbench.packages.tune.catalog import Library
from collbench.packages.tune.rules import DEFAULT, FROM_FILE, Cell, Pick, Picks, cell_of
from collbench.planning import plan as planning
from collbench.planning.plan import FEWEST_S


@dataclass(frozen=True, slots=True)
class TuneStage:
    """A stage of a run."""

    name: str
    # Stages before this one.
    after: tuple[str, ...]
    # Share of the budget that is spent when the stage ends.
    until: float
    # Fewest and most rounds of the stage.
    fewest: int
    most: int
    # True if the library is asked which choice it ran, if it reports this.
    probes: bool = False


RACE = TuneStage("race", (), 0.4, 3, 12)
PROOF = TuneStage("proof", ("race",), 0.85, 8, 32)
CHECK = TuneStage("check", ("race", "proof"), 1.0, 6, 32, probes=True)
ONLY_CHECK = TuneStage("check", (), 1.0, 8, 32, probes=True)
# Rounds that a race should have: the time per case is reduced if they do not fit its share of the budget.
WANTED = 4


@dataclass(frozen=True, slots=True)
class TuneSide:
    """A launch of one side of a round."""

    launch: Launch
    # Operation → choice that the cases of this side set in the library; empty for the side with the default.
    assigned: Mapping[str, Pick]


def cells(config: Config, machine: Machine, seed: int, library: Library) -> tuple[Plan, dict[Cell, Case]]:
    """Return the plan of one launch of the configuration, and the case of each cell. Raises BenchError."""
    plan = planning.expand(config.model_copy(update={"launches": 1, "budget": None}), machine, seed)
    reason = planning.unmeasurable_reason(plan)
    if reason is not None:
        raise UnmeasurableError(f"{config.name}: nothing can be measured here", reason)
    if any(case.oversubscribed for case in plan.cases):
        raise UnmeasurableError(
            "tune: ranks share a GPU (oversubscribe_gpu), so their times cannot show which choice is faster"
        )
    for op in (*config.operations, *(case.op for case in plan.cases)):
        if op not in library.operations:
            allowed = ", ".join(library.operations)
            raise ConfigError(f"tune: operations: {op}: {library.name} has no setting for it; allowed: {allowed}")
    cases: dict[Cell, Case] = {}
    for case in plan.cases:
        if named := [name for name, _ in case.settings.pairs if library.decides.fullmatch(name)]:
            raise ConfigError(f"tune: env.{named[0]}: tune finds this out: leave it out")
        other = cases.setdefault(cell_of(case), case)
        if other != case:
            where = f"{case.op}, {case.world_size} ranks, {format_bytes(case.size_bytes)}"
            raise ConfigError(
                f"tune: {where}: {other.key} and {case.key} fall into the same cell, because a rule file knows only "
                "operation, ranks and size: keep one of them"
            )
    return plan, cases


def candidates(library: Library, cases: Mapping[Cell, Case]) -> dict[Cell, list[Pick]]:
    """Return the choices of each cell, without the default."""
    return {cell: library.choices(cell.op, cell.ranks, cell.size) for cell in cases}


def launches(
    library: Library,
    cases: Mapping[Cell, Case],
    wanted: Mapping[Cell, Sequence[Pick]],
    number: int,
    seed: int,
    file_settings: Variables | None = None,
) -> list[list[TuneSide]]:
    """Return the sides of a round, in one list per number of ranks. wanted: choices per cell, without the default.

    file_settings: variables that load a rule file; one side reads it, in place of the sides that set choices.
    """
    groups = []
    for ranks in sorted({cell.ranks for cell in wanted}):
        here = [cell for cell in sorted(wanted) if cell.ranks == ranks and wanted[cell]]
        random.Random(f"{seed}/{number}/{ranks}").shuffle(here)
        if not here:
            continue
        picks_by_op: dict[str, list[Pick]] = {}
        for cell in sorted(here):
            picks_by_op.setdefault(cell.op, []).extend(c for c in wanted[cell] if c not in picks_by_op.get(cell.op, []))
        sides: list[tuple[list[Case], dict[str, Pick]]] = [([_with(cases[cell], Variables()) for cell in here], {})]
        if file_settings is not None:
            sides.append(([_with(cases[cell], file_settings) for cell in here], dict.fromkeys(picks_by_op, FROM_FILE)))
        else:
            for place in range(max(map(len, picks_by_op.values()))):
                picks = {op: choices[place] for op, choices in picks_by_op.items() if place < len(choices)}
                settings = library.settings(picks)
                own = [cell for cell in here if picks.get(cell.op) in wanted[cell]]
                sides.append(([_with(cases[cell], settings) for cell in own], picks))
        groups.append(
            [TuneSide(Launch(rows[0].backend, ranks, number, tuple(rows)), chosen) for rows, chosen in sides if rows]
        )
    return groups


def _with(case: Case, settings: Variables) -> Case:
    return replace(case, settings=Variables((*case.settings.pairs, *settings.pairs)))


def assigned_in(groups: Sequence[Sequence[TuneSide]]) -> dict[str, dict[str, Pick]]:
    """Return the choices that the cases of these sides set in the library, as `rules.Assigned`.

    Sides with different numbers of ranks that read one file have equal variables, but may have different operations.
    """
    assigned: dict[str, dict[str, Pick]] = {}
    for side in (side for group in groups for side in group):
        assigned.setdefault(str(side.launch.cases[0].settings), {}).update(side.assigned)
    return assigned


def fitted(plan: Plan, groups: Sequence[Sequence[TuneSide]], budget_s: float, stage: TuneStage) -> Plan:
    """Return the plan, with less time per case if the first stage does not fit its share of the budget.

    Raises ConfigError if even the shortest time per case does not fit.
    """
    sampling, share_s = plan.settings.sampling, stage.until * budget_s
    order = tuple(side.launch for group in groups for side in group)

    def sampled(seconds: float) -> Plan:
        shorter = replace(sampling, seconds_per_case=seconds, warmup_s=min(sampling.warmup_s, seconds))
        return replace(plan, settings=replace(plan.settings, sampling=shorter))

    once = planning.estimate_s(replace(plan, order=()))  # time of a run apart from its launches
    usual, shortest = (planning.estimate_s(replace(each, order=order)) - once for each in (plan, sampled(FEWEST_S)))
    if shortest * stage.fewest > share_s:
        raise ConfigError(
            f"--budget {format_seconds(budget_s)}: the {stage.name} may use {format_share(stage.until)} of it, and "
            f"{stage.fewest} launches of every choice take about {format_seconds(shortest * stage.fewest)}: set "
            f"--budget {math.ceil(shortest * stage.fewest / stage.until)}s or more, fewer sizes or fewer operations"
        )
    wanted = share_s / max(stage.fewest, WANTED)
    if usual <= wanted:
        return plan
    return sampled(max(FEWEST_S, sampling.seconds_per_case * (wanted - shortest) / max(usual - shortest, 1e-9)))


def undecided(alive: Mapping[Cell, Sequence[Pick]]) -> dict[Cell, list[Pick]]:
    """Return the choices for the next round of a race: cells with several choices left; without the default."""
    return {cell: [c for c in left if c != DEFAULT] for cell, left in alive.items() if len(left) > 1}


def only_tried(table: Picks) -> dict[Cell, list[Pick]]:
    """Return the choices that are compared with the default."""
    return {cell: [pick] for cell, pick in table.items() if pick != DEFAULT}
