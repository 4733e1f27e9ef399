"""Measure two sides in pairs of launches until there is a verdict; for `ab` and `run`.

In: the folder of a run of two sides. Out: more lines in its samples.jsonl. All state can be read from the folder
again, so an interrupted run goes on where it stopped.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from collbench.catalog.variables import AT_START
from collbench.cli.measuring import recorded_sessions, starter
from collbench.cli.rounds import RoundsInTurns
from collbench.launch import sweep
from collbench.launch.launcher import preload
from collbench.launch.ranks import Starter
from collbench.launch.side_process import SideProcess
from collbench.launch.turns import Measuring, Turn
from collbench.model.errors import BenchError
from collbench.model.facts import Session
from collbench.model.records import AbState, Ending, EndReason, Json, Plan, Samples, Side
from collbench.planning import plan as planning
from collbench.report.progress import PairProgress
from collbench.store import folders
from collbench.store.encoding import SampleLine
from collbench.store.folders import SIDES, Journal, RunFolder

if TYPE_CHECKING:
    from collbench.analyze.pairs import PairedCase
    from collbench.launch.coordinator import Coordinator


@dataclass(slots=True)
class _TwoSides:
    """The plans, samples and environments of a run of two sides, by side."""

    # Plans with all launches that could be needed.
    plans: dict[str, Plan]
    samples: dict[str, list[Samples]]
    environments: dict[str, list[Session]]

    @staticmethod
    def of(folder: RunFolder) -> "_TwoSides":
        """Read the plans, samples and environments from the folder of a run."""
        runs = folder.runs.items()
        samples = {side: list(run.samples) for side, run in runs}
        return _TwoSides(folder.plans, samples, {side: run.environment for side, run in runs})

    def cases(self) -> "list[PairedCase]":
        """Return the cases of both sides in pairs."""
        from collbench.analyze import pairs

        return pairs.paired_cases(*(pairs.timed_cases(self.samples[side], self.plans[side]) for side in SIDES))

    def incomplete(self) -> dict[int, list[str]]:
        """Return the launches that were begun but not completed: number → the sides that are incomplete."""
        begun = range(1, 1 + max((s.launch for side in SIDES for s in self.samples[side]), default=0))
        lacking = {number: [side for side in SIDES if not self.complete(side, number)] for number in begun}
        return {number: sides for number, sides in lacking.items() if sides}

    def complete(self, side: str, number: int) -> bool:
        """Return whether all cases of a launch have been measured."""
        plan = one_launch(self.plans[side], number)
        return bool(plan.order) and planning.done(plan, self.launch_samples(side, number)) is None

    def seconds_of_pair(self, number: int, budget_s: float) -> dict[str, dict[str, float]]:
        """Return, by side and key of a case, seconds for its calls in this pair; the pairs before it decide."""
        from collbench.analyze import lengths

        last = min(number - 1, lengths.MOST_USED)
        before = {side: [s for s in samples if s.launch <= last] for side, samples in self.samples.items()}
        starts_s: dict[int, float] = {}
        for samples in (*before["a"], *before["b"]):
            starts_s[samples.launch] = min(samples.unix_s, starts_s.get(samples.launch, samples.unix_s))
        least_s = max(self.plans[side].settings.sampling.seconds_per_case for side in SIDES)
        cases = replace(self, samples=before).cases()
        seconds = lengths.seconds_of_next_pair(cases, starts_s, budget_s, least_s)
        timed = [(case, seconds[case.key]) for case in cases if case.key in seconds]
        return {"a": {case.a.case.key: s for case, s in timed}, "b": {case.b.case.key: s for case, s in timed}}

    def launch_samples(self, side: str, number: int) -> list[Samples]:
        """Return the samples of one launch of a side."""
        return [samples for samples in self.samples[side] if samples.launch == number]


def one_launch(plan: Plan, number: int) -> Plan:
    """Return the plan of one launch."""
    return replace(plan, order=tuple(launch for launch in plan.order if launch.number == number), launches=1)


def check_in_job(sides: Mapping[str, Side]) -> None:
    """Raise BenchError if a side has its own interpreter or variables of AT_START: a job's processes run already."""
    for letter, side in sides.items():
        if side.python not in {None, sys.executable}:
            raise BenchError(
                f"ab in a job: side {letter.upper()} cannot have an interpreter of its own ({side.python})"
            )
        if late := sorted(AT_START & {*side.variables}):
            raise BenchError(f"ab in a job: {', '.join(late)}: read when a process starts, and these already run")


