"""Run a training step as a workload: one call is a step under one strategy, with its parts as inner stamps.

In: the cases of a scenario, the joined `Group`, the plan's `Settings`. Out: a `TrainingStep` for each case, which has
checked its strategy before it is timed, and a `StepDetail` on request. All strategies of a launch share a
`TrainingStage`: link, batches, memory, and the results that checks compare. Every rank makes the same calls in the same
order.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo  # used by the first compiled call: the fork server loads it once, in place of each rank

from collbench.catalog.backends import BACKENDS
from collbench.machine import environment, host
from collbench.model.records import Case, InvariantCheck, Settings
from collbench.packages.training.catalog.strategies import kind
from collbench.packages.training.rank import invariants, memory, runner
from collbench.packages.training.rank.invariants import CheckContext
from collbench.packages.training.rank.runner import Batch, Runner
from collbench.packages.training.rank.transport import EmulatedLink, RankInfo, SharedTensors, Transport
from collbench.packages.training.step_records import (
    CallRecord,
    Gradient,
    RankMemory,
    RankTimeline,
    StepDetail,
    Timeline,
)
from collbench.packages.training.synchronisation import (
    PARTS,
    TAILS,
    Scenario,
    Strategy,
    label,
    options_of,
    scenario_of,
    step_settings,
    strategy_in,
)
from collbench.rank.collectives import Call
from collbench.rank.process import one_line
from collbench.rank.stage import RankPlace
from collbench.rank.workload import Stamps, Workload
from collbench.store import encoding

# Timed repetitions of a strategy's calls alone; an untimed one precedes them.
REPEATS = 5
DRAWN_BATCHES = 4
# Steps up to the recorded one: torch rebuilds its buckets after the first backward; the third is like all later ones.
TRACED_STEPS = 3
# Attempts to measure memory: a release is seen only by chance if a library's thread may be the last to use a tensor.
ATTEMPTS = 3
# Setting that cuBLAS needs to sum in one order, so that bits can be compared; to be set before its first call.
REPEATABLE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Exceptions of building and running a user's model or strategy; on any rank, they become the failed check `runs`.
REFUSALS = (RuntimeError, ValueError, TypeError, ImportError, AttributeError)


def prepare_process(case: Case, rank: int) -> None:
    """Set up this process for the scenario of a case.

    On an emulated link, which needs no core, each rank gets a core of its own if there are enough. On gloo ranks are
    not pinned: the thread that communicates would share the core and be ten times slower.
    """
    torch.set_num_threads(options_of(case).threads)
    if BACKENDS[case.backend].device == "cuda":
        environment.apply([REPEATABLE])
    cores = sorted(os.sched_getaffinity(0))
    if options_of(case).link and len(cores) >= case.world_size:
        os.sched_setaffinity(0, {cores[rank]})


def workloads(case: Case, settings: Settings, launch: int, place: RankPlace) -> Callable[[Case], TrainingStep]:
    """Return the function that makes the workload of each strategy of a launch."""
    stage = TrainingStage(case, settings, launch, place)
    return lambda each: TrainingStep(each, stage)


class TrainingStage:
    """The state that all strategies of a launch share on a rank. The file of an emulated link is in `place.folder`."""

    def __init__(self, case: Case, settings: Settings, launch: int, place: RankPlace) -> None:
        prepare_process(case, place.group.rank)
        self.scenario: Scenario = scenario_of(settings, case)
        group, self.settings, self.tick = place.group, settings, place.tick
        self.group = group
        self.place = RankInfo.of_group(group)
        self.transport: Transport = self.place.real
        if (link := self.scenario.link) is not None:
            file = place.folder / "link"
            if group.rank == 0:
                EmulatedLink(link, 0, group.world_size, file)
            group.barrier()
            self.transport = EmulatedLink(link, group.rank, group.world_size, file)
        self.order = runner.ready_order(self.scenario, self.place, group.gather, settings.seed)
        self.shared = SharedTensors()
        self.checks = CheckContext(self.scenario, self.place, group.gather, settings.seed, self.order, [])
        # Each rank draws batches of its own, different in each launch.
        self._dice = torch.Generator().manual_seed(settings.seed + launch * 1000 + group.rank)
        self._batches: list[Batch] = []

    def built(self, strategy: Strategy, traced: bool = False, shared: SharedTensors | None = None) -> Runner:
        """Build a strategy's runner. traced: stamp each gradient and call. shared: tensors if not the stage's."""
        return runner.build(
            strategy, self.scenario, self.place, self.transport, self.order, self.settings.seed, traced,
            shared or self.shared,
        )  # fmt: skip

    def batch(self, drawn_by: Runner, number: int) -> Batch:
        """Return the batch of step `number`; all strategies use the same batches."""
        if not self._batches:
            self._batches = [drawn_by.draw(self._dice, self.scenario.options.batch) for _ in range(DRAWN_BATCHES)]
        return self._batches[number % DRAWN_BATCHES]


class TrainingStep(Workload):
    """A step under one strategy. The constructor warms it up and checks it; a refused strategy makes no steps."""

    waits_on_host = True

    def __init__(self, case: Case, stage: TrainingStage) -> None:
        self._strategy, self._stage = strategy_in(case), stage
        self._checks: list[InvariantCheck] = []
        self._calls: tuple[int, ...] | None = None
        # Of each step of a block, which is one iteration.
        self._marks: list[tuple[Any, ...]] = []
        self._number, self._verified = 0, False
        self._runner: Runner | None = None
        problem = None
        try:
            self._runner = self._warm()
        except REFUSALS as error:
            problem = one_line(error)
        if problems := [text for text in stage.group.gather(problem) if text]:
            self._checks.append(InvariantCheck("runs", False, problems[0]))
        if self._refusal is not None:  # I3 must not compare strategies with a refused strategy
            self._runner = None
            stage.checks.finals.pop(label(self._strategy), None)

    def _warm(self) -> Runner:
        """Make the warm-up steps, and check the invariants that concern one strategy."""
        stage, context, strategy, entry = self._stage, self._stage.checks, self._strategy, kind(self._strategy)
        trained = stage.built(strategy)
        if not context.sizes:
            context.sizes.extend(p.numel() * p.element_size() for p in trained.parameters)
        moved = stage.scenario.link is None and stage.scenario.shape is None
        if not entry.sharded:
            stage.shared.lend_states(trained.optimizer)
        if moved and not entry.shards_parameters:
            self._checks.append(invariants.check_start(context, trained))
        every = strategy.every or 1  # averaged parameters are equal on all ranks at its multiples
        steps = math.ceil(step_settings(stage.settings).warmup_steps / every) * every
        for number in range(steps):
            stage.transport.sent.clear()
            trained.step(stage.batch(trained, number))
            stage.tick()
        if moved:
            self._checks.append(invariants.check_end(context, trained, steps))
        if not entry.sharded:
            stage.shared.adopt_states(trained.optimizer)
        call_checks, self._calls = invariants.check_calls(context, trained)
        self._checks += [*call_checks, invariants.check_shards(context, trained)]
        self._checks += invariants.check_training(context, strategy, self._calls)
        stage.tick()
        return trained

    @property
    def _refusal(self) -> InvariantCheck | None:
        return next((check for check in self._checks if check.ok is False), None)

    def verify(self) -> str | None:
        """Return the first violated invariant. I3 compares strategies, so it is checked after all of them are made."""
        if not self._verified:
            self._checks.append(invariants.check_bits(self._stage.checks, self._strategy))
            self._verified = True
        refusal = self._refusal
        return None if refusal is None else f"{refusal.invariant}: {refusal.text}"

    def checks(self) -> tuple[InvariantCheck, ...]:
        return tuple(self._checks)

    # ── timed ────────────────────────────────────────────────────────────────────────────────────
    def prepare(self) -> Call:
        trained = self._runner
        if trained is None:
            return lambda: None
        batch = self._stage.batch(trained, self._number)
        self._number += 1

        def step() -> None:
            trained.step(batch)
            self._marks.append(trained.marks)

        return step

    def stamps(self) -> list[Stamps]:
        """Return the stamps of the block that has just ended, which is one iteration, and free its gradients."""
        times: list[dict[str, int]] = []
        if self._runner is not None:
            if not self._runner.watch.on_host:  # its marks are made anew in each step
                self._marks = self._marks[-1:] * len(self._marks)
            times = [*map(self._runner.parts, self._marks)]
            self._stage.transport.sent.clear()
            self._runner.optimizer.zero_grad()
        sums = {name: sum(step[name] for step in times) for name in PARTS}
        stamps: Stamps = {**sums, TAILS: [step["tail"] for step in times]}
        self._number, self._marks = 0, []
        return [stamps]

    # ── outside the rounds ───────────────────────────────────────────────────────────────────────
    def detail(self) -> StepDetail:
        """Measure a step's calls back to back, one step with stamps per gradient, and memory; equal on every rank."""
        entry, stage = kind(self._strategy), self._stage
        assert self._runner is not None  # noqa: S101 - as above
        alone_s, timeline = self._alone_s(self._runner), None
        if entry.all_reduces:
            # The runner is not kept in a variable: its gradients are freed before the next runner is built.
            timeline = self._timeline(stage.built(self._strategy, traced=True))
            stage.tick()
        return StepDetail(self._calls, alone_s, timeline, self._memory())

    def _memory(self) -> tuple[RankMemory, ...] | None:
        """Return the memory of the strategy alone, with its own tensors, per rank; None if not requested or unknown."""
        stage = self._stage
        if not step_settings(stage.settings).step_memory or stage.scenario.shape is not None:
            return None

        def train(note: memory.Note) -> None:
            alone = stage.built(self._strategy, shared=SharedTensors())
            note("initial")
            hook = alone.optimizer.register_step_pre_hook(lambda *_: note("before"))
            alone.step(stage.batch(alone, 0))
            note("after")
            hook.remove()
            for number in range(1, TRACED_STEPS):
                alone.step(stage.batch(alone, number))
            stage.group.device.synchronize()
            note("end")
            alone.sync.close()

        for _ in range(ATTEMPTS):
            noted = memory.peaks(stage.place.device, train)
            own = [noted[name] for name in ("initial", "before", "after", "end")] if noted else None
            ranks = stage.group.gather(own)
            stage.transport.sent.clear()
            stage.tick()
            if all(ranks):
                return tuple(RankMemory(*sizes) for sizes in ranks if sizes)
        return None

    def _alone_s(self, trained: Runner) -> tuple[float, ...]:
        """Return the seconds of the calls of a step without computing, on the slowest rank."""
        stage, entry = self._stage, kind(self._strategy)
        trained.transport.sent.clear()
        trained.step(stage.batch(trained, 0))
        calls = trained.sync.calls()
        if not calls or not entry.all_reduces:
            return ()
        dtype = getattr(torch, stage.scenario.case.dtype)
        device = "meta" if stage.scenario.shape is not None else stage.place.device
        tensors = [torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=device) for nbytes in calls]
        times_ns = []
        for _ in range(1 + REPEATS):
            stage.group.barrier()
            began = time.perf_counter_ns()
            if entry.one_by_one:
                for tensor in tensors:
                    stage.transport.all_reduce(tensor).wait()
            else:
                for handle in [stage.transport.all_reduce(tensor) for tensor in tensors]:
                    handle.wait()
            stage.group.device.synchronize()
            times_ns.append(time.perf_counter_ns() - began)
            stage.tick()
        return tuple(max(ranks) / 1e9 for ranks in zip(*stage.group.gather(times_ns[1:]), strict=True))

    def _timeline(self, traced: Runner) -> Timeline:
        """Record one step in detail: when each gradient was ready, when each call was launched and done.

        The step is not one of the timed steps, because a stamp for each gradient takes time.
        """
        link, group, scenario = traced.transport, self._stage.group, self._stage.scenario
        host_clock, began = link.mark, 0
        link.mark = traced.watch.mark
        for number in range(TRACED_STEPS):
            link.sent.clear()
            link.stamped = number == TRACED_STEPS - 1
            group.barrier()
            began = time.perf_counter_ns()
            traced.step(self._stage.batch(traced, number))
        link.stamped, link.mark = False, host_clock
        traced.sync.close()
        group.device.synchronize()
        group.barrier()
        gathered = group.gather(encoding.encoded(_traced_step(traced, group.rank, began)))
        ranks: list[RankTimeline] = [encoding.decoded(step, RankTimeline) for step in gathered]
        names = [(name.removeprefix("module."), p) for name, p in traced.sync.module.named_parameters()]
        gradients = tuple(
            Gradient(name, p.numel(), p.numel() * p.element_size()) for name, p in names if p.requires_grad
        )
        # Clocks of different hosts cannot be compared; there, steps count as begun together, at the barrier.
        one_host = len(set(group.gather(host.hostname()))) == 1
        first = min(rank.begin_s for rank in ranks)
        return Timeline(
            gradients if scenario.shape is None else scenario.shape.gradients,
            tuple(replace(rank, begin_s=rank.begin_s - first if one_host else 0.0) for rank in ranks),
        )


def _traced_step(traced: Runner, rank: int, began: int) -> RankTimeline:
    """Return the last step of this rank. began: its beginning, in ns of the host's clock."""
    begin, forward, backward, usable, _, _, end, *_ = traced.marks

    def since(instant: Any) -> float:
        return traced.watch.between(begin, instant) / 1e9

    ready = tuple(since(traced.ready.get(number, backward)) for number in range(len(traced.parameters)))
    calls = []
    for position, sent in enumerate(traced.transport.sent):
        numbers: Sequence[int] = tuple(traced.sync.buckets[position]) if traced.sync.buckets else ()
        launched = since(sent.launched_ns)
        complete = max((ready[number] for number in numbers), default=launched)
        calls.append(CallRecord(sent.nbytes, complete, launched, since(sent.done_ns or usable), tuple(numbers)))
    return RankTimeline(
        rank, began / 1e9, since(forward), since(backward), since(usable), since(end), ready, tuple(calls)
    )
