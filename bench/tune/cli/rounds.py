"""Measure rounds into the folder of a run: launches of several sides that take turns.

In: the folder of a run, and launches. Out: lines in its samples.jsonl, and the launches in its plan.json, which grows
as the run goes on: what it has so far decides what is measured next.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.measuring import recorded_sessions
from bench.launch import mpirun, sweep
from bench.launch.ranks import Starter
from bench.launch.turns import Measuring, Turns, drive
from bench.model.facts import Session
from bench.model.records import Json, Launch, Plan, Samples
from bench.planning import plan as planning
from bench.store import encoding, folders
from bench.store.folders import Journal

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator


class Rounds:
    """A run that is being measured. plan: what it has so far. samples: likewise."""

    def __init__(
        self, path: Path, plan: Plan, samples: Sequence[Samples], alternate: bool, failed: Callable[[str], None]
    ) -> None:
        self.path, self.plan, self.samples = path, plan, list(samples)
        self._alternate, self._failed = alternate, failed
        self._append: Callable[[bytes], None]
        self._starter: Starter
        self._launched: Callable[[Json], None]

    @contextlib.contextmanager
    def opened(self, sessions: Sequence[Session], coordinator: "Coordinator | None") -> Iterator[None]:
        """Context in which rounds can be measured; it records the session."""
        with Journal(self.path) as journal, contextlib.ExitStack() as stack:
            facts = {"": coordinator.facts() if coordinator else {}}
            self._launched = stack.enter_context(recorded_sessions(self.path, sessions, facts))[""].append
            self._append = journal.append
            self._starter = (
                coordinator.launcher
                if coordinator is not None
                else stack.enter_context(mpirun.ByBackend(sweep.preload([self.plan])))
            )
            yield

    def measure(self, groups: Sequence[Sequence[Launch]], probe: bool = False) -> None:
        """Measure what is missing of a round. probe: also ask the library what it chooses, where it tells."""
        known = {(launch.number, launch.cases) for launch in self.plan.order}
        new = tuple(launch for group in groups for launch in group if (launch.number, launch.cases) not in known)
        if new:
            order = (*self.plan.order, *new)
            self.plan = replace(self.plan, order=order, launches=max(launch.number for launch in order))
            text = json.dumps(encoding.plan_to_json(self.plan), indent=1)
            folders.write(self.path / folders.PLAN, text + "\n")
        for group in groups:
            sides = {str(place): launch for place, launch in enumerate(group)}
            dice = random.Random(f"{self.plan.settings.seed}/{group[0].number}/{group[0].world_size}")
            names = dice.sample([*sides], len(sides))
            for together in [[name] for name in names] if self._alternate else [names]:
                turns = Turns(together, f"{self.plan.settings.seed}/{group[0].number}/{group[0].world_size}")
                drive(*(self._side(sides[name], name, turns, probe) for name in together))

    def _side(self, launch: Launch, name: str, turns: Turns, probe: bool) -> Measuring[None]:
        one = replace(self.plan, order=(launch,), launches=1)
        one = replace(one, order=tuple(planning.remaining(one, self.samples)))

        def keep(line: bytes) -> None:
            self._append(line)
            samples = encoding.samples_from_line(line)
            others = [s for s in self.samples if (s.case, s.launch) != (samples.case, samples.launch)]
            self.samples = [*others, samples]
            if samples.failure is not None:
                self._failed(f"{samples.case.key}: {samples.failure.text}")

        yield from sweep.sweep(
            one,
            (),
            self._starter,
            keep,
            self.path / folders.LOG,
            self._launched,
            sweep.Silent(),
            turn=turns.of(name),
            probe=probe,
        )
        turns.end(name)