def measure_sides(path: Path, coordinator: "Coordinator | None" = None, quiet: bool = False) -> None:
    """Measure pairs until `analyze.pairs.why_end` gives a reason or the budget is spent; record it in the manifest."""
    with Journal(path) as journal, contextlib.ExitStack() as stack:
        folder = RunFolder(path)
        state, measured = folder.ab, _TwoSides.of(folder)
        if state.ended and not measured.incomplete():
            return
        plans = [measured.plans[side] for side in SIDES]
        starters, facts = stack.enter_context(_starters(plans, folder.sides, coordinator))
        sessions = [session for side in SIDES for session in measured.environments[side]]
        records = stack.enter_context(recorded_sessions(path, sessions, facts, plans))
        progress = stack.enter_context(PairProgress(Console(stderr=True, quiet=quiet), state.budget_s, state.spent_s))

        def show_failure(side: str, samples: Samples) -> None:
            assert samples.failure is not None  # noqa: S101 - it is called for failures
            progress.print_failure(f"side {side}: {samples.failure.text}")

        rounds = RoundsInTurns(journal, show_failure, state.spent_s, measured.samples, state.alternate)

        def measure_pair(missing: Sequence[str], number: int) -> None:
            seconds = measured.seconds_of_pair(number, state.budget_s)

            def measure(side: str, keep: Callable[[SampleLine], None], turn: Turn) -> Measuring[None]:
                plan, log = one_launch(measured.plans[side], number), path / folders.LOG
                plan = replace(plan, order=tuple(planning.remaining(plan, measured.launch_samples(side, number))))
                launched, probe = records[side].append, number == 1
                return sweep.sweep(
                    plan, (), starters[side], keep, log, launched, turn=turn, in_turns_s=seconds[side], probe=probe
                )

            rounds.measure(missing, f"{state.seed}/{number}", measure)

        try:
            for number, missing in measured.incomplete().items() if state.ended else ():
                measure_pair(missing, number)  # lost measurements; `state.ended` stays
            state.ended = state.ended or _until_decided(path, measured, state, rounds, measure_pair, progress)
        finally:
            state.spent_s = round(rounds.spent_s, 2)
            folders.write_ab(path, state)


def _until_decided(
    path: Path,
    measured: _TwoSides,
    state: AbState,
    rounds: RoundsInTurns,
    measure_pair: Callable[[Sequence[str], int], None],
    progress: PairProgress,
) -> Ending:
    """Measure pair after pair; return why measuring ended. measure_pair: takes the incomplete sides, launch number.

    Each look is recorded in the manifest, because its significance levels depend on the earlier looks. After a change
    was named, the same number of pairs is measured again, if the budget suffices. They estimate the size of the change
    without bias, because no stopping rule ended them when the change looked large.
    """
    from collbench.analyze import pairs

    def look(share: float) -> Ending | None:
        """Judge the pairs so far, when this share of the budget is spent; return why to end, or None."""
        state.looks = [look for look in state.looks if look[0] < count] + [(count, round(min(share, 1.0), 4))]
        folders.write_ab(path, state)
        judged = pairs.look(measured.cases(), state.looks, state.min_change)
        progress.show_look(judged.whole, [judgement.verdict for judgement in judged.judgements.values()], count)
        why = pairs.why_end(judged, count, state.each)
        if why is not None and judged.names_a_change:
            state.decided = why
            folders.write_ab(path, state)
        return why

    def due(number: int) -> bool:
        """Return whether this is the first pair, or a pair that is complete already."""
        return number == 1 or all(measured.complete(side, number) for side in SIDES)

    count, last_look, most = 0, max((look[0] for look in state.looks), default=0), pairs.LOOKS[-1]
    for number in rounds.within(state.budget_s, most, due):
        if state.decided and number > 2 * last_look:
            return state.decided
        order = list(SIDES)
        random.Random(f"{state.seed}/{number}").shuffle(order)
        measure_pair([side for side in order if not measured.complete(side, number)], number)
        count = number
        progress.show_pairs(count, rounds.spent_s)
        if number in pairs.LOOKS and number > last_look and not state.decided:
            why, last_look = look(rounds.spent_s / state.budget_s), number
            if why is not None and not state.decided:
                return why
    if state.decided or count == most:
        return state.decided or Ending(EndReason.MOST_PAIRS, count)
    why = look(1.0) if count >= pairs.FEWEST_PAIRS else None
    return why or Ending(EndReason.BUDGET, count)


# ── starting the ranks of a side ─────────────────────────────────────────────────────────────────
@contextlib.contextmanager
def _starters(
    plans: Sequence[Plan], sides: Mapping[str, Side], coordinator: "Coordinator | None"
) -> Iterator[tuple[Mapping[str, Starter], dict[str, Json]]]:
    """Yield by side what starts its ranks, and facts about the side in addition to this process's.

    Outside a job, each side gets its own process if one side has its own interpreter or variables, because the sides
    must not differ in anything else. Otherwise the sides share a fork server, or the processes of the job.
    """
    with contextlib.ExitStack() as stack:
        if coordinator is not None:
            starters = {letter: replace(coordinator.launcher, variables=s.variables) for letter, s in sides.items()}
            yield starters, dict.fromkeys(SIDES, coordinator.facts())
        elif any(side.variables or side.python not in {None, sys.executable} for side in sides.values()):
            processes, modules, remedy = {}, preload(plans), "; go on with: collbench resume RUN"
            for letter, side in sides.items():
                name, python = f"side {letter.upper()}", side.python or sys.executable
                process = SideProcess(name, python, side.variables, modules, remedy)
                processes[letter] = stack.enter_context(process)
            yield processes, {letter: {"host": process.wait_until_ready()} for letter, process in processes.items()}
        else:
            yield dict.fromkeys(SIDES, stack.enter_context(starter(None, plans))), {side: {} for side in SIDES}
