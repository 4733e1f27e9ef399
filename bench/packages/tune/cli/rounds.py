"""Measure the stages of `tune` into the folder of a run: rounds of launches whose sides take turns.

In: the folder of a run, and what each round is to measure. Out: lines in its samples.jsonl, and launches in its
plan.json, which grows: what was measured so far decides what is measured next. Nothing else is kept but how many rounds
each stage had, so a run that was interrupted goes through the same rounds, and measures what they lack.
"""

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.measuring import add_line, recorded_sessions
from bench.cli.terminal import say
from bench.launch import mpirun, sweep
from bench.launch.ranks import Starter
from bench.launch.turns import Measuring, Turn, measure_in_turns
from bench.model.errors import UnmeasurableError
from bench.model.facts import Session
from bench.model.records import Case, Json, Launch, Plan, Samples, Variables
from bench.model.units import counted, format_seconds
from bench.packages.tune import planning as rounds_of
from bench.packages.tune.catalog import Library
from bench.packages.tune.planning import TuneStage
from bench.packages.tune.rules import Cell, Pick, TuneState
from bench.planning import plan as planning
from bench.store import encoding, folders
from bench.store.folders import Journal

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

STATE = "tune.json"


class TuneRounds:
    """Measures the rounds of a run of `tune`."""

    def __init__(
        self, path: Path, plan: Plan, samples: Sequence[Samples], state: TuneState, library: Library,
        found: Mapping[Cell, Case], quiet: bool,
    ) -> None:  # fmt: skip
        # The case of each cell is in `found`.
        self.path, self.state, self.library, self.found = path, state, library, found
        # All samples that the run has so far are in `samples`.
        self.plan, self.samples = plan, list(samples)
        self._quiet, self._began = quiet, time.monotonic() - state.spent_s
        # True if ranks may be told to read a rule file. In a job no rank takes a path from another.
        self.reads_files = False
        self._append: Callable[[bytes], None]
        self._starter: Starter
        self._launched: Callable[[Json], None]

    @contextlib.contextmanager
    def opened(self, sessions: Sequence[Session], coordinator: "Coordinator | None") -> Iterator[None]:
        """Context in which rounds can be measured; it records the session."""
        with Journal(self.path) as journal, contextlib.ExitStack() as stack:
            facts = {"": coordinator.facts() if coordinator else {}}
            self._launched = stack.enter_context(recorded_sessions(self.path, sessions, facts, [self.plan]))[""].append
            self._append = journal.append
            self.reads_files = coordinator is None
            self._starter = (
                coordinator.launcher
                if coordinator is not None
                else stack.enter_context(mpirun.ByBackend(sweep.preload([self.plan])))
            )
            yield

    def stage(
        self,
        stage: TuneStage,
        asked: Callable[[int], Mapping[Cell, Sequence[Pick]]],
        file_settings: Variables | None = None,
    ) -> range:
        """Measure rounds until the stage's share of the budget is spent or nothing is asked; return their numbers.

        asked: from the number of the stage's rounds so far, the choices that the next one measures in each cell.
        """
        state = self.state
        first = sum(state.rounds.get(name, 0) for name in stage.after)
        if stage.name not in state.rounds:
            known = max((launch.number for launch in self.plan.order), default=0) - first
            done, latest_s, probed = 0, 0.0, False
            while done < stage.most and any((wanted := asked(done)).values()):
                began = time.monotonic()
                left_s = stage.until * state.budget_s - (began - self._began)
                if done >= max(stage.fewest, known) and left_s < latest_s:
                    break
                number, done = first + done + 1, done + 1
                groups = rounds_of.launches(self.library, self.found, wanted, number, state.seed, file_settings)
                self._measure(groups, number, probe=stage.probes and not probed)
                probed = probed or number > known + first
                latest_s = time.monotonic() - began
                self._save()
                told = f"{counted(sum(map(len, wanted.values())), 'choice')} in {sum(map(bool, wanted.values()))} cells"
                if not self._quiet:
                    say(f"{stage.name} {done}: {told}, {format_seconds(time.monotonic() - self._began)}", err=True)
            state.rounds[stage.name] = done
            self._save()
        return range(first + 1, first + 1 + state.rounds[stage.name])

    def _save(self) -> None:
        self.state.spent_s = round(time.monotonic() - self._began, 2)
        write_state(self.path, self.state)

    def _measure(self, groups: Sequence[Sequence[Launch]], number: int, probe: bool) -> None:
        """Measure what is missing of a round. probe: also ask the library what it chooses, where it tells.

        Raises UnmeasurableError if nothing was measured.
        """
        known = {(launch.number, launch.cases) for launch in self.plan.order}
        new = tuple(launch for group in groups for launch in group if (launch.number, launch.cases) not in known)
        if new:
            order = (*self.plan.order, *new)
            self.plan = replace(self.plan, order=order, launches=max(launch.number for launch in order))
            folders.write(self.path / folders.PLAN, json.dumps(encoding.plan_to_json(self.plan), indent=1) + "\n")
        for group in groups:
            sides = {str(place): launch for place, launch in enumerate(group)}
            seed = f"{self.state.seed}/{group[0].number}/{group[0].world_size}"
            names = random.Random(seed).sample([*sides], len(sides))
            measure = partial(self._side, sides, probe)
            measure_in_turns(names, seed, self.state.alternate is None, measure)
        of_round = [samples.failure for samples in self.samples if samples.launch == number]
        if all(of_round):
            why = of_round[0].text if of_round and of_round[0] else "no rank answered"
            raise UnmeasurableError(f"nothing was measured in launch {number}: {why}; collbench resume {self.path}")

    def _side(self, sides: Mapping[str, Launch], probe: bool, name: str, turn: Turn) -> Measuring[None]:
        one = replace(self.plan, order=(sides[name],), launches=1)
        one = replace(one, order=tuple(planning.remaining(one, self.samples)))

        def keep(line: bytes) -> None:
            self._append(line)
            samples = add_line(self.samples, line)
            if samples.failure is not None:
                say(f"failed: {samples.case.key}: {samples.failure.text}", err=True)

        log, watching = self.path / folders.LOG, sweep.Silent()
        return sweep.sweep(one, (), self._starter, keep, log, self._launched, watching, turn=turn, probe=probe)


def write_state(path: Path, state: TuneState) -> None:
    """Write what must be known to go on."""
    folders.write(path / STATE, json.dumps(asdict(state), indent=1) + "\n")
