"""Measure the stages of `tune` into the folder of a run: rounds of launches whose sides take turns.

In: the folder of a run, and the choices to measure in each round. Out: lines in its samples.jsonl, and launches in its
plan.json, which grows, because earlier samples decide the next round. The state keeps the number of rounds of each
stage that has ended, so an interrupted run goes through the same rounds, and measures their missing launches.
"""

import contextlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.measuring import recorded_sessions, starter
from collbench.cli.rounds import RoundsInTurns
from collbench.cli.terminal import say
from collbench.launch import sweep
from collbench.launch.ranks import Starter
from collbench.launch.turns import Measuring, Turn
from collbench.model.errors import StoreError, UnmeasurableError
from collbench.model.facts import Session
from collbench.model.records import Case, Json, Launch, Plan, Samples, Variables
from collbench.model.units import counted, format_seconds
from collbench.packages.tune import planning as rounds_of
from collbench.packages.tune.catalog import Library
from collbench.packages.tune.planning import TuneSide, TuneStage
from collbench.packages.tune.rules import Cell, Pick, TuneState
from collbench.planning import plan as planning
from collbench.store import encoding, folders
from collbench.store.encoding import SampleLine
from collbench.store.folders import Journal

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

STATE = "tune.json"


@dataclass
class TuneRounds:
    """Measures the rounds of a run of `tune`."""

    path: Path
    plan: Plan
    # All samples that the run has so far.
    samples: list[Samples]
    state: TuneState
    library: Library
    # The case of each cell.
    found: Mapping[Cell, Case]
    quiet: bool
    # True if ranks may read a rule file. In a job, no rank accepts a path from another rank.
    reads_files: bool = False
    _rounds: RoundsInTurns = field(init=False)
    _starter: Starter = field(init=False)
    _launched: Callable[[Json], None] = field(init=False)

    @contextlib.contextmanager
    def opened(self, sessions: Sequence[Session], coordinator: "Coordinator | None") -> Iterator[None]:
        """Open a context in which rounds can be measured, and record the session."""
        with Journal(self.path) as journal, contextlib.ExitStack() as stack:
            facts = {"": coordinator.facts() if coordinator else {}}
            self._launched = stack.enter_context(recorded_sessions(self.path, sessions, facts, [self.plan]))[""].append
            state = self.state
            self._rounds = RoundsInTurns(journal, _say_failure, state.spent_s, {"": self.samples}, state.alternate)
            self.reads_files = coordinator is None
            self._starter = stack.enter_context(starter(coordinator, [self.plan]))
            yield

    def stage(
        self,
        stage: TuneStage,
        next_choices: Callable[[int], Mapping[Cell, Sequence[Pick]]],
        file_settings: Variables | None = None,
    ) -> range:
        """Measure rounds until the stage's share of the budget is spent or no choice is left; return their numbers.

        next_choices: called with the stage's number of rounds so far; returns the next round's choices per cell.
        """
        state, rounds = self.state, self._rounds
        first = sum(state.rounds.get(name, 0) for name in stage.after)
        if stage.name not in state.rounds:
            planned = max((launch.number for launch in self.plan.order), default=0) - first
            done, probed = 0, False
            least = planned or int(first == 0)
            for number in rounds.within(stage.until * state.budget_s, stage.most, lambda number: number <= least):
                if not any((wanted := next_choices(done)).values()):
                    break
                launch, done = first + number, number
                groups = rounds_of.launches(self.library, self.found, wanted, launch, state.seed, file_settings)
                self._measure(groups, launch, probe=stage.probes and not probed)
                probed = probed or number > planned
                self._save()
                text = f"{counted(sum(map(len, wanted.values())), 'choice')} in {sum(map(bool, wanted.values()))} cells"
                if not self.quiet:
                    say(f"{stage.name} {done}: {text}, {format_seconds(rounds.spent_s)}", err=True)
            else:
                if done < stage.fewest and any(next_choices(done).values()):
                    enough_s = math.ceil(state.budget_s * stage.fewest / max(done, 1))
                    text = f"{done} of {stage.fewest} launches fit into --budget {format_seconds(state.budget_s)}"
                    say(f"note: the {stage.name}: {text}; about --budget {enough_s}s is enough", err=True)
            state.rounds[stage.name] = done
            self._save()
        return range(first + 1, first + 1 + state.rounds[stage.name])

    def _save(self) -> None:
        self.state.spent_s = round(self._rounds.spent_s, 2)
        write_state(self.path, self.state)

    def _measure(self, groups: Sequence[Sequence[TuneSide]], number: int, probe: bool) -> None:
        """Measure the missing launches of a round. probe: also ask the library for its choice, if it reports this.

        Raises UnmeasurableError if nothing was measured.
        """
        planned = {(launch.number, launch.cases) for launch in self.plan.order}
        every = [side.launch for group in groups for side in group]
        new = tuple(launch for launch in every if (launch.number, launch.cases) not in planned)
        for variables, choices in rounds_of.assigned_in(groups).items():
            self.state.assigned.setdefault(variables, {}).update(choices)
        if new:
            self._save()
            order = (*self.plan.order, *new)
            self.plan = replace(self.plan, order=order, launches=max(launch.number for launch in order))
            folders.write(self.path / folders.PLAN, json.dumps(encoding.plan_to_json(self.plan), indent=1) + "\n")
        for group in groups:
            sides = {str(place): side.launch for place, side in enumerate(group)}
            seed = f"{self.state.seed}/{number}/{group[0].launch.world_size}"
            names = random.Random(seed).sample([*sides], len(sides))
            self._rounds.measure(names, seed, partial(self._side, sides, probe))
        failures = [samples.failure for samples in self.samples if samples.launch == number]
        if all(failures):
            why = failures[0].text if failures and failures[0] else "no rank answered"
            raise UnmeasurableError(f"nothing was measured in launch {number}: {why}; collbench resume {self.path}")

    def _side(
        self, sides: Mapping[str, Launch], probe: bool, name: str, keep: Callable[[SampleLine], None], turn: Turn
    ) -> Measuring[None]:
        side_plan = replace(self.plan, order=(sides[name],), launches=1)
        side_plan = replace(side_plan, order=tuple(planning.remaining(side_plan, self.samples)))
        log = self.path / folders.LOG
        return sweep.sweep(side_plan, (), self._starter, keep, log, self._launched, turn=turn, probe=probe)


def _say_failure(_: str, samples: Samples) -> None:
    assert samples.failure is not None  # noqa: S101 - it is called for failures
    say(f"failed: {samples.case.key}: {samples.failure.text}", err=True)


def read_state(path: Path) -> TuneState:
    """Read the state that a run needs to resume. Raises StoreError."""
    try:
        state: TuneState = encoding.decoded((path / STATE).read_bytes(), TuneState)
    except (OSError, ValueError) as error:
        raise StoreError(f"{path / STATE}: {error}") from None
    return state


def write_state(path: Path, state: TuneState) -> None:
    """Write the state that a run needs to resume."""
    folders.write(path / STATE, json.dumps(asdict(state), indent=1) + "\n")
