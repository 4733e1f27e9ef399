"""Measure a whole plan, launch by launch, in fresh processes; after a failure, go on in new processes.

In: a plan, the samples that exist already, and callbacks for results. Out: lines for the journal, one per case and
launch, failures included. A failure costs only its case: the remaining cases of the launch go on in new processes. If
the ranks cannot even join, all cases of the launch and of later launches of such processes get that failure. With a
time budget, the first launch of every case is measured, later launches that would begin after its end are left out, and
the remaining time is spent on further launches of the cases with the widest intervals. The budget adds launches, not
iterations: the between-launch variance is larger than the within-launch variance, and the report gives the interval
over launches (docs/method.md, "Launches").
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from collbench.catalog import collectives
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.launch import causes
from collbench.launch.ranks import RANK, Starter
from collbench.launch.supervisor import LaunchOutcome, run_launch
from collbench.launch.turns import Measuring, Turn
from collbench.machine import gpus, host, nccl_log
from collbench.model.errors import RankError
from collbench.model.projection import grouped
from collbench.model.records import Case, Job, Json, Launch, Plan, Samples
from collbench.planning.plan import process_kind, remaining
from collbench.stats.intervals import LaunchScatter, launch_interval, launch_scatter, within_launch
from collbench.store.encoding import SampleLine, samples_to_line

# An interval that is still wide after this many launches will not get narrow in a sensible time.
MOST_LAUNCHES = 200
# A case with fewer launches is measured again, however narrow its interval is.
FEWEST_TO_STOP = 5


class Observer(Protocol):
    """Receives progress events."""

    def launching(self, launch: Launch) -> None:
        """Receive a launch whose ranks are about to start."""

    def round_begins(self, launch: Launch, number: int) -> None:
        """Receive the number of a round that begins. A round visits every case once; number 0 is the warm-up."""

    def first_times(self, lines: Sequence[SampleLine]) -> None:
        """Receive the lines of a first launch after one round; the complete lines follow when the launch ends."""

    def ended(self, case: Case, failure: str | None) -> None:
        """Receive a measured case. failure: the reason of its failure, or None."""

    def extended(self, further: int) -> None:
        """Receive the number of measurements that are added to the announced number; negative if fewer are made."""


class Silent:
    """An observer that shows nothing."""

    def launching(self, launch: Launch) -> None: ...
    def round_begins(self, launch: Launch, number: int) -> None: ...
    def first_times(self, lines: Sequence[SampleLine]) -> None: ...
    def ended(self, case: Case, failure: str | None) -> None: ...
    def extended(self, further: int) -> None: ...


# Takes the outcome of a case: its line for samples.jsonl, and why it has no result, or None.
Keep = Callable[[Case, SampleLine, str | None], None]


def sweep(
    plan: Plan,
    done: Sequence[Samples],
    launcher: Starter,
    append: Callable[[SampleLine], None],
    log: Path,
    launched: Callable[[Json], None],
    observer: Observer = Silent(),  # noqa: B008 - it has no state
    before_go: Callable[[Launch, Sequence[Json]], None] = lambda *_: None,
    turn: Turn | None = None,
    in_turns_s: Mapping[str, float] = {},
    probe: bool = True,
    after_failure: bool = True,
) -> Measuring[None]:
    """Measure every case and launch of the plan that is not among the samples in `done`.

    append: takes each line of samples.jsonl. launched: takes a record of each launch, with the facts of its ranks.
    before_go: takes a launch and the facts of its ranks when they are ready to measure. turn: the turn of a side that
    takes turns with another side. in_turns_s: by key of a case, seconds for its calls in a launch with turns, if not
    `seconds_per_case`. probe: whether launches at the end record NCCL's choices. after_failure: whether the
    rest of the plan is measured after a launch that failed.
    """
    spent = Spent()
    for samples in done if plan.budget_s is not None else ():
        spent.add(samples)

    def keep(case: Case, line: SampleLine, failure: str | None) -> None:
        append(line)
        # Only a budget needs the numbers here: decoding a long line takes time.
        if plan.budget_s is not None:
            spent.add(line.samples)
        observer.ended(case, failure)

    def measure(launch: Launch, probing: bool = False) -> Measuring[LaunchOutcome]:
        """Start the ranks of one launch, watch them, and end them."""
        observer.launching(launch)
        settings = plan.settings.needed_by(launch.cases)
        seconds = tuple(in_turns_s.get(case.key, settings.sampling.seconds_per_case) for case in launch.cases)
        job = Job(launch, settings, probing, in_turns_s=seconds if turn is not None else None)
        in_order, meter = iter(launch.cases), host.health_meter(BACKENDS[launch.backend].device == "cuda")
        outcome = yield from run_launch(
            lambda: launcher.start(launch.world_size, RANK, job, log.resolve()),
            plan.settings.timeout_s,
            begun=lambda number: observer.round_begins(launch, number),
            shown=lambda lines: observer.first_times([SampleLine(line) for line in lines.splitlines()]),
            sampled=lambda line, failure: keep(next(in_order), SampleLine(line), failure),
            before_go=lambda facts: before_go(launch, facts),
            log=log,
            turn=turn,
            meanwhile=meter,
        )
        return replace(outcome, health=gpus.merged([{host.hostname(): meter.record}, outcome.health]))

    measured: list[Launch] = []
    # Outcomes of launches that never began: the next launch of such processes would wait as long, for nothing.
    hopeless: dict[tuple[object, ...], LaunchOutcome] = {}
    for launch in _order(plan, done, spent, observer):
        measured.append(launch)
        unmeasured, kind = launch, process_kind(launch.cases[0])
        while unmeasured.cases:
            outcome = hopeless.get(kind)
            if outcome is None:
                outcome = yield from measure(unmeasured)
                launched(_record(unmeasured, outcome))
                failure, began = outcome.failure, outcome.ready_s is not None or unmeasured is not launch
                if failure is not None and failure.kind != "lost" and not began:
                    text = f"launch {launch.number} never began, so this one is not tried: {failure.text}"
                    hopeless[kind] = replace(outcome, failure=replace(failure, text=text))
            unmeasured = _after(unmeasured, outcome, keep)
            if outcome.failure is not None and not after_failure:
                return
            if outcome.stuck:
                raise RankError(f"{outcome.stuck}; measured cases are kept, go on once it has ended")
    begun = [launch for launch in measured if process_kind(launch.cases[0]) not in hopeless]
    for launch in _to_probe(begun) if probe else ():
        outcome = yield from measure(launch, probing=True)
        launched(_record(launch, outcome) | {"chosen": _chosen(launch, outcome)})


def _order(plan: Plan, done: Sequence[Samples], spent: "Spent", observer: Observer) -> Iterator[Launch]:
    """Yield the planned launches that are not done; with a budget, those within it, and then further launches."""
    planned = remaining(plan, done)
    if plan.budget_s is None:
        yield from planned
        return
    ends = time.monotonic() + plan.budget_s - sum(map(sum, spent.wall_s.values()))
    for position, launch in enumerate(planned):
        if launch.number > 1 and time.monotonic() >= ends:
            observer.extended(-sum(len(later.cases) for later in planned[position:]))
            return
        yield launch
    while more := next_launch(plan, spent, ends - time.monotonic()):
        observer.extended(sum(len(launch.cases) for launch in more))
        yield from more


def _after(launch: Launch, outcome: LaunchOutcome, keep: Keep) -> Launch:
    """Record the failure of a launch, if there was one; return the launch with the cases that remain.

    The case that rank 0 was in failed. Other cases of the same rounds remain, because their times are lost. Before the
    first case, ranks only allocate the memory for all cases: the largest case is recorded as failed. If cases are
    compared round by round, all except the failed case remain.
    """
    together = OPERATIONS[launch.cases[0].op].against
    unmeasured = launch.cases if together and outcome.measured < len(launch.cases) else launch.cases[outcome.measured :]
    if outcome.failure is None or not unmeasured:
        return replace(launch, cases=())
    hopeless = outcome.ready_s is None
    at = outcome.position
    guilty = max(unmeasured, key=collectives.buffer_bytes) if at is None else launch.cases[max(at, outcome.measured)]
    failed = unmeasured if hopeless else (guilty,)
    failure = outcome.failure
    if failure.kind not in {"lost", "hang"}:
        failure = replace(failure, text=failure.text + causes.text(launch, not hopeless))
    failure = replace(failure, kind="start") if hopeless and failure.kind != "lost" else failure
    for case in failed:
        samples = Samples(case, launch.number, time.time(), failure=failure)
        keep(case, SampleLine(samples_to_line(samples)), failure.text)
    return replace(launch, cases=tuple(case for case in unmeasured if case not in failed))


def _record(launch: Launch, outcome: LaunchOutcome) -> Json:
    return {
        "backend": launch.backend,
        "world_size": launch.world_size,
        "launch": launch.number,
        "ready_s": None if outcome.ready_s is None else round(outcome.ready_s, 4),
        "clocks": outcome.clocks,
        "open_to": list(outcome.open_to),
        "health": outcome.health,
        "ranks": sorted(outcome.facts, key=lambda facts: int(facts["rank"])),
    }


# ── the choices of NCCL, recorded in a separate launch ───────────────────────────────────────────
def _to_probe(measured: Sequence[Launch]) -> list[Launch]:
    """Return one launch per kind of processes whose backend reports its choices (NCCL), with all its cases."""
    cases = dict.fromkeys(case for launch in measured for case in launch.cases if case.backend == "nccl")
    kinds = grouped((case for case in cases if OPERATIONS[case.op].typed), process_kind)
    return [Launch("nccl", alike[0].world_size, 0, tuple(alike)) for alike in kinds.values()]


def _chosen(launch: Launch, outcome: LaunchOutcome) -> Json:
    """Return, by case, NCCL's choices for its last call, and the transports between ranks."""
    ways = nccl_log.transports(outcome.chosen[0]) if outcome.chosen else []
    choices: Json = {}
    for case, text in zip(launch.cases, outcome.chosen[1:], strict=False):
        calls = list(nccl_log.choices(text))
        if calls:
            choices[case.key] = {**dataclasses.asdict(calls[-1]), "transports": ways}
    return choices


# ── a budget ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(slots=True)
class Spent:
    """Time spent and results so far, by case key."""

    # Mean time of the case in each launch.
    means_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Wall time of the case in each launch.
    wall_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Relative half-width of the interval within the last launch.
    within: dict[str, float] = field(default_factory=dict)
    # Number of the last launch.
    launches: int = 0

    def add(self, samples: Samples) -> None:
        """Add the samples of one case and launch. If the case failed, only its launch counts."""
        self.launches = max(self.launches, samples.launch)
        if samples.failure is None and samples.timed is not None and samples.usage is not None:
            interval = within_launch(samples.timed.slowest_s, samples.timed.blocks)
            self.means_s[samples.case.key].append(interval.value)
            self.within[samples.case.key] = interval.relative_half_width
            self.wall_s[samples.case.key].append(samples.usage.wall_s)


def next_launch(plan: Plan, spent: Spent, left_s: float) -> list[Launch]:
    """Return launches with the cases whose intervals are wider than requested, once each: widest first, in `left_s`.

    If no precision is requested, no interval is narrow enough. An interval counts as narrow if it is narrow now and was
    narrow one launch ago: launches that agree by chance do not stop the case. In simulations, intervals that stopped at
    the first narrow launch covered 90 to 92 %; with this rule 93 to 95 %, for two launches more.
    """
    if spent.launches >= MOST_LAUNCHES:
        return []
    requested = plan.settings.sampling.relative_error or 0.0
    wide: list[tuple[float, float, Case]] = []
    alike = grouped(plan.cases, lambda case: (case.backend, case.scheduling))
    scatters = {kind: launch_scatter([np.log(spent.means_s[c.key]) for c in of]) for kind, of in alike.items()}
    for case in plan.cases:
        means, scatter = spent.means_s[case.key], scatters[case.backend, case.scheduling]
        narrow = len(means) >= FEWEST_TO_STOP and max(_width(means, scatter), _width(means[:-1], scatter)) <= requested
        if means and not narrow:
            # Cases of equal width (after a single launch) are ordered by the width within the launch.
            wide.append((_width(means, scatter), spent.within[case.key], case))
    cases: dict[tuple[object, ...], list[Case]] = {}
    for _, _, case in sorted(wide, key=lambda widths: widths[:2], reverse=True):
        kind = process_kind(case)
        cost = float(np.mean(spent.wall_s[case.key])) + (0.0 if kind in cases else BACKENDS[case.backend].start_s)
        if cost <= left_s:
            left_s -= cost
            cases.setdefault(kind, []).append(case)
    return [Launch(c[0].backend, c[0].world_size, spent.launches + 1, tuple(c)) for c in cases.values()]


def _width(means_s: list[float], scatter: LaunchScatter) -> float:
    """Return the relative half-width of the interval that a report would give; infinite with a single launch."""
    return launch_interval(np.array(means_s), scatter).relative_half_width if len(means_s) > 1 else float("inf")
